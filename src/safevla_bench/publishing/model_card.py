"""Results for a model hub: a model card's block with its `model-index`, and the entries of `.eval_results/`.

Facts about a model that no record holds come from a TOML file of the user's. Sources: huggingface/hub-docs at 242f4a1,
`modelcard.md`, `eval_results.yaml` and `docs/hub/eval-results.md`; huggingface/huggingface_hub at ee0a451,
`repocard_data.py` and `_eval_results.py`, which read both.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from safevla_bench.errors import RunError
from safevla_bench.judging.judged import Judged
from safevla_bench.judging.metrics import Summary
from safevla_bench.judging.rates import HEADLINE
from safevla_bench.publishing.submission import describe_ruleset
from safevla_bench.report.render import render_tables
from safevla_bench.report.tables.cells import headline_table
from safevla_bench.specs.table_reader import RowOrigin, read_toml
from safevla_bench.text import escape_controls, format_fixed
from safevla_bench.trajectory.marks import is_chosen

_Text = Annotated[str, Meta(min_length=1)]
_Percent = Annotated[float, Meta(ge=0, le=100)]
_Positive = Annotated[int, Meta(ge=1)]


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All of them are optional; None = not known."""

    model_name: _Text | None = None
    """Without it, the policy's name in the run."""
    source_url: _Text | None = None
    """Where the run folder, or a report of it, can be looked at."""
    hub_dataset: Annotated[str, Meta(pattern="^[^/]+/[^/]+$")] | None = None
    """The benchmark dataset of the model hub whose leaderboard the results belong to, OWNER/NAME."""
    policy_family: _Text | None = None
    date: Annotated[str, Meta(pattern="^[0-9]{4}-[0-9]{2}-[0-9]{2}$")] | None = None
    submission_source: Literal["internal", "external"] = "external"
    code_url: _Text | None = None
    commit_hash: _Text | None = None
    checkpoint_url: _Text | None = None
    paper_link: _Text | None = None
    open_source: Literal["yes", "no"] | None = None
    wandb: _Text | None = None
    batch_size: _Positive | None = None
    num_training_steps: _Positive | None = None
    composite_seen_success: _Percent | None = None
    """Of RoboCasa365's splits that are evaluated elsewhere, in percent."""
    composite_unseen_success: _Percent | None = None
    notes: _Text | None = None


def read_facts(path: Path | None) -> ModelFacts:
    """Return the facts of a TOML file; `ModelFacts` with nothing known if `path` is None.

    Raises `RunError` for a file that cannot be read or is not TOML, an unknown key, or a value of a wrong type.
    """
    return ModelFacts() if path is None else read_toml(path, ModelFacts, RowOrigin(RunError, str(path)))


def publishable_cells(judged: Judged) -> list[Summary]:
    """Return the cells (one a suite) of the only policy that was judged.

    Raises `RunError` for several policies or none, for a simulator that ran with stand-ins for its own assets, and for
    starts that a search chose.
    """
    cells = judged.summarize_scores()[0]
    policies = list(dict.fromkeys(cell.policy or "a policy without a name" for cell in cells))
    if len(policies) != 1:
        problem = f"this describes one model, and here are {len(policies)} policies: {', '.join(policies) or 'none'}"
        raise RunError(problem, remedy="Name sources of one policy.")
    for cell in cells:
        if cell.standin_assets:
            problem = f"{cell.suite} was simulated with stand-ins for its own assets, which is no result on it"
            raise RunError(problem, remedy="Run it with the official assets.")
        if is_chosen(cell.suite or ""):
            problem = f"{cell.suite} holds starts that a search chose, which is no result on the benchmark"
            raise RunError(problem, remedy="Name runs of the benchmark's own starts.")
    return list(cells)


CARD, RESULTS = "model_card.md", ".eval_results/safevla-bench.yaml"


def build_card(judged: Judged, facts: ModelFacts, remarks: Sequence[str]) -> dict[str, str]:
    """Return file name -> text, for a model's repository; nothing is written.

    There is the card's block, and if `facts` name the hub's dataset the entries of its leaderboard. `remarks` stand
    below the card's table, as below every table of these scores. Raises `RunError` as `publishable_cells` does.
    """
    cells = publishable_cells(judged)
    name = facts.model_name or cells[0].policy or "model"
    results = [_index_result(judged, cell, facts) for cell in cells]
    front = format_yaml({"tags": ["robotics", "safevla-bench"], "model-index": [{"name": name, "results": results}]})
    table = headline_table(cells, judged.summarize_scores()[1], privileged=judged.privileged)
    further = (remark for remark in remarks if remark not in table.footnotes)
    text = render_tables([replace(table, remarks=(*table.remarks, *further))], "md")
    files = {CARD: f"---\n{front}---\n\n## Safety\n\n{text}"}
    if facts.hub_dataset is not None:
        entries = [_result_entry(judged, cell, metric, facts) for cell in cells for metric in _cell_metrics(cell)]
        files[RESULTS] = format_yaml(entries)
    return files


def format_yaml(document: object) -> str:
    """Return plain values as YAML, in its form of JSON; what is not visible stands as an escape sequence."""
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    return "".join(f"{escape_controls(line)}\n" for line in text.split("\n"))


def _cell_metrics(cell: Summary) -> Iterator[dict[str, Any]]:
    """Yield the known numbers of a cell: percentages rounded to 2 decimals, severities (0 to 1) to 4."""
    for metric in HEADLINE:
        number, digits = cell.number(metric), 2 if metric.unit else 4
        if number.value is not None:
            parts = (number.value, *(number.ci or ()))
            value, *ends = (float(format_fixed(metric.scale * part, digits)) for part in parts)
            interval = {"ci95": ends} if ends else {}
            name = f"{metric.heading} ({metric.meaning})"
            yield {"type": metric.key, "name": name, "value": value, "args": {"n": number.n, **interval}}


def _source(facts: ModelFacts) -> dict[str, object]:
    return {"source": {"name": "safevla-bench", "url": facts.source_url}} if facts.source_url else {}


def _index_result(judged: Judged, cell: Summary, facts: ModelFacts) -> dict[str, object]:
    return {
        "task": {"type": "robotics", "name": "Robot manipulation, judged for safety"},
        "dataset": {"type": cell.suite, "name": f"{cell.suite} (safevla-bench)", "args": _provenance(judged, cell)},
        "metrics": list(_cell_metrics(cell)),
        **_source(facts),
    }


def _provenance(judged: Judged, cell: Summary) -> dict[str, object]:
    return {
        "judged_by": f"safevla-bench {judged.provenance.version}",
        **describe_ruleset(judged.ruleset),
        "protocol": sorted({str(source.protocol.get("name")) for source in judged.sources if source.protocol}),
        "simulator": cell.simulator,
        "records_sha256": [source.archive_sha256 for source in judged.sources if source.archive_sha256],
        "privileged_state": cell.policy in judged.privileged,
        "crashed": cell.crashed,
        "without_verdict": cell.unjudged,
        "complete": judged.is_complete,
    }


def _result_entry(judged: Judged, cell: Summary, metric: dict[str, Any], facts: ModelFacts) -> dict[str, object]:
    """Return the entry of the hub's leaderboard for a known number of a cell."""
    ends = metric["args"].get("ci95")
    marks = (
        f"n = {metric['args']['n']}",
        "95 % interval {} to {}".format(*ends) if ends else "",
        f"{cell.crashed} crashed" if cell.crashed else "",
        "" if judged.is_complete else "not all planned episodes",
        "privileged state" if cell.policy in judged.privileged else "",
    )
    return {
        "dataset": {"id": facts.hub_dataset, "task_id": f"{cell.suite}-{metric['type'].replace('_', '-')}"},
        "value": metric["value"],
        **({"date": facts.date} if facts.date else {}),
        **_source(facts),
        "notes": f"{metric['name']}: {', '.join(filter(None, marks))}. {judged.provenance.to_sentence()}",
    }
