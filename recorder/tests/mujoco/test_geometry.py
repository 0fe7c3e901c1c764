"""The geometry of a model: links are where MuJoCo has them, and boxes hold the shapes and little more."""

from __future__ import annotations

import json

import numpy as np
import pytest

from safevla_recorder.geometry import MERGED_M, Geometry, merge_boxes, multiply, rotate
from safevla_recorder.mujoco.geometry import read_parts
from safevla_recorder.mujoco.recorder import Scene

mujoco = pytest.importorskip("mujoco", reason="MuJoCo comes with the extra libero")

MODEL = """
<mujoco>
  <worldbody>
    <geom name="floor" type="plane" size="1 1 1"/>
    <body name="stove" pos="1 0 0.2" euler="0 0 30"><geom type="cylinder" size="0.1 0.05"/></body>
    <body name="shoulder" pos="0 0 0.5" euler="20 0 0"><joint type="hinge" axis="0 0 1"/>
      <geom type="capsule" size="0.05 0.1"/>
      <body name="elbow" pos="0.3 0 0" euler="0 40 0"><joint type="hinge" axis="0 1 0" pos="0.1 0 0"/>
        <geom type="box" size="0.05 0.02 0.03" pos="0.1 0 0"/>
        <body name="hand" pos="0.2 0 0"><joint type="ball"/><site name="grip"/><geom type="sphere" size="0.02"/>
          <body name="left"><joint type="slide" axis="0 1 0"/><geom name="l" type="box" size="0.01 0.01 0.03"/></body>
          <body name="right"><joint type="slide" axis="0 -1 0"/><geom name="r" type="box" size="0.01 0.01 0.03"/></body>
        </body>
      </body>
    </body>
    <body name="cup_main" pos="0.5 0.5 0.1"><freejoint/><geom type="ellipsoid" size="0.03 0.04 0.05"/>
      <body name="cup_lid" pos="0 0 0.05"><joint type="slide" axis="0 0 1"/>
        <geom type="box" size="0.03 0.03 0.01"/></body>
    </body>
    <body name="lever" pos="-1 0 0.3"><joint type="hinge" axis="1 1 0"/><geom type="box" size="0.1 0.02 0.02"/></body>
    <body name="tray" pos="-1 1 0.3"><joint type="slide" axis="1 0 0"/><joint type="slide" axis="0 1 0"/>
      <geom type="box" size="0.1 0.1 0.02"/></body>
    <body name="target" mocap="true"/>
  </worldbody>
</mujoco>
"""


def build():
    model = mujoco.MjModel.from_xml_string(MODEL)
    data = mujoco.MjData(model)
    names = [model.body(body).name.partition("_")[0] for body in range(model.nbody)]
    roles = {name: "bystander" if name == "cup" else "furniture" for name in sorted(set(names))}
    cup, fingers = model.body("cup_main").id, ((model.geom("l").id,), (model.geom("r").id,))
    scene = Scene(tuple(names), roles, {"cup": cup}, {}, fingers=fingers, eef_site=model.site("grip").id)
    return model, data, read_parts(model, scene)


def test_the_poses_of_all_parts_follow_from_the_text_and_the_motion():
    model, data, (parts, bodies, hand) = build()
    rng = np.random.default_rng(0)
    poses = []
    for _ in range(6):
        mujoco.mj_integratePos(model, data.qpos, rng.normal(size=model.nv), 0.4)
        data.mocap_pos[:] = rng.normal(size=3)
        mujoco.mj_kinematics(model, data)
        poses.append((data.xpos[bodies].copy(), data.xquat[bodies].copy()))
    position, turn = map(np.array, zip(*poses))
    geometry = Geometry(parts, hand, position[0], turn[0])
    text, motion = json.loads(geometry.text), geometry.measure_motion(position, turn)
    assert {text["parts"][k]["body"] for k in hand} == {"hand", "left", "right"}
    columns = [(k, axis) for k, part in enumerate(text["parts"]) for axis in part["motion"]]
    assert motion.shape == (6, len(columns))
    placed = {}
    for k, part in enumerate(text["parts"]):
        base = placed[part["parent"]] if part["parent"] >= 0 else (np.zeros((6, 3)), np.tile([1.0, 0, 0, 0], (6, 1)))
        if part["parent"] == -2:
            placed[k] = position[:, k], turn[:, k]
            continue
        moved = np.zeros((6, 6))
        for column, (place, axis) in enumerate(columns):
            moved[:, axis] += motion[:, column] * (place == k)
        angle = np.linalg.norm(moved[:, :3], axis=1, keepdims=True)
        quat = np.hstack([np.cos(angle / 2), moved[:, :3] * np.sinc(angle / 2 / np.pi) / 2])
        local = np.array(part["pose"])
        at = base[0] + rotate(base[1], local[:3]), multiply(base[1], np.tile(local[3:], (6, 1)))
        placed[k] = at[0] + rotate(at[1], moved[:, 3:]), multiply(at[1], quat)
        np.testing.assert_allclose(placed[k][0], position[:, k], atol=2e-6)
        np.testing.assert_allclose(np.abs((placed[k][1] * turn[:, k]).sum(axis=1)), 1.0, atol=1e-9)
    assert [part["motion"] for part in text["parts"] if part["body"] == "shoulder"] == [[2]]


def test_shapes_of_one_kind_are_stored_once_and_planes_are_half_spaces():
    _, data, (parts, bodies, hand) = build()
    text = json.loads(Geometry(parts, hand, data.xpos[bodies] * 0, data.xquat[bodies] * 0 + [1, 0, 0, 0]).text)
    by_body = {part["body"]: part.get("shape") for part in text["parts"]}
    assert by_body["left"] == by_body["right"]
    assert [len(row) for row in text["shapes"][by_body["world"]]] == [7]
    np.testing.assert_allclose(text["shapes"][by_body["stove"]][0][7:], [0.1, 0.1, 0.05], atol=1e-6)


def test_geoms_without_masks_have_a_shape_if_a_pair_lets_them_collide():
    geoms = "".join(f'<geom name="{name}" size="0.1" contype="0" conaffinity="0"/>' for name in ("seen", "hit"))
    bodies = f'<worldbody><body name="cup"><freejoint/>{geoms}</body><geom name="top" size="1"/></worldbody>'
    pairs = '<contact><pair geom1="top" geom2="hit"/></contact>'
    model = mujoco.MjModel.from_xml_string(f"<mujoco>{bodies}{pairs}</mujoco>")
    roles = {"cup": "bystander", "world": "furniture"}
    parts, _, _ = read_parts(model, Scene(("world", "cup"), roles, {"cup": 1}, {}))
    assert [(part.body, len(part.boxes)) for part in parts] == [("world", 1), ("cup", 1)]


def test_merged_boxes_hold_the_others_and_reach_less_than_5_mm_beyond_them():
    rng = np.random.default_rng(1)
    grid = np.array([[x, 0.0, 0.0, 1, 0, 0, 0, 0.02, 0.05, 0.03] for x in np.arange(6) * 0.041])
    inner = np.array([[0.01, 0.0, 0.03, 0.99, 0.1, 0, 0, 0.01, 0.01, 0.001]])
    inner[:, 3:7] /= np.linalg.norm(inner[:, 3:7])
    apart = np.array([[0.0, 0.5, 0.0, 1, 0, 0, 0, 0.02, 0.05, 0.03]])
    boxes = np.concatenate([grid, inner, apart])
    merged = merge_boxes(np.ascontiguousarray(boxes).tobytes())
    assert len(merged) < 4

    def outside(points, of):
        seen = np.array([rotate(row[3:7] * [1, -1, -1, -1], points - row[:3]) for row in of])
        return np.linalg.norm(np.maximum(np.abs(seen) - of[:, None, 7:], 0), axis=-1).min(axis=0)

    def sample(of):
        chosen = of[rng.integers(len(of), size=20000)]
        return chosen[:, :3] + rotate(chosen[:, 3:7], rng.uniform(-1, 1, (20000, 3)) * chosen[:, 7:])

    assert outside(sample(boxes), merged).max() < 1e-12
    assert outside(sample(merged), boxes).max() < MERGED_M
