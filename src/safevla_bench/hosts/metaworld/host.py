"""Meta-World: fifty tasks of a Sawyer arm in MuJoCo, recorded.

An action moves a mocap body by up to 1 cm an axis, and a weld drags the hand behind it. So no motor drives the arm's
joints, there are no torques, and nothing yields: forces are several times those of an arm under impedance control
(docs/limits.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import HostError
from safevla_bench.hosts import check_start, check_wants
from safevla_bench.hosts.metaworld import tasks
from safevla_bench.hosts.mujoco.environment import MujocoEnv, drawn_reset_seed, model_coordinates
from safevla_bench.hosts.mujoco.renderer import DEPTH, MATRICES, Appearance, Renderer, camera_matrices, camera_readings
from safevla_bench.hosts.mujoco.viewer import MujocoStage
from safevla_bench.interface.policy import (
    Action,
    Observation,
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
from safevla_recorder.mujoco.hook import hook_after, hook_substeps
from safevla_recorder.mujoco.recorder import Recorder, settling_steps, warn_if_moving
from safevla_recorder.mujoco.scene import Scene

if TYPE_CHECKING:
    import mujoco

CAMERAS = ("topview", "corner", "corner2", "corner3", "corner4", "behindGripper", "gripperPOV")
_APPEARANCE = Appearance(
    groups=frozenset({0, 1, 2}), sites=True, turned=frozenset({"corner", "corner2", "corner3", "corner4"})
)
"""As Meta-World's own pictures, with the mark of the goal; only that those of some cameras are upside down."""
_HAND_READING, _STATE_READING = "agent_pos", "state"


class MetaworldHost:
    """The host `metaworld`; needs the extra `metaworld` for everything but its suites and tasks."""

    name = "metaworld"

    def suites(self) -> tuple[str, ...]:
        return tasks.suites()

    def tasks(self, suite: str) -> tuple[Task, ...]:
        return tasks.suite_tasks(suite)

    def make(self, task: Task, wants: Wants) -> MetaworldEnv:
        remedy = "Serve a model that gives changes of position."
        check_wants(wants, CAMERAS, "Meta-World", changes="position", remedy=remedy)
        own = (_HAND_READING, *([_STATE_READING] if wants.privileged else []))
        check_extra(wants, (*own, *camera_readings(wants.cameras)), "Meta-World")
        return MetaworldEnv(task, wants, self.versions())

    def stage(self, task: Task, episode: Batch) -> MujocoStage:
        return MetaworldEnv(task, Wants(), self.versions()).open_stage(episode)

    def versions(self) -> dict[str, str]:
        return tasks.versions()


class MetaworldEnv(MujocoEnv):
    """One Meta-World task with its recorder.

    Actions [4] in [-1, 1]: the hand by 1 cm a unit [0:3], and the gripper's effort [3], -1 opens. The pose in an
    observation is that of the site `endEffector`. Images are upright: cameras that hang upside down are turned.
    A policy that wants privileged state gets `extra["state"]`, Meta-World's own observation [39] with the goal, and
    every policy `extra["agent_pos"]` [4], its first numbers: the hand's position and how far the gripper is open.
    """

    action_meaning = "position [3], gripper"
    stage_camera = "corner3"
    embodiment = "Sawyer"
    appearance = _APPEARANCE

    def __init__(self, task: Task, wants: Wants, versions: dict[str, str]) -> None:
        """Make Meta-World's environment; raises `HostError` if it has no such task or cannot be imported."""
        super().__init__(task, wants, versions, len(tasks.STILL))
        self._rules = tasks.metaworld_task(task.name)
        self._env = tasks.make_env(task.name)
        self.dt_s = float(self._env.dt)
        self._action: Action = np.array(tasks.STILL)
        self._renderer: Renderer | None = None

    def reset(self, seed: EpisodeSeed) -> Observation:
        """Start an episode, settle, take record 0.

        Initial state i is the i-th of the fifty goals that `metaworld.MT1(task, seed=env_seed)` draws, which places
        things, too. A `drawn` start has the first goal of a draw by `drawn_reset_seed`. Meta-World moves the hand to
        its start by fifty steps of its own before those of `seed`. Raises `HostError` if an episode cannot start by
        this seed.
        """
        if seed.recorded is not None and seed.recorded.state is not None:
            raise HostError("Meta-World starts from no recorded state", remedy="Replay by its initial state and seed.")
        check_start(self.task, seed)
        self._stop_recording()
        self._renders_next = True
        env = self._env
        drawn_seed, place = (drawn_reset_seed(seed), 0) if seed.drawn else (seed.env_seed, seed.init_state_index)
        env.set_task(tasks.draw_goals(self.task.name, drawn_seed)[place])
        vector, _ = env.reset()
        self._success = False
        still, objects = np.array(seed.wait_action or tasks.STILL), self._read_scene().objects
        for _ in settling_steps(*self._mujoco(), objects, seed.wait_steps, seed.rest_steps):
            vector, self._success = self._advance(still)
        self._start_recording(seed)
        return self._observe(vector)

    def _start_recording(self, seed: EpisodeSeed) -> None:
        """Attach a recorder to the simulation, which takes record 0; logs a warning if an object still moves."""
        env, self._seed, scene = self._env, seed, self._read_scene()
        warn_if_moving(env.model, env.data, scene.objects, self.task.task_id)
        recorder = Recorder(env.model, env.data, scene)
        off_substeps = hook_substeps(env, "_step_mujoco_simulation", env.data, recorder.record_substep)
        # Behind the physics and before Meta-World's `mj_forward`, which moves positions on by a substep.
        off_steps = hook_after(env, "do_simulation", lambda: recorder.record_step(self._action))

        def detach() -> None:
            off_steps()
            off_substeps()

        self._recorder, self._detach = recorder, detach

    def step(self, action: Action) -> tuple[Observation, bool]:
        """Apply one action, record it, and return the observation and Meta-World's own success."""
        self._require_recorder()
        self._action = check_action(action, self._size, self.action_meaning).copy()
        vector, self._success = self._advance(self._action.copy())
        return self._observe(vector), self._success

    def _advance(self, action: Action) -> tuple[NDArray[np.float64], bool]:
        vector, _, _, _, outcome = self._env.step(action)
        return vector, bool(outcome["success"])

    def coordinates(self) -> tuple[Coordinate, ...]:
        return model_coordinates(self._env.model, self._read_scene().body_name)

    def _mujoco(self) -> tuple[mujoco.MjModel, mujoco.MjData]:
        return self._env.model, self._env.data

    def _read_scene(self) -> Scene:
        return tasks.read_scene(self._env.model, self._rules)

    def _target_object(self) -> str | None:
        return next(iter(self._rules.targets), None)

    def _extra_fields(self) -> dict[str, object]:
        assert self._seed is not None
        return mark_drawn({}) if self._seed.drawn else {}

    def _observe_pose(self) -> None:
        return None

    def close(self) -> None:
        """Free the simulator. Closing twice is harmless."""
        self._stop_recording()
        if self._renderer is not None:
            self._renderer.close()
        self._renderer = None
        self._env.close()

    def _observe(self, vector: NDArray[np.float64]) -> Observation:
        """Return the observation; `vector` is Meta-World's own [39]. Takes back what `render_next` said."""
        import mujoco

        data = self._env.data
        site, quat = data.site("endEffector"), np.empty(4)
        mujoco.mju_mat2Quat(quat, site.xmat)
        own = {_HAND_READING: vector[:4].copy()}
        if self._wants.privileged:
            own[_STATE_READING] = vector.copy()
        cameras = self._wants.cameras
        renders, self._renders_next = self._renders_next, True
        return Observation(
            instruction=self.task.instruction,
            eef_pos_m=site.xpos.copy(),
            eef_quat_wxyz=quat,
            gripper_qpos=np.array([data.joint(name).qpos[0] for name in ("r_close", "l_close")]),
            images=(
                {camera: self._look(camera).image(self._wants.image_size) for camera in cameras}
                if renders
                else UnrenderedImages(cameras)
            ),
            extra=self._read_extras(own, self._read_camera, renders=renders),
        )

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
