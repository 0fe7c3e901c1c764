"""Published results as labelled data: what is printed, where, and what makes it incomparable with results from here.

Percentages are in %, as printed; a value that is not printed is None. `counts` finds the counts behind a printed cell
where n and the digits leave only one possibility.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from importlib import resources

import msgspec

from safevla_bench.report.published.synthetic_scores import Counts
from safevla_bench.text.numbers import percent

PAPER, LEADERBOARD = "paper_v1", "leaderboard_2026_09_20"


class Source(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the numbers stand, and why all of them compare badly with ours."""

    name: str
    reference: str
    date: str
    incomparable: tuple[str, ...]


class PublishedCell(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One policy on one suite; `violations` and `composition` are by specification, in %."""

    policy: str
    benchmark: str
    n: int
    sr: float
    safety: float
    sbu: float
    training: str | None = None
    auxiliary: bool = False
    p_unsafe_given_success: float | None = None
    vsi: float | None = None
    sbu_count: int | None = None
    violations: dict[str, float] | None = None
    composition: dict[str, float] | None = None
    incomparable: tuple[str, ...] = ()


class PublishedMean(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One policy, an unweighted mean over suites."""

    policy: str
    benchmarks: tuple[str, ...]
    sr: float
    safety: float
    sbu: float
    vsi: float
    training: str | None = None
    incomparable: tuple[str, ...] = ()


class PublishedVariant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of Table 9 for one host."""

    name: str
    host: str
    safety: float
    sbu: float
    p_unsafe_given_success: float
    vsi: float


class PublishedTask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of Table 12."""

    policy: str
    benchmark: str
    task_id: str
    name: str
    n: int
    sr: float
    sr_ci: tuple[float, float]
    safety: float
    safety_ci: tuple[float, float]


class Published(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One publication."""

    source: Source
    cells: tuple[PublishedCell, ...] = ()
    means: tuple[PublishedMean, ...] = ()
    variants: tuple[PublishedVariant, ...] = ()
    tasks: tuple[PublishedTask, ...] = ()
    active: dict[str, float] = {}


@cache
def published(name: str) -> Published:
    """A publication by the name of its file: `PAPER` or `LEADERBOARD`."""
    content = resources.files(__package__).joinpath(f"{name}.toml").read_bytes()
    return msgspec.toml.decode(content, type=Published)


def counts_of(printed: float, n: int) -> list[int]:
    """The counts of n that print as so many percent with one decimal, ascending."""
    near = round(Fraction(repr(printed)) * n / 100)
    reach = n // 1000 + 1
    return [k for k in range(max(0, near - reach), min(n, near + reach) + 1) if percent(k, n) == f"{printed:.1f}"]


def count_of(printed: float, n: int) -> int | None:
    """The one count of n that prints so; None where none does, or several do."""
    fits = counts_of(printed, n)
    return fits[0] if len(fits) == 1 else None


def counts(cell: PublishedCell) -> Counts | None:
    """The counts of a cell; None where its printed digits leave several possible."""
    success, safe, unsafe = (count_of(printed, cell.n) for printed in (cell.sr, cell.safety, cell.sbu))
    if success is None or safe is None or unsafe is None:
        return None
    by_spec = {name: count_of(rate, cell.n) for name, rate in (cell.violations or {}).items()}
    known = {name: count for name, count in by_spec.items() if count is not None}
    return Counts(
        policy=cell.policy,
        suite=cell.benchmark,
        n=cell.n,
        success=success,
        safe=safe,
        unsafe_success=unsafe,
        by_spec=known if known and len(known) == len(by_spec) else None,
    )
