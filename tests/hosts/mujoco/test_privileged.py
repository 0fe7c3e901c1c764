"""Sizes for privileged policies: the box of a body's collision geometry along its own axes."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from safevla_bench.hosts.mujoco.privileged import bounding_box, piece_boxes, read_only
from safevla_recorder.mujoco.recorder import moving_links, subtree_bodies

mujoco = pytest.importorskip("mujoco", reason="MuJoCo comes with the extra libero")

MODEL = """
<mujoco>
  <asset><mesh name="wedge" vertex="0 0 0  0.2 0 0  0 0.1 0  0 0 0.3"/></asset>
  <worldbody>
    <body name="turned" pos="1 2 3" euler="20 40 60">
      <geom type="{kind}" size="0.05 0.1 0.2" pos="0.1 0 0" euler="{euler}"/>
      <geom type="box" size="9 9 9" contype="0" conaffinity="0"/>
      <body name="lid" pos="0 0 0.5"><joint name="hinge" axis="1 0 0"/><geom type="sphere" size="0.01"/></body>
    </body>
    <body name="wedge" pos="0 0 5" euler="10 20 30"><geom type="mesh" mesh="wedge"/></body>
    <body name="floor"><geom type="plane" size="1 1 1"/></body>
  </worldbody>
</mujoco>
"""


def load(kind: str = "box", euler: str = "0 0 0"):
    model = mujoco.MjModel.from_xml_string(MODEL.format(kind=kind, euler=euler))
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    return model, data


@pytest.mark.parametrize(
    ("kind", "euler", "half"),
    [
        ("box", "0 0 0", (0.05, 0.1, 0.2)),
        ("box", "0 0 90", (0.1, 0.05, 0.2)),
        ("sphere", "30 20 10", (0.05, 0.05, 0.05)),
        ("capsule", "0 90 0", (0.15, 0.05, 0.05)),
        ("cylinder", "0 0 33", (0.05, 0.05, 0.1)),
        ("cylinder", "90 0 0", (0.05, 0.1, 0.05)),
        ("ellipsoid", "0 90 0", (0.2, 0.1, 0.05)),
    ],
)
def test_the_box_is_along_the_bodys_axes_and_ignores_geoms_that_collide_with_nothing(kind, euler, half):
    model, data = load(kind, euler)
    body = model.body("turned").id
    half_extents, center = bounding_box(model, data, body, (body,))
    np.testing.assert_allclose(half_extents, half, atol=1e-9)
    np.testing.assert_allclose(center, [0.1, 0, 0], atol=1e-9)


def test_the_box_of_a_mesh_is_that_of_its_vertices():
    model, data = load()
    body = model.body("wedge").id
    half_extents, center = bounding_box(model, data, body, (body,))
    np.testing.assert_allclose(half_extents, [0.1, 0.05, 0.15], atol=1e-6)
    np.testing.assert_allclose(center, [0.1, 0.05, 0.15], atol=1e-6)


def test_child_bodies_count_and_a_plane_has_no_size():
    model, data = load()
    root = model.body("turned").id
    half, center = bounding_box(model, data, root, subtree_bodies(model, root))
    assert center[2] + half[2] == pytest.approx(0.51)
    assert bounding_box(model, data, model.body("floor").id, (model.body("floor").id,)) is None


def test_moving_links_have_a_joint_of_their_own():
    model, _ = load()
    assert moving_links(model, model.body("turned").id) == (model.body("lid").id,)


def test_a_read_only_copy_is_a_copy():
    original = np.zeros(3)
    copy = read_only(original)
    original[0] = 1
    assert copy[0] == 0
    with pytest.raises(ValueError, match="read-only"):
        copy[0] = 2


@pytest.mark.parametrize("euler", ["0 0 0", "10 50 70"])
def test_the_pieces_of_boxes_span_the_box_of_the_body(euler):
    model, data = load("box", euler)
    bodies = subtree_bodies(model, model.body("turned").id)
    half, center = bounding_box(model, data, bodies[0], bodies)
    pieces = piece_boxes(model, data, bodies[0], bodies)
    assert len(pieces.center_m) == 2  # the box and the lid's sphere; what collides with nothing is no piece
    signs = np.array(np.meshgrid(*[[-1, 1]] * 3)).reshape(3, -1).T
    turns = Rotation.from_quat(np.roll(pieces.quat_wxyz, -1, axis=1))
    corners = [
        turn.apply(signs * half_m) + center_m
        for turn, half_m, center_m in zip(turns, pieces.half_extents_m, pieces.center_m, strict=True)
    ]
    # A ball's own box may stand on its corner; here it has the lid's axes, which are the body's.
    np.testing.assert_allclose(np.concatenate(corners).max(axis=0), center + half, atol=1e-9)
    np.testing.assert_allclose(np.concatenate(corners).min(axis=0), center - half, atol=1e-9)


def test_a_body_without_collision_geometry_has_no_pieces():
    model, data = load()
    body = model.body("floor").id
    assert piece_boxes(model, data, body, (body,)) is None
