"""Published results, in % as printed (None = not printed), with sources, and why the results are not comparable."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from fractions import Fraction
from functools import cache
from importlib import resources
from typing import Any

import msgspec

from safevla_bench.errors import RunError
from safevla_bench.judging.rates import Rate
from safevla_bench.statistics.intervals import wilson_interval
from safevla_bench.text import format_percent

PAPER, LEADERBOARD = "paper_v1", "leaderboard_2026_09_20"
PREFIX = "paper:"  # prefix in the names of policies whose numbers the paper prints
NOT_PRINTED = "not printed"


class PublicationSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A publication with numbers, and why the numbers cannot be compared with this package's results."""

    name: str
    reference: str
    date: str
    incomparable: tuple[str, ...]


class PublishedCell(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Published numbers of one policy on one suite; `violations` and `composition` give a % for each specification."""

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
    """Published numbers of one policy as unweighted means over suites."""

    policy: str
    benchmarks: tuple[str, ...]
    sr: float
    safety: float
    sbu: float
    vsi: float
    training: str | None = None
    incomparable: tuple[str, ...] = ()


class PublishedVariant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One row of the paper's Table 9: one host under one variant of the thresholds. `name` is the variant's name."""

    name: str
    host: str
    safety: float
    sbu: float
    p_unsafe_given_success: float
    vsi: float


class PublishedResults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All numbers of one publication that come with this package."""

    source: PublicationSource
    cells: tuple[PublishedCell, ...] = ()
    means: tuple[PublishedMean, ...] = ()
    variants: tuple[PublishedVariant, ...] = ()
    tasks: tuple[dict[str, Any], ...] = ()  # the rows of the paper's Table 12
    active: dict[str, float] = {}


@cache
def load_published(name: str) -> PublishedResults:
    """Return the publication `PAPER` or `LEADERBOARD`, and cache it; raise `FileNotFoundError` for any other name."""
    content = resources.files(__package__).joinpath(f"{name}.toml").read_bytes()
    return msgspec.toml.decode(content, type=PublishedResults)


def matching_counts(printed: float, n: int) -> list[int]:
    """Return, in ascending order, all counts out of n whose percentages round to `printed` (with one decimal)."""
    # `repr` gives the printed decimals exactly, whereas the float is only near them.
    nearest = round(Fraction(repr(printed)) * n / 100)
    reach = n // 1000 + 1  # 0.1 % of n episodes are n / 1000 episodes
    return [
        count
        for count in range(max(0, nearest - reach), min(n, nearest + reach) + 1)
        if format_percent(count, n) == f"{printed:.1f}"
    ]


def printed_rate(printed: float | None, n: int) -> Rate:
    """Return the rate over n episodes for a printed percentage. If no count rounds to it, the rate has no value. If
    several counts do, the rate has the nearest count, and its interval covers the 95 % Wilson intervals of all of them.
    """
    counts = [] if printed is None else matching_counts(printed, n)
    # The counts are ascending, and so are the ends of their intervals; without episodes, there is no interval.
    intervals = list(filter(None, (wilson_interval(count, n) for count in counts)))
    if printed is None or not intervals:
        return Rate.without_value(NOT_PRINTED)
    # The count whose exact share is nearest to the printed percentage.
    count = min(counts, key=lambda candidate: abs(Fraction(candidate, n) - Fraction(repr(printed)) / 100))
    return Rate(count, n, count / n, (intervals[0].low, intervals[-1].high))


def list_reasons(rows: Iterable[tuple[PublishedCell | PublishedMean, str]]) -> tuple[str, ...]:
    """Return the reasons why published rows are not comparable; each reason begins with the labels of its rows."""
    # `rows` are pairs (row, label); `incomparable` says why a row is not comparable.
    # The inner dictionary serves as a set that keeps the order of labels.
    labels_by_reason: dict[str, dict[str, None]] = {}
    for row, label in rows:
        for reason in row.incomparable:
            labels_by_reason.setdefault(reason, {})[label] = None
    return tuple(f"{', '.join(labels)}: {reason}" for reason, labels in labels_by_reason.items())


def printed_mean(policy: str | None, benchmarks: Collection[str]) -> PublishedMean | None:
    """Return the mean that the paper prints for a policy `paper:NAME` over exactly these suites; None = not printed."""
    # `PREFIX` is `paper:`, which distinguishes printed results from recorded policies.
    for mean in load_published(PAPER).means:
        if f"{PREFIX}{mean.policy}" == policy and set(mean.benchmarks) == set(benchmarks):
            return mean
    return None


def find_paper_cells(name: str) -> list[PublishedCell]:
    """Return the paper's results for the policy `paper:NAME`, one per suite. Raises `RunError` for any other name."""
    cells = load_published(PAPER).cells
    if chosen := [cell for cell in cells if f"{PREFIX}{cell.policy}" == name]:
        return chosen
    # The paper has numbers of a policy for several suites, so `fromkeys` removes repeated names.
    names = ", ".join(dict.fromkeys(f"{PREFIX}{cell.policy}" for cell in cells))
    raise RunError(f"the paper has no results of policy {name.removeprefix(PREFIX)!r}", remedy=f"Policies: {names}.")
