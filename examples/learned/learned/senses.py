"""What is read from an observation: the state that the network is given, and the places that it learns beside."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from safevla_bench.interface.policy import Observation

Floats = NDArray[np.float64]


def read_state(seen: Observation) -> Floats:
    """Return the proprioception of an observation, [11]: position m, two columns of the rotation, fingers m."""
    w, x, y, z = seen.eef_quat_wxyz
    first = (1 - 2 * (y * y + z * z), 2 * (x * y + w * z), 2 * (x * z - w * y))
    second = (2 * (x * y - w * z), 1 - 2 * (x * x + z * z), 2 * (y * z + w * x))
    return np.concatenate([seen.eef_pos_m, first, second, seen.gripper_qpos])


def read_places(seen: Observation) -> Floats:
    """Return where the object and its goal are from the hand, [6] m: labels in training, never an input."""
    assert seen.privileged is not None
    _, body, place = seen.privileged.goal[0]
    scene = seen.privileged
    goal = scene.sites_m[place] if place in scene.sites_m else scene.body_pos_m[place]
    return np.concatenate([scene.body_pos_m[body] - seen.eef_pos_m, goal - seen.eef_pos_m])
