"""Simpler meshes: corners of one cell of a grid become one corner, where the planes of their triangles meet best.

Vertex clustering with quadric error metrics (Lindstrom, Out-of-core simplification of large polygonal models, SIGGRAPH
2000). It needs no neighbours and gives the same mesh each time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from safevla_bench.interface.stage import TriangleMesh

_WELD_M = 1e-6
"""Corners within a cell of this size are one from the start: MuJoCo has them again for each triangle."""
_TRIES = 12
_STIFFNESS = 0.02
"""Pull of a cell's mean corner on the place of its new one, in units of the planes' pull."""
Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def decimate_mesh(mesh: TriangleMesh, most: int) -> TriangleMesh:
    """Return a mesh of about the same surface with at most `most` triangles.

    Corners at one place are joined in any case. A mesh that cannot be brought to `most` in 12 tries keeps more.
    """
    welded = _cluster(mesh, _WELD_M)
    if len(welded.triangles) <= most:
        return welded
    edges = welded.corners_m[welded.triangles]
    area = np.linalg.norm(np.cross(edges[:, 1] - edges[:, 0], edges[:, 2] - edges[:, 0]), axis=1).sum() / 2
    low, high = 0.0, np.inf
    cell_m, best = float(np.sqrt(2 * area / most)), None
    for _ in range(_TRIES):
        count = _count_triangles(welded, cell_m)
        if count <= most:
            high, best = cell_m, cell_m
        else:
            low = cell_m
        if best is not None and 0.9 * most <= count <= most:
            break
        cell_m = 1.5 * cell_m if np.isinf(high) else (low + high) / 2
    return _cluster(welded, best if best is not None else cell_m)


def _cells(corners_m: Floats, cell_m: float) -> tuple[Ints, int]:
    places = corners_m - corners_m.min(axis=0, initial=np.inf)
    keys = np.rint(places / max(cell_m, float(places.max(initial=0.0)) / 2**20)).astype(np.int64)
    flat = (keys[:, 0] << 42) + (keys[:, 1] << 21) + keys[:, 2]
    names, cells = np.unique(flat, return_inverse=True)
    return cells.reshape(-1), len(names)


def _joined_triangles(triangles: Ints, cells: Ints) -> Ints:
    joined = cells[triangles]
    corners = np.sort(joined, axis=1)
    stays = np.flatnonzero((corners[:, 0] < corners[:, 1]) & (corners[:, 1] < corners[:, 2]))
    _, first = np.unique(corners[stays], axis=0, return_index=True)
    places: Ints = stays[first]
    return places


def _count_triangles(mesh: TriangleMesh, cell_m: float) -> int:
    return len(_joined_triangles(mesh.triangles, _cells(mesh.corners_m, cell_m)[0]))


def _cluster(mesh: TriangleMesh, cell_m: float) -> TriangleMesh:
    """Return the mesh with one corner for each grid cell of `cell_m`.

    Triangles that collapse and unused corners are left out. Colours are the means of the joined corners.
    """
    cells, count = _cells(mesh.corners_m, cell_m)
    triangles = cells[mesh.triangles[_joined_triangles(mesh.triangles, cells)]]
    corners = _new_corners(mesh, cells, count, cell_m)
    colors = None if mesh.colors is None else _mean_rows(mesh.colors.astype(np.float64), cells, count)
    used, numbers = np.unique(triangles, return_inverse=True)
    return TriangleMesh(
        corners[used],
        numbers.reshape(-1, 3).astype(np.int64),
        None if colors is None else np.rint(colors[used]).astype(np.uint8),
    )


def _new_corners(mesh: TriangleMesh, cells: Ints, count: int, cell_m: float) -> Floats:
    """Return the corner of each grid cell nearest to the planes of the triangles there, [count, 3], in metres.

    A corner moves at most `cell_m` from the mean of the old ones in each direction.
    """
    means = _mean_rows(mesh.corners_m, cells, count)
    corners = mesh.corners_m[mesh.triangles]
    normals = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    normals /= np.sqrt(np.maximum(np.linalg.norm(normals, axis=1, keepdims=True), 1e-30))  # its square weighs as area
    matrices, sides = np.zeros((count, 9)), np.zeros((count, 3))
    for place in range(3):
        cell = cells[mesh.triangles[:, place]]
        distance = ((corners[:, place] - means[cell]) * normals).sum(axis=1)
        matrices += _sum_rows((normals[:, :, None] * normals[:, None, :]).reshape(-1, 9), cell, count)
        sides += _sum_rows(distance[:, None] * normals, cell, count)
    pull = _STIFFNESS * matrices[:, [0, 4, 8]].sum(axis=1) + 1e-18
    steps = np.linalg.solve(matrices.reshape(-1, 3, 3) + pull[:, None, None] * np.eye(3), sides[:, :, None])[:, :, 0]
    moved: Floats = means + np.clip(steps, -cell_m, cell_m)
    return moved


def _sum_rows(rows: Floats, cells: Ints, count: int) -> Floats:
    return np.stack([np.bincount(cells, column, count) for column in rows.T], axis=1)


def _mean_rows(rows: Floats, cells: Ints, count: int) -> Floats:
    means: Floats = _sum_rows(rows, cells, count) / np.bincount(cells, minlength=count)[:, None]
    return means
