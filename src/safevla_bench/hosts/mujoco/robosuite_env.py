"""The life cycle that LIBERO and RoboCasa share: reset, step, record, observe and close one robosuite environment."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import HostError
from safevla_bench.hosts.mujoco.camera_gate import CameraGate
from safevla_bench.hosts.mujoco.viewer import MujocoStage
from safevla_bench.interface import (
    Action,
    EpisodeSeed,
    Observation,
    Privileged,
    Task,
    UnrenderedImages,
    Wants,
    check_action,
)
from safevla_bench.trajectory import Batch, from_recording
from safevla_recorder.mujoco.hook import Undo
from safevla_recorder.mujoco.recorder import Recorder, attach_recorder
from safevla_recorder.mujoco.scene import Scene

CONTROL_STEP_S = 0.05
RawObservation = Mapping[str, NDArray[np.generic]]
"""An observation as robosuite returns it, by its own names."""


class PrivilegedView(Protocol):
    """Reader of the scene's ground truth."""

    def read_now(self) -> Privileged:
        """Return the scene as it is, in read-only copies."""
        ...


class RobosuiteEnv(ABC):
    """One task in a robosuite environment with its recorder.

    A subclass makes the environment, starts episodes in it by `reset` and `_start_recording`, and says what differs.
    Its `reset` opens the gate of the cameras for the observation that it returns, and for no other.
    """

    dt_s = CONTROL_STEP_S
    action_meaning: str
    """The parts of an action, for error messages."""
    substep_method: str
    """The method of robosuite's `MjSim` after which the forces of one physics substep are there."""
    stage_camera: str
    """The camera that shows a recorded episode best."""

    def __init__(self, task: Task, wants: Wants, action_size: int) -> None:
        self.task = task
        self.action_low, self.action_high = np.full(action_size, -1.0), np.full(action_size, 1.0)
        self._wants, self._size = wants, action_size
        self._gate = CameraGate(wants.image_size)
        self._renders_next = True
        self._detach: Undo | None = None
        self._recorder: Recorder | None = None
        self._privileged: PrivilegedView | None = None
        self._seed: EpisodeSeed | None = None
        self._success = False

    @abstractmethod
    def reset(self, seed: EpisodeSeed) -> Observation:
        """Start an episode, settle, take record 0."""

    @abstractmethod
    def close(self) -> None:
        """Free the simulator. Closing twice is harmless."""

    def render_next(self, wanted: bool) -> None:
        """Say whether the observation of the next step is to hold images; see `SelectiveEnv`."""
        self._renders_next = wanted

    def step(self, action: Action) -> tuple[Observation, bool]:
        """Apply one action, record it, and return the observation and the benchmark's own success.

        Raises:
            InvalidActionError: the action has another length or is not finite; nothing has been simulated.
            HostError: the simulation diverged, or there was no reset.
        """
        recorder = self._require_recorder()
        checked = check_action(action, self._size, self.action_meaning)
        self._gate.set_open(self._renders_next)
        self._renders_next = True
        raw, success = self._advance(checked.copy())
        recorder.record_step(checked)
        self._success = success
        return self._observe(raw), success

    def recorded(self) -> Batch:
        """Return the episode so far as a validated batch of one."""
        recorder = self._require_recorder()
        recording = recorder.build_recording(self._build_header(recorder))
        return from_recording(replace(recording, extra=self._extra_fields()))

    def latest(self) -> Batch:
        """Return the newest record alone, as a validated batch of one record."""
        recorder = self._require_recorder()
        return from_recording(recorder.latest_record(self._build_header(recorder)))

    def make_stage(self, episode: Batch) -> MujocoStage:
        """Return the scene of the last reset as a stage for an episode of the same seed; the stage owns this env."""
        model = self._simulation().model._model
        return MujocoStage(model, self._read_scene(), episode, self.stage_camera, self.close)

    @abstractmethod
    def _simulation(self) -> Any:
        """Return robosuite's `MjSim` of the last reset."""

    @abstractmethod
    def _advance(self, action: Action) -> tuple[RawObservation, bool]:
        """Apply one action, and return the observation and the benchmark's own success."""

    @abstractmethod
    def _read_scene(self) -> Scene:
        """Return names and roles of the present model."""

    @abstractmethod
    def _view_privileged(self, scene: Scene) -> PrivilegedView:
        """Return a reader of the present scene's ground truth."""

    @abstractmethod
    def _build_header(self, recorder: Recorder) -> dict[str, object]:
        """Return the header of the running episode, with the success as it stands now."""

    def _extra_fields(self) -> dict[str, object]:
        """Return the host-specific fields of the running episode."""
        return {}

    def _instruction(self) -> str:
        return self.task.instruction

    def _base_pose(self, raw: RawObservation) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """Return position [3] and wxyz quaternion [4] of the base in the world frame, for robots that drive."""
        return None

    def _start_recording(self, seed: EpisodeSeed, *, success: bool) -> None:
        """Take record 0 of the scene that has settled."""
        self._seed, self._success = seed, success
        scene = self._read_scene()
        simulation = self._simulation()
        self._recorder, self._detach = attach_recorder(simulation, self.substep_method, scene, self.task.task_id)
        self._privileged = self._view_privileged(scene) if self._wants.privileged else None

    def _stop_recording(self) -> None:
        if self._detach is not None:
            self._detach()
        self._detach, self._recorder, self._privileged = None, None, None

    def _require_recorder(self) -> Recorder:
        if self._recorder is None:
            raise HostError("no episode has begun", remedy="Call reset first.")
        return self._recorder

    def _observe(self, raw: RawObservation) -> Observation:
        base = self._base_pose(raw)
        return Observation(
            instruction=self._instruction(),
            eef_pos_m=np.array(raw["robot0_eef_pos"], dtype=np.float64),
            eef_quat_wxyz=to_wxyz(raw["robot0_eef_quat"]),
            gripper_qpos=np.array(raw["robot0_gripper_qpos"], dtype=np.float64),
            images=self._read_images(raw),
            privileged=self._privileged.read_now() if self._privileged else None,
            base_pos_m=base[0] if base else None,
            base_quat_wxyz=base[1] if base else None,
        )

    def _read_images(self, raw: RawObservation) -> Mapping[str, NDArray[np.uint8]]:
        if not self._gate.is_open:
            return UnrenderedImages(self._wants.cameras)
        if self._wants.cameras and not self._gate.is_fresh:
            problem = "the simulator sampled no picture in this control step, so that none can be shown"
            raise HostError(problem, remedy="Its cameras are to be sampled once a control step, at 20 Hz.")
        return {camera: np.array(raw[f"{camera}_image"][::-1], dtype=np.uint8) for camera in self._wants.cameras}


def to_wxyz(quat_xyzw: NDArray[np.generic]) -> NDArray[np.float64]:
    """Return robosuite's quaternion with w first, [4]."""
    return np.array(quat_xyzw[[3, 0, 1, 2]], dtype=np.float64)
