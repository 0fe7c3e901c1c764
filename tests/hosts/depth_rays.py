"""Depths of a camera by rays that MuJoCo casts through its pixels: no renderer, no depth buffer, no robosuite."""

from __future__ import annotations

from itertools import product

import mujoco
import numpy as np

VISIBLE = (1, 2)
"""The groups of geoms that robosuite draws."""
NEAR_M = 1e-3


def depth_readings(camera: str) -> tuple[str, ...]:
    """Return what a policy asks for whose depths are to be compared."""
    return tuple(f"{kind}/{camera}" for kind in ("depth", "intrinsics", "extrinsics"))


def ray_depth(model, data, intrinsics, extrinsics, row: float, column: float, groups=VISIBLE) -> float:
    """Return the distance, m, along the axis of view to what is at a point of an upright image; NaN if nothing is."""
    ahead = np.linalg.inv(intrinsics) @ [column, row, 1.0]  # 1 m along the axis of view
    ray = extrinsics[:3, :3] @ ahead
    length, geom = np.linalg.norm(ray), np.zeros(1, np.int32)
    visible = np.isin(np.arange(mujoco.mjNGROUP), groups).astype(np.uint8)
    reached = mujoco.mj_ray(model, data, extrinsics[:3, 3], ray / length, visible, 1, -1, geom)
    return reached / length if reached >= 0 else np.nan


def agreeing_share(model, data, camera: str, readings, every: int, groups=VISIBLE) -> float:
    """Return the share of every so-manieth pixels whose depth is among those of nine rays through that pixel.

    Graphics with antialiasing give the depth of one of a pixel's samples, which need not be its middle.
    """
    depth, *matrices = (readings[name] for name in depth_readings(camera))
    agree = []
    for row, column in product(range(0, depth.shape[0], every), range(0, depth.shape[1], every)):
        inside = product((0.0, 0.5, 1.0), repeat=2)
        cast = [ray_depth(model, data, *matrices, row + down, column + right, groups) for down, right in inside]
        agree.append(np.nanmin(cast) - NEAR_M <= depth[row, column] <= np.nanmax(cast) + NEAR_M)
    return float(np.mean(agree))
