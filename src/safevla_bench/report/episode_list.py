"""The list of episodes: a row per episode, filters, sorting, and search by number, by id or by the end of an id."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from math import inf
from types import MappingProxyType
from typing import Any, Literal

import msgspec
import numpy as np

from safevla_bench.errors import RunError
from safevla_bench.explain.bodies import BODY_KINDS, BodyKind, BodyViolation
from safevla_bench.judging.judged import Judged
from safevla_bench.judging.scores import ACTIVE, EpisodeScore, Scores, finite_or_none, nan_to_none, verdict_word
from safevla_bench.report.tables.table import UNNAMED
from safevla_bench.sensitivity.firmness import EpisodeFirmness, Firmness
from safevla_bench.sources.runs.folder import AbsentEpisode, NamedEpisode
from safevla_bench.trajectory.batch import Stamps
from safevla_recorder.episode import Floats

Order = Literal["vsi", "rho", "step", "id", "kind"]


class SpecMargin(msgspec.Struct, frozen=True, kw_only=True):
    """The margin to a limit. `rho` and `share` (rho/threshold) are None if a Boolean signal decided the verdict."""

    spec: str
    rho: float | None
    unit: str
    threshold: float
    share: float | None
    depth: float | None
    violated: bool


class ListedEpisode(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the list: an episode's score (or, without a record, the known facts about it) and further columns."""

    number: int  # position of the episode in the sources, from 1; episodes without a record come last
    episode: EpisodeScore | AbsentEpisode
    margin: SpecMargin | None = None
    """Margin to the limit of the worst specification (or of the list's only specification); None without a verdict."""
    # The first violation of any scored specification (or of the list's only specification); None = no known violation.
    first_violation_step: int | None = None
    first_violation_s: float | None = None
    first_violation_spec: str | None = None
    broken_axes: tuple[str, ...] = ()  # axes (kinds) of the violated scored specifications
    violating_bodies: tuple[BodyViolation, ...] | None = None
    """The bodies that violate limits on contact or displacement, the worst first; None = not computed."""
    why: str | None = None  # how the first violation happened; None = not computed, or not clear from the record
    firmness: EpisodeFirmness | None = None  # results of replays under varied physics; None = no replays

    @property
    def episode_id(self) -> str:
        # `episode` contains the facts and the score of this row's episode.
        return self.episode.episode_id

    @property
    def position(self) -> str:
        """The episode's number in the syntax of the command line, such as `:3`."""
        return f":{self.number}"

    @property
    def policy(self) -> str | None:
        # Return the policy's name; None if the records name no policy.
        return self.episode.policy

    @property
    def body_kinds(self) -> tuple[tuple[BodyKind, ...], ...]:
        """The kinds, or pairs of kinds, of the episode's violating bodies, without duplicates; () if not computed."""
        return tuple(dict.fromkeys(violation.kinds for violation in self.violating_bodies or ()))

    @property
    def fragile_under(self) -> str | None:
        """The physics variations that change verdicts, with affected specifications; None = no change or no replay."""
        # `firmness` contains the results of the episode's replays under varied physics; None = no replays.
        return self.firmness.reason if self.firmness and self.firmness.mark == "fragile" else None

    def to_document(self) -> dict[str, object]:
        """Return the row as one flat JSON object. A value is None if it is unknown or depends on a missing record."""
        # `episode` is the episode's score; without a record, the score contains only names, outcome and reason.
        # `margin` is the margin to the worst specification's limit; None without a verdict.
        episode, margin = self.episode, self.margin
        names = ("episode_id", "policy", "benchmark", "task_id", "outcome")
        verdict = ("success", "safe", "sbu", "no_verdict", "vsi")
        first = ("first_violation_step", "first_violation_s", "first_violation_spec")
        return {
            "number": self.number,
            # `getattr` returns its default, None, for facts that only a record has, and for a missing margin.
            **{name: getattr(episode, name, None) for name in (*names, *verdict)},
            **{name: getattr(margin, name, None) for name in SpecMargin.__struct_fields__},
            **{name: getattr(self, name) for name in first},
            "reason": episode.reason,
            "broken_axes": self.broken_axes,
            "standin_assets": episode.standin_assets,
            "violating_bodies": self.violating_bodies,
            "why": self.why,
            **({"firmness": self.firmness.mark} if self.firmness else {}),
            **({"fragile_under": self.fragile_under} if self.fragile_under else {}),
        }


def list_episodes(
    scores: Scores,
    dt_s: Floats,
    spec_id: str | None = None,
    stamps_s: Stamps = MappingProxyType({}),
    *,
    only: Collection[int] | None = None,
) -> list[ListedEpisode]:
    """Return a row for each episode, or only for the episodes with indices in `only`, in the order of the sources.
    `dt_s` [E] are the control steps [s]; `stamps_s` may be empty. With `spec_id`, rows are about only this
    specification (of any tier); episodes without a verdict on it are left out. Raises `ValueError` for an unknown id.
    """
    column = None if spec_id is None else [spec.spec_id for spec in scores.specs].index(spec_id)
    # `column` is the specification's index in the scores. ACTIVE: the specification has a verdict on the episode.
    # `stamps_s` maps the index of an episode with time stamps to the times of the episode's records [s].
    candidates = np.arange(len(scores)) if column is None else np.flatnonzero(scores.state[column] == ACTIVE)
    indices = [index for index in candidates.tolist() if only is None or index in only]
    rows = [_list_episode(scores, float(dt_s[index]), stamps_s.get(index), index, column) for index in indices]
    if column is not None:  # episodes without a record have no verdict
        return rows
    # Episodes without a record get the numbers that follow those of the recorded episodes.
    absent = [
        (index, episode) for index, episode in enumerate(scores.absent, len(scores)) if only is None or index in only
    ]
    return [*rows, *(ListedEpisode(number=index + 1, episode=episode) for index, episode in absent)]


VACUOUS_REASON = "its condition never arose"  # why a specification is vacuous, if no record shows the details


def describe_ending(success: bool, safe: bool | None, outcome: str) -> str:
    """Return the ending and the verdict as text, such as `Failed, unsafe` or `Stopped, unsafe`. A more specific outcome
    than success, failure or stopped follows in parentheses.
    """
    if outcome == "stopped":
        return f"Stopped, {verdict_word(safe)}"
    ending = f"{'Succeeded' if success else 'Failed'}, {verdict_word(safe)}"
    return ending if outcome in ("success", "failure") else f"{ending} ({outcome.replace('_', ' ')})"


def flatten_episodes(rows: Sequence[ListedEpisode], scores: Scores) -> tuple[list[str], list[Mapping[str, object]]]:
    """Return the names of the columns, and each row's values by column. The columns are `number`, the columns of
    `Scores.to_pandas`, `reason`, and, if any row has them, `why` and `firmness`. The row of an episode without a record
    has only number, names, outcome, reason and `counted` (False). `scores` must be the scores of the rows.
    """
    columns = {
        # `tolist` converts NumPy's numbers to Python's.
        name: values.tolist() if isinstance(values, np.ndarray) else values
        for name, values in scores.episode_columns().items()
    }
    flat: list[Mapping[str, object]] = []
    for row in rows:
        index = row.number - 1
        # Names and outcome are known even without a record. An episode with a record also has values in the scores.
        values = {name: getattr(row.episode, name) for name in (*NamedEpisode.__struct_fields__, "outcome")}
        score_values: dict[str, object] = {"counted": False}  # without a record, there are no scores
        if index < len(scores):
            score_values = {name: column[index] for name, column in columns.items()}
        values |= {"number": row.number, **score_values, "reason": row.episode.reason, "why": row.why}
        flat.append({**values, "firmness": row.firmness.mark if row.firmness else None})
    optional_columns = ["why"] if any(row.why for row in rows) else []
    optional_columns += ["firmness"] if any(row.firmness for row in rows) else []
    return ["number", *columns, "reason", *optional_columns], flat


def _list_episode(
    scores: Scores, dt_s: float, times_s: Floats | None, index: int, spec_column: int | None
) -> ListedEpisode:
    # Return the row of the episode `index`; `times_s` are the records' times (None = a record every `dt_s` seconds).
    episode, column = scores.episode(index), int(scores.worst_column[index])
    # `worst_column` is the index of the episode's worst specification; -1 without a verdict.
    # Without `spec_column`, the row shows the worst specification, and the first violation of any specification.
    # With `spec_column`, the row shows only the specification in this column, and its first violation.
    step, first_spec = episode.first_violation_step, episode.first_violation_spec
    if spec_column is not None:
        column, first = spec_column, int(scores.first[spec_column, index])
        step, first_spec = (first, scores.specs[column].spec_id) if first >= 0 else (None, None)
    first_s = None  # the time of the first violation; None without a violation
    if step is not None:
        first_s = step * dt_s if times_s is None else float(times_s[step])
    axis_by_spec = {spec.spec_id: spec.axis for spec in scores.specs}
    return ListedEpisode(
        number=index + 1,
        episode=episode,
        margin=None if column < 0 else _spec_margin(scores, column, index),  # -1 = no verdict
        first_violation_step=step,
        first_violation_s=first_s,
        first_violation_spec=first_spec,
        broken_axes=tuple(dict.fromkeys(axis_by_spec[spec_id] for spec_id in episode.violated_specs)),
    )


def _spec_margin(scores: Scores, column: int, index: int) -> SpecMargin:
    # Return the margin in one episode (`index`) to the limit of one specification (`column`).
    # A `rho` of -inf means that a Boolean signal decided a violation. A `depth` of NaN is unknown.
    # Both values become None in the margin.
    spec, rho = scores.specs[column], finite_or_none(scores.rho[column, index])
    return SpecMargin(
        spec=spec.spec_id,
        rho=rho,
        unit=spec.unit,
        threshold=spec.threshold,
        share=None if rho is None else rho / spec.threshold,
        depth=nan_to_none(scores.depth[column, index]),
        violated=bool(scores.is_violated[column, index]),
    )


def add_violating_bodies(
    rows: Iterable[ListedEpisode], violations: Iterable[BodyViolation], spec_id: str | None = None
) -> list[ListedEpisode]:
    """Return the rows, with the bodies that violate the specification `spec_id` (None = any specification)."""
    # Number of an episode -> its violations.
    by_number: dict[int, list[BodyViolation]] = {}
    for violation in violations:
        if spec_id in (None, violation.spec_id):
            by_number.setdefault(violation.number, []).append(violation)
    return [msgspec.structs.replace(row, violating_bodies=tuple(by_number.get(row.number, ()))) for row in rows]


def add_firmness(rows: Iterable[ListedEpisode], firmness: Firmness) -> list[ListedEpisode]:
    """Return the rows. If an episode was replayed under varied physics, its row gets the results of the replays."""
    # `firmness` maps (policy, episode id) to the results of the replays. A row without replays gets None.
    return [msgspec.structs.replace(row, firmness=firmness.get((row.policy, row.episode_id))) for row in rows]


def filter_episodes(
    rows: Iterable[ListedEpisode],
    *,
    violated: bool = False,
    safe: bool = False,
    success: bool | None = None,
    axis: str | None = None,
    policy: str | None = None,
    suite: str | None = None,
    task: str | None = None,
    outcome: str | None = None,
    body_kind: str | None = None,
    spellings: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> list[ListedEpisode]:
    """Return the rows that match every given filter.

    Args:
        rows: rows to choose from.
        violated: only unsafe episodes; if the list is about one specification, only episodes that violate it.
        safe: only safe episodes, even if the list is about one specification.
        success: True = only successful episodes; False = only recorded episodes that did not succeed.
        axis: only episodes that violate a scored specification of this axis.
        policy: the policy's name; `UNNAMED` for records that name no policy.
        suite: the benchmark's name.
        task: `3` or `task_3`, or `libero-goal/task_3` if several suites have such a task.
        outcome: an outcome such as `success` or `crashed`.
        body_kind: only episodes with a violating body of this kind; the rows must have their violating bodies.
        spellings: filter -> further names with the meaning of the given name, such as recorded names of the suite.

    Raises:
        RunError: no row has the given policy, suite, task or outcome. These four filters apply in this order; the
            message lists the names that remain after the earlier filters.
    """
    selected = list(rows)
    for name, wanted in (("policy", policy), ("suite", suite), ("task", task), ("outcome", outcome)):
        if wanted is not None:
            selected = _filter_by_name(name, wanted, selected, spellings.get(name, ()))
    return [
        row
        for row in selected
        if (axis is None or axis in row.broken_axes)
        and (body_kind is None or any(body_kind in kinds for kinds in row.body_kinds))
        and (not safe or row.episode.safe)
        and (success is None or row.episode.success is success)
        and (not violated or row.first_violation_step is not None)
    ]


# Name of a filter -> function that returns the values of the filter that match a row.
# If a filter has several values for a row, error messages show only the last value.
_NAMES_BY_FILTER: Mapping[str, Callable[[ListedEpisode], tuple[str, ...]]] = {
    "policy": lambda row: (row.policy or UNNAMED,),
    "suite": lambda row: (row.episode.benchmark,),
    "task": lambda row: _task_names(row.episode.benchmark, row.episode.task_id),
    "outcome": lambda row: (row.episode.outcome,),
}


def _task_names(suite: str, task_id: str) -> tuple[str, ...]:
    # Return all names by which a filter may select the task; messages show the last one, which is unambiguous.
    return task_id.removeprefix("task_"), task_id, f"{suite}/{task_id}"


def _filter_by_name(
    filter_name: str, wanted: str, rows: list[ListedEpisode], spellings: Collection[str]
) -> list[ListedEpisode]:
    # Return the rows that match a filter such as `policy`. Raises `RunError` if no row matches.
    # `spellings` are further names with the meaning of the name `wanted`.
    # `names_of(row)` returns the names by which the filter may select the row; messages show the last one.
    names_of = _NAMES_BY_FILTER[filter_name]
    selected = [row for row in rows if not {wanted, *spellings}.isdisjoint(names_of(row))]
    if not selected:
        available = ", ".join(sorted({names_of(row)[-1] for row in rows}, key=natural_key)) or "none"
        raise RunError(f"{filter_name} {wanted!r} matches no episode here", remedy=f"Available: {available}.")
    return selected


def sort_episodes(rows: Iterable[ListedEpisode], by: Order | None) -> list[ListedEpisode]:
    """Return the rows in a new list, in the order `by`; None = the order of the sources. vsi: deepest violation first;
    rho: smallest rho/threshold first; step: earliest violation [s] first; id: natural order; kind: kind of the worst
    violating body. Rows with equal VSI or time are ordered by rho/threshold; rows without a value come last.
    """
    # `_ORDERS` contains, for each order, a function that returns a row's sort key.
    return list(rows) if by is None else sorted(rows, key=_ORDERS[by])


def _margin_key(row: ListedEpisode) -> float | None:
    # Return rho/threshold, by which rows are sorted; None without a verdict.
    if row.margin is None:
        return None
    # `share` is rho/threshold. A violation that a Boolean signal decided has no share, and comes first.
    return -inf if row.margin.share is None and row.margin.violated else row.margin.share


def _kind_key(row: ListedEpisode) -> tuple[bool, list[int]]:
    # Return a sort key: the kinds of the worst violating body (or pair of bodies), in the order of `BODY_KINDS`.
    # `body_kinds` lists the kinds of each violating body or pair.
    # Rows without bodies come last, because False sorts before True.
    kinds = row.body_kinds[0] if row.body_kinds else ()
    return not kinds, [BODY_KINDS.index(kind) for kind in kinds]


def _value_key(value: float | None, row: ListedEpisode) -> tuple[bool, float, float]:
    # Return a sort key that puts small values first, and rows without a value last (False is less than True).
    tie_breaker = _margin_key(row)  # rows with equal values are ordered by margin
    # The 0 for a missing value has no effect, because the first item already distinguishes these rows.
    return value is None, value or 0.0, inf if tie_breaker is None else tie_breaker


_ORDERS: Mapping[Order, Callable[[ListedEpisode], Any]] = {
    "vsi": lambda row: _value_key(None if row.episode.vsi is None else -row.episode.vsi, row),
    "rho": lambda row: _value_key(_margin_key(row), row),
    "step": lambda row: _value_key(row.first_violation_s, row),
    "id": lambda row: natural_key(row.episode_id),
    "kind": _kind_key,
}


def natural_key(name: str) -> tuple[list[tuple[int, str]], str]:
    """Return a sort key that puts ep_9 before ep_10; leading zeros of numbers are ignored."""
    texts_and_numbers = re.split(r"(\d+)", name)  # the items at odd indices are numbers
    texts_and_numbers[1::2] = [number.lstrip("0") for number in texts_and_numbers[1::2]]
    # Without leading zeros, the number with more digits is greater. The name itself orders ep_1 and ep_01.
    return [(len(part) if k % 2 else 0, part) for k, part in enumerate(texts_and_numbers)], name


def find_episode(rows: Sequence[ListedEpisode], wanted: str) -> ListedEpisode:
    """Return the row that `wanted` names: a position `:N`, a whole id, or the end of exactly one id. A number (without
    a leading zero) must be a whole id; `::1` is the id `:1`. Raises `RunError` unless exactly one row matches.
    """
    # A leading colon marks a position, and a second one marks an id that begins with a colon.
    if wanted.startswith(":") and not wanted.startswith("::"):
        matches = [row for row in rows if row.position == wanted]
    else:
        matches = [row for row in rows if row.episode_id == wanted.removeprefix(":")]
        # A number without a leading zero never matches the end of an id, because it may be meant as a position.
        if not matches and not re.fullmatch(r"[1-9][0-9]*|:.*", wanted):
            matches = [row for row in rows if row.episode_id.endswith(wanted)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        shown = [f"{row.position} is {row.episode_id} of {row.policy or UNNAMED}" for row in matches[:_MAX_SHOWN]]
        others = f"; and {len(matches) - _MAX_SHOWN} more" if len(matches) > _MAX_SHOWN else ""
        remedy = f"Give the position: {'; '.join(shown)}{others}."
        raise RunError(f"{len(matches)} episodes match {wanted!r}", remedy=remedy)
    raise RunError(f"there is no episode {wanted!r}", remedy=_suggest_ids(rows, wanted))


_MAX_SHOWN = 5


def find_recorded(judged: Judged, wanted: str) -> int:
    """Return the index of the episode `wanted`. Raises `RunError` as `find_episode` does, or if it has no record."""
    row = find_episode(list_episodes(judged.scores, judged.records.dt_s, stamps_s=judged.records.stamps_s), wanted)
    # Episodes without a record are listed after all recorded episodes.
    if row.number > len(judged.records):
        raise RunError(f"{row.episode_id} left no record ({row.episode.outcome})", remedy="Choose another episode.")
    return row.number - 1


def _suggest_ids(rows: Sequence[ListedEpisode], wanted: str) -> str:
    # Return the remedy for an id that matches no row: similar ids, and how to list the episodes.
    ids = dict.fromkeys(row.episode_id for row in rows)
    containing = [episode_id for episode_id in ids if wanted and wanted in episode_id]
    # Ids that contain `wanted` come first; `fromkeys` removes duplicates and keeps the order.
    similar = dict.fromkeys([*containing[:_MAX_SHOWN], *get_close_matches(wanted, ids, n=_MAX_SHOWN, cutoff=0.5)])
    similar_text = f"Similar ids: {', '.join([*similar][:_MAX_SHOWN])}. " if similar else ""
    # If `wanted` is the number of a row, the hint shows the row's position, which the user may have meant.
    # If `wanted` is not the number of a row, the hint shows `:2` as an example, or `:1` if there is only one episode.
    is_number = f":{wanted}" in [row.position for row in rows]
    position = f":{wanted}" if is_number else f":{min(2, len(rows))}"
    listed = "the only episode" if len(rows) == 1 else f"all {len(rows)} episodes"
    return f"{similar_text}`safevla episodes` lists {listed}; {position} is episode number {position[1:]}."
