"""3-D replays for the report: the shapes of a scene, and the poses of its parts in each record.

A file holds one episode as JSON. Large arrays are integer multiples of a resolution, packed by `pack_integers`. The
poses are computed from the recorded states without simulation, and checked against the recorded positions.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from safevla_bench.interface.stage import SceneGeometry, ScenePose, Shape, Touch, TriangleMesh
from safevla_bench.trajectory.batch import Batch
from safevla_recorder.episode import Floats, Ints

POSITION_M = 1e-4  # resolution of positions and vertices [m]
QUATERNION = 1 / 32767  # resolution of quaternion components: angles are off by at most 0.004 degrees
FORCE_N = 0.1  # resolution of forces [N]
NORMAL = 0.01  # resolution of the components of normals
# A mesh with the diagonal d [m] may have 4500 * d^0.6 triangles. This maximum is clipped to [40, 5000].
_TRIANGLES_AT_1_M, _FEWEST_TRIANGLES, _MOST_TRIANGLES = 4500, 40, 5000
# Size [m] of the first grid's cells. MuJoCo repeats vertices for each triangle; vertices in one cell are merged.
_WELD_M = 1e-6


@dataclass(frozen=True, slots=True)
class ShownContact:
    """A recorded contact. `touch` is its contact point, from this or a neighboring record; None = no point."""

    record: int
    a: str
    b: str
    force_n: float
    touch: Touch | None


@dataclass(frozen=True, slots=True, eq=False)
class EpisodeMotion:
    """Contacts, and world poses of `P` parts in n records: positions [n, P, 3] in m and quaternions [n, P, 4] wxyz."""

    dt_s: float
    times_s: Floats | None  # [n] seconds since record 0; None = records are `dt_s` apart
    part_pos_m: Floats
    part_quat_wxyz: Floats
    contacts: tuple[ShownContact, ...]


def read_motion(record: Batch, poses: Sequence[ScenePose]) -> EpisodeMotion:
    """Return the motion and contacts of the single episode in `record`; `poses` has one entry per record."""
    # The shapes are [n, P, 3] and [n, P, 4], for n records and P parts of the scene.
    positions_m = np.array([pose.part_pos_m for pose in poses])
    quats = np.array([pose.part_quat_wxyz for pose in poses])
    contacts = tuple(_shown_contacts(record, poses))  # () if contacts were not recorded
    return EpisodeMotion(float(record.dt_s[0]), record.stamps_s.get(0), positions_m, quats, contacts)


def _shown_contacts(record: Batch, poses: Sequence[ScenePose]) -> Iterator[ShownContact]:
    # Yield each recorded contact with its force and its contact point (`touch`).
    # Records contain no contact points. The points come from `poses`, the host's reconstruction of each record.
    # If the reconstruction lacks a recorded contact, the contact's `touch` may be None.
    contacts = record.contacts
    if not contacts.present[0]:  # contacts were not recorded
        return
    # For each record, a dict from pairs of bodies to their contact points.
    touches_by_record = [{frozenset((touch.a, touch.b)): touch for touch in pose.touches} for pose in poses]
    is_robot_body = {name: role == "robot" for name, role in record.body_roles(0).items()}
    # Rows `first` to `end` (exclusive) of the contacts belong to the record.
    for record_index, (first, end) in enumerate(pairwise(contacts.starts.tolist())):
        touches = dict[frozenset[str], Touch]()
        # This record's contact points have priority, then those of the previous record, then those of the next one.
        # The contact points are therefore merged in the opposite order, because `|=` replaces earlier entries.
        for k in (record_index + 1, record_index - 1, record_index):
            if 0 <= k < len(touches_by_record):
                touches |= touches_by_record[k]
        for row in range(first, end):
            a, b = record.body_label(int(contacts.a[row])), record.body_label(int(contacts.b[row]))
            if is_robot_body[b] and not is_robot_body[a]:  # the robot's body comes first
                a, b = b, a
            touch = touches.get(frozenset((a, b)))
            yield ShownContact(record_index, a, b, float(contacts.force_n[row]), touch)


# The file


def encode_replay(geometry: SceneGeometry, motion: EpisodeMotion, arm: Sequence[str] = ()) -> bytes:
    """Return an episode as the content of a JSON file; the same scene and motion give the same bytes. Parts without a
    shape are omitted. `arm` names the body that each joint of the arm moves, base first.
    """
    digests = [_mesh_digest(mesh) for mesh in geometry.meshes]
    shown = sorted({shape.part for shape in geometry.shapes})  # numbers of parts in the file are indices in `shown`
    # For a body without shapes: the indices in `shown` of the parts that are shown instead.
    stand_ins = {name: [shown.index(k) for k in parts if k in shown] for name, parts in geometry.stand_ins.items()}
    document = {
        "version": 1,
        "dt_s": motion.dt_s,
        # Without time stamps, the player computes times from `dt_s`.
        **({} if motion.times_s is None else {"times_s": motion.times_s.round(6).tolist()}),
        "records": len(motion.part_pos_m),
        "view": geometry.view,
        "parts": [geometry.parts[k] for k in shown],
        "stand_ins": {name: parts for name, parts in stand_ins.items() if parts},
        "arm": list(arm),
        "shapes": [_encode_shape(shape, shown.index(shape.part), digests) for shape in geometry.shapes],
        **_encode_motion(motion, shown),
        "contacts": _encode_contacts(motion, geometry.parts),
        "meshes": {digest: _encode_mesh(mesh) for digest, mesh in zip(digests, geometry.meshes, strict=True)},
    }
    return msgspec.json.encode(document, order="deterministic")


def pack_integers(rows: Ints) -> str:
    """Return rows of integers ([n, k], absolute values below 2^30) as base64 text of zlib-compressed bytes. The bytes
    encode the differences between consecutive rows, mapped to integers >= 0 (0, -1, 1, -2, ... -> 0, 1, 2, 3, ...). The
    lowest bytes of all differences come first, column by column, then the second, the third and the highest bytes.
    """
    # The first difference is the first row itself, because 0 is prepended.
    differences = np.diff(rows.astype(np.int64), axis=0, prepend=0)
    # [k, n]: after transposition, the values of a column are adjacent.
    folded = np.where(differences < 0, -2 * differences - 1, 2 * differences).T
    byte_planes = [((folded >> shift) & 0xFF).astype(np.uint8).tobytes() for shift in (0, 8, 16, 24)]
    return base64.b64encode(zlib.compress(b"".join(byte_planes), 9)).decode()


def _encode_shape(shape: Shape, part: int, digests: Sequence[str]) -> dict[str, object]:
    # Return the shape as a JSON object.
    # `part` is the index of the shape's part in the file; `digests` has the digest of each mesh of the scene.
    # Only a mesh has no size here, because its corners determine its size. Lengths are rounded to 1e-5 m.
    return {
        "kind": shape.kind,
        "part": part,
        **({"size": _round_all(shape.size_m, 5)} if shape.mesh is None else {"mesh": digests[shape.mesh]}),
        "pos": _round_all(shape.pos_m, 5),
        "quat": _round_all(shape.quat_wxyz, 6),
        "rgba": _round_all(shape.rgba, 3),
    }


def _round_all(values: Sequence[float], digits: int) -> list[float]:
    return [round(value, digits) + 0.0 for value in values]  # + 0.0 turns -0.0 into 0.0, which is shorter


def _encode_motion(motion: EpisodeMotion, shown_parts: Sequence[int]) -> dict[str, object]:
    # `shown_parts` are the indices of the P parts that have shapes.
    # `still` holds the poses of all shown parts in record 0; `motion` holds the poses of moving parts in each record.
    positions = np.rint(motion.part_pos_m[:, shown_parts] / POSITION_M).astype(np.int64)
    quats = np.rint(_align_quaternion_signs(motion.part_quat_wxyz[:, shown_parts]) / QUATERNION).astype(np.int64)
    poses = np.concatenate([positions, quats], axis=2)  # [n, P, 7], in multiples of the resolutions
    is_moving = (poses != poses[:1]).any(axis=(0, 2))  # [P]: whether a pose differs from record 0
    return {
        "moving": np.flatnonzero(is_moving).tolist(),
        "still": pack_integers(poses[:1].reshape(len(shown_parts), 7)),
        "motion": pack_integers(poses[:, is_moving].reshape(len(poses), -1)),
    }


def _align_quaternion_signs(quats: Floats) -> Floats:
    # q and -q are the same rotation: choose signs so that consecutive quaternions [n, P, 4] differ little.
    flips = np.where((quats[1:] * quats[:-1]).sum(axis=2) < 0, -1.0, 1.0)
    # A flip also applies to all later records, so a sign is the product of all flips so far; shape [n, P].
    signs = np.concatenate([np.ones((1, quats.shape[1])), np.cumprod(flips, axis=0)])
    return np.asarray(quats * signs[:, :, None])


def _encode_contacts(motion: EpisodeMotion, parts: Sequence[str]) -> dict[str, object]:
    # Return as JSON fields the pairs of bodies, the packed rows of contacts, and the number of rows.
    # `parts` has the name of the body of each part of the scene.
    pairs = sorted({(contact.a, contact.b) for contact in motion.contacts})
    pair_numbers, rows = {pair: k for k, pair in enumerate(pairs)}, []
    for contact in motion.contacts:
        point, normal = _contact_point_and_normal(motion, contact, parts)
        force_units, has_point = round(contact.force_n / FORCE_N), int(contact.touch is not None)
        point_units, normal_units = np.rint(point / POSITION_M).astype(int), np.rint(normal / NORMAL).astype(int)
        # Columns of a row: record, pair, force, 1 if there is a contact point, point [3], normal [3].
        pair_number = pair_numbers[contact.a, contact.b]
        rows.append([contact.record, pair_number, force_units, has_point, *point_units, *normal_units])
    # `reshape` gives the array 10 columns even if there is no contact.
    return {"pairs": pairs, "rows": pack_integers(np.array(rows, dtype=np.int64).reshape(-1, 10)), "count": len(rows)}


def _contact_point_and_normal(
    motion: EpisodeMotion, contact: ShownContact, parts: Sequence[str]
) -> tuple[Floats, Floats]:
    # Return the point [3] in m, and the unit normal [3] from body `a` to body `b`, both in the world frame.
    # `parts` has the name of the body of each part; several parts may belong to one body.
    touch = contact.touch
    if touch is not None:
        sign = 1.0 if touch.a == contact.a else -1.0  # `touch` may list the bodies in the opposite order
        return np.array(touch.point_m), sign * np.array(touch.normal)

    # Without a contact point: the middle between the two bodies' centers, and the direction from a to b.
    # If both centers are equal, the direction is up.
    def find_center(body: str) -> Floats:
        # Return the mean position [3] of the body's parts in the contact's record [m]; zeros if there are no parts.
        indices = [k for k, part in enumerate(parts) if part == body]
        return np.asarray(motion.part_pos_m[contact.record, indices].mean(axis=0)) if indices else np.zeros(3)

    a_m, b_m = find_center(contact.a), find_center(contact.b)
    distance_m = float(np.linalg.norm(b_m - a_m))
    normal = (b_m - a_m) / distance_m if distance_m > 0 else np.array([0.0, 0.0, 1.0])
    return (a_m + b_m) / 2, normal


# Meshes


def _mesh_digest(mesh: TriangleMesh) -> str:
    # Return 16 hexadecimal digits that identify the mesh: equal corners, triangles and colors give equal digits.
    arrays = [mesh.corners_m, mesh.triangles, *([] if mesh.colors is None else [mesh.colors])]
    return hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)).hexdigest()[:16]


def simplify_geometry(geometry: SceneGeometry, simpler_meshes: dict[str, TriangleMesh]) -> SceneGeometry:
    """Return the scene with fewer triangles. `simpler_meshes` maps digests to simplified meshes, as a cache."""
    meshes = []
    for mesh in geometry.meshes:
        digest = _mesh_digest(mesh)
        if digest not in simpler_meshes:
            # The longer the diagonal of the mesh's bounding box, the more triangles the mesh may have.
            diagonal_m = float(np.linalg.norm(np.ptp(mesh.corners_m, axis=0)))
            max_triangles = int(np.clip(_TRIANGLES_AT_1_M * diagonal_m**0.6, _FEWEST_TRIANGLES, _MOST_TRIANGLES))
            simpler_meshes[digest] = decimate_mesh(mesh, max_triangles)
        meshes.append(simpler_meshes[digest])
    return replace(geometry, meshes=tuple(meshes))


def _encode_mesh(mesh: TriangleMesh) -> Mapping[str, object]:
    # Return corners as multiples of `step_m`, triangles as relative indices, and colors if the mesh has any.
    extent_m = float(np.abs(mesh.corners_m).max(initial=0.0))
    step_m = min(POSITION_M, max(extent_m / 1000, 1e-7))  # resolution: finer for a small mesh
    # Rotated, sorted and relative indices compress better. Rotating a triangle's indices does not flip the triangle.
    start_corner = mesh.triangles.argmin(axis=1)  # start each triangle at its smallest index
    rotated = np.take_along_axis(mesh.triangles, (start_corner[:, None] + np.arange(3)) % 3, axis=1)
    # `lexsort` takes the most important key last, so the columns are reversed.
    ordered = rotated[np.lexsort(rotated.T[::-1])]  # sorted by the first index, then the second, then the third
    # The second and the third index of a triangle are relative to its first index.
    relative = ordered - np.column_stack([np.zeros(len(ordered), dtype=np.int64), ordered[:, 0], ordered[:, 0]])
    return {
        "step_m": step_m,
        "corners": _pack_rows(np.rint(mesh.corners_m / step_m).astype(np.int64)),
        "triangles": _pack_rows(relative),
        **({} if mesh.colors is None else {"colors": _pack_rows(mesh.colors.astype(np.int64))}),
    }


def _pack_rows(rows: Ints) -> list[object]:
    # Return the number of rows, which the player needs to unpack them, and the packed rows.
    return [len(rows), pack_integers(rows)]


# Mesh simplification: all vertices in a cell of a grid are replaced by their mean


def decimate_mesh(mesh: TriangleMesh, max_triangles: int) -> TriangleMesh:
    """Return a mesh with about the same surface and at most `max_triangles`. Coinciding vertices are merged."""
    # If a mesh already has few enough triangles, only its coinciding vertices are merged (welded).
    simpler = welded = _merge_vertices(mesh, _WELD_M)
    corners = welded.corners_m[welded.triangles]  # [F, 3 corners, xyz]
    area_m2 = np.linalg.norm(np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]), axis=1).sum() / 2
    # Initially, cells are about half as wide as the triangles of a mesh with this area and `max_triangles` triangles.
    cell_m = 0.5 * float(np.sqrt(2 * area_m2 / max_triangles))
    while len(simpler.triangles) > max_triangles:
        # Enlarge the cells until few enough triangles are left.
        simpler = _merge_vertices(welded, cell_m)
        cell_m *= 1.1
    return simpler


def _merge_vertices(mesh: TriangleMesh, cell_m: float) -> TriangleMesh:
    # Replace all vertices in a cell of a grid by their mean, and drop triangles that collapse or become equal.
    # The cells are `cell_m` wide, or wider if the mesh would otherwise have more than 2^20 cells along an axis.
    # A cell's index on each axis is at most 2^20, so three indices of 21 bits fit into one integer.
    offsets_m = mesh.corners_m - mesh.corners_m.min(axis=0, initial=np.inf)
    grid_cells = np.rint(offsets_m / max(cell_m, float(offsets_m.max(initial=0.0)) / 2**20)).astype(np.int64)
    # Number the occupied cells from 0; `cell_ids` has the number of each vertex's cell.
    _, cell_ids = np.unique(grid_cells @ [1 << 42, 1 << 21, 1], return_inverse=True)
    triangles = cell_ids.reshape(-1)[mesh.triangles]  # [F, 3], numbers of cells
    sorted_corners = np.sort(triangles, axis=1)
    proper = np.flatnonzero((np.diff(sorted_corners, axis=1) > 0).all(axis=1))  # triangles with three different corners
    _, distinct = np.unique(sorted_corners[proper], axis=0, return_index=True)  # one triangle for each set of corners
    # Only cells that still belong to a triangle become vertices; `new_indices` are the triangles' vertices.
    used, new_indices = np.unique(triangles[proper[distinct]], return_inverse=True)
    colors = None if mesh.colors is None else np.rint(_mean_rows(mesh.colors, cell_ids)[used]).astype(np.uint8)
    return TriangleMesh(_mean_rows(mesh.corners_m, cell_ids)[used], new_indices.reshape(-1, 3).astype(np.int64), colors)


def _mean_rows(rows: NDArray[Any], cell_of_row: Ints) -> Floats:
    # Return the mean of the rows in each cell, [number of cells, number of columns].
    # `cell_of_row` has the number of the cell of each row.
    counts = np.bincount(cell_of_row.reshape(-1))
    return np.stack([np.bincount(cell_of_row.reshape(-1), column) / counts for column in rows.T], axis=1)
