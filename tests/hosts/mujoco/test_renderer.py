"""Camera matrices take a point of the world to the pixel where MuJoCo draws it."""

from __future__ import annotations

import numpy as np
import pytest

mujoco = pytest.importorskip("mujoco", reason="MuJoCo comes with the extra libero")

from safevla_bench.hosts.mujoco.renderer import Renderer, camera_matrices  # noqa: E402
from safevla_bench.interface.stage import Camera  # noqa: E402

SIZE = (60, 80)
MODEL = """
<mujoco>
  <worldbody>
    <camera name="slanted" pos="1 0.5 1.2" xyaxes="-0.4 0.9 0 -0.5 -0.3 0.8" fovy="50"/>
    <light pos="0 0 4"/>
    <body name="ball" pos="0.1 -0.2 0.3"><geom size="0.03" group="1"/></body>
  </worldbody>
</mujoco>
"""


@pytest.fixture
def scene():
    model = mujoco.MjModel.from_xml_string(MODEL)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    return model, data


def to_pixel(intrinsics, extrinsics, point):
    inside = np.linalg.inv(extrinsics) @ [*point, 1.0]
    column, row, depth = intrinsics @ inside[:3]
    return row / depth, column / depth, inside[2]


def test_the_middle_of_the_image_is_where_the_camera_looks_and_up_is_towards_row_0(scene):
    model, data = scene
    matrices = camera_matrices(model, data, "slanted", SIZE)
    right, up, back = data.cam_xmat[0].reshape(3, 3).T
    at = data.cam_xpos[0] - 2 * back
    np.testing.assert_allclose(to_pixel(*matrices, at), (30, 40, 2))
    half_height = 2 * np.tan(np.radians(25))
    np.testing.assert_allclose(to_pixel(*matrices, at + half_height * up), (0, 40, 2), atol=1e-9)
    np.testing.assert_allclose(to_pixel(*matrices, at + half_height * right), (30, 70, 2))


def test_a_ball_is_drawn_where_the_matrices_say(scene):
    model, data = scene
    renderer = Renderer(model, SIZE)
    renderer.look(data, Camera("slanted"))
    rows, columns = np.nonzero(renderer.bodies(SIZE) == model.body("ball").id)
    renderer.close()
    row, column, _ = to_pixel(*camera_matrices(model, data, "slanted", SIZE), model.body("ball").pos)
    assert len(rows) > 3
    np.testing.assert_allclose((rows.mean() + 0.5, columns.mean() + 0.5), (row, column), atol=0.7)
