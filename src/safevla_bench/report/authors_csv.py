"""Results in the columns of the CSV that the benchmark's authors publish (safevla.org, `aggregated_with_ci.csv`).

Proportions are fractions; specifications have the ids of the authors' tables. `viol__`, `nsv__` and `rho__` are over
the episodes in which a specification is active (and, for means, not vacuous): so the authors' RoboCasa-365 rows are
counted. Three of their columns stay empty, as nothing here measures them: `collision_rate`, and `ci_95_low` and
`ci_95_high`, a bootstrap of SR. Empty is "no value", never zero.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

from safevla_bench.metrics import Mean, Pair, Rate, SpecSummary, Summary
from safevla_bench.provenance_marks import STANDIN
from safevla_bench.report.render.csv import harmless
from safevla_bench.report.tables import policy_name
from safevla_bench.specs import Library

_RATES = {"SR": "sr", "safety_rate": "safety", "succ_unsafe": "sbu"}
_MEANS = {"vsi": "vsi", "vsi_unsafe": "vsi_given_unsafe"}
_SUITES = {"robocasa-365": "robocasa365_atomic_seen"}
Fields = dict[str, float | None]


def authors_csv(cells: Sequence[Summary], library: Library, run_dir: str) -> str:
    """One row a policy × suite, under the authors' headings.

    Args:
        cells: the summaries.
        library: for the older ids of its specifications, and which are graded.
        run_dir: what to write as `run_dir`, such as the name of the run folder.
    """
    heads = _heads(library)
    rows = [_row(cell, library, run_dir) for cell in cells]
    sink = io.StringIO()
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(heads)
    for row in rows:
        writer.writerow([_printed(row.get(head)) for head in heads])
    return sink.getvalue()


def _printed(value: float | int | str | None) -> str:
    if value is None:
        return ""
    return harmless(value) if isinstance(value, str) else repr(value)


def _heads(library: Library) -> list[str]:
    """The columns in the authors' order: identity, headline, each specification by kind, then all intervals."""
    named = sorted(_legacy(library, spec.spec_id) for spec in library)
    graded = sorted(_legacy(library, spec.spec_id) for spec in library if spec.tier != "diagnostic")
    rates = [*_RATES, *(f"viol__{name}" for name in named)]
    first = ["model", "benchmark_suite", "run_dir", "n_episodes", *_RATES, *_MEANS]
    means = [*_MEANS, *(f"nsv__{name}" for name in graded), *(f"rho__{name}" for name in named)]
    values = [*first, "collision_rate", "ci_95_low", "ci_95_high", *means[len(_MEANS) :], *rates[len(_RATES) :]]
    intervals = [*rates[: len(_RATES)], *means, *rates[len(_RATES) :]]
    return [*values, *(head for name in intervals for head in _ends(name, "wilson" if name in rates else "bootstrap"))]


def _ends(name: str, method: str) -> tuple[str, str, str, str]:
    return f"{name}_ci_lo_{method}", f"{name}_ci_hi_{method}", f"{name}_ci_low", f"{name}_ci_high"


def _legacy(library: Library, spec_id: str) -> str:
    """The authors' id; of several the first."""
    return next(iter(library.legacy_ids(spec_id)), spec_id)


def _suite(cell: Summary) -> str:
    """The authors' name of the suite; of another name where stand-ins were simulated, which is not that suite."""
    suite = _SUITES.get(cell.suite or "", (cell.suite or "").replace("-", "_"))
    return f"{suite} ({STANDIN})" if cell.standin_assets else suite


def _row(cell: Summary, library: Library, run_dir: str) -> dict[str, float | str | None]:
    found: dict[str, float | str | None] = {
        "model": policy_name(cell),
        "benchmark_suite": _suite(cell),
        "run_dir": run_dir,
        "n_episodes": cell.n,
    }
    for head, name in _RATES.items():
        found |= _rate(head, cell.rates[name])
    for head, name in _MEANS.items():
        found |= _mean(head, cell.means[name])
    for spec in cell.specs:
        for fields in _spec(_legacy(library, spec.spec_id), spec):
            found |= fields
    return found


def _spec(name: str, spec: SpecSummary) -> Iterator[Fields]:
    judged = spec.active > spec.vacuous
    yield _rate(f"viol__{name}", spec.violations_when_active if judged else Rate(0, 0, None, None))
    yield _mean(f"nsv__{name}", spec.nsv)
    yield _mean(f"rho__{name}", spec.rho)


def _rate(name: str, rate: Rate) -> Fields:
    return {name: rate.value, **_interval(name, rate.ci, "wilson")}


def _mean(name: str, of: Mean) -> Fields:
    return {name: of.value, **_interval(name, of.ci, "bootstrap")}


def _interval(name: str, ci: Pair | None, method: str) -> Fields:
    low, high = ci or (None, None)
    return dict(zip(_ends(name, method), (low, high, low, high), strict=True))
