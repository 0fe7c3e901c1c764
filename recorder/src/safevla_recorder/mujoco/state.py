"""The flat state of a MuJoCo simulation, `sim_state`: all that its next step depends on beside the actuators' inputs.

    time, qpos [nq], qvel [nv], act [na], mocap_pos [nmocap, 3], mocap_quat [nmocap, 4]

The order is that of MuJoCo's `mjtState`. Models without activations and mocap bodies, such as LIBERO's, have
[time, qpos, qvel].
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from safevla_recorder.episode import Floats

if TYPE_CHECKING:
    import mujoco


def state_size(model: mujoco.MjModel) -> int:
    """Return the length of a model's flat state."""
    return int(1 + model.nq + model.nv + model.na + 7 * model.nmocap)


def state_views(model: mujoco.MjModel, data: mujoco.MjData) -> tuple[Floats, ...]:
    """Return flat views of the simulator's memory: qpos, qvel, then act, mocap_pos, mocap_quat where not empty."""
    moving: tuple[Floats, ...] = (data.qpos, data.qvel)
    if model.na:
        moving = (*moving, data.act)
    return (*moving, data.mocap_pos.reshape(-1), data.mocap_quat.reshape(-1)) if model.nmocap else moving


def copy_state(model: mujoco.MjModel, data: mujoco.MjData) -> Floats:
    """Return a copy of the flat state, [S]: time, qpos, qvel, act, mocap_pos, mocap_quat; S is `state_size(model)`.

    This is neither mjSTATE_FULLPHYSICS nor mjSTATE_INTEGRATION. `set_state` reads it back.
    """
    return np.concatenate(((data.time,), *state_views(model, data)))


def set_state(model: mujoco.MjModel, data: mujoco.MjData, state: Floats) -> None:
    """Write a flat state [S], S = `state_size(model)`, into the simulator; what follows from it needs `mj_forward`."""
    data.time, used = float(state[0]), 1
    for view in state_views(model, data):
        view[:] = state[used : used + len(view)]
        used += len(view)
