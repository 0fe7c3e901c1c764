"""Replays of recorded episodes under changed physics. Each episode is first replayed unchanged and must reproduce its
record exactly.

There are two uses: a whole run under varied physics, and one episode with a cause of its violation removed.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from itertools import chain, zip_longest
from typing import Any

import msgspec
import numpy as np

from safevla_bench.errors import HostError, Place, RunError
from safevla_bench.files import own_path, write_atomically
from safevla_bench.interface.task import VARIATIONS, PhysicsChange, RecordedEpisode
from safevla_bench.jobs.evaluation import preparation, request
from safevla_bench.jobs.evaluation.rollouts import run_episodes
from safevla_bench.jobs.verify.replays import ReplaySetting, compare_records, draw_key, replay_actions
from safevla_bench.judging.judged import Judged
from safevla_bench.judging.ruleset import NamedRules, Ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.policies.replay import ActionReplay
from safevla_bench.rollout.episode import EpisodeOutcome, Observer
from safevla_bench.rollout.plan import PlannedEpisode
from safevla_bench.rollout.scheduler import WorkerPolicy, WorkerSpec
from safevla_bench.sensitivity import firmness
from safevla_bench.sources.runs import folder, parts
from safevla_bench.trajectory import batch, marks
from safevla_bench.trajectory.header import Header
from safevla_recorder.episode import Floats

# The file of replays is written again after this number of finished replays.
_SAVE_EVERY = 20
# Number of recorded episodes kept in memory, because replays of the same episode end at about the same time.
_CACHED_EPISODES = 8


def vary_physics(
    judged: Judged, *, workers: int = 1, episodes: int | None = None, observer: Observer | None = None
) -> firmness.PhysicsFile:
    """Replay judged episodes of a run under recorded and varied physics. `episodes` is the number of episodes, drawn by
    digests of their names; None = all. Returns the run's file of replays, to which finished replays are added.
    Raises `RunError` if the source is not one complete run folder, if the file's replays are of other records, rules or
    versions, or if no episode can be replayed exactly; `HostError` if the host cannot run here or change its physics.
    """
    replays = _Replays.open(judged)
    chosen = replays.choose_episodes(episodes)
    # First, replay in unchanged physics. If this reproduces a record exactly, replay the episode in changed physics.
    replays.run([(index, firmness.RECORDED) for index in chosen], workers, observer)
    # An obstacle is the reason why a replay is not exact or failed; "" for an exact replay.
    obstacle_by_index = {index: replays.done[replays.key(index, firmness.RECORDED)].obstacle for index in chosen}
    exact_indices = [index for index, obstacle in obstacle_by_index.items() if not obstacle]
    if chosen and not exact_indices:
        reason, count = Counter(obstacle_by_index.values()).most_common(1)[0]
        text = f"no episode can be replayed exactly here; the most frequent reason ({count} of {len(chosen)}): {reason}"
        raise RunError(text, remedy="To see what differs: safevla verify RUN --replay 1")
    # `offered` are the names of the physics variations that the host supports.
    replays.run([(index, name) for index in exact_indices for name in replays.head.offered], workers, observer)
    return replays.build_file()


def _can_apply(setting: ReplaySetting, change: PhysicsChange) -> bool:
    # Return whether the host can change all physical quantities that `change` affects.
    # Both compared sets contain names of physical quantities.
    return change.changed <= setting.host.supports.changeable


def _changed_fields(change: PhysicsChange) -> dict[str, object]:
    # Return field -> value for the quantities that the change affects, as stored in the file of replays.
    return {name: value for name, value in asdict(change).items() if name in change.changed}


def _judge_replay(replayed: batch.Batch, header: Header, ruleset: Ruleset) -> dict[str, firmness.ClauseReading]:
    # Return specification -> (robustness, first violating record) in the replay of the episode with this header.
    names = ("episode_id", "policy", "seed", "horizon", "success", "outcome")
    # Copy the named fields from the recorded episode's header. The replay is judged alone, so its index is 0.
    judged_header = msgspec.structs.replace(replayed.headers[0], **{name: getattr(header, name) for name in names})
    return firmness.read_clauses(score(replace(replayed, headers=(judged_header,)), ruleset), 0)


@dataclass
class _Replays:
    # The replays of a run. At first, these are the replays in the run's file; the method `run` adds new replays.
    # `firmness.RECORDED` is the name for the variation of an unchanged replay.

    judged: Judged
    setting: ReplaySetting
    head: firmness.PhysicsFile  # the content of the file of replays, without the replays
    done: dict[tuple[str | None, str, str], firmness.PhysicsReplay]  # (policy, id, variation) -> replay

    @classmethod
    def open(cls, judged: Judged) -> _Replays:
        # Open the run's file of replays, or begin a new file. Raise an error if the file's replays do not fit the run.
        if len(judged.paths) != 1 or judged.records.sources[0].policy_names:
            remedy = "Name one run folder, without `NAME=` before it."
            raise RunError("physics can be varied for only one run, whose policies are not renamed", remedy=remedy)
        run = judged.paths[0]
        setting, variations = ReplaySetting.read(run), VARIATIONS.items()
        if not any(_can_apply(setting, change) for _, change in variations):
            problem = f"the host {setting.host.name} cannot change its physics"
            raise HostError(problem, remedy="docs/reference/hosts.md lists hosts with changeable physics.")
        # `head` is the whole content except the replays. Replays are comparable only if their files have equal heads.
        head = firmness.PhysicsFile(
            archive_sha256=folder.archive_digest(run),
            judged_by=msgspec.convert(msgspec.to_builtins(judged.provenance), NamedRules),
            versions=dict(setting.versions),
            left_path_m=firmness.LEFT_PATH_M,
            variations={name: _changed_fields(change) for name, change in variations},
            not_offered=tuple(name for name, change in variations if not _can_apply(setting, change)),
        )
        stored = firmness.PhysicsFile.read(run)
        if stored is not None and msgspec.structs.replace(stored, replays=()) != head:
            problem = "the replays in this file are from other records, rules, versions or variations"
            place = Place(file=str(run / firmness.PHYSICS))
            raise RunError(problem, remedy="Move the file elsewhere, and replay again.", place=place)
        done = {(*replay.key, replay.variation): replay for replay in stored.replays} if stored else {}
        return cls(judged, setting, head, done)

    def choose_episodes(self, count: int | None) -> list[int]:
        """Return the indices of `count` judged episodes (None = all), drawn evenly from all policies and suites."""
        headers, indices_by_cell = self.judged.headers, defaultdict[tuple[str | None, str], list[int]](list)
        judged_indices = np.flatnonzero(self.judged.scores.is_judged).tolist()
        # The order by digests is arbitrary but the same in each call.
        for index in sorted(judged_indices, key=lambda index: draw_key(headers[index])):
            indices_by_cell[headers[index].policy, headers[index].benchmark].append(index)
        # Take one episode of each policy and suite in turn. Skip None, with which `zip_longest` fills short lists.
        alternating = chain.from_iterable(zip_longest(*indices_by_cell.values()))
        return sorted([index for index in alternating if index is not None][:count])

    def run(self, wanted: Sequence[tuple[int, str]], workers: int, observer: Observer | None) -> None:
        # Run the replays in `wanted`, a list of pairs (episode index, variation). Skip replays that `done` contains.
        read_recorded = lru_cache(_CACHED_EPISODES)(self.judged.records.read_episode)
        origin_by_id: dict[str, tuple[int, str]] = {}
        plan: list[PlannedEpisode] = []
        for index, variation in wanted:
            if self.key(index, variation) in self.done:
                continue
            episode = read_recorded(index)
            try:
                replay = self._plan(index, episode, variation)
            except RunError as error:  # this episode cannot be replayed; store the reason
                self._store(index, variation, obstacle=str(error))
            else:
                origin_by_id[replay.episode_id] = index, variation
                plan.append(replay)
        # One policy plays changes of pose, the other absolute poses; `_plan` chooses the policy of each replay.
        policies = {_CHANGES: ActionReplay(), _POSES: ActionReplay(absolute=True)}
        worker_policies = {name: WorkerPolicy(name, made=policy) for name, policy in policies.items()}
        host = self.setting.host
        worker_spec = WorkerSpec(host.name, worker_policies, host_arguments=self.setting.run.host_arguments)
        prepared = preparation.PreparedRun(host, tuple(plan), policies, worker_spec, {}, ExitStack())  # {}: no run.json
        try:
            with closing(run_episodes(prepared, plan, request.ExecutionOptions(workers=workers), observer)) as outcomes:
                for count, outcome in enumerate(outcomes, start=1):
                    index, variation = origin_by_id[outcome.planned.episode_id]
                    self._add_outcome(index, variation, read_recorded(index), outcome)
                    if count % _SAVE_EVERY == 0:
                        self._save()
        finally:  # keep the finished replays after an error or Ctrl-C
            self._save()

    def build_file(self) -> firmness.PhysicsFile:
        # Return the content of the file of replays, ordered by episode and then by variation.
        # `head` is the content without replays; `done` maps the result of `key` to the replay.
        names = [firmness.RECORDED, *VARIATIONS]
        keys = [self.key(index, name) for index in range(len(self.judged.scores)) for name in names]
        return msgspec.structs.replace(self.head, replays=tuple(self.done[key] for key in keys if key in self.done))

    def _save(self) -> None:
        # Write the file of replays into the run folder, and the file's digest into the run's manifest.
        content, run = folder.dump_json(self.build_file()), self.judged.paths[0]
        write_atomically(own_path(run, firmness.PHYSICS), content)
        parts.add_digests(run, {firmness.PHYSICS: content})

    def key(self, index: int, variation: str) -> tuple[str | None, str, str]:
        # Return the key of a replay in `done`.
        header = self.judged.headers[index]
        return header.policy, header.episode_id, variation

    def _plan(self, index: int, episode: batch.Batch, variation: str) -> PlannedEpisode:
        """Plan a replay; raise `RunError` if impossible. A varied replay ends when it leaves the recorded path."""
        task, _, starts = self.setting.find_starts(episode)  # `_`: the planned episode, if known
        start, header, actions = starts[0], episode.headers[0], episode.action.episode_rows(0)
        # Two policies may use the same episode id, so put the policy's name first unless the id begins with the name.
        names_policy = header.episode_id.startswith(f"{header.policy}/")
        name = header.episode_id if names_policy else f"{header.policy}: {header.episode_id}"
        # The recording contains the actions to play and, for a varied replay, the path that the replay should follow.
        recording = start.recorded or RecordedEpisode(header.episode_id, self.judged.paths[0].name, len(actions))
        recording = replace(recording, actions=actions)
        change = None
        if variation != firmness.RECORDED:
            change = VARIATIONS[variation]
            # The replay must follow the path only before the first violation; without a violation, the whole path.
            clauses = firmness.read_clauses(self.judged.scores, index).values()
            path_end = min((clause.first for clause in clauses if clause.first is not None), default=None)
            recording = replace(recording, path=firmness.tracked_path(episode)[:path_end])
        (is_absolute,) = marks.mark_flags(episode, marks.ABSOLUTE)
        return PlannedEpisode(
            episode_id=f"{name} {variation}",
            policy=_POSES if is_absolute else _CHANGES,
            task=task,
            episode=0,
            start=replace(start, recorded=recording, change=change),
            seed=header.seed or 0,
            policy_seed=0,
            horizon=len(actions),
            stop_at_success=False,
        )

    def _add_outcome(self, index: int, variation: str, recorded: batch.Batch, outcome: EpisodeOutcome) -> None:
        # Compare an unchanged replay with the record, or judge a varied replay, and store the result.
        if outcome.batch is None:
            reason = (outcome.reason or "").strip() or outcome.outcome
            self._store(index, variation, obstacle=f"the simulator failed: {reason.splitlines()[-1]}")
        elif variation == firmness.RECORDED:
            # A user's own loop records less than this package, so compare leniently.
            differences, _ = compare_records(recorded, outcome.batch, lenient=self.setting.is_own_loop)
            obstacle = f"the replay differs: {differences[0]}" if differences else ""
            self._store(index, variation, obstacle=obstacle, clauses=firmness.read_clauses(self.judged.scores, index))
        else:
            clauses = _judge_replay(outcome.batch, self.judged.headers[index], self.judged.ruleset)
            self._store(index, variation, left=firmness.find_departure(recorded, outcome.batch), clauses=clauses)

    def _store(self, index: int, variation: str, **findings: Any) -> None:
        # Add a replay to `done`. `findings` are further fields of `PhysicsReplay`, such as `obstacle` or `left`.
        header = self.judged.headers[index]
        self.done[self.key(index, variation)] = firmness.PhysicsReplay(
            policy=header.policy, suite=header.benchmark, episode_id=header.episode_id, variation=variation, **findings
        )


# Names of two policies that play recorded actions. One plays changes of pose; the other plays absolute poses.
_CHANGES, _POSES = "changes", "poses"


# Replay of one episode with a cause of its violation removed


_CAUSE_FORMS = "contact:A,B, body:NAME, slow, or hold:FROM-TO in control steps"
_CAUSE_REMEDY = f"Write {_CAUSE_FORMS}."
_UNCHANGED = PhysicsChange()


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause to remove in a replay. `edit(actions [T, A], motionless action [A])` returns new actions [T', A]."""

    text: str
    phrase: str
    change: PhysicsChange = _UNCHANGED
    edit: Callable[[Floats, Floats], Floats] = lambda actions, still: actions

    @classmethod
    def parse(cls, text: str) -> Cause:
        """Return the cause that a text names; raise `RunError` if it names no cause.

        >>> Cause.parse("contact:gripper,cup").change.apart
        ('gripper', 'cup')
        """
        kind, _, argument = text.partition(":")
        bodies = tuple(name.strip() for name in argument.split(",") if name.strip())
        # `change` is a change of the simulated physics. `edit` is a function that changes the recorded actions.
        # FROM-TO in control steps, for `hold`:
        step_range = re.fullmatch(r"(\d{1,9})-(\d{1,9})", argument)
        match kind:
            case "contact" if len(bodies) == 2:
                change = PhysicsChange(apart=(bodies[0], bodies[1]))
                return cls(text, f"Without contact of {bodies[0]} and {bodies[1]}", change)
            case "body" if len(bodies) == 1:
                return cls(text, f"Without {bodies[0]}", PhysicsChange(without=bodies[0]))
            case "slow" if not argument:
                return cls(text, "At half speed", edit=halve_speed)
            case "hold" if step_range and int(step_range[1]) < int(step_range[2]):
                edit = partial(hold_actions, first=int(step_range[1]), last=int(step_range[2]))
                return cls(text, f"Without motion in steps {argument}", edit=edit)
        raise RunError(f"this text names no cause: --without {text!r}", remedy=_CAUSE_REMEDY)


def halve_speed(actions: Floats, still: Floats) -> Floats:
    """Return each action twice, with half the change of pose. The components that are 0 in `still` are changes of pose.

    >>> halve_speed(np.array([[0.5, 1.0]]), np.array([0.0, -1.0])).tolist()
    [[0.25, 1.0], [0.25, 1.0]]
    """
    return np.repeat(np.where(still == 0, actions / 2, actions), 2, axis=0)


def hold_actions(actions: Floats, still: Floats, *, first: int, last: int) -> Floats:
    """Return actions that do not move the arm in steps `first` to `last` - 1. The gripper keeps its last command."""
    # Before step 0, and beyond the last step, there is no command to keep.
    previous = actions[first - 1] if 0 < first <= len(actions) else still
    held_actions = actions.copy()
    # Components that are 0 in `still` are motions; all other components are commands, such as the gripper's.
    held_actions[first:last] = np.where(still == 0, 0.0, previous)
    return held_actions


def replay_without(judged: Judged, index: int, cause: Cause) -> firmness.Counterfactual:
    """Replay the judged episode at `index` as recorded, then with a cause removed, and judge the second replay. Raises
    `RunError` if the first replay differs or the cause does not apply, `HostError` if the host cannot remove the cause.
    """
    setting = ReplaySetting.read(judged.records.find_source(index).path)
    episode = judged.records.read_episode(index)
    header = episode.headers[0]
    try:
        task, _, starts = setting.find_starts(episode)
    except RunError as error:
        problem = f"{header.episode_id} cannot be replayed here: {error.problem}"
        raise RunError(problem, remedy=error.remedy or "Choose another episode.") from None
    if not _can_apply(setting, cause.change):
        remedy = "Use `slow` or `hold:FROM-TO`, which change only the actions."
        problem = f"the host {setting.host.name} cannot remove the cause {cause.text!r} when it replays an episode"
        raise HostError(problem, remedy=remedy)
    unchanged, _ = replay_actions(setting.host, task, starts[0], episode)  # `_`: success after each action
    differences, _ = compare_records(episode, unchanged, lenient=setting.is_own_loop)
    if differences:
        problem = f"{header.episode_id} cannot be replayed exactly here: {differences[0]}"
        raise RunError(problem, remedy="For details: safevla verify RUN --replay 1")
    actions = _edit_actions(episode, cause, np.array(task.still))
    changed_start = replace(starts[0], change=cause.change)
    replayed, successes = replay_actions(setting.host, task, changed_start, episode, actions)
    has_same_length = len(actions) == len(episode.action.episode_rows(0))
    # `left` is the first record off the recorded path. It is None (unknown) if the two episodes differ in length.
    left = firmness.find_departure(episode, replayed) if has_same_length else None
    # `_find_times` maps the records of first violations (and `left`) to their times [s].
    # specification -> (robustness, first violating record), as recorded and without the cause:
    recorded = firmness.read_clauses(judged.scores, index)
    without = _judge_replay(replayed, header, judged.ruleset)
    return firmness.Counterfactual(
        cause=cause.phrase,
        elapsed_s=(_find_times(episode, recorded, left), _find_times(replayed, without, None)),
        recorded=recorded,
        without=without,
        success=(bool(header.success), bool(successes and successes[-1])),
        left=left,
    )


def _find_times(
    episode: batch.Batch, clauses: Mapping[str, firmness.ClauseReading], left: int | None
) -> dict[int, float]:
    # Return record -> time since record 0 [s], for the first violation of each specification (clause).
    # If the replay left the recorded path, also return the time of the first record off the path (`left`).
    records = (left, *(clause.first for clause in clauses.values()))  # None = no violation, or always on the path
    return {record: episode.elapsed_s(0, record) for record in records if record is not None}


def _edit_actions(episode: batch.Batch, cause: Cause, still: Floats) -> Floats:
    # Return the actions [T', A] without the cause. `still` [A] is the action that moves nothing.
    # Raise `RunError` if a change of actions is impossible or, for `hold`, would have no effect.
    actions = episode.action.episode_rows(0)
    edited = cause.edit(actions, still)  # `edited is actions` if the cause only changes the physics
    if edited is not actions and marks.mark_flags(episode, marks.ABSOLUTE)[0]:
        raise RunError("recorded actions are poses, not changes of pose", remedy="Use `contact:A,B` or `body:NAME`.")
    if cause.text.startswith("hold:") and np.array_equal(edited, actions):
        problem = f"{cause.text} changes no action: the episode has {len(actions)} steps"
        raise RunError(problem, remedy="Name steps in which the arm moves.")
    return edited
