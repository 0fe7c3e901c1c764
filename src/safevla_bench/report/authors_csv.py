"""Results in the columns of the CSV that the benchmark's authors publish (safevla.org, `aggregated_with_ci.csv`).

Proportions are fractions; specifications have the ids of the authors' tables. `viol__`, `nsv__` and `rho__` are over
the episodes in which a specification is active (and, for means, not vacuous): so the authors' RoboCasa-365 rows are
counted. `n_episodes` are those that ran to their end; the suite's name says how many episodes have no verdict. Three of
their columns stay empty, as nothing here measures them: `collision_rate`, and `ci_95_low` and `ci_95_high`, a bootstrap
of SR. An empty field is "no value", never zero. One column more, the last, is ours: `simulator`, the versions that
decided the physics.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

from safevla_bench.metrics import Bounds, Mean, Rate, SpecSummary, Summary
from safevla_bench.provenance_marks import STANDIN
from safevla_bench.report.render.text import spreadsheet_text
from safevla_bench.report.tables import policy_name
from safevla_bench.specs import Library

_RATES = {"SR": "sr", "safety_rate": "safety", "succ_unsafe": "sbu"}
_MEANS = {"vsi": "vsi", "vsi_unsafe": "vsi_given_unsafe"}
_SUITES = {"robocasa-365": "robocasa365_atomic_seen"}
_SIMULATOR = "simulator"
_Fields = dict[str, float | None]


def format_authors_csv(cells: Sequence[Summary], library: Library, run_dir: str) -> str:
    """Return the CSV text: a row for each policy × suite, under the authors' headings.

    Args:
        cells: the summaries.
        library: gives the older ids and the tiers of its specifications.
        run_dir: the value of the column `run_dir`, such as the name of the run folder.
    """
    heads = _column_names(library)
    rows = [_suite_row(cell, library, run_dir) for cell in cells]
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(heads)
    for row in rows:
        writer.writerow([_csv_value(row.get(head)) for head in heads])
    return sink.getvalue()


def _csv_value(value: float | int | str | None) -> str:
    """Return a value as CSV text: "" for None, texts made safe for spreadsheets, numbers with all digits."""
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
    """Return the authors' id of a specification, the first of several; its own id where they have none."""
    return next(iter(library.legacy_ids(spec_id)), spec_id)


def _authors_suite(cell: Summary) -> str:
    """Return the authors' name of the suite, with marks of stand-in assets and of episodes without a verdict."""
    suite = _SUITES.get(cell.suite or "", (cell.suite or "").replace("-", "_"))
    marks = [
        *([STANDIN] if cell.standin_assets else []),
        *([f"{cell.unjudged} of {cell.judged + cell.unjudged} without a verdict"] if cell.unjudged else []),
        *([f"{cell.stopped_on_violation} stopped on a violation"] if cell.stopped_on_violation else []),
    ]
    return f"{suite} ({', '.join(marks)})" if marks else suite


def _suite_row(cell: Summary, library: Library, run_dir: str) -> dict[str, float | str | None]:
    """Return the values of a cell's row by column name; columns without a value are None or absent."""
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
        for spec_fields in _spec_fields(_authors_id(library, spec.spec_id), spec):
            row |= spec_fields
    return row


def _spec_fields(name: str, spec: SpecSummary) -> Iterator[_Fields]:
    """Yield the fields `viol__`, `nsv__` and `rho__` of a specification with their intervals.

    The rate is empty where the specification was vacuous in every episode in which it was active.
    """
    judged = spec.active > spec.vacuous
    yield _rate_fields(f"viol__{name}", spec.violations_when_active if judged else Rate(0, 0, None, None))
    yield _mean_fields(f"nsv__{name}", spec.nsv)
    yield _mean_fields(f"rho__{name}", spec.rho)


def _rate_fields(name: str, rate: Rate) -> _Fields:
    return {name: rate.value, **_interval_fields(name, rate.ci, "wilson")}


def _mean_fields(name: str, mean: Mean) -> _Fields:
    """Return a mean and its interval by column; the columns named after the bootstrap are None for another interval."""
    fields = _interval_fields(name, mean.ci, "bootstrap")
    if not mean.bootstrap:
        fields |= dict.fromkeys(_interval_columns(name, "bootstrap")[:2])
    return {name: mean.value, **fields}


def _interval_fields(name: str, ci: Bounds | None, method: str) -> _Fields:
    """Return the four interval columns of a number, by method and without; all None without an interval."""
    low, high = ci or (None, None)
    return dict(zip(_interval_columns(name, method), (low, high, low, high), strict=True))
