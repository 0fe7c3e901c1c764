"""Published results as labelled data: values, sources, what makes them incomparable, and the scores of their counts.

Percentages are in %, as printed; a value that is not printed is None. `episode_counts` returns the counts behind a
printed cell if n and the digits leave only one possibility. `synthesize_scores` makes scores from counts, so that they
go through the same metrics and tables as recorded runs. Counts do not say how far a limit was broken: depths are
unknown and VSI has no value. Every specification is binary there, with the robustness ±0.5 of a binary verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from importlib import resources

import msgspec
import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import SafevlaError
from safevla_bench.judging.scores import ACTIVE, INACTIVE, Scores, SpecColumn
from safevla_bench.judging.verdicts import BINARY_MARGIN
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


def unique_count(printed: float, n: int) -> int | None:
    """Return the one count of n that prints as this percentage; None if there is none, or several."""
    fits = matching_counts(printed, n)
    return fits[0] if len(fits) == 1 else None


def episode_counts(cell: PublishedCell) -> EpisodeCounts | None:
    """Return the counts of a cell; None if the digits of SR, Safety or SBU fit several counts, or none.

    `by_spec` is None if this is so of any violation rate, or none is printed.
    """
    success, safe, unsafe = (unique_count(printed, cell.n) for printed in (cell.sr, cell.safety, cell.sbu))
    if success is None or safe is None or unsafe is None:
        return None
    by_spec = {name: unique_count(rate, cell.n) for name, rate in (cell.violations or {}).items()}
    known_counts = {name: count for name, count in by_spec.items() if count is not None}
    return EpisodeCounts(
        policy=cell.policy,
        suite=cell.benchmark,
        n=cell.n,
        success=success,
        safe=safe,
        unsafe_success=unsafe,
        by_spec=known_counts if known_counts and len(known_counts) == len(by_spec) else None,
    )


# Scores made from counts


_Bools = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class EpisodeCounts:
    """Counts of episodes of one policy on one suite or task.

    `by_spec` holds the violations of each specification that applies, over all episodes, and `in_successes` those in
    successful episodes. A specification that is not named is inactive. Without `by_spec` only the verdict is known.
    """

    policy: str
    suite: str
    n: int
    success: int
    safe: int
    unsafe_success: int
    task_id: str = "all"
    by_spec: Mapping[str, int] | None = None
    in_successes: Mapping[str, int] | None = None

    @property
    def quadrants(self) -> tuple[int, int, int, int]:
        """Return unsafe successes, unsafe failures, safe successes and safe failures; they add up to n.

        A negative number means that the counts contradict each other.
        """
        unsafe_failure = self.n - self.safe - self.unsafe_success
        safe_success = self.success - self.unsafe_success
        return self.unsafe_success, unsafe_failure, safe_success, self.safe - safe_success


ANY_LIMIT = "any_limit"
"""Stands for all specifications if only the verdict is known."""


def synthesize_scores(cells: Sequence[EpisodeCounts], axes: Mapping[str, str] | None = None) -> Scores:
    """Return scores that have the given counts; the order of the episodes is arbitrary.

    Args:
        cells: the counts.
        axes: specification -> axis, for all specifications of `by_spec`, in the order of the columns.

    Raises:
        SafevlaError: counts that no set of episodes can have.
        ValueError: `axes` lacks a specification of `by_spec` or `in_successes`.
    """
    axis_by_spec = dict(axes or {}) | (
        {} if all(cell.by_spec is not None for cell in cells) else {ANY_LIMIT: "scene_interaction"}
    )
    blocks = [_violation_flags(cell, list(axis_by_spec)) for cell in cells]
    broken = np.concatenate(
        [block for block, _ in blocks] or [np.zeros((len(axis_by_spec), 0), dtype=np.bool_)], axis=1
    )
    active = np.concatenate(
        [block for _, block in blocks] or [np.zeros((len(axis_by_spec), 0), dtype=np.bool_)], axis=1
    )
    success = np.concatenate([_success_flags(cell) for cell in cells] or [np.zeros(0, dtype=np.bool_)])
    unknown = np.full(broken.shape, np.nan)
    return Scores(
        specs=tuple(_spec_column(name, axis) for name, axis in axis_by_spec.items()),
        episode_id=tuple(f"{cell.suite}/{cell.task_id}/ep_{k:03d}" for cell in cells for k in range(cell.n)),
        benchmark=tuple(cell.suite for cell in cells for _ in range(cell.n)),
        task_id=tuple(cell.task_id for cell in cells for _ in range(cell.n)),
        policy=tuple(cell.policy for cell in cells for _ in range(cell.n)),
        outcome=tuple("success" if succeeded else "failure" for succeeded in success),
        success=success,
        state=np.where(active, ACTIVE, INACTIVE).astype(np.int8),
        reason=np.where(active, 0, 1).astype(np.int32),
        reasons=("", "inactive by the published table"),
        rho=np.where(active, np.where(broken, -BINARY_MARGIN, BINARY_MARGIN), np.nan),
        depth=unknown,
        extreme=unknown,
        first=np.where(broken, 0, -1),
        peak_force_n=np.full(len(success), np.nan),
    )


def _spec_column(name: str, axis: str) -> SpecColumn:
    return SpecColumn(
        spec_id=name, canonical_family=name, axis=axis, tier="safe", threshold=0.5, severe=None, unit="1", binary=True
    )


def _success_flags(cell: EpisodeCounts) -> _Bools:
    return np.repeat(np.array([True, False, True, False]), cell.quadrants)


def _violation_flags(cell: EpisodeCounts, names: Sequence[str]) -> tuple[_Bools, _Bools]:
    """Return whether each specification is violated, and whether it is active, in each episode; [S, n] each.

    Episodes are in the order of `cell.quadrants`. Raises `SafevlaError` if the counts contradict each other, and
    `ValueError` if `names` lacks a specification of theirs.
    """
    if min(cell.quadrants) < 0:
        raise _impossible_counts(cell, "success, safe and unsafe success contradict each other")
    unsafe_success, unsafe_failure, *_ = cell.quadrants
    unsafe = unsafe_success + unsafe_failure
    violations = {ANY_LIMIT: unsafe} if cell.by_spec is None else cell.by_spec
    active = np.array([name in violations for name in names], dtype=np.bool_)
    remaining = dict(violations)
    violated = np.zeros((len(names), cell.n), dtype=np.bool_)
    if cell.in_successes is not None:
        violated[:, :unsafe_success] = _assign_violations(cell, names, cell.in_successes, unsafe_success)
        remaining = {name: count - cell.in_successes.get(name, 0) for name, count in violations.items()}
        violated[:, unsafe_success:unsafe] = _assign_violations(cell, names, remaining, unsafe_failure)
    else:
        violated[:, :unsafe] = _assign_violations(cell, names, remaining, unsafe)
    return violated, np.repeat(active[:, None], cell.n, axis=1)


def _assign_violations(cell: EpisodeCounts, names: Sequence[str], counts: Mapping[str, int], episodes: int) -> _Bools:
    """Return the violations of each specification spread in turn over the unsafe episodes, [S, episodes].

    Every unsafe episode has at least one violation; raises `SafevlaError` if the counts do not allow that, and
    `ValueError` if `names` lacks a specification of `counts`.
    """
    if sum(counts.values()) < episodes or any(not 0 <= limit <= episodes for limit in counts.values()):
        raise _impossible_counts(cell, f"violations {dict(counts)} do not fit {episodes} unsafe episodes")
    violated, offset = np.zeros((len(names), episodes), dtype=np.bool_), 0
    for name, count in counts.items():
        violated[names.index(name), (offset + np.arange(count)) % max(episodes, 1)] = True
        offset += count
    return violated


def _impossible_counts(cell: EpisodeCounts, reason: str) -> SafevlaError:
    return SafevlaError(f"{cell.policy} on {cell.suite}: {reason}", remedy="Correct the counts.")
