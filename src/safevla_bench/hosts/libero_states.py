"""LIBERO's flat simulator states: what their numbers are, and what they leave out.

A state is the time, then MuJoCo's qpos, then qvel. The poses of fixtures are no part of it: a reset draws them into the
model, so that to start from a recorded state they have to be put back from the recording.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from safevla_bench.hosts.contacts import Floats
from safevla_bench.hosts.libero_scene import body_names
from safevla_bench.hosts.starting import flat_state
from safevla_bench.interface import Coordinate, Recorded

if TYPE_CHECKING:
    import mujoco
    from libero.libero.envs.bddl_base_domain import BDDLBaseDomain

_FREE, _BALL, _SLIDE = 0, 1, 2  # MuJoCo's mjtJoint; 3 is a hinge
_TIME = 1
_HALF_OPEN_M = 0.02
_LONG = 200
"""Substeps in which the gripper's target crosses its whole range."""


def starting_state(domain: BDDLBaseDomain, recorded: Recorded) -> Floats:
    """The recorded state, with the recorded poses of fixtures put into the model that has just been reset.

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


def tell_controllers(domain: BDDLBaseDomain, recorded: Recorded) -> None:
    """Put what robosuite's controllers remember in accord with the state that has been set.

    The arm's would count its first motion from the pose after the reset, and turn the hand back to it.
    """
    arm = domain.robots[0].controller
    arm.update(force=True)
    arm.reset_goal()
    _tell_gripper(domain, recorded)


def _tell_gripper(domain: BDDLBaseDomain, recorded: Recorded) -> None:
    """Give the gripper the target that it would have if it had been told the first action for long.

    robosuite moves that target by a hundredth of its range a substep and keeps it beside the simulator's state; a reset
    puts it half way, so that an open hand would first close by 2 cm. Where the first action tells the gripper nothing,
    the fingers do: more than half open is told to open.
    """
    robot = domain.robots[0]
    told = recorded.first_action[-1] if recorded.first_action else 0.0
    if not told:
        fingers = domain.sim.data.qpos[robot._ref_gripper_joint_pos_indexes]
        told = -1.0 if np.abs(fingers).max() > _HALF_OPEN_M else 1.0
    for _ in range(_LONG):
        robot.gripper.format_action(np.array([told]))


def coordinates(domain: BDDLBaseDomain) -> tuple[Coordinate, ...]:
    """Every joint of the present model: a free one as position and rotation of its body, others by their own name."""
    model = domain.sim.model._model
    named = body_names(domain, model)
    return tuple(one for joint in range(model.njnt) for one in _joint(model, joint, named))


def _joint(model: mujoco.MjModel, joint: int, named: tuple[str, ...]) -> Iterator[Coordinate]:
    first, kind = _TIME + int(model.jnt_qposadr[joint]), int(model.jnt_type[joint])
    body, name = named[int(model.jnt_bodyid[joint])], str(model.joint(joint).name)
    if kind == _FREE:
        yield Coordinate(body, "position", first, 3)
        yield Coordinate(body, "rotation", first + 3, 4)
    elif kind == _BALL:
        yield Coordinate(name, "rotation", first, 4)
    else:
        yield Coordinate(name, "position" if kind == _SLIDE else "rotation", first, 1)
