"""A body turned in MuJoCo itself, where a robot's hand could not do it."""

from __future__ import annotations

import mujoco
import numpy as np


def turn_body(model: mujoco.MjModel, data: mujoco.MjData, body: int, angle_deg: float) -> None:
    """Turn a body with a free joint about the vertical, in its place and standing still."""
    joint = model.body_jntadr[body]
    assert model.jnt_type[joint] == mujoco.mjtJoint.mjJNT_FREE
    pose, speed = model.jnt_qposadr[joint], model.jnt_dofadr[joint]
    turn, turned = np.zeros(4), np.zeros(4)
    mujoco.mju_axisAngle2Quat(turn, np.array([0.0, 0.0, 1.0]), np.radians(angle_deg))
    mujoco.mju_mulQuat(turned, turn, data.qpos[pose + 3 : pose + 7].copy())
    data.qpos[pose + 3 : pose + 7] = turned
    data.qvel[speed : speed + 6] = 0
    mujoco.mj_forward(model, data)
