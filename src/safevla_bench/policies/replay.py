"""The policy `replay:FILE` begins at the start of a recorded episode, and plays its actions without feedback.

FILE is one of this package's archives or run folders, an HDF5 file of demonstrations or a folder of such files, a
LeRobot dataset, or the output folder of vla-evaluation-harness. Each planned episode replays one recorded episode:

- if initial states are recorded, as in archives: the episode with the same suite, task and initial state;
- otherwise: the task's next episode, in recorded order; a demonstration starts from its first recorded state.

The replay is compared with the recording, body by body and joint by joint. The header field `replay` contains, for each
body and joint, the largest difference and the first step with a difference above the tolerance.
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

TOLERANCE = 1e-3  # differences above this limit count as divergence: 1 mm or 1 mrad
UNITS = {"position": "m", "rotation": "rad"}
_MOST_LISTED = 5  # limit on the number of recorded episodes that an error names
_PROPRIOCEPTION_BASIS = "only the pose of the hand and its fingers; no positions of objects were recorded"
_ROUNDING_RAD = 1e-5  # tolerance of rotations, since axis-angles are stored as float32


class Replay:
    """A policy that plays recorded episodes and ignores observations."""

    clip = True  # clip actions, as in the recording, and count the clipped actions

    def __init__(self, path: Path, episodes: Sequence[RecordedActions], from_host: bool) -> None:
        """Store the recorded episodes, and hash the files under `path`. With `from_host`, episodes without a recorded
        start begin at the host's initial states. Raises `PolicyError` if only some episodes have poses as actions.
        """
        absolute_flags = {episode.absolute for episode in episodes}
        if len(absolute_flags) > 1:
            problem = f"{path.name} holds poses as actions in some episodes, and changes of pose in others"
            raise PolicyError(problem, remedy="Replay the episodes of one policy: --policy-arg policy=NAME.")
        self._episodes, self._from_host = episodes, from_host
        self.wants = Wants(absolute=True in absolute_flags)
        self.description: Mapping[str, object] = {
            "recording": path.name,
            "sha256": recording_digest(path),
            "episodes": len(episodes),
        }
        self._observations: list[Observation] = []  # the observation before each action of the current episode

    def match(self, task: Task, start: EpisodeSeed) -> EpisodeSeed:
        """Replace the start of a planned episode by that of the matching recorded episode. Raises `PolicyError` if not
        exactly one episode matches, its actions do not fit the task, or its start is unknown.
        """
        # The result's `recorded` names the episode, which `cue` then selects.
        # `ending` is the replay's outcome if the replay does not succeed.
        episode = self._choose_episode(task, start.init_state_index)
        size = episode.actions.shape[1]
        if size != len(task.still):
            problem = f"actions in {episode.source} have {size} numbers, but {task.suite} needs {len(task.still)}"
            raise PolicyError(problem, remedy="Use the --host and --host-arg of the recording.")
        start = _apply_recorded_start(start, episode)
        recorded_episode = RecordedEpisode(episode.name, episode.source, len(episode.actions), ending=episode.ending)
        if episode.init_state_index is not None:  # the planned initial state is the recorded one
            return replace(start, recorded=recorded_episode)
        if episode.states is not None:  # the first recorded state is set directly, without settling steps
            first_state = tuple(episode.states[0].tolist())
            recorded_episode = replace(recorded_episode, state=first_state, fixtures=episode.fixtures)
            return replace(start, wait_steps=0, rest_steps=0, recorded=recorded_episode)
        if self._from_host:  # the host uses its initial state with the planned index
            return replace(start, recorded=recorded_episode)
        remedy = "Pass --policy-arg start=host to use the host's initial states in order, which is only a guess."
        raise PolicyError(f"{episode.source} does not contain the start of {episode.name}", remedy=remedy)

    def recorded_episodes(self, task: Task) -> tuple[int, ...]:
        """Return the indices of a task's recorded episodes: the sorted indices of the initial states or, if no initial
        states are recorded, 0, 1, ... Return () if the task has no recorded episodes.
        """
        # A run plans one episode for each number, and `match` then finds the recorded episode by this number.
        matches = [episode for episode in self._episodes if episode.is_of_task(task)]
        indices = sorted({episode.init_state_index for episode in matches if episode.init_state_index is not None})
        return tuple(indices) if indices else tuple(range(len(matches)))

    @property
    def suites(self) -> tuple[str, ...]:
        """The benchmarks of the recorded tasks, in recorded order; unknown benchmarks are omitted."""
        return tuple(dict.fromkeys(episode.benchmark for episode in self._episodes if episode.benchmark is not None))

    def cue(self, start: EpisodeSeed) -> None:
        # Choose the recorded episode to play next: the one that `match` has stored in `start.recorded`.
        assert start.recorded is not None
        # `match` chose the episode from `self._episodes`, so the search below finds it.
        key = (start.recorded.source, start.recorded.episode)
        self._start = start
        self._episode = next(episode for episode in self._episodes if (episode.source, episode.name) == key)

    def reset(self, task: Task, seed: int) -> None:
        # Forget the last episode's observations. The task is known from `cue`, and a replay needs no seed.
        self._observations = []  # `add_divergence` compares the episode's observations with the recording

    def act(self, observation: Observation) -> Action:
        """Return the next recorded action, [A]. The rollout must end the episode after `recorded.steps` actions."""
        # Each earlier call of this episode stored one observation.
        action: Action = self._episode.actions[len(self._observations)].copy()
        self._observations.append(replace(observation, images={}))  # images are not compared, and would fill the memory
        return action

    def add_divergence(self, played: Batch, coordinates: Sequence[Coordinate], last: Observation) -> Batch:
        """Return the played episode with a header field `replay`, which describes differences from the recording. If
        the episode diverged, it also gets the mark `DIVERGED`.
        """
        # `played` is the replay as a batch of one episode; `last` is the observation after the last action.
        # `coordinates` assign columns of the simulator's states to bodies and joints.
        # The first observation is omitted, because it is before the first action.
        episode, observations_after = self._episode, [*self._observations[1:], last]
        comparison: dict[str, object] = {"source": episode.source, "episode": episode.name}
        if episode.policy:
            comparison["policy"] = episode.policy
        comparison |= _describe_start(self._start, episode)
        comparison |= measure_divergence(episode, played, coordinates, observations_after)
        (extra,) = played.extra  # additional header fields of the batch's only episode
        if has_diverged(comparison, succeeded=played.headers[0].success):
            extra = add_header_mark(extra, DIVERGED)
        return replace(played, extra=(add_header_field(extra, "replay", comparison),))

    def close(self) -> None:
        """Do nothing: the policy holds no resources."""

    def _choose_episode(self, task: Task, number: int) -> RecordedActions:
        # Return the task's recorded episode with this number. Raise `PolicyError` unless there is exactly one.
        candidates = [episode for episode in self._episodes if episode.is_of_task(task)]
        if any(episode.init_state_index is not None for episode in candidates):
            # Here, `number` is the index of an initial state.
            matches = [episode for episode in candidates if episode.init_state_index == number]
        else:  # `number` is the index of an episode
            matches = candidates[number : number + 1]
        if len(matches) == 1:
            return matches[0]
        problem = f"{len(matches) or 'no'} recorded episodes match {task.benchmark} {task.task_id}, number {number}"
        labels = list(dict.fromkeys(_label_episode(episode) for episode in self._episodes))
        omitted = f" and {len(labels) - _MOST_LISTED} more" if len(labels) > _MOST_LISTED else ""
        remedy = f"The recording holds the episodes {', '.join(labels[:_MOST_LISTED])}{omitted}."
        if matches:
            policy_names = ", ".join(dict.fromkeys(str(episode.policy) for episode in matches))
            remedy = f"Choose a policy: --policy-arg policy=NAME, one of {policy_names}."
        raise PolicyError(problem, remedy=remedy)


def _label_episode(episode: RecordedActions) -> str:
    # Return the episode's task and, if it is recorded, the index of its initial state, for error messages.
    index = episode.init_state_index
    return episode.task_label if index is None else f"{episode.task_label} {index}"


class ActionReplay:
    """A policy that plays the recorded actions of each `EpisodeSeed`, without a comparison of the outcomes."""

    clip = True

    def __init__(self, *, absolute: bool = False) -> None:
        # `absolute` is true if the recorded actions are poses instead of changes of pose.
        self.wants, self._actions, self._step = Wants(absolute=absolute), np.empty((0, 0)), 0

    def cue(self, start: EpisodeSeed) -> None:
        # Select the recorded actions of `start`. Runs with this policy contain only episodes with recorded actions.
        assert start.recorded is not None
        assert start.recorded.actions is not None
        self._actions = start.recorded.actions

    def reset(self, task: Task, seed: int) -> None:
        # Play from the first action.
        self._step = 0

    def act(self, observation: Observation) -> Action:
        # Return the next recorded action, [A]; the observation is ignored. Runs end the episode after the last action.
        self._step += 1
        return np.array(self._actions[self._step - 1])

    def close(self) -> None:
        """Do nothing: the policy holds no resources."""


def make(arg: str | None, policy: str | None = None, start: str | None = None) -> Replay:
    """Return the policy that plays the recording at the path `arg`. If the recording has several policies, `policy`
    selects the episodes of one. With `start=host`, episodes without recorded starts begin at the host's initial states,
    one after another. Raises `PolicyError` if the recording cannot be read, or an argument is invalid.
    """
    if not arg:
        raise PolicyError("policy 'replay' needs a recording", remedy="Write replay:FILE.")
    if start not in (None, "host"):
        raise PolicyError(f"policy 'replay' has no start {start!r}", remedy="Write `start=host`, or omit `start`.")
    path = Path(arg)
    try:
        episodes = foreign.read_recorded_actions(path)  # None: the file is not in a foreign format
        all_episodes = _read_run(path) if episodes is None else episodes
    except (RecordError, RunError, CollectedError) as error:
        advice = "Fix the file, or replay a copy without the damaged episodes: safevla convert --set invalid=skip."
        remedy = advice if error.remedy is None else error.remedy
        raise PolicyError(f"replay:{arg} cannot be read: {error.problem}", remedy=remedy) from error
    selected = [episode for episode in all_episodes if policy is None or episode.policy == policy]
    if all_episodes and not selected:
        policies = ", ".join(dict.fromkeys(str(episode.policy) for episode in all_episodes))
        raise PolicyError(f"the recording has no episodes of {policy!r}", remedy=f"Recorded policies: {policies}.")
    return Replay(path, selected, start == "host")


def _read_run(path: Path) -> list[RecordedActions]:
    # Return the recorded actions of each episode in an archive or a run folder; [] if there are no episodes.
    batch, index = read_sources([path])
    index.require_valid()
    # A path leads to a single source. A run's description contains the protocol: how the run's episodes begin and end.
    (source,) = index.sources
    protocol = source.description.get("protocol")
    # If the recorded number of settling steps is not an integer, ignore all settings of the protocol.
    settings = protocol if isinstance(protocol, Mapping) and isinstance(protocol.get("wait_steps"), int) else {}
    return [] if batch is None else list(_iterate_episodes(path, batch, settings))


def _iterate_episodes(path: Path, batch: Batch, protocol: Mapping[str, Any]) -> Iterator[RecordedActions]:
    # Yield the recorded actions of each episode. Raise `PolicyError` if an episode has no actions.
    # `protocol` holds the run's settings; {} = the settings are unknown.
    suite_wait_steps = protocol.get("wait_steps_by_suite", {})
    # Per episode: whether actions are poses, whether the start was drawn at random, and the number of earlier resets.
    absolute_flags, drawn_flags = mark_flags(batch, ABSOLUTE), mark_flags(batch, DRAWN)
    reset_counts = earlier_resets(batch)
    for index, header in enumerate(batch.headers):
        actions = batch.action.episode_rows(index)
        if len(actions) != batch.lengths[index] - 1:  # between N records, there are N - 1 actions
            problem = f"episode {header.episode_id!r} of {path.name} holds no actions"
            raise PolicyError(problem, remedy="Only records with actions can be replayed.")
        states = batch.sim_state.episode_rows(index)
        bodies, tracks_m = batch.body_pos_m.episode_poses(index)  # `tracks_m` has the shape [records, bodies, 3]
        yield RecordedActions(
            name=f"{header.policy}: {header.episode_id}" if header.policy else header.episode_id,
            source=path.name,
            actions=actions,
            states=states if len(states) else None,
            positions_m={batch.body_label(int(body)): tracks_m[:, column] for column, body in enumerate(bodies)},
            benchmark=header.benchmark,
            task_id=header.task_id,
            init_state_index=header.init_state_index,
            env_seed=header.env_seed,
            wait_steps=suite_wait_steps.get(header.benchmark, protocol.get("wait_steps")),
            rest_steps=protocol.get("rest_steps", 0),
            policy=header.policy,
            # A replay that does not succeed ends with this outcome.
            ending="stopped" if header.outcome == "stopped" else "timeout",
            absolute=absolute_flags[index],
            drawn=drawn_flags[index],
            earlier_resets=reset_counts[index],
        )


def recording_digest(path: Path) -> str | dict[str, str]:
    """Return the sha256 of the file `path`. If `path` is a folder, return a map from each file's path to its sha256. If
    the folder is output of vla-evaluation-harness, the map contains only the recordings.
    """
    if path.is_file():
        return sha256_of(path)
    # Empty unless the folder is output of vla-evaluation-harness. If it is empty, all files are hashed.
    files = foreign.recording_files(path) or sorted(path.rglob("*"))
    return {str(file.relative_to(path)): sha256_of(file) for file in files if file.is_file()}


def _apply_recorded_start(start: EpisodeSeed, episode: RecordedActions) -> EpisodeSeed:
    # Return the planned start with the recorded seed, settling steps and earlier resets. `drawn`: the start is random.
    # If the environment's seed or the settling steps were not recorded (None), the planned values stay.
    env_seed = start.env_seed if episode.env_seed is None else episode.env_seed
    start = replace(start, env_seed=env_seed, drawn=start.drawn or episode.drawn, earlier_resets=episode.earlier_resets)
    if episode.wait_steps is None:
        return start
    return replace(start, wait_steps=episode.wait_steps, rest_steps=episode.rest_steps)


def _describe_start(start: EpisodeSeed, episode: RecordedActions) -> dict[str, object]:
    # Return the entries of the header field `replay` that describe the start of the replay.
    recorded = start.recorded
    assert recorded is not None  # `Replay.match` has set `recorded`
    certainty = "as recorded" if episode.init_state_index is not None else "a guess: the recording does not say"
    described: dict[str, object] = {"start": f"the host's initial state, {certainty}"}
    if recorded.state is not None:
        described["start"] = "the first recorded state"
        if episode.fixtures:
            described["fixtures"] = {name: list(pose) for name, pose in episode.fixtures}
    if episode.earlier_resets is not None:  # the recording's environment was seeded only once
        described |= {"earlier_resets": episode.earlier_resets, "wait_steps": episode.wait_steps}
    return described


# Divergence


def measure_divergence(
    episode: RecordedActions, played: Batch, coordinates: Sequence[Coordinate], observed: Sequence[Observation] = ()
) -> dict[str, object]:
    """Compare a replay with its recording, and return the content of the header field `replay`.

    `compared` is the number of compared states, and `exact` is whether all their numbers are equal. For each
    position or rotation of a body or joint, `divergence` has the largest difference, its unit, and the first step with
    a difference above `TOLERANCE`. If nothing can be compared, `compared` is 0; `exact` and `divergence` are missing.

    If only proprioception was recorded, it is compared with `observed`, the observations after each action, and the
    field `basis` reports this. If neither states nor proprioception were recorded, or the states differ in width, body
    positions are compared. Differences of velocities and time affect only `exact`.
    """
    # `played` is the replay as a batch of one episode. `coordinates` assign state columns to bodies and joints.
    if episode.states is None and episode.proprioception is not None:
        recorded_success = {} if episode.success is None else {"recorded_success": episode.success}
        return {**recorded_success, **_compare_proprioception(episode.proprioception, observed)}
    states = played.sim_state.episode_rows(0)
    used_columns = max((coord.first + coord.size for coord in coordinates), default=states.shape[1])
    # robosuite's recorded states end with the velocities, but states of this package may contain further numbers.
    # If the widths differ for any other reason, states cannot be compared.
    if episode.states is None or not used_columns <= episode.states.shape[1] <= states.shape[1]:
        return _compare_bodies(episode, played)
    count, width = min(len(episode.states), len(states)), episode.states.shape[1]
    recorded, replayed = episode.states[:count], states[:count, :width]
    distances: dict[str, tuple[str, Floats]] = {}  # coordinate -> (kind, difference in each state)
    for coord in coordinates:
        columns = slice(coord.first, coord.first + coord.size)
        # A rotation has four numbers (a quaternion) or one number (the angle of a hinge).
        measure = _angles_rad if coord.kind == "rotation" and coord.size == 4 else _row_distances
        distances[f"{coord.name} {coord.kind}"] = coord.kind, measure(recorded[:, columns], replayed[:, columns])
    return _summarize_distances(count, distances, exact=recorded.tobytes() == np.ascontiguousarray(replayed).tobytes())


def _compare_bodies(episode: RecordedActions, played: Batch) -> dict[str, object]:
    # Compare the positions of all bodies that both the recording and the replay have, as in `measure_divergence`.
    bodies, tracks_m = played.body_pos_m.episode_poses(0)  # `tracks_m` has the shape [records, bodies, 3]
    replayed_m = {played.body_label(int(body)): tracks_m[:, column] for column, body in enumerate(bodies)}
    common_names = [name for name in replayed_m if name in episode.positions_m]
    lengths = [min(len(episode.positions_m[name]), len(replayed_m[name])) for name in common_names]
    count = min(lengths, default=0)  # 0 = nothing is compared
    pairs_m = {name: (episode.positions_m[name][:count], replayed_m[name][:count]) for name in common_names}
    distances = {f"{name} position": ("position", _row_distances(*pair)) for name, pair in pairs_m.items()}
    return _summarize_distances(count, distances, exact=all(np.array_equal(*pair) for pair in pairs_m.values()))


def _compare_proprioception(recorded: Floats, observed: Sequence[Observation]) -> dict[str, object]:
    # `recorded` [T, 8] are the states of end effector and fingers after each action.
    # `observed` are the replay's observations.
    # Return the result of `_summarize_distances`, with `basis`: a note that no objects were compared.
    count = min(len(recorded), len(observed))
    rows = recorded[:count]  # columns: position [0:3], axis-angle [3:6], two finger joints [6:8]
    hand_m = np.array([observation.eef_pos_m for observation in observed[:count]])
    hand_quats_wxyz = np.array([observation.eef_quat_wxyz for observation in observed[:count]])
    fingers_m = np.array([observation.gripper_qpos for observation in observed[:count]])
    recorded_quats_wxyz = np.roll(Rotation.from_rotvec(rows[:, 3:6]).as_quat(), 1, axis=1)  # converted from xyzw
    angles_rad = _angles_rad(recorded_quats_wxyz, hand_quats_wxyz)
    # Recordings have single precision. Rotations are compared by angle, because q and -q are the same rotation.
    equal = np.column_stack([hand_m, fingers_m]).astype(np.float32) == rows[:, [0, 1, 2, 6, 7]].astype(np.float32)
    distances = {
        "end effector position": ("position", _row_distances(rows[:, :3], hand_m)),
        "end effector rotation": ("rotation", angles_rad),
        "fingers position": ("position", np.abs(fingers_m - rows[:, 6:]).max(axis=1)),
    }
    # Index 0 is the start of the episode. The start is not compared, so its difference is set to 0.
    from_start = {name: (kind, np.concatenate([[0.0], distance])) for name, (kind, distance) in distances.items()}
    exact = bool(equal.all() and (angles_rad < _ROUNDING_RAD).all())
    return {"basis": _PROPRIOCEPTION_BASIS, **_summarize_distances(count, from_start, exact=exact)}


def has_diverged(replay: Mapping[str, object], *, succeeded: bool) -> bool:
    """Return whether a difference exceeds `TOLERANCE`, the success differs, or nothing was compared."""
    # `replay` is the result of `measure_divergence`. `succeeded` is whether the replay succeeded.
    divergence = replay.get("divergence")
    if not replay.get("compared") or not isinstance(divergence, Mapping):
        return True
    # `first_step` is the first step at which a coordinate's difference exceeds `TOLERANCE`.
    exceeds_tolerance = any(coordinate["first_step"] is not None for coordinate in divergence.values())
    # If the recorded success is unknown, it counts as equal.
    return exceeds_tolerance or replay.get("recorded_success", succeeded) != succeeded


def _summarize_distances(count: int, distances: Mapping[str, tuple[str, Floats]], *, exact: bool) -> dict[str, object]:
    # Return the header fields that `measure_divergence` describes. `exact`: whether all compared numbers are equal.
    # `distances` maps a coordinate to its kind (a key of `UNITS`) and its difference in each of `count` states.
    if not count:
        return {"compared": 0}
    divergence = {}
    for name, (kind, distance) in distances.items():
        steps_beyond = np.flatnonzero(distance > TOLERANCE)
        first_step = int(steps_beyond[0]) if len(steps_beyond) else None  # None = never
        divergence[name] = {"max": float(distance.max()), "unit": UNITS[kind], "first_step": first_step}
    return {"compared": count, "exact": exact, "tolerance": TOLERANCE, "divergence": divergence}


def _row_distances(recorded: Floats, replayed: Floats) -> Floats:
    # Return the Euclidean distances [N] between rows with the same index in two arrays [N, D].
    return np.asarray(np.sqrt(np.square(replayed - recorded).sum(axis=1)))


def _angles_rad(recorded: Floats, replayed: Floats) -> Floats:
    # Return the angles [N], in rad, between rotations with the same index in two arrays [N, 4] of quaternions, w first.
    first = recorded / np.linalg.norm(recorded, axis=1, keepdims=True)
    second = replayed / np.linalg.norm(replayed, axis=1, keepdims=True)
    # The distance of two unit quaternions is 2 sin(angle / 4).
    # q and -q are the same rotation, so use the smaller distance.
    chords = np.minimum(np.linalg.norm(first - second, axis=1), np.linalg.norm(first + second, axis=1))
    return np.asarray(4.0 * np.arcsin(np.clip(chords / 2.0, 0.0, 1.0)))
