"""A model's shapes as values: what is visible and nothing else, in the colors and at the places that MuJoCo shows."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
from PIL import Image

mujoco = pytest.importorskip("mujoco", reason="MuJoCo comes with the extra libero")

from safevla_bench.hosts.mujoco.renderer import Appearance  # noqa: E402
from safevla_bench.hosts.mujoco.viewer import choose_camera, close_ups, extract_geometry, find_touches, shares  # noqa: E402
from safevla_bench.interface.stage import CLOSE_UP, Camera  # noqa: E402
from safevla_recorder.mujoco.recorder import Scene  # noqa: E402

MODEL = """
<mujoco>
  <asset>
    <texture name="halves" type="2d" builtin="checker" rgb1="1 0 0" rgb2="0 0 1" width="4" height="4"/>
    <material name="painted" texture="halves"/>
    <material name="green" rgba="0 1 0 1"/>
    <mesh name="wedge" vertex="0 0 0  1 0 0  0 1 0  0 0 1" texcoord="0.1 0.1 0.9 0.1 0.1 0.9 0.9 0.9"
          face="0 2 1  0 1 3  0 3 2  1 2 3"/>
  </asset>
  <worldbody>
    <camera name="above" pos="0 0 2"/>
    <geom name="floor" type="plane" size="0 0 1" group="1" material="painted"/>
    <body name="cube" pos="0 0 0.095">
      <freejoint/>
      <geom name="shown" type="box" size="0.1 0.1 0.1" group="1" material="green"/>
      <geom name="collision" type="box" size="0.1 0.1 0.1" group="0"/>
      <geom name="clear" type="sphere" size="0.1" group="1" rgba="1 1 1 0" contype="0" conaffinity="0"/>
      <site name="goal" size="0.02" rgba="1 0 0 1"/>
    </body>
    <body name="piece" pos="2 0 1"><geom type="mesh" mesh="wedge" group="2" material="painted" mass="1"/></body>
  </worldbody>
</mujoco>
"""
NAMES = Scene(("table", "cube", "piece"), {"table": "furniture", "cube": "target", "piece": "bystander"}, {}, {})


@pytest.fixture
def model():
    return mujoco.MjModel.from_xml_string(MODEL)


def forward(model):
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    return data


def test_only_visible_shapes_are_extracted_in_their_colors(model):
    geometry = extract_geometry(model, forward(model), NAMES, "above", Appearance())
    assert [(shape.kind, geometry.parts[shape.part]) for shape in geometry.shapes] == [
        ("plane", "table"),
        ("box", "cube"),
        ("mesh", "piece"),
    ]
    floor, cube, piece = geometry.shapes
    assert floor.size_m[0] > 5  # without end
    assert floor.rgba == pytest.approx((0.5, 0, 0.5, 1), abs=0.01)  # the mean of the texture
    assert cube.rgba == (0, 1, 0, 1)
    assert cube.size_m == pytest.approx((0.1, 0.1, 0.1))
    assert (piece.mesh, piece.rgba) == (0, (1, 1, 1, 1))


def test_marks_are_extracted_if_the_host_shows_them(model):
    geometry = extract_geometry(model, forward(model), NAMES, "above", Appearance(sites=True))
    assert [(shape.kind, shape.size_m[0]) for shape in geometry.shapes][-1] == ("sphere", 0.02)


def test_a_mesh_has_the_texture_s_colors_and_stands_where_its_corners_were_given(model):
    data = forward(model)
    geometry = extract_geometry(model, data, NAMES, "above", Appearance())
    piece, (mesh,) = geometry.shapes[-1], geometry.meshes
    assert {tuple(color) for color in mesh.colors.tolist()} == {(255, 0, 0), (0, 0, 255)}
    turn = np.empty(9)
    mujoco.mju_quat2Mat(turn, np.array(piece.quat_wxyz))
    inside_part = mesh.corners_m @ turn.reshape(3, 3).T + piece.pos_m
    corners = {tuple(np.round(point, 4) + 0.0) for point in inside_part}
    assert corners == {(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)}


def test_a_texture_of_one_channel_is_gray():
    content = io.BytesIO()
    Image.fromarray(np.full((4, 4), 51, dtype=np.uint8)).save(content, format="png")
    # MuJoCo 3.2.3 refuses a model whose last texture has one channel.
    painted = '<texture name="halves" type="2d" file="gray.png" nchannel="1"/><texture type="2d" builtin="flat" '
    text = re.sub("<texture.*width", f'{painted} name="last" width', MODEL)
    model = mujoco.MjModel.from_xml_string(text, {"gray.png": content.getvalue()})
    assert model.tex_nchannel.tolist() == [1, 3]
    geometry = extract_geometry(model, forward(model), NAMES, "above", Appearance())
    assert geometry.shapes[0].rgba == pytest.approx((0.2, 0.2, 0.2, 1))
    assert {tuple(color) for color in geometry.meshes[0].colors.tolist()} == {(51, 51, 51)}


def test_the_camera_is_the_host_s(model):
    view = extract_geometry(model, forward(model), NAMES, "above", Appearance()).view
    assert view.pos_m == (0, 0, 2)
    assert view.quat_wxyz == pytest.approx((1, 0, 0, 0))
    assert view.fovy_deg == 45


def test_a_touch_is_between_the_bodies_and_points_from_the_first_to_the_second(model):
    (touch,) = find_touches(model, forward(model), NAMES)
    assert (touch.a, touch.b) == ("cube", "table")
    assert touch.normal == pytest.approx((0, 0, -1))
    assert touch.point_m == pytest.approx((0, 0, -0.0025), abs=0.003)


@pytest.mark.parametrize(("margin", "gap", "touches"), [(0.0, 0.0, 0), (0.001, 0.0, 1), (0.001, 0.001, 0)])
def test_a_touch_is_what_records_count_also_with_a_margin(margin, gap, touches):
    """Meta-World's geoms push from a distance of 1 mm on."""
    option = f'<default><geom margin="{margin}" gap="{gap}"/></default>'
    model = mujoco.MjModel.from_xml_string(MODEL.replace("<asset>", f"{option}<asset>").replace("0.095", "0.1005"))
    assert len(find_touches(model, forward(model), NAMES)) == touches


CAMERAS = [Camera(name) for name in "abc"]


def test_shares_count_the_pixels_of_each_body():
    segments = np.array([[0, 1, 1], [2, 0, 1]], dtype=np.uint8)
    np.testing.assert_allclose(shares(segments, 3), [3 / 6, 1 / 6, 0])


@pytest.mark.parametrize(
    ("visible", "camera"),
    [
        ([[0.9, 0.0], [0.03, 0.03], [0.5, 0.001]], "b"),  # the least visible body decides
        ([[0.050], [0.052]], "a"),  # a little more of a body does not beat a more natural view
        ([[0.07], [0.4]], "a"),
        ([[0.0, 0.0]] * 3, "a"),  # no camera shows the bodies
    ],
)
def test_the_first_camera_is_chosen_that_shows_the_bodies_nearly_best(visible, camera):
    assert choose_camera(CAMERAS, [np.array(shares) for shares in visible]).name == camera


def test_close_ups_look_at_the_point_from_within_reach():
    cameras = list(close_ups(np.array([0.1, 0.2, 0.3]), 50.0, 90.0))
    assert {camera.name for camera in cameras} == {CLOSE_UP}
    assert {camera.lookat_m for camera in cameras} == {(0.1, 0.2, 0.3)}
    assert cameras[0].azimuth_deg == 90.0
    assert all(0.3 < camera.distance_m < 2 and -90 < camera.elevation_deg < 0 for camera in cameras)
