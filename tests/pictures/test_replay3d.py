"""Replays in 3-D keep poses within their steps, meshes on their surface, and are the same bytes each time."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.spatial.transform import Rotation

from safevla_bench.errors import HostError
from safevla_bench.interface.stage import SceneGeometry, Shape, Stage, Touch, TriangleMesh, Viewpoint
from safevla_bench.pictures import replay3d
from safevla_bench.pictures.replay3d import (
    EpisodeMotion,
    ShownContact,
    decimate_mesh,
    encode_replay,
    pack_integers,
    simplify_geometry,
)

VIEW = Viewpoint("front", (1.0, 0.0, 1.0), (1.0, 0.0, 0.0, 0.0), 45.0)
SPOT = ((0.0, 0.0, 0.0), (1.0, 0.0, 0.0, 0.0), (1.0, 0.5, 0.2, 1.0))
BALL = Shape("sphere", 1, (0.1, 0.0, 0.0), *SPOT)


def unpacked(text: str, rows: int, columns: int) -> np.ndarray:
    """The integers again, one by one as the format says: the player's way, written apart from the packing."""
    content = zlib.decompress(base64.b64decode(text))
    assert len(content) == 4 * rows * columns
    table = np.zeros((rows, columns), dtype=np.int64)
    for column in range(columns):
        value = 0
        for row in range(rows):
            at = column * rows + row
            folded = sum(content[plane * rows * columns + at] << (8 * plane) for plane in range(4))
            value += folded // 2 if folded % 2 == 0 else -(folded + 1) // 2
            table[row, column] = value
    return table


@given(arrays.arrays(np.int64, arrays.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=7),
                     elements=st.integers(-(2**29), 2**29)))  # fmt: skip
def test_packed_integers_are_the_same_again(rows):
    assert np.array_equal(unpacked(pack_integers(rows), *rows.shape), rows)


def scene(*shapes: Shape, parts=("world", "ball", "pad"), meshes=(), stand_ins=None) -> SceneGeometry:
    return SceneGeometry(parts, stand_ins or {}, shapes or (BALL,), meshes, VIEW)


def motion(positions, quats, contacts=()) -> EpisodeMotion:
    arrays = (np.asarray(rows, dtype=float) for rows in (positions, quats))
    return EpisodeMotion(0.05, None, *arrays, tuple(contacts))


def wandering(seed: int, records: int, parts: int) -> EpisodeMotion:
    random = np.random.default_rng(seed)
    quats = Rotation.random(records * parts, random_state=seed).as_quat().reshape(records, parts, 4)
    return motion(random.uniform(-8, 8, (records, parts, 3)), quats)


@given(st.integers(0, 10**6), st.integers(1, 12))
def test_poses_are_within_a_tenth_of_a_millimeter_and_a_hundredth_of_a_degree(seed, records):
    moved = wandering(seed, records, 3)
    document = json.loads(encode_replay(scene(BALL, replace(BALL, part=2)), moved))
    assert document["parts"] == ["ball", "pad"]
    if records == 1:
        table = unpacked(document["still"], 2, 7)[None]
    else:
        assert document["moving"] == [0, 1]
        table = unpacked(document["motion"], records, 14).reshape(records, 2, 7)
    gaps = np.linalg.norm(table[..., :3] * replay3d.POSITION_M - moved.part_pos_m[:, 1:], axis=2)
    assert gaps.max() < 1e-4
    packed = Rotation.from_quat(table[..., 3:].reshape(-1, 4).astype(float))  # the order of components does not matter
    true = Rotation.from_quat(moved.part_quat_wxyz[:, 1:].reshape(-1, 4))
    assert np.degrees((packed.inv() * true).magnitude()).max() < 0.01


def test_a_part_that_stays_has_one_row_and_the_same_rotation_of_either_sign_stays():
    quats = np.tile([1.0, 0.0, 0.0, 0.0], (4, 3, 1)) * np.array([1, -1, 1, -1])[:, None, None]
    moved = motion(np.tile([0.1, 0.2, 0.3], (4, 3, 1)), quats)
    moved.part_pos_m[2, 2, 0] = 0.5
    document = json.loads(encode_replay(scene(BALL, replace(BALL, part=2)), moved))
    assert document["moving"] == [1]
    assert unpacked(document["still"], 2, 7)[0].tolist() == [1000, 2000, 3000, 32767, 0, 0, 0]
    assert unpacked(document["motion"], 4, 7)[:, 0].tolist() == [1000, 1000, 5000, 1000]


def test_the_same_scene_and_motion_give_the_same_bytes():
    mesh = sphere(12)
    geometry = scene(Shape("mesh", 1, (0, 0, 0), *SPOT, mesh=0), meshes=(mesh,))
    files = {encode_replay(simplify_geometry(geometry, {}), wandering(3, 9, 3)) for _ in range(2)}
    assert len(files) == 1


def test_a_body_without_a_shape_is_shown_by_its_stand_in():
    geometry = scene(BALL, stand_ins={"pad": (1,), "ghost": (0,)})
    document = json.loads(encode_replay(geometry, wandering(0, 2, 3), arm=("ball", "pad")))
    assert document["stand_ins"] == {"pad": [0]}
    assert document["arm"] == ["ball", "pad"]


def test_a_contact_is_placed_where_the_state_shows_it_else_between_its_bodies():
    still = motion(
        [[[0, 0, 0], [0, 0, 1.0], [0, 0, 3.0]]],
        [[[1, 0, 0, 0]] * 3],
        [
            ShownContact(0, "pad", "ball", 12.34, Touch("ball", "pad", (0.1, 0.0, 1.5), (0.0, 0.0, 1.0))),
            ShownContact(0, "ball", "pad", 1.0, None),
        ],
    )
    contacts = json.loads(encode_replay(scene(), still))["contacts"]
    assert contacts["pairs"] == [["ball", "pad"], ["pad", "ball"]]
    table = unpacked(contacts["rows"], contacts["count"], 10).tolist()
    assert table[0] == [0, 1, 123, 1, 1000, 0, 15000, 0, 0, -100]
    assert table[1] == [0, 0, 10, 0, 0, 0, 20000, 0, 0, 100]


def test_a_stage_without_shapes_is_told_as_that():
    with pytest.raises(HostError, match="provide the shapes"):
        Stage.geometry(object())


# Meshes


def sphere(steps: int, radius_m: float = 0.2) -> TriangleMesh:
    """A sphere of `2 steps ** 2` quads, each triangle with corners of its own as MuJoCo has them; red above."""
    around, down = np.meshgrid(np.linspace(0, 2 * np.pi, 2 * steps + 1), np.linspace(0, np.pi, steps + 1))
    grid = radius_m * np.stack([np.sin(down) * np.cos(around), np.sin(down) * np.sin(around), np.cos(down)], axis=-1)
    a, b, c, d = grid[:-1, :-1], grid[1:, :-1], grid[1:, 1:], grid[:-1, 1:]
    corners = np.stack([a, b, c, a, c, d], axis=2).reshape(-1, 3)
    colors = np.where(corners[:, 2:] > 0, [[255, 0, 0]], [[0, 0, 255]]).astype(np.uint8)
    return TriangleMesh(corners, np.arange(len(corners)).reshape(-1, 3), colors)


@pytest.mark.parametrize("most", [60, 300, 1500])
def test_a_simpler_mesh_has_few_triangles_near_the_surface_that_face_outward(most):
    simpler = decimate_mesh(sphere(40), most)
    assert most / 2 < len(simpler.triangles) <= most
    radii = np.linalg.norm(simpler.corners_m, axis=1)
    edge = 0.2 * np.sqrt(4 * np.pi / most)
    assert np.abs(radii - 0.2).max() < edge / 2
    corners = simpler.corners_m[simpler.triangles]
    normals = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
    assert ((normals * corners.mean(axis=1)).sum(axis=1) > 0).mean() > 0.97
    assert simpler.triangles.max() == len(simpler.corners_m) - 1
    high = simpler.corners_m[:, 2] > edge
    assert (simpler.colors[high] == [255, 0, 0]).all()


def test_a_mesh_of_few_triangles_keeps_its_surface_and_its_corners_are_joined():
    mesh = sphere(6)
    joined = decimate_mesh(mesh, 10_000)
    assert len(joined.corners_m) == 2 + 5 * 12
    assert len(joined.triangles) == 12 * (6 * 2 - 2)
    whole = {tuple(np.round(point, 5)) for point in mesh.corners_m}
    assert {tuple(np.round(point, 5)) for point in joined.corners_m} <= whole


def test_corners_and_triangles_come_back_within_a_step():
    mesh = decimate_mesh(sphere(9), 10_000)
    geometry = scene(Shape("mesh", 1, (0, 0, 0), *SPOT, mesh=0), meshes=(mesh,))
    (stored,) = json.loads(encode_replay(geometry, wandering(0, 1, 3)))["meshes"].values()
    corners = unpacked(stored["corners"][1], stored["corners"][0], 3) * stored["step_m"]
    assert np.abs(corners - mesh.corners_m).max() <= stored["step_m"] / 2 + 1e-12
    relative = unpacked(stored["triangles"][1], stored["triangles"][0], 3)
    triangles = relative + np.where([False, True, True], relative[:, :1], 0)
    turned = {min(tuple(np.roll(row, k)) for k in range(3)) for row in mesh.triangles.tolist()}
    assert {min(tuple(np.roll(row, k)) for k in range(3)) for row in triangles.tolist()} == turned
    assert np.array_equal(unpacked(stored["colors"][1], len(corners), 3), mesh.colors)


def test_a_mesh_of_two_scenes_is_simplified_once():
    simplified: dict[str, TriangleMesh] = {}
    geometry = scene(Shape("mesh", 1, (0, 0, 0), *SPOT, mesh=0), meshes=(sphere(30),))
    first, second = (simplify_geometry(geometry, simplified) for _ in range(2))
    assert len(simplified) == 1
    assert first.meshes[0] is second.meshes[0]
