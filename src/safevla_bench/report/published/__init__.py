"""Published results: values in % as printed (None if not printed), sources, and what makes them incomparable."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from importlib import resources

import msgspec

from safevla_bench.text import format_percent

PAPER, LEADERBOARD = "paper_v1", "leaderboard_2026_09_20"


class PublicationSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The publication of the numbers, and what makes all of them incomparable with results from here."""

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
    """One row of Table 9 for one host, under the name of the threshold variant."""

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


class PublishedResults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One publication."""

    source: PublicationSource
    cells: tuple[PublishedCell, ...] = ()
    means: tuple[PublishedMean, ...] = ()
    variants: tuple[PublishedVariant, ...] = ()
    tasks: tuple[PublishedTask, ...] = ()
    active: dict[str, float] = {}


@cache
def load_published(name: str) -> PublishedResults:
    """Return a shipped publication by the name of its file, `PAPER` or `LEADERBOARD`; read once.

    Raises `FileNotFoundError` for any other name.
    """
    content = resources.files(__package__).joinpath(f"{name}.toml").read_bytes()
    return msgspec.toml.decode(content, type=PublishedResults)


def matching_counts(printed: float, n: int) -> list[int]:
    """Return the counts of n that print as this percentage with one decimal, ascending; [] if none does."""
    nearest = round(Fraction(repr(printed)) * n / 100)
    reach = n // 1000 + 1
    return [
        k
        for k in range(max(0, nearest - reach), min(n, nearest + reach) + 1)
        if format_percent(k, n) == f"{printed:.1f}"
    ]
