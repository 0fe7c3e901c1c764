"""Results for a model hub: a model card's block with its `model-index`, and the entries of `.eval_results/`.

Facts about a model that no record holds come from a TOML file of the user's. Sources: huggingface/hub-docs at 242f4a1,
`modelcard.md`, `eval_results.yaml` and `docs/hub/eval-results.md`; huggingface/huggingface_hub at ee0a451,
`repocard_data.py` and `_eval_results.py`, which read both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from safevla_bench.errors import Place, RunError
from safevla_bench.judging.judged import Judged
from safevla_bench.judging.metrics import Summary
from safevla_bench.judging.rates import HEADLINE, SAFETY, SBU, SR, UNSAFE_SUCCESS, VSI, VSI_UNSAFE
from safevla_bench.report.render import render_tables
from safevla_bench.report.tables.cells import headline_table
from safevla_bench.text import escape_controls, format_fixed
from safevla_bench.trajectory.marks import is_chosen

_Text = Annotated[str, Meta(min_length=1)]
_Percent = Annotated[float, Meta(ge=0, le=100)]
_Positive = Annotated[int, Meta(ge=1)]


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
    if path is None:
        return ModelFacts()
    try:
        return msgspec.toml.decode(path.read_bytes(), type=ModelFacts)
    except (OSError, UnicodeDecodeError, msgspec.MsgspecError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        remedy = f"It is TOML with keys of {', '.join(ModelFacts.__struct_fields__)}."
        raise RunError(f"cannot be read: {reason}", remedy=remedy, place=Place(file=str(path))) from None


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


_YAML_WORDS = ("null", "true", "false", "yes", "no", "on", "off", "y", "n")
CARD, RESULTS = "model_card.md", ".eval_results/safevla-bench.yaml"


class _CardMetric(NamedTuple):
    """One number of a cell as a hub shows it: of a rate in percent; `interval` is () if it is not known."""

    key: str
    name: str
    value: float
    n: int
    interval: tuple[float, ...]


def build_card(judged: Judged, facts: ModelFacts, remarks: Sequence[str]) -> dict[str, str]:
    """Return file name -> text, for a model's repository; nothing is written.

    There is the card's block, and if `facts` name the hub's dataset the entries of its leaderboard. `remarks` stand
    below the card's table, as below every table of these scores. Raises `RunError` for several policies or none, and
    for a simulator that ran with stand-ins for its own assets.
    """
    cells = publishable_cells(judged)
    name = facts.model_name or cells[0].policy or "model"
    model = {"name": name, "results": [_index_result(judged, cell, facts) for cell in cells]}
    front = format_yaml({"tags": ["robotics", "safevla-bench"], "model-index": [model]})
    table = headline_table(cells, judged.summarize_scores()[1], privileged=judged.privileged)
    further = (remark for remark in remarks if remark not in table.footnotes)
    text = render_tables([replace(table, remarks=(*table.remarks, *further))], "md")
    files = {CARD: f"---\n{front}---\n\n## Safety\n\n{text}"}
    if facts.hub_dataset is not None:
        files[RESULTS] = format_yaml([*_result_entries(judged, cells, facts, facts.hub_dataset)])
    return files


_CARD_NAMES = {
    SR: "Success rate SR (%)",
    SAFETY: "Safety (%)",
    SBU: "Success but unsafe SBU (%)",
    UNSAFE_SUCCESS: "P[unsafe | success] (%)",
    VSI: "Violation severity VSI (0 to 1)",
    VSI_UNSAFE: "VSI of unsafe episodes (0 to 1)",
}


def _cell_metrics(cell: Summary) -> Iterator[_CardMetric]:
    """Yield the known numbers of a cell: percentages rounded to 2 decimals, severities (0 to 1) to 4."""
    for metric in HEADLINE:
        number, digits = cell.number(metric), 2 if metric.unit else 4
        if number.value is not None:
            parts = (number.value, *(number.ci or ()))
            value, *ends = (float(format_fixed(metric.scale * part, digits)) for part in parts)
            yield _CardMetric(metric.key, _CARD_NAMES[metric], value, number.n, tuple(ends))


def _index_result(judged: Judged, cell: Summary, facts: ModelFacts) -> dict[str, object]:
    metrics = [
        {
            "type": metric.key,
            "name": metric.name,
            "value": metric.value,
            "args": {"n": metric.n, **({"ci95": list(metric.interval)} if metric.interval else {})},
        }
        for metric in _cell_metrics(cell)
    ]
    source = {} if facts.source_url is None else {"source": {"name": "safevla-bench", "url": facts.source_url}}
    return {
        "task": {"type": "robotics", "name": "Robot manipulation, judged for safety"},
        "dataset": {"type": cell.suite, "name": f"{cell.suite} (safevla-bench)", "args": _provenance(judged, cell)},
        "metrics": metrics,
        **source,
    }


def _provenance(judged: Judged, cell: Summary) -> dict[str, object]:
    provenance = judged.provenance
    protocols = {str(source.protocol.get("name")) for source in judged.sources if source.protocol}
    return {
        "judged_by": f"safevla-bench {provenance.version}",
        "library": provenance.library.name,
        "library_digest": provenance.library.digest,
        "registry_digest": provenance.registry.digest,
        "capabilities": provenance.capabilities,
        "protocol": sorted(protocols),
        "simulator": cell.simulator,
        "records_sha256": [source.archive_sha256 for source in judged.sources if source.archive_sha256],
        "privileged_state": cell.policy in judged.privileged,
        "crashed": cell.crashed,
        "without_verdict": cell.unjudged,
        "complete": judged.is_complete,
    }


def _result_entries(
    judged: Judged, cells: Sequence[Summary], facts: ModelFacts, dataset: str
) -> Iterator[dict[str, object]]:
    """Yield an entry of the hub's leaderboard for each known number of each cell; `dataset` is OWNER/NAME."""
    origin = judged.provenance.to_sentence()
    date = {"date": facts.date} if facts.date else {}
    source = {"source": {"url": facts.source_url, "name": "safevla-bench"}} if facts.source_url else {}
    for cell in cells:
        marks = f"; {cell.crashed} crashed" if cell.crashed else ""
        marks += "" if judged.is_complete else "; not all planned episodes"
        marks += "; privileged state" if cell.policy in judged.privileged else ""
        for metric in _cell_metrics(cell):
            interval = ", 95 % interval {} to {}".format(*metric.interval) if metric.interval else ""
            yield {
                "dataset": {"id": dataset, "task_id": f"{cell.suite}-{metric.key.replace('_', '-')}"},
                "value": metric.value,
                **date,
                **source,
                "notes": f"{metric.name}, n = {metric.n}{interval}{marks}. {origin}",
            }


def format_yaml(document: object, indent: int = 0) -> str:
    """Return mappings, lists and plain values as YAML: block style, every text in quotes, `indent` spaces at the left.

    Raises `ValueError` for NaN and infinity, and `TypeError` for any other type.

    >>> print(format_yaml({"a": [1, {"b": "c: d", "e": []}], "f": None}), end="")
    a:
    - 1
    - b: "c: d"
      e: []
    f: null
    """
    pad = " " * indent
    if isinstance(document, Mapping) and document:
        return "".join(f"{pad}{_yaml_key(str(key))}:{_yaml_value(value, indent)}" for key, value in document.items())
    if isinstance(document, list | tuple) and document:
        return "".join(f"{pad}- {format_yaml(item, indent + 2)[indent + 2 :]}" for item in document)
    return f"{pad}{_yaml_scalar(document)}\n"


def _yaml_key(key: str) -> str:
    return key if re.fullmatch(r"[a-z]+([-_][a-z0-9]+)*", key) and key not in _YAML_WORDS else _yaml_scalar(key)


def _yaml_value(value: object, indent: int) -> str:
    if isinstance(value, Mapping | list | tuple) and value:
        return "\n" + format_yaml(value, indent + 2 * isinstance(value, Mapping))
    return f" {_yaml_scalar(value)}\n"


def _yaml_scalar(value: object) -> str:
    plain = escape_controls(value) if isinstance(value, str) else value
    text = json.dumps(plain, ensure_ascii=False, allow_nan=False)
    return re.sub(r"^(-?\d+)e", r"\1.0e", text) if isinstance(value, float) else text
