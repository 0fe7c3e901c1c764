"""robosuite 1.5's own tasks of one Panda arm, recorded: cubes, nuts, things for bins, a door, a tool to hang."""

from __future__ import annotations

from typing import Any

import numpy as np

from safevla_bench.errors import HostError
from safevla_bench.hosts import check_start, episode_header
from safevla_bench.hosts.mujoco.privileged import ScenePrivileged
from safevla_bench.hosts.mujoco.robosuite_env import RawObservation, RobosuiteEnv, drawn_reset_seed, model_coordinates
from safevla_bench.hosts.mujoco.viewer import MujocoStage, open_stage
from safevla_bench.hosts.robosuite import tasks
from safevla_bench.interface import Action, Coordinate, EpisodeSeed, Observation, Task, Wants
from safevla_bench.trajectory import Batch
from safevla_recorder.mujoco.recorder import Recorder
from safevla_recorder.mujoco.scene import Scene

CAMERAS = ("agentview", "frontview", "birdview", "robot0_eye_in_hand")


class RobosuiteHost:
    """The host `robosuite`; needs the extra `robosuite` for everything but its suite and tasks."""

    name = "robosuite"

    def suites(self) -> tuple[str, ...]:
        """Return the name of the one suite."""
        return (tasks.SUITE,)

    def tasks(self, suite: str) -> tuple[Task, ...]:
        """Return the suite's tasks; raises `HostError` where there is no such suite."""
        return tasks.suite_tasks(suite)

    def make(self, task: Task, wants: Wants) -> RobosuiteTaskEnv:
        """Return a new environment of one task, not reset yet.

        Raises:
            HostError: robosuite is missing or has no such task, camera or reading, or the policy gives poses.
        """
        unknown = sorted(set(wants.cameras) - set(CAMERAS))
        if unknown:
            raise HostError(f"robosuite has no camera {unknown[0]!r} here", remedy=f"Cameras: {', '.join(CAMERAS)}.")
        if wants.absolute:
            problem = "the host robosuite takes changes of pose, and this policy gives poses"
            raise HostError(problem, remedy="Run it on LIBERO, or serve a model of the former.")
        return RobosuiteTaskEnv(task, wants, self.versions())

    def stage(self, task: Task, episode: Batch) -> MujocoStage:
        """Set up a recorded episode, a batch of one with its `sim_state`, to be looked at.

        Raises:
            HostError: nothing can be rendered here, or the record lacks what it takes.
        """
        return open_stage(self.make(task, Wants()), episode)

    def versions(self) -> dict[str, str]:
        """Return the versions of all that a trajectory depends on, by distribution."""
        return tasks.versions()


class RobosuiteTaskEnv(RobosuiteEnv):
    """One of robosuite's tasks with its recorder.

    Actions are those of the Panda's own controller, [7] in [-1, 1]: 0.05 m [0:3] and 0.5 rad [3:6] a unit in the frame
    of the base, gripper [6], -1 opens. Images are upright. Success is robosuite's `_check_success`.
    """

    action_meaning = "position [3], rotation [3], gripper"
    substep_method = "step2"
    # With its `lite_physics` robosuite advances a substep in two halves; forces are there after the second.
    stage_camera = CAMERAS[0]

    def __init__(self, task: Task, wants: Wants, versions: dict[str, str]) -> None:
        """Keep the task's goal; robosuite's environment is made by the first reset.

        Raises `HostError` for an unknown task.
        """
        super().__init__(task, wants, len(tasks.STILL))
        self._versions, self._goal = versions, tasks.task_goal(task.name)
        self._env: Any = None

    def reset(self, seed: EpisodeSeed) -> Observation:
        """Start an episode in an environment made anew, whose generator is seeded by `seed`; settle, take record 0.

        Every start is drawn, whether `seed.drawn` says so or not: robosuite's tasks have no initial states.

        Raises:
            HostError: `check_start` refuses the seed, or a recorded state is to start from.
        """
        if seed.recorded is not None and seed.recorded.state is not None:
            problem = "the host robosuite starts from no recorded state"
            raise HostError(problem, remedy="Replay by its initial state and seed.")
        check_start(self.task, seed)
        self.close()
        env = self._env = tasks.make_env(self.task.name, self._wants, drawn_reset_seed(seed))
        self._gate.install(env)
        self._renders_next = True
        self._gate.set_open(not seed.wait_steps)
        raw = env.reset()
        still = np.array(seed.wait_action or tasks.STILL)
        raw, success = self._settle(seed, still, raw, bool(env._check_success()))
        self._start_recording(seed, success=success)
        return self._observe(raw)

    def coordinates(self) -> tuple[Coordinate, ...]:
        """Return the coordinates of the present `sim_state`; raises `HostError` before a reset."""
        return model_coordinates(self._simulation().model._model, self._read_scene().body_name)

    def close(self) -> None:
        """Free the simulator; a reset makes another. Closing twice is harmless."""
        self._stop_recording()
        if self._env is not None:
            self._env.close()
        self._env = None

    def _robosuite(self) -> Any:
        """Return robosuite's environment of the last reset; raises `HostError` before a reset and after `close`."""
        if self._env is None:
            raise HostError("no episode has begun", remedy="Call reset first.")
        return self._env

    def _simulation(self) -> Any:
        return self._robosuite().sim

    def _advance(self, action: Action) -> tuple[RawObservation, bool]:
        """Apply one action; return robosuite's observation and its `_check_success`."""
        env = self._robosuite()
        raw = env.step(action)[0]
        return raw, bool(env._check_success())

    def _read_scene(self) -> Scene:
        return tasks.read_scene(self._robosuite(), self._goal)

    def _view_privileged(self, scene: Scene) -> ScenePrivileged:
        """Return a reader with the joints of fixtures that the goal opens, and the goal's other places as sites."""
        env = self._robosuite()
        model, data = env.sim.model._model, env.sim.data._data
        things = {thing.name: thing.joints for thing in env.model.mujoco_objects}
        joints = [joint for name in tasks.opened_fixtures(self._goal) for joint in things[name]]
        marks = [name for _, _, *names in self._goal for name in names if name not in things]
        places = {name: data.body(name).xpos for name in marks}
        return ScenePrivileged(model, data, scene, self._goal, joints, places)

    def _build_header(self, recorder: Recorder) -> dict[str, object]:
        """Return the header with the success of the present moment; the target object is the goal's first, or None."""
        assert self._seed is not None
        return episode_header(
            self.task,
            self._seed,
            success=self._success,
            dt=self.dt_s,
            target_object=next(iter(tasks.goal_targets(self._goal)), None),
            versions=self._versions,
            embodiment="Panda",
            dropped_pairs=recorder.dropped_pairs(),
        )
