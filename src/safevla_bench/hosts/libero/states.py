"""LIBERO's flat simulator states: the meaning of their numbers, and what they leave out.

A state is the time, then MuJoCo's qpos, then qvel. The poses of fixtures are no part of it: a reset draws them into the
model, so that to start from a recorded state they have to be put back from the recording.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from safevla_bench.hosts.mujoco.robosuite_env import flat_state
from safevla_bench.interface import Coordinate, RecordedEpisode
from safevla_recorder.episode import Floats
from safevla_recorder.libero.scene import body_names

if TYPE_CHECKING:
    import mujoco
    from libero.libero.envs.bddl_base_domain import BDDLBaseDomain

_FREE, _BALL, _SLIDE = 0, 1, 2  # MuJoCo's mjtJoint; 3 is a hinge
_TIME = 1
_LIMIT = 0.93
"""Of the gripper's range: fingers that rest beyond it are told to open, or to close, for good."""


def starting_state(domain: BDDLBaseDomain, recorded: RecordedEpisode) -> Floats:
    """Return the recorded state, with the recorded poses of fixtures put into the model that has just been reset.

    Raises:
        HostError: the state is not one of this model.
    """
    model = domain.sim.model._model
    assert recorded.state is not None
    state = flat_state(recorded.state, _TIME + int(model.nq) + int(model.nv))
    poses = dict(recorded.fixtures)
    for fixture in domain.fixtures_dict.values():
        pose = poses.get(fixture.root_body)
        if pose is not None:
            body = int(model.body(fixture.root_body).id)
            model.body_pos[body], model.body_quat[body] = pose[:3], pose[3:]
    return state


def restore_controllers(domain: BDDLBaseDomain) -> None:
    """Put what robosuite's controllers remember in accord with the state that has been set.

    The arm's would count its first motion from the pose after the reset, and turn the hand back to it.
    """
    arm = domain.robots[0].controller
    arm.update(force=True)
    arm.reset_goal()
    _restore_gripper(domain)


def _restore_gripper(domain: BDDLBaseDomain) -> None:
    """Give the gripper the target that the state's fingers move to.

    robosuite moves that target by a hundredth of its range a substep and keeps it beside the simulator's state; a reset
    puts it half way, so that an open hand would first close by 2 cm. Fingers that touch nothing follow it by a servo
    against a damper, so that q + v · damping / stiffness is where it is, within a tenth of its range. Fingers that
    touch something are held up on their way to it: they were told to close.
    """
    robot, model, state = domain.robots[0], domain.sim.model._model, domain.sim.data._data
    servos = list(robot._ref_joint_gripper_actuator_indexes)
    fingers, speeds = list(robot._ref_gripper_joint_pos_indexes), list(robot._ref_gripper_joint_vel_indexes)
    lag_s = model.dof_damping[speeds] / model.actuator_gainprm[servos, 0]
    low, high = model.actuator_ctrlrange[servos].T
    target = 2.0 * (state.qpos[fingers] + lag_s * state.qvel[speeds] - low) / (high - low) - 1.0
    closed = np.where(np.abs(low) < np.abs(high), -1.0, 1.0)
    if (closed * target).max() > -_LIMIT and _fingers_touch(domain):
        target = closed
    robot.gripper.current_action = np.where(np.abs(target) > _LIMIT, np.sign(target), target)


def _fingers_touch(domain: BDDLBaseDomain) -> bool:
    """Return whether a finger touches anything."""
    parts = domain.robots[0].gripper.important_geoms
    return bool(domain.check_contact([*parts["left_finger"], *parts["right_finger"]]))


def coordinates(domain: BDDLBaseDomain) -> tuple[Coordinate, ...]:
    """Return every joint of the present model: free ones as pose of their body, others by their own name."""
    model = domain.sim.model._model
    names = body_names(domain, model)
    return tuple(part for joint in range(model.njnt) for part in _joint_coordinates(model, joint, names))


def _joint_coordinates(model: mujoco.MjModel, joint: int, body_name: tuple[str, ...]) -> Iterator[Coordinate]:
    first, kind = _TIME + int(model.jnt_qposadr[joint]), int(model.jnt_type[joint])
    body, name = body_name[int(model.jnt_bodyid[joint])], str(model.joint(joint).name)
    if kind == _FREE:
        yield Coordinate(body, "position", first, 3)
        yield Coordinate(body, "rotation", first + 3, 4)
    elif kind == _BALL:
        yield Coordinate(name, "rotation", first, 4)
    else:
        yield Coordinate(name, "position" if kind == _SLIDE else "rotation", first, 1)
