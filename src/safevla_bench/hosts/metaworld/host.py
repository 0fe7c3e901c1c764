"""Meta-World: fifty tasks of a Sawyer arm in MuJoCo, recorded.

An action moves a mocap body by up to 1 cm an axis, and a weld drags the hand behind it. So no motor drives the arm's
joints, there are no torques, and nothing yields: forces are several times those of an arm under impedance control
(docs/limits.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import HostError
from safevla_bench.hosts import check_start, episode_header
from safevla_bench.hosts.metaworld import tasks
from safevla_bench.hosts.mujoco.renderer import DEPTH, MATRICES, Appearance, Renderer, camera_matrices, camera_readings
from safevla_bench.hosts.mujoco.robosuite_env import (
    drawn_reset_seed,
    model_coordinates,
)
from safevla_bench.hosts.mujoco.viewer import MujocoStage, open_stage
from safevla_bench.interface.policy import (
    Action,
    Observation,
    PartialReadings,
    Reading,
    UnrenderedImages,
    Wants,
    check_action,
    check_extra,
)
from safevla_bench.interface.stage import Camera
from safevla_bench.interface.task import Coordinate, EpisodeSeed, Task
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.marks import mark_drawn
from safevla_bench.trajectory.single_episode import from_recording
from safevla_recorder.mujoco.hook import hook_after, hook_substeps
from safevla_recorder.mujoco.recorder import Recorder
from safevla_recorder.mujoco.settling import settling_steps, warn_if_moving

CAMERAS = ("topview", "corner", "corner2", "corner3", "corner4", "behindGripper", "gripperPOV")
_APPEARANCE = Appearance(
    groups=frozenset({0, 1, 2}), sites=True, turned=frozenset({"corner", "corner2", "corner3", "corner4"})
)
"""As Meta-World's own pictures, with the mark of the goal; only that those of some cameras are upside down."""
_STAGE_CAMERA = "corner3"
_HAND_READING, _STATE_READING = "agent_pos", "state"


class MetaworldHost:
    """The host `metaworld`; needs the extra `metaworld` for everything but its suites and tasks."""

    name = "metaworld"

    def suites(self) -> tuple[str, ...]:
        """Return the suites' names: Meta-World's multi-task lists, and the halves of its meta-learning lists."""
        return tasks.suites()

    def tasks(self, suite: str) -> tuple[Task, ...]:
        """Return the suite's tasks in Meta-World's order; raises `HostError` where there is no such suite."""
        return tasks.suite_tasks(suite)

    def make(self, task: Task, wants: Wants) -> MetaworldEnv:
        """Return a new environment of one task, not reset yet.

        Raises:
            HostError: Meta-World is missing or has no such task, camera or further reading, or the policy gives poses.
        """
        unknown = sorted(set(wants.cameras) - set(CAMERAS))
        if unknown:
            raise HostError(f"Meta-World has no camera {unknown[0]!r}", remedy=f"Cameras: {', '.join(CAMERAS)}.")
        if wants.absolute:
            problem = "Meta-World takes changes of position, and this policy gives poses"
            raise HostError(problem, remedy="Serve a model that gives changes of position.")
        own = (_HAND_READING, *([_STATE_READING] if wants.privileged else []))
        check_extra(wants, (*own, *camera_readings(wants.cameras)), "Meta-World")
        return MetaworldEnv(task, wants, self.versions())

    def stage(self, task: Task, episode: Batch) -> MujocoStage:
        """Set up a recorded episode, a batch of one with its `sim_state`, to be looked at.

        Raises:
            HostError: Meta-World cannot be used here or lacks the task, or the record lacks its states or its start.
        """
        return open_stage(MetaworldEnv(task, Wants(), self.versions()), episode)

    def versions(self) -> dict[str, str]:
        """Return the versions of all that a trajectory depends on, by distribution.

        Raises `HostError` without Meta-World.
        """
        return tasks.versions()


class MetaworldEnv:
    """One Meta-World task with its recorder.

    Actions [4] in [-1, 1]: the hand by 1 cm a unit [0:3], and the gripper's effort [3], -1 opens. The pose in an
    observation is that of the site `endEffector`. Images are upright: cameras that hang upside down are turned.
    A policy that wants privileged state gets `extra["state"]`, Meta-World's own observation [39] with the goal, and
    every policy `extra["agent_pos"]` [4], its first numbers: the hand's position and how far the gripper is open.
    """

    def __init__(self, task: Task, wants: Wants, versions: dict[str, str]) -> None:
        """Make Meta-World's environment; nothing is recorded and no renderer is made before the first reset.

        Raises `HostError` where Meta-World has no such task or cannot be imported.
        """
        self.task, self._wants, self._versions = task, wants, versions
        self._rules = tasks.metaworld_task(task.name)
        self.action_low, self.action_high = np.full(4, -1.0), np.full(4, 1.0)
        self._env = tasks.make_env(task.name)
        self.dt_s = float(self._env.dt)
        self._recorder: Recorder | None = None
        self._seed: EpisodeSeed | None = None
        self._action: Action = np.array(tasks.STILL)
        self._success = False
        self._renders_next = True
        self._renderer: Renderer | None = None

    def reset(self, seed: EpisodeSeed) -> Observation:
        """Start an episode, settle, take record 0.

        Initial state i is the i-th of the fifty goals that `metaworld.MT1(task, seed=env_seed)` draws, which places
        things, too. A start that is `drawn` has the first goal that `MT1` draws by the seed `drawn_reset_seed(seed)`.
        Meta-World moves the hand to its start by fifty steps of its own before those of `seed`.

        Raises:
            HostError: `check_start` refuses the seed, or a recorded state is to start from.
        """
        if seed.recorded is not None and seed.recorded.state is not None:
            raise HostError("Meta-World starts from no recorded state", remedy="Replay by its initial state and seed.")
        check_start(self.task, seed)
        self._stop_recording()
        self._renders_next = True
        env = self._env
        env.set_task(self._draw_goal(seed))
        vector, _ = env.reset()
        vector = self._settle(seed, vector)
        self._start_recording(seed)
        return self._observe(vector)

    def _draw_goal(self, seed: EpisodeSeed) -> Any:
        """Return the goal of a start as Meta-World's `set_task` takes it.

        Of the goals that `env_seed` draws, the one of the initial state's index; of a drawn start the first of a draw
        by `drawn_reset_seed`.
        """
        if seed.drawn:
            return tasks.draw_goals(self.task.name, drawn_reset_seed(seed))[0]
        return tasks.draw_goals(self.task.name, seed.env_seed)[seed.init_state_index]

    def _settle(self, seed: EpisodeSeed, vector: NDArray[np.float64]) -> NDArray[np.float64]:
        """Make the settling steps that `seed` asks for, by its `wait_action` or the still action.

        Sets the success to that of the last of them, False without. Returns Meta-World's observation [39] after them,
        which is `vector` where there are none.
        """
        env = self._env
        still = np.array(seed.wait_action or tasks.STILL)
        objects = tasks.read_scene(env.model, self._rules).objects
        self._success = False
        for _ in settling_steps(env.model, env.data, objects, seed.wait_steps, seed.rest_steps):
            vector, self._success = self._advance(still)
        return vector

    def _start_recording(self, seed: EpisodeSeed) -> None:
        """Attach a recorder to the simulation, which takes record 0; logs a warning where an object still moves."""
        env, self._seed = self._env, seed
        scene = tasks.read_scene(env.model, self._rules)
        warn_if_moving(env.model, env.data, scene.objects, self.task.task_id)
        recorder = Recorder(env.model, env.data, scene)
        self._undo = (
            hook_substeps(env, "_step_mujoco_simulation", env.data, recorder.record_substep),
            # Behind the physics and before Meta-World's `mj_forward`, which moves positions on by a substep.
            hook_after(env, "do_simulation", lambda: recorder.record_step(self._action)),
        )
        self._recorder = recorder

    def _stop_recording(self) -> None:
        if self._recorder is not None:
            for undo in reversed(self._undo):
                undo()
        self._recorder = None

    def step(self, action: Action) -> tuple[Observation, bool]:
        """Apply one action, record it, and return the observation and Meta-World's own success.

        Raises:
            InvalidActionError: the action has another length or is not finite; nothing has been simulated.
            HostError: the simulation diverged, or there was no reset.
        """
        self._require_recorder()
        self._action = check_action(action, 4, "position [3], gripper").copy()
        vector, self._success = self._advance(self._action.copy())
        return self._observe(vector), self._success

    def _advance(self, action: Action) -> tuple[NDArray[np.float64], bool]:
        vector, _, _, _, outcome = self._env.step(action)
        return vector, bool(outcome["success"])

    def render_next(self, wanted: bool) -> None:
        """Say whether the observation of the next step is to hold images; see `SelectiveEnv`."""
        self._renders_next = wanted

    def recorded(self) -> Batch:
        """Return the episode so far as a validated batch of one; raises `HostError` before a reset."""
        recorder = self._require_recorder()
        assert self._seed is not None
        recording = recorder.build_recording(self._build_header(recorder))
        return from_recording(replace(recording, extra=mark_drawn({}) if self._seed.drawn else {}))

    def latest(self) -> Batch:
        """Return the newest record alone, as a validated batch of one, without the mark of a drawn start.

        Raises `HostError` before a reset.
        """
        recorder = self._require_recorder()
        return from_recording(recorder.latest_record(self._build_header(recorder)))

    def coordinates(self) -> tuple[Coordinate, ...]:
        """Return the coordinates of the present `sim_state`."""
        model = self._env.model
        return model_coordinates(model, tasks.read_scene(model, self._rules).body_name)

    def make_stage(self, episode: Batch) -> MujocoStage:
        """Return the scene of the last reset as a stage for an episode of the same seed; the stage owns this env.

        Raises `HostError` where the episode holds no states, or those of another model.
        """
        model = self._env.model
        scene = tasks.read_scene(model, self._rules)
        return MujocoStage(model, scene, episode, _STAGE_CAMERA, self.close, appearance=_APPEARANCE)

    def close(self) -> None:
        """Free the simulator. Closing twice is harmless."""
        self._stop_recording()
        if self._renderer is not None:
            self._renderer.close()
        self._renderer = None
        self._env.close()

    def _require_recorder(self) -> Recorder:
        if self._recorder is None:
            raise HostError("no episode has begun", remedy="Call reset first.")
        return self._recorder

    def _build_header(self, recorder: Recorder) -> dict[str, object]:
        """Return the header with the success of the present moment.

        The target object is the first of the task's, or None.
        """
        assert self._seed is not None
        return episode_header(
            self.task,
            self._seed,
            success=self._success,
            dt=self.dt_s,
            target_object=next(iter(self._rules.targets), None),
            versions=self._versions,
            embodiment="Sawyer",
            dropped_pairs=recorder.dropped_pairs(),
        )

    def _observe(self, vector: NDArray[np.float64]) -> Observation:
        """Return the observation; `vector` is Meta-World's own [39]. Takes back what `render_next` said."""
        import mujoco

        data = self._env.data
        site, quat = data.site("endEffector"), np.empty(4)
        mujoco.mju_mat2Quat(quat, site.xmat)
        own = {_HAND_READING: vector[:4].copy()}
        if self._wants.privileged:
            own[_STATE_READING] = vector.copy()
        renders, self._renders_next = self._renders_next, True
        return Observation(
            instruction=self.task.instruction,
            eef_pos_m=site.xpos.copy(),
            eef_quat_wxyz=quat,
            gripper_qpos=np.array([data.joint(name).qpos[0] for name in ("r_close", "l_close")]),
            images=self._read_images(renders),
            extra=self._read_extras(own, renders),
        )

    def _read_images(self, renders: bool) -> Mapping[str, NDArray[np.uint8]]:
        if not renders:
            return UnrenderedImages(self._wants.cameras)
        return {camera: self._look(camera).image(self._wants.image_size) for camera in self._wants.cameras}

    def _read_extras(self, own: Mapping[str, Reading], renders: bool) -> Mapping[str, Reading]:
        unrendered = [] if renders else [name for name in self._wants.extra if name.startswith(f"{DEPTH}/")]
        of_cameras = [name for name in self._wants.extra if name not in (*own, *unrendered)]
        asked = {name: self._read_camera(name) for name in of_cameras}
        return PartialReadings({**own, **asked}, unrendered) if unrendered else {**own, **asked}

    def _read_camera(self, name: str) -> Reading:
        kind, _, camera = name.partition("/")
        size, is_turned = self._wants.image_size, camera in _APPEARANCE.turned
        if kind == DEPTH:
            return self._look(camera).depth_m(size)
        return camera_matrices(self._env.model, self._env.data, camera, size, is_turned=is_turned)[MATRICES.index(kind)]

    def _look(self, camera: str) -> Renderer:
        if self._renderer is None:
            self._renderer = Renderer(self._env.model, self._wants.image_size, _APPEARANCE)
        self._renderer.look(self._env.data, Camera(camera))
        return self._renderer


__all__ = ["CAMERAS", "MetaworldEnv", "MetaworldHost"]
