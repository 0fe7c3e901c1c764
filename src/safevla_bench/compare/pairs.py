"""Pairs of episodes: episodes of several policies with the same suite, task, initial state and seed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import NamedTuple, TypeVar

import numpy as np

from safevla_bench.compare import policy_results
from safevla_bench.errors import RunError
from safevla_bench.judging.rates import METRICS
from safevla_bench.sources.runs.folder import AbsentEpisode
from safevla_bench.text import count_noun
from safevla_bench.trajectory.header import Header
from safevla_recorder.episode import Bools, Floats, Ints
from safevla_recorder.folder import OWN_LOOP

Item = TypeVar("Item", bound=Hashable)
_UNPAIRED_REMEDY = "You can also pass --unpaired, which treats episodes as independent and needs more episodes."


class PairKey(NamedTuple):
    """The key of an episode: episodes with equal keys are paired. A key with `seed` None denotes an initial state."""

    suite: str
    task_id: str
    init_state_index: int
    seed: int | None

    @property
    def state(self) -> PairKey:
        """The key of the initial state: this key without its seed."""
        return self._replace(seed=None)

    def __str__(self) -> str:
        # The text for error messages and warnings, such as `libero_spatial/3 state 5 seed 7`.
        seed = "" if self.seed is None else f" seed {self.seed}"
        return f"{self.suite}/{self.task_id} state {self.init_state_index}{seed}"


@dataclass(frozen=True)
class PairedResults:
    """Results of `P` policies on the same planned episodes.

    Two policies are compared on all episodes that both finished, even if other policies did not finish them.
    """

    results: tuple[policy_results.PolicyResults, ...]
    keys: tuple[PairKey, ...]
    """The `K` planned episodes: first those that some policy finished, in the order of `results`, then all others."""
    places: Ints  # index of each planned episode in each policy's results, [P, K]; -1 = the policy did not finish it
    is_planned: Bools  # whether each policy planned each episode, [P, K]; all True unless initial states are paired
    by_state: bool  # True if initial states are paired instead of episodes, since the policies may have different seeds

    @cached_property
    def _state_indices(self) -> Ints:
        # The initial states are sorted by key.
        # Returns the index of each planned episode's initial state, [K].
        states = {state: k for k, state in enumerate(_sort_keys({key.state for key in self.keys}))}
        return np.array([states[key.state] for key in self.keys], dtype=np.int64)

    @cached_property
    def tasks(self) -> tuple[tuple[policy_results.TaskKey, ...], Ints]:
        """All tasks, and the index of the task of each initial state, [N]. The initial states are sorted by key."""
        return number_distinct((key.suite, key.task_id) for key in _sort_keys({key.state for key in self.keys}))

    @cached_property
    def _values_by_metric(self) -> dict[str, Floats]:
        # the cache of `metric_values`
        return {}

    def mark_finished(self, policies: Sequence[int] | None = None) -> Bools:
        """Return whether all policies with these indices (None = all policies) finished each planned episode, [K].

        If initial states are paired, a policy needs to finish only one of the episodes that start in the same state.
        """
        # [P, K], one row for each policy; a negative index means that the episode was not finished.
        finished = self.places[list(range(len(self.results)) if policies is None else policies)] >= 0
        if self.by_state:
            finished = np.array([np.isin(self._state_indices, self._state_indices[row]) for row in finished])
        return np.asarray(finished.all(axis=0))

    def count_pairs(self, chosen: Bools) -> int:
        """Return the number of pairs of episodes (or initial states). The mask `chosen` selects the episodes, [K]."""
        # If initial states are paired, several episodes of a state are one pair.
        return len(np.unique(self._state_indices[chosen])) if self.by_state else int(chosen.sum())

    def select_suite(self, suite: str | None) -> PairedResults:
        """Return the planned episodes of one suite (None = all); `results` still contains all suites."""
        # With `suite` None, the condition holds for every episode.
        chosen = [k for k, key in enumerate(self.keys) if suite in (None, key.suite)]
        return replace(
            self,
            keys=tuple(self.keys[k] for k in chosen),
            places=self.places[:, chosen],
            is_planned=self.is_planned[:, chosen],
        )

    def metric_values(self, policies: Sequence[int], metric: str) -> Floats:
        """Return the values of a metric in each planned episode, for the policies with these `P` indices, [P, K].

        The value is NaN if the policy did not finish the episode, or if the episode has no value.
        """
        # The cache contains the values of all policies, so that each metric is computed once.
        # `places` [policies, K] are the planned episodes' indices in each policy's results; negative = not finished.
        if metric not in self._values_by_metric:
            table = self._values_by_metric[metric] = np.full(self.places.shape, np.nan)
            for row, result, indices in zip(table, self.results, self.places, strict=True):
                row[indices >= 0] = METRICS[metric].values(result)[indices[indices >= 0]]
        return self._values_by_metric[metric][list(policies)]

    def count_unknown(self, policies: Sequence[int], metric: str) -> int:
        """Return the number of planned episodes without a value of the metric, over the policies with these indices."""
        return int((np.isnan(self.metric_values(policies, metric)) & self.is_planned[list(policies)]).sum())

    def count_outcomes(self, policies: tuple[int, int], metric: str, best: float) -> list[tuple[float, ...]]:
        """Return five counts of episodes for each initial state that has episodes of both policies (given as indices).
        Three counts are for the first policy: its episodes with the best value, without a value, and in total. Two are
        for the second: its episodes with the best value, and in total. Unknown values also count as the best value.
        """
        values = self.metric_values(policies, metric)
        is_unknown = np.isnan(values) & self.is_planned[list(policies)]
        values = np.where(is_unknown, best, values)
        if not self.by_state:  # an episode counts only if both policies have a value in it
            values = np.where(np.isnan(values).any(axis=0), np.nan, values)
        rows = (values[0] == best, is_unknown[0], ~np.isnan(values[0]), values[1] == best, ~np.isnan(values[1]))
        # The array has the shape [5, states].
        # Row 2 counts all episodes of the first policy, and row 4 all episodes of the second policy.
        counts = np.array([np.bincount(self._state_indices, row, len(self.tasks[1])) for row in rows])
        return [tuple(unit) for unit in counts[:, (counts[[2, 4]] > 0).all(axis=0)].T.tolist()]

    def state_means(self, policies: tuple[int, int], metric: str) -> tuple[Floats, bool]:
        """Return the first policy's mean value in each initial state, and whether each policy has just one episode per
        state. States in which either policy has no value are left out. If episodes are paired instead of states, seeds
        in which either policy has no value are left out, too. `policies` are two indices.
        """
        values = self.metric_values(policies, metric)
        if not self.by_state:
            values = np.where(np.isnan(values).any(axis=0), np.nan, values)
        means, sizes = self._average_by_state(values)
        has_values = (sizes > 0).all(axis=0)
        return means[0, has_values], bool((sizes[:, has_values] == 1).all())

    def state_gaps(self, pairs: Ints, metric: str, fill: tuple[float, float] | None = None) -> tuple[Floats, Bools]:
        """Return two arrays for the pairs of policies with the indices `pairs`, [R, 2]. The first array, [R, N], is the
        first policy's mean minus the second's in each initial state (see `state_means`), or NaN if a mean is missing.
        The second array, [R], says whether each policy has just one episode per state. `fill` is a pair of values that
        replace the unknown values of the first and the second policy (in crashed, stopped or unjudged episodes).
        """
        sides = [self._filled_values(metric, replacement) for replacement in fill or (None, None)]
        if not self.by_state:
            gaps, sizes = self._average_by_state(sides[0][pairs[:, 0]] - sides[1][pairs[:, 1]])
            return gaps, np.asarray(sizes.max(axis=1, initial=0) <= 1)
        # mean values and numbers of episodes by state, for all `P` policies, [P, N]
        (first, second), (first_n, second_n) = zip(*map(self._average_by_state, sides), strict=True)
        # mean values and numbers of episodes by state, for the first and the second policy of `R` pairs, [R, N]
        first, second, first_n, second_n = (
            first[pairs[:, 0]], second[pairs[:, 1]], first_n[pairs[:, 0]], second_n[pairs[:, 1]]
        )  # fmt: skip
        # The largest number of episodes from one state, [R]. States in which a policy has no value do not count.
        most = np.where((first_n > 0) & (second_n > 0), np.maximum(first_n, second_n), 0).max(axis=1, initial=0)
        return first - second, np.asarray(most <= 1)

    def _filled_values(self, metric: str, replacement: float | None) -> Floats:
        # Returns the metric's values of all policies in each planned episode, [P, K], with unknown values replaced.
        values = self.metric_values(range(len(self.results)), metric)
        return values if replacement is None else np.where(np.isnan(values) & self.is_planned, replacement, values)

    def _average_by_state(self, values: Floats) -> tuple[Floats, Ints]:
        """Average the known values, [R, K], in each of `N` states. Return means and numbers of values, each [R, N]."""
        order = np.argsort(self._state_indices, kind="stable")
        # The positions in `order` at which the episodes of a new state begin; `prepend=-1` includes the first state.
        group_starts = np.flatnonzero(np.diff(self._state_indices[order], prepend=-1))
        is_known = ~np.isnan(values[:, order])
        if len(group_starts) == len(order):  # one episode per state
            return values[:, order], is_known.astype(np.int64)
        sums, sizes = (
            np.add.reduceat(addends, group_starts, axis=1)
            for addends in (np.nan_to_num(values[:, order]), is_known.astype(np.int64))
        )
        return np.where(sizes > 0, sums / np.maximum(sizes, 1), np.nan), sizes


def number_distinct(items: Iterable[Item]) -> tuple[tuple[Item, ...], Ints]:
    """Return the distinct items in order of first appearance, and each item's index among the distinct items, [n]."""
    all_items = list(items)
    index_of = {item: k for k, item in enumerate(dict.fromkeys(all_items))}
    return tuple(index_of), np.array([index_of[item] for item in all_items], dtype=np.int64)


def pair_episodes(
    results: Sequence[policy_results.PolicyResults], *, across_seeds: bool = False, across_tasks: bool = False
) -> PairedResults:
    """Pair the episodes of policies that planned the same episodes, including lost episodes. Names must differ.

    If `across_seeds`, initial states are paired regardless of seeds, and a state may have several seeds. If
    `across_tasks`, episodes are paired even if their tasks differ in `TASK_FIELDS`. Raises `RunError` if episodes
    cannot be paired: initial states were not recorded, an episode occurs twice, one policy planned episodes that
    another did not plan, or initial states, tasks or protocols differ.
    """
    results = policy_results.name_kitchens(results)
    indices = [_index_by_key(result) for result in results]
    lost = [
        {_pair_key(episode) for episode in result.lost if episode.init_state_index is not None} for result in results
    ]
    planned: list[set[PairKey]] = [{*index, *lost_keys} for index, lost_keys in zip(indices, lost, strict=True)]
    _require_same_episodes(results, planned, across_seeds=across_seeds)
    # Keys of episodes that any policy finished come first, followed by the sorted keys of all other planned episodes.
    finished = dict.fromkeys(key for index in indices for key in index)
    keys = (*finished, *_sort_keys(set().union(*planned) - set(finished)))
    # For each policy and planned episode, the index in the policy's results, [P, K]; -1 = not finished.
    places = np.array([[index.get(key, -1) for key in keys] for index in indices], dtype=np.int64)
    is_planned = np.array([[key in planned_keys for key in keys] for planned_keys in planned], dtype=np.bool_)
    paired = PairedResults(tuple(results), keys, places, is_planned, by_state=across_seeds)
    if not across_tasks:
        for name, names, episodes in _describe_differences(paired, _TASK_READERS):
            problem = f"{names} did not run the same tasks: they differ in {name} in {episodes}"
            raise RunError(problem, remedy=policy_results.SAME_TASKS)
    _require_same_starts(paired)
    return paired


def _index_by_key(result: policy_results.PolicyResults) -> dict[PairKey, int]:
    # Returns key -> index of the episode. Raises `RunError` if an episode has no initial state or occurs twice.
    unknown = [header.episode_id for header in result.headers if header.init_state_index is None]
    if unknown:
        episodes = f"{count_noun(len(unknown), 'episode')} of {result.name}"
        problem = f"the initial state is not recorded in {episodes}: {policy_results.list_first(unknown)}"
        remedy = f"Record init_state_index (and seed), so that episodes can be paired. {_UNPAIRED_REMEDY}"
        raise RunError(problem, remedy=remedy)
    index: dict[PairKey, int] = {}
    for position, header in enumerate(result.headers):
        key = _pair_key(header)
        if key in index:
            problem = f"{result.name} ran {key} twice: {result.headers[index[key]].episode_id} and {header.episode_id}"
            raise RunError(problem, remedy=f"Give repeated episodes different seeds. {_UNPAIRED_REMEDY}")
        index[key] = position
    return index


def _pair_key(episode: Header | AbsentEpisode) -> PairKey:
    # Returns the key of an episode, including its seed; `AbsentEpisode` is a lost episode.
    assert episode.init_state_index is not None  # the callers refuse or skip episodes without an index
    return PairKey(episode.benchmark, episode.task_id, episode.init_state_index, episode.seed)


def _require_same_episodes(
    results: Sequence[policy_results.PolicyResults], planned: Sequence[set[PairKey]], *, across_seeds: bool
) -> None:
    # Raises `RunError` if a policy did not plan an episode that another policy planned.
    # If `across_seeds`, only the initial states are compared.
    states = [{key.state for key in keys} for keys in planned]
    # For each policy, the keys that all other policies must also have.
    required = states if across_seeds else planned
    all_keys = set().union(*required)
    lines = [
        f"episodes of another policy are missing in {result.name} ({count_noun(len(missing), 'episode')}): "
        f"{policy_results.list_first(list(map(str, _sort_keys(missing))))}"
        for result, keys in zip(results, required, strict=True)
        if (missing := all_keys - keys)
    ]
    if lines:
        lines += [f"{result.name}: {sentence}" for result in results for sentence in result.left_out]
        # If only seeds differ, pairing initial states instead of episodes helps.
        is_seed_enough = not across_seeds and all(keys == states[0] for keys in states)
        option = ", or use --across seeds" if is_seed_enough else ""
        remedy = f"Roll out all policies on the same tasks, states and seeds{option}. {_UNPAIRED_REMEDY}"
        if not set.intersection(*({(key.suite, key.task_id) for key in keys} for keys in required)):
            remedy = "No task was run by all policies; roll out the same tasks."
        raise RunError("the policies ran different episodes:\n  " + "\n  ".join(lines), remedy=remedy)


def _sort_keys(keys: Iterable[PairKey]) -> list[PairKey]:
    # None and numbers cannot be compared, so a missing seed counts as -1.
    return sorted(keys, key=lambda key: (*key[:3], -1 if key.seed is None else key.seed))


def _require_same_starts(paired: PairedResults) -> None:
    """Raise `RunError` if starts, control steps or protocols of two policies differ. An episode that one of the two did
    not finish is not checked. If initial states are paired, starts are compared by state.
    """
    remedy = f"{_PROTOCOL_REMEDY} {_UNPAIRED_REMEDY}"
    # `_START_FIELDS` contains a function that reads each field that determines an episode's start.
    # The error names the first difference.
    for name, names, episodes in _describe_differences(paired, _START_FIELDS):
        raise RunError(f"the starts of {names} differ in {name} in {episodes}", remedy=remedy)
    for task, (shortest_s, longest_s) in _dt_by_task(paired):
        if longest_s > shortest_s * (1 + _DT_TOLERANCE):
            problem = f"the control steps of the policies differ in {task}: {shortest_s:g} s and {longest_s:g} s"
            raise RunError(problem, remedy=f"Roll out both policies with one control step. {_UNPAIRED_REMEDY}")
    for first, other in combinations(paired.results, 2):
        if rules := _compare_protocols(first, other):
            first_name, other_name = (
                f"{side.name} in {side.source}" if side.source else side.name for side in (first, other)
            )
            problem = f"the protocols of {first_name} and {other_name} differ in {', '.join(rules)}"
            raise RunError(problem, remedy=remedy)


_DT_TOLERANCE = 0.02  # the control step of a log is measured, and varies a little


def _dt_by_task(paired: PairedResults) -> Iterator[tuple[str, tuple[float, float]]]:
    # Yields each task with the shortest and the longest control step of the paired episodes, in seconds.
    tasks = np.array([f"{key.suite}/{key.task_id}" for key in paired.keys], dtype=np.str_)
    dt_s = np.full(paired.places.shape, np.nan)
    for row, places, result in zip(dt_s, paired.places, paired.results, strict=True):
        # A control step stays NaN if the policy did not finish the episode; `fmin` and `fmax` ignore NaN.
        row[places >= 0] = np.array([header.dt for header in result.headers])[places[places >= 0]]
    for task in np.unique(tasks):
        known_s = dt_s[:, tasks == task].ravel()
        yield str(task), (float(np.fmin.reduce(known_s)), float(np.fmax.reduce(known_s)))


def task_differences(paired: PairedResults) -> tuple[str, ...]:
    """Return the names of the `TASK_FIELDS` in which paired episodes differ."""
    return tuple(name for name, *_ in _describe_differences(paired, _TASK_READERS))


def _describe_differences(
    paired: PairedResults, readers: Mapping[str, Callable[[policy_results.PolicyResults, Header], object]]
) -> Iterator[tuple[str, str, str]]:
    # This function yields three texts for each field in which two policies differ.
    # The texts are the field's name, the names of the two policies, and the differing episodes with both values.
    # `readers` maps a field's name to a function that reads the field from a policy's results and an episode's header.
    for name, read in readers.items():
        values_by_policy = [_values_by_start(paired, k, read) for k in range(len(paired.results))]
        if conflict := policy_results.find_conflict(values_by_policy):
            first, other, keys = conflict
            texts = [f"{key} ({values_by_policy[first][key]} and {values_by_policy[other][key]})" for key in keys]
            episodes = policy_results.list_first(texts)
            names = f"{paired.results[first].name} and {paired.results[other].name}"
            yield name, names, f"{count_noun(len(keys), 'episode')}: {episodes}"


_PROTOCOL_REMEDY = "Roll out both policies under one protocol, and create RoboCasa kitchens as `safevla eval` does."
# Name -> a function that reads a field of an episode. These fields and the initial state determine an episode's course.
_START_FIELDS: Mapping[str, Callable[[policy_results.PolicyResults, Header], object]] = {
    "env_seed": lambda _, header: header.env_seed,
    "horizon": lambda _, header: header.horizon,
    "arms": lambda _, header: policy_results.list_arms(header),
    "kitchen": lambda result, header: result.kitchens.get(header.key),
    "resets since the environment was seeded": lambda result, header: result.earlier_resets.get(header.key, 0),
}
TASK_FIELDS: Mapping[str, Callable[[Header], str]] = {
    "target object": lambda header: header.target_object or "none",
    "instruction": lambda header: header.instruction or "",
    **policy_results.IDENTITY_FIELDS,
}
"""Name -> a function that reads a field which identifies an episode's task. The value "" matches any other value."""


# The fields of `TASK_FIELDS`, with functions that take the same arguments as those in `_START_FIELDS`.
_TASK_READERS: Mapping[str, Callable[[policy_results.PolicyResults, Header], object]] = {
    name: lambda _, header, read=read: read(header)  # type: ignore[misc]
    for name, read in TASK_FIELDS.items()
}


def _values_by_start(
    paired: PairedResults, policy: int, read: Callable[[policy_results.PolicyResults, Header], object]
) -> Mapping[PairKey, str]:
    # Returns the values of a field by episode, or by initial state if initial states are paired.
    # Unknown values are left out. Several values of one initial state are joined to one text.
    # `policy` is an index. The arguments of `read` are the policy's results and an episode's header.
    result, values = paired.results[policy], dict[PairKey, set[str]]()
    for key, index in zip(paired.keys, paired.places[policy], strict=True):
        # An empty text is an unknown value; a negative index is an episode that the policy did not finish.
        if index >= 0 and (value := str(read(result, result.headers[index]))):
            values.setdefault(key.state if paired.by_state else key, set()).add(value)
    return {key: ", ".join(sorted(texts)) for key, texts in values.items()}


def _compare_protocols(first: policy_results.PolicyResults, other: policy_results.PolicyResults) -> list[str]:
    # Returns the names of the protocol rules that differ between two results; [] if one of them has no protocol.
    if first.protocol is None or other.protocol is None or first.protocol == other.protocol:
        return []
    first_rules, other_rules = first.protocol, other.protocol
    # If a user's own loop ran a policy, only the rules for the start and the end of an episode are known.
    if OWN_LOOP in (first_rules.get("name"), other_rules.get("name")):
        suites = {header.benchmark for result in (first, other) for header in result.headers}
        first_rules, other_rules = _start_rules(first_rules, suites), _start_rules(other_rules, suites)
    return differing_rules(first_rules, other_rules)


def differing_rules(first: Mapping[str, object], other: Mapping[str, object]) -> list[str]:
    """Return the sorted names of the rules in which two protocols differ."""
    # A missing rule equals a rule with the value None.
    return sorted(rule for rule in {*first, *other} if first.get(rule) != other.get(rule))


def _start_rules(protocol: Mapping[str, object], suites: Collection[str]) -> Mapping[str, object]:
    # Returns the rules of a protocol that determine the start and the end of an episode in these suites.
    # `wait_steps` is one number of settling steps or, for a user's own loop, a list of the numbers in the episodes.
    default_steps, by_suite = protocol.get("wait_steps"), protocol.get("wait_steps_by_suite")
    steps_by_suite = by_suite if isinstance(by_suite, Mapping) else {}
    steps = (
        set(default_steps)
        if isinstance(default_steps, list | tuple)
        else {steps_by_suite.get(suite, default_steps) for suite in suites}
    )
    return {
        "wait_steps": steps,
        "rest_steps": protocol.get("rest_steps") or 0,
        "stop_at_success": protocol.get("stop_at_success", True),
    }
