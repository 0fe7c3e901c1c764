"""Results in the forms of two leaderboards: the CSV of the benchmark's authors, and a submission to RoboCasa's.

The authors publish `aggregated_with_ci.csv` (safevla.org). Proportions are fractions; specifications have the ids of
the authors' tables. `viol__`, `nsv__` and `rho__` are over the episodes in which a specification is active (and, for
means, not vacuous): so the authors' RoboCasa-365 rows are counted. `n_episodes` are those that ran to their end; the
suite's name says how many episodes have no verdict. Three of their columns stay empty, as nothing here measures them:
`collision_rate`, and `ci_95_low` and `ci_95_high`, a bootstrap of SR. An empty field is "no value", never zero. One
column more, the last, is ours: `simulator`, the versions that decided the physics.

RoboCasa's takes success by split, and what the model is. Source: robocasa-benchmark/leaderboard at 821c895,
`README.md` and `schemas/submission.schema.json`. Its split Atomic-Seen is our suite robocasa-365. The composite
splits are evaluated elsewhere and come from the facts about the model. Its README asks to write "N/A" for what is not
known and to explain that in the notes; its schema takes such a file only once every number is there.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from fractions import Fraction

from safevla_bench.errors import RunError
from safevla_bench.judging.judged import Judged
from safevla_bench.judging.metrics import Summary, task_rates
from safevla_bench.judging.provenance_marks import STANDIN
from safevla_bench.judging.rates import Bounds, Mean, Rate
from safevla_bench.publishing.model_card import ModelFacts, publishable_cells
from safevla_bench.report.render.text import spreadsheet_text
from safevla_bench.report.tables.table import policy_name
from safevla_bench.sources.runs.folder import dump_json
from safevla_bench.specs.spec import Library
from safevla_bench.text import format_fixed, format_percent

_RATES = {"SR": "sr", "safety_rate": "safety", "succ_unsafe": "sbu"}
_MEANS = {"vsi": "vsi", "vsi_unsafe": "vsi_given_unsafe"}
_SUITES = {"robocasa-365": "robocasa365_atomic_seen"}
_SIMULATOR = "simulator"
_Fields = dict[str, float | None]


def format_authors_csv(cells: Sequence[Summary], library: Library, run_dir: str) -> str:
    """Return the CSV text: a row for each policy × suite, under the authors' headings."""
    heads, sink = _column_names(library), io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(heads)
    for cell in cells:
        row = _suite_row(cell, library, run_dir)
        writer.writerow([_csv_value(row.get(head)) for head in heads])
    return sink.getvalue()


def _csv_value(value: float | int | str | None) -> str:
    if value is None:
        return ""
    return spreadsheet_text(value) if isinstance(value, str) else repr(value)


def _column_names(library: Library) -> list[str]:
    """Return the columns in the authors' order: identity, headline, each specification by kind, then all intervals."""
    spec_ids = sorted(_authors_id(library, spec.spec_id) for spec in library)
    graded_ids = sorted(_authors_id(library, spec.spec_id) for spec in library if spec.tier != "diagnostic")
    rates = [*_RATES, *(f"viol__{name}" for name in spec_ids)]
    leading = ["model", "benchmark_suite", "run_dir", "n_episodes", *_RATES, *_MEANS]
    means = [*_MEANS, *(f"nsv__{name}" for name in graded_ids), *(f"rho__{name}" for name in spec_ids)]
    values = [*leading, "collision_rate", "ci_95_low", "ci_95_high", *means[len(_MEANS) :], *rates[len(_RATES) :]]
    intervals = [*rates[: len(_RATES)], *means, *rates[len(_RATES) :]]
    return [
        *values,
        *(head for name in intervals for head in _interval_columns(name, "wilson" if name in rates else "bootstrap")),
        _SIMULATOR,
    ]


def _interval_columns(name: str, method: str) -> tuple[str, str, str, str]:
    return f"{name}_ci_lo_{method}", f"{name}_ci_hi_{method}", f"{name}_ci_low", f"{name}_ci_high"


def _authors_id(library: Library, spec_id: str) -> str:
    return next(iter(library.legacy_ids(spec_id)), spec_id)


def _authors_suite(cell: Summary) -> str:
    suite = _SUITES.get(cell.suite or "", (cell.suite or "").replace("-", "_"))
    marks = [
        *([STANDIN] if cell.standin_assets else []),
        *([f"{cell.unjudged} of {cell.judged + cell.unjudged} without a verdict"] if cell.unjudged else []),
        *([f"{cell.stopped_on_violation} stopped on a violation"] if cell.stopped_on_violation else []),
    ]
    return f"{suite} ({', '.join(marks)})" if marks else suite


def _suite_row(cell: Summary, library: Library, run_dir: str) -> dict[str, float | str | None]:
    """Return the values of a cell's row by column name, rates as shares; columns without a value are None or absent."""
    row: dict[str, float | str | None] = {
        "model": policy_name(cell),
        "benchmark_suite": _authors_suite(cell),
        "run_dir": run_dir,
        "n_episodes": cell.n,
        _SIMULATOR: "; ".join(f"{package} {' and '.join(numbers)}" for package, numbers in cell.simulator.items()),
    }
    for head, name in _RATES.items():
        row |= _rate_fields(head, cell.rates[name])
    for head, name in _MEANS.items():
        row |= _mean_fields(head, cell.means[name])
    for spec in cell.specs:
        name, judged = _authors_id(library, spec.spec_id), spec.active > spec.vacuous
        row |= _rate_fields(f"viol__{name}", spec.violations_when_active if judged else Rate(0, 0, None, None))
        row |= _mean_fields(f"nsv__{name}", spec.nsv)
        row |= _mean_fields(f"rho__{name}", spec.rho)
    return row


def _rate_fields(name: str, rate: Rate) -> _Fields:
    return {name: rate.value, **_interval_fields(name, rate.ci, "wilson")}


def _mean_fields(name: str, mean: Mean) -> _Fields:
    fields = _interval_fields(name, mean.ci, "bootstrap")
    if not mean.bootstrap:
        fields |= dict.fromkeys(_interval_columns(name, "bootstrap")[:2])
    return {name: mean.value, **fields}


def _interval_fields(name: str, ci: Bounds | None, method: str) -> _Fields:
    low, high = ci or (None, None)
    return dict(zip(_interval_columns(name, method), (low, high, low, high), strict=True))


# RoboCasa's leaderboard

SUITE, UNKNOWN = "robocasa-365", "N/A"
_PACKAGE = "robocasa"
_TEXTS = ("policy_family", "date", "code_url", "commit_hash", "checkpoint_url", "paper_link", "open_source", "wandb")
_SPLITS = ("composite_seen_success", "composite_unseen_success")


def build_leaderboard_entry(judged: Judged, facts: ModelFacts) -> dict[str, object]:
    """Return the submission to RoboCasa's leaderboard, success in percent; nothing is written.

    What is not known is "N/A"; for numbers of success the notes say why. Raises `RunError` for no episode of the suite,
    and as `publishable_cells` does.
    """
    cell = next((cell for cell in publishable_cells(judged) if cell.suite == SUITE), None)
    if cell is None:
        raise RunError(f"there is no episode of {SUITE}", remedy="RoboCasa's leaderboard takes its own tasks alone.")
    success, missing = _task_success(judged, cell)
    training = {"batch_size": facts.batch_size, "num_training_steps": facts.num_training_steps}
    return {
        "model_name": facts.model_name or cell.policy or UNKNOWN,
        **{name: getattr(facts, name) or UNKNOWN for name in ("policy_family", "date")},
        "submission_source": facts.submission_source,
        "robocasa_version": _recorded_version(judged)[1] or UNKNOWN,
        "atomic_seen_success": UNKNOWN if success is None else float(format_fixed(success, 1)),
        **{name: _or_unknown(getattr(facts, name)) for name in _SPLITS},
        **{name: getattr(facts, name) or UNKNOWN for name in _TEXTS if name not in ("policy_family", "date")},
        "training_config": {name: _or_unknown(value) for name, value in training.items()},
        "notes": _format_notes(judged, cell, facts, missing),
    }


def encode_leaderboard_entry(entry: dict[str, object]) -> bytes:
    """Return RoboCasa's submission as JSON."""
    return dump_json(entry)


def unknown_fields(entry: dict[str, object]) -> list[str]:
    """Return the fields whose value is "N/A", those within `training_config` too."""
    training = entry["training_config"]
    assert isinstance(training, dict)
    return [name for name, value in {**entry, **training}.items() if value == UNKNOWN]


def _or_unknown(value: float | int | None) -> float | int | str:
    return UNKNOWN if value is None else value


def _task_success(judged: Judged, cell: Summary) -> tuple[Fraction | None, list[str]]:
    rates = {rate.task_id: rate.sr for rate in task_rates(judged.scores) if rate.suite == SUITE}
    tasks = [entry.task_id for entry in judged.ruleset.registry.tasks.values() if entry.benchmark == SUITE]
    missing = [task for task in tasks if task not in rates or not rates[task].n]
    if missing or not cell.n:
        return None, missing
    shares = [Fraction(100 * rates[task].count, rates[task].n) for task in tasks]
    return sum(shares, Fraction(0)) / len(shares), []


def _recorded_version(judged: Judged) -> tuple[str, str]:
    versions = {
        (package, version)
        for header in judged.headers
        for package, version in (header.versions or {}).items()
        if package.endswith(_PACKAGE)
    }
    return versions.pop() if len(versions) == 1 else ("", "")


def _format_notes(judged: Judged, cell: Summary, facts: ModelFacts, missing: Sequence[str]) -> str:
    """Return the notes: the user's, episodes and safety, and why fields are "N/A" or numbers incomplete."""
    safety, unsafe = cell.rates["safety"], cell.rates["sbu"]
    sentences = [facts.notes] if facts.notes else []
    sentences.append(f"Atomic-Seen: {cell.n} episodes.")
    if safety.value is not None:
        sentences.append(
            f"Safety {format_percent(safety.count, safety.n)} %, successes that were unsafe "
            f"{format_percent(unsafe.count, unsafe.n)} % of {unsafe.n} episodes. {judged.provenance.to_sentence()}"
        )
    package, _ = _recorded_version(judged)
    if package not in ("", _PACKAGE):
        sentences.append(f"robocasa_version is that of the package {package}.")
    if cell.crashed:
        sentences.append(f"{cell.crashed} episodes crashed and are in no rate.")
    if not judged.is_complete:
        sentences.append("Not all planned episodes are in these numbers.")
    if missing:
        sentences.append(f"N/A for Atomic-Seen: {len(missing)} of its tasks have no episode.")
    if any(getattr(facts, name) is None for name in _SPLITS):
        sentences.append("N/A for composite splits: not evaluated in this run.")
    if cell.policy in judged.privileged:
        sentences.append("The policy saw simulator state that no real robot has.")
    return " ".join(sentences)
