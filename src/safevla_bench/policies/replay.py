"""The policy `replay:FILE`, which plays recorded actions open loop from their recorded start.

FILE is one of this package's archives or run folders, an HDF5 file of demonstrations or a folder of such files, a
LeRobot dataset, or the output folder of vla-evaluation-harness. Each planned episode replays one recorded episode:

- if initial states are recorded, as in archives: the episode with the same suite, task and initial state;
- otherwise: the task's next episode, in recorded order; a demonstration starts from its first recorded state.

The replay is compared with the recording, body by body and joint by joint. The header field `replay` contains the
largest differences, and the steps at which they begin.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.spatial.transform import Rotation

from safevla_bench.errors import CollectedError, PolicyError, RecordError, RunError
from safevla_bench.files import sha256_of
from safevla_bench.interface.policy import Action, Observation, Wants
from safevla_bench.interface.task import Coordinate, EpisodeSeed, RecordedEpisode, Task
from safevla_bench.sources import foreign
from safevla_bench.sources.foreign.demonstrations import RecordedActions
from safevla_bench.sources.runs.episode_index import read_sources
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.marks import ABSOLUTE, DIVERGED, DRAWN, earlier_resets, mark_flags
from safevla_recorder.episode import Floats, add_header_field, add_header_mark

TOLERANCE = 1e-3  # larger differences count as divergence: 1 mm, 1 mrad
UNITS = {"position": "m", "rotation": "rad"}
_SHOWN = 5
_HAND_ALONE = "only the pose of the hand and its fingers; no positions of objects were recorded"
_ROUNDED_RAD = 1e-5  # rotations that differ by less count as equal: float32 axis-angles are not more exact


class Replay:
    """A policy that plays recorded episodes and ignores observations."""

    clip = True  # the recording's simulator also clipped actions; the clipped actions are counted

    def __init__(self, path: Path, takes: Sequence[RecordedActions], from_host: bool) -> None:
        """Store the recorded episodes, and hash the files under `path`; raise `PolicyError` if the episodes mix poses
        and changes of pose. With `from_host`, episodes without a recorded start begin at the host's initial states.
        """
        kinds = {take.absolute for take in takes}
        if len(kinds) > 1:
            problem = f"{path.name} holds actions that are poses and actions that are changes of pose"
            raise PolicyError(problem, remedy="Replay the episodes of one policy: --policy-arg policy=NAME.")
        self._takes, self._from_host = takes, from_host
        self.wants = Wants(absolute=True in kinds)
        self.description: Mapping[str, object] = {
            "recording": path.name,
            "sha256": recording_digest(path),
            "episodes": len(takes),
        }
        self._observations: list[Observation] = []

    def match(self, task: Task, start: EpisodeSeed) -> EpisodeSeed:
        """Return a planned `start`, changed to the start of the matching recorded episode. Raises `PolicyError` if the
        recorded start is unknown, or if no episode or several match; then it lists the recorded episodes.
        """
        take = self._choose_take(task, start.init_state_index)
        if (size := take.actions.shape[1]) != len(task.still):
            problem = f"{take.source} has actions of {size} numbers, but {task.suite} takes {len(task.still)}"
            raise PolicyError(problem, remedy="Use the --host and --host-arg of the recording.")
        start = _apply_recorded_seed(start, take)
        played = RecordedEpisode(take.name, take.source, len(take.actions), ending=take.ending)
        if take.init_state_index is not None:
            return replace(start, recorded=played)
        if take.states is not None:
            state = tuple(take.states[0].tolist())
            played = replace(played, state=state, fixtures=take.fixtures)
            return replace(start, wait_steps=0, rest_steps=0, recorded=played)
        if self._from_host:
            return replace(start, recorded=played)
        remedy = "Pass --policy-arg start=host to use the host's initial states in order. This start is only a guess."
        raise PolicyError(f"{take.source} does not contain the start of {take.name}", remedy=remedy)

    def recorded_episodes(self, task: Task) -> tuple[int, ...]:
        """Return the numbers of a task's recorded episodes: the sorted indices of their initial states, or 0, 1, ... if
        initial states are not recorded; () if the task has no recorded episodes.
        """
        fitting = [take for take in self._takes if take.is_of_task(task)]
        indices = sorted({take.init_state_index for take in fitting if take.init_state_index is not None})
        return tuple(indices) if indices else tuple(range(len(fitting)))

    @property
    def suites(self) -> tuple[str, ...]:
        """The benchmarks of the recorded tasks, in recorded order; unknown benchmarks are omitted."""
        return tuple(dict.fromkeys(take.benchmark for take in self._takes if take.benchmark is not None))

    def cue(self, start: EpisodeSeed) -> None:
        assert start.recorded is not None
        key = (start.recorded.source, start.recorded.episode)
        self._start, self._take = start, next(take for take in self._takes if (take.source, take.name) == key)

    def reset(self, task: Task, seed: int) -> None:
        self._observations = []

    def act(self, observation: Observation) -> Action:
        """Return the next recorded action, [A]; the rollout must end after `recorded.steps` actions."""
        action: Action = self._take.actions[len(self._observations)].copy()
        self._observations.append(replace(observation, images={}))
        return action

    def add_divergence(self, played: Batch, coordinates: Sequence[Coordinate], last: Observation) -> Batch:
        """Return the played episode with a header field `replay`, which describes the divergence from the recording. A
        diverged episode also gets the mark `DIVERGED`.
        """
        take, observed = self._take, [*self._observations[1:], last]
        comparison: dict[str, object] = {
            "source": take.source,
            "episode": take.name,
            **({"policy": take.policy} if take.policy else {}),
            **_describe_start(self._start, take),
            **measure_divergence(take, played, coordinates, observed),
        }
        (extra,) = played.extra
        if has_diverged(comparison, succeeded=played.headers[0].success):
            extra = add_header_mark(extra, DIVERGED)
        return replace(played, extra=(add_header_field(extra, "replay", comparison),))

    def close(self) -> None:
        """Do nothing: the policy holds no resources."""

    def _choose_take(self, task: Task, index: int) -> RecordedActions:
        fitting = [take for take in self._takes if take.is_of_task(task)]
        indexed = [take for take in fitting if take.init_state_index is not None]
        chosen = [take for take in indexed if take.init_state_index == index] if indexed else fitting[index : index + 1]
        if len(chosen) == 1:
            return chosen[0]
        problem = f"{len(chosen) or 'no'} recorded episodes match {task.benchmark} {task.task_id}, number {index}"
        held = (
            take.task_label if take.init_state_index is None else f"{take.task_label} {take.init_state_index}"
            for take in self._takes
        )
        shown = [*dict.fromkeys(held)]
        more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
        names = ", ".join(dict.fromkeys(str(take.policy) for take in chosen))
        remedy = (
            f"Choose a policy: --policy-arg policy=NAME, one of {names}."
            if chosen
            else f"The recording holds {', '.join(shown[:_SHOWN])}{more}."
        )
        raise PolicyError(problem, remedy=remedy)


class ActionReplay:
    """A policy that plays the actions stored in the start of each episode, without comparing the outcome."""

    clip = True

    def __init__(self, *, absolute: bool = False) -> None:
        self.wants, self._actions, self._step = Wants(absolute=absolute), np.empty((0, 0)), 0

    def cue(self, start: EpisodeSeed) -> None:
        assert start.recorded is not None
        assert start.recorded.actions is not None
        self._actions = start.recorded.actions

    def reset(self, task: Task, seed: int) -> None:
        self._step = 0

    def act(self, observation: Observation) -> Action:
        self._step += 1
        action: Action = self._actions[self._step - 1].copy()
        return action

    def close(self) -> None:
        """Do nothing: the policy holds no resources."""


def make(arg: str | None, policy: str | None = None, start: str | None = None) -> Replay:
    """Return the policy that plays the recording at the path `arg`. `policy` selects the episodes of one policy, if the
    recording has several policies. `start=host` plays episodes without recorded starts from the host's initial states,
    one after another. Raises `PolicyError` if the recording cannot be read, or an argument is invalid.
    """
    if not arg:
        raise PolicyError("policy 'replay' needs a recording", remedy="Write replay:FILE.")
    if start not in (None, "host"):
        raise PolicyError(f"policy 'replay' has no start {start!r}", remedy="Write start=host, or leave `start` out.")
    path = Path(arg)
    try:
        takes = foreign.read_recorded_actions(path)
        readable = _read_run(path) if takes is None else takes
    except (RecordError, RunError, CollectedError) as error:
        remedy = "Fix the file, or replay a copy without the damaged episodes: safevla convert --set invalid=skip."
        own_remedy = remedy if error.remedy is None else error.remedy
        raise PolicyError(f"replay:{arg} cannot be read: {error.problem}", remedy=own_remedy) from error
    chosen = [take for take in readable if policy in (None, take.policy)]
    if readable and not chosen:
        policies = ", ".join(dict.fromkeys(str(take.policy) for take in readable))
        raise PolicyError(f"the recording has no episodes of {policy!r}", remedy=f"Recorded policies: {policies}.")
    return Replay(path, chosen, start == "host")


def _read_run(path: Path) -> list[RecordedActions]:
    batch, index = read_sources([path])
    index.require_valid()
    (source,) = index.sources
    protocol = source.description.get("protocol")
    waited = protocol if isinstance(protocol, Mapping) and isinstance(protocol.get("wait_steps"), int) else {}
    return [] if batch is None else list(_iter_takes(path, batch, waited))


def _iter_takes(path: Path, batch: Batch, waited: Mapping[str, Any]) -> Iterator[RecordedActions]:
    absolute, drawn = mark_flags(batch, ABSOLUTE), mark_flags(batch, DRAWN)
    resets = earlier_resets(batch)
    for e, header in enumerate(batch.headers):
        actions = batch.action.episode_rows(e)
        if len(actions) != batch.lengths[e] - 1:
            problem = f"episode {header.episode_id!r} of {path.name} holds no actions"
            raise PolicyError(problem, remedy="Only records with actions can be replayed.")
        states = batch.sim_state.episode_rows(e)
        bodies, places = batch.body_pos_m.episode_poses(e)
        yield RecordedActions(
            name=f"{header.policy}: {header.episode_id}" if header.policy else header.episode_id,
            source=path.name,
            actions=actions,
            states=states if len(states) else None,
            positions_m={batch.body_label(int(body)): places[:, k] for k, body in enumerate(bodies)},
            benchmark=header.benchmark,
            task_id=header.task_id,
            init_state_index=header.init_state_index,
            env_seed=header.env_seed,
            wait_steps=waited.get("wait_steps_by_suite", {}).get(header.benchmark, waited.get("wait_steps")),
            rest_steps=waited.get("rest_steps", 0),
            policy=header.policy,
            ending="stopped" if header.outcome == "stopped" else "timeout",
            absolute=absolute[e],
            drawn=drawn[e],
            earlier_resets=resets[e],
        )


def recording_digest(path: Path) -> str | dict[str, str]:
    """Return the sha256 of a file; for a folder, return a map from each file's path to the file's sha256. In the output
    folder of vla-evaluation-harness, only the recordings are included.
    """
    if path.is_file():
        return sha256_of(path)
    files = foreign.recording_files(path) or sorted(path.rglob("*"))
    return {str(file.relative_to(path)): sha256_of(file) for file in files if file.is_file()}


def _apply_recorded_seed(start: EpisodeSeed, take: RecordedActions) -> EpisodeSeed:
    seed, drawn = start.env_seed if take.env_seed is None else take.env_seed, start.drawn or take.drawn
    start = replace(start, env_seed=seed, drawn=drawn, earlier_resets=take.earlier_resets)
    if take.wait_steps is None:
        return start
    return replace(start, wait_steps=take.wait_steps, rest_steps=take.rest_steps)


def _describe_start(start: EpisodeSeed, take: RecordedActions) -> dict[str, object]:
    recorded = start.recorded
    assert recorded is not None
    certainty = "as recorded" if take.init_state_index is not None else "a guess: the recording does not say"
    described: dict[str, object] = {"start": f"the host's initial state, {certainty}"}
    if recorded.state is not None:
        described["start"] = "the first recorded state"
        if take.fixtures:
            described["fixtures"] = {name: list(pose) for name, pose in take.fixtures}
    if take.earlier_resets is not None:
        described |= {"earlier_resets": take.earlier_resets, "wait_steps": take.wait_steps}
    return described


# Divergence


def measure_divergence(
    take: RecordedActions, played: Batch, coordinates: Sequence[Coordinate], observed: Sequence[Observation] = ()
) -> dict[str, object]:
    """Compare a replay with its recording, and return the content of the header field `replay`.

    `compared` is the number of compared states, and `exact` says whether all their numbers are equal. `divergence` has,
    for each coordinate, the largest difference, its unit, and the first step with a difference beyond `TOLERANCE`. If
    nothing can be compared, `compared` is 0 and the other fields are missing.

    Without recorded states, the recorded proprioception is compared with `observed`, the observations after each
    action; the field `basis` then says so. Without recorded proprioception, body positions are compared. Velocities and
    time affect only `exact`.
    """
    if take.states is None and take.proprioception is not None:
        outcome = {} if take.success is None else {"recorded_success": take.success}
        return {**outcome, **_compare_proprioception(take.proprioception, observed)}
    states = played.sim_state.episode_rows(0)
    used = max((part.first + part.size for part in coordinates), default=states.shape[1])
    # Recorded states of robosuite's demonstrations end after the velocities; the remaining numbers are not compared.
    if take.states is None or not used <= take.states.shape[1] <= states.shape[1]:
        return _compare_bodies(take, played)
    count, width = min(len(take.states), len(states)), take.states.shape[1]
    was, now = take.states[:count], states[:count, :width]
    distances: dict[str, tuple[str, Floats]] = {}
    for part in coordinates:
        columns = slice(part.first, part.first + part.size)
        measure = _quaternion_angle if part.kind == "rotation" and part.size == 4 else _row_distance
        distances[f"{part.name} {part.kind}"] = part.kind, measure(was[:, columns], now[:, columns])
    return _summarize(count, distances, exact=was.tobytes() == np.ascontiguousarray(now).tobytes())


def _compare_bodies(take: RecordedActions, played: Batch) -> dict[str, object]:
    bodies, places = played.body_pos_m.episode_poses(0)
    now = {played.body_label(int(body)): places[:, column] for column, body in enumerate(bodies)}
    pairs = {name: (take.positions_m[name], now[name]) for name in now if name in take.positions_m}
    count = min((len(side) for pair in pairs.values() for side in pair), default=0)
    pairs = {name: (was[:count], replayed[:count]) for name, (was, replayed) in pairs.items()}
    distances = {f"{name} position": ("position", _row_distance(*pair)) for name, pair in pairs.items()}
    return _summarize(count, distances, exact=all(np.array_equal(*pair) for pair in pairs.values()))


def _compare_proprioception(recorded: Floats, observed: Sequence[Observation]) -> dict[str, object]:
    count = min(len(recorded), len(observed))
    was = recorded[:count]
    eef, fingers, turned = (
        np.array([getattr(observation, name) for observation in observed[:count]])
        for name in ("eef_pos_m", "gripper_qpos", "eef_quat_wxyz")
    )
    angle = _quaternion_angle(np.roll(Rotation.from_rotvec(was[:, 3:6]).as_quat(), 1, axis=1), turned)
    same = np.column_stack([eef, fingers]).astype(np.float32) == was[:, [0, 1, 2, 6, 7]].astype(np.float32)
    distances = {
        "end effector position": ("position", _row_distance(was[:, :3], eef)),
        "end effector rotation": ("rotation", angle),
        "fingers position": ("position", np.abs(fingers - was[:, 6:]).max(axis=1)),
    }
    from_start = {name: (kind, np.concatenate([[0.0], distance])) for name, (kind, distance) in distances.items()}
    exact = bool(same.all() and (angle < _ROUNDED_RAD).all())
    return {"basis": _HAND_ALONE, **_summarize(count, from_start, exact=exact)}


def has_diverged(replay: Mapping[str, object], *, succeeded: bool) -> bool:
    """Return whether a difference from the recording exceeds `TOLERANCE`, success differs, or nothing was compared."""
    divergence = replay.get("divergence")
    if not replay.get("compared") or not isinstance(divergence, Mapping):
        return True
    beyond = any(coordinate["first_step"] is not None for coordinate in divergence.values())
    return beyond or replay.get("recorded_success", succeeded) != succeeded


def _summarize(count: int, distances: Mapping[str, tuple[str, Floats]], *, exact: bool) -> dict[str, object]:
    if not count:
        return {"compared": 0}
    divergence = {}
    for name, (kind, distance) in distances.items():
        beyond = np.flatnonzero(distance > TOLERANCE)
        first = int(beyond[0]) if len(beyond) else None
        divergence[name] = {"max": float(distance.max()), "unit": UNITS[kind], "first_step": first}
    return {"compared": count, "exact": exact, "tolerance": TOLERANCE, "divergence": divergence}


def _row_distance(was: Floats, now: Floats) -> Floats:
    return np.asarray(np.sqrt(np.square(now - was).sum(axis=1)))


def _quaternion_angle(was: Floats, now: Floats) -> Floats:
    first, second = (q / np.linalg.norm(q, axis=1, keepdims=True) for q in (was, now))
    apart = np.minimum(np.linalg.norm(first - second, axis=1), np.linalg.norm(first + second, axis=1))
    return np.asarray(4.0 * np.arcsin(np.clip(apart / 2.0, 0.0, 1.0)))
