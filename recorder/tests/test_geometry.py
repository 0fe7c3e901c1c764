"""Boxes are merged if little is added, and motions are rounded to a fixed step."""

from __future__ import annotations

import json

import numpy as np
import pytest

from safevla_recorder.geometry import ALL_MOTION, Geometry, Part, merge_boxes

UPRIGHT = [1.0, 0.0, 0.0, 0.0]
HALF = [0.02, 0.03, 0.04]


def describe(*parts):
    count = len(parts)
    return json.loads(Geometry(parts, [], np.zeros((count, 3)), np.tile(UPRIGHT, (count, 1))).text)


@pytest.mark.parametrize("axis", range(3))
@pytest.mark.parametrize(("gap", "count"), [(0.0, 1), (0.0099, 1), (0.0101, 2)])
def test_boxes_are_merged_up_to_a_gap_of_ten_millimeters(axis, gap, count):
    other = np.zeros(3)
    other[axis] = 2 * HALF[axis] + gap
    merged = merge_boxes(np.array([[0.0, 0.0, 0.0, *UPRIGHT, *HALF], [*other, *UPRIGHT, *HALF]]).tobytes())
    assert len(merged) == count
    if count == 1:
        half = np.array(HALF) + other / 2
        np.testing.assert_allclose(merged, [[*(other / 2), *UPRIGHT, *half]], atol=1e-12)


@pytest.mark.parametrize(("longer", "count"), [(0.0049, 1), (0.0051, 2)])
def test_a_box_beside_a_longer_one_is_merged_if_the_joint_one_adds_less_than_five_millimeters(longer, count):
    first, second = [0.0, 0.0, 0.0, *UPRIGHT, *HALF], [0.04, 0.0, 0.0, *UPRIGHT, 0.02, 0.03 + longer, 0.04]
    assert len(merge_boxes(np.array([first, second]).tobytes())) == count


def test_no_box_is_none():
    assert merge_boxes(b"").shape == (0, 10)


def test_a_part_without_shapes_has_none_and_is_attached_to_the_world():
    described = describe(Part("table"), Part("cup", -2))
    assert described["shapes"] == {}
    assert described["parts"] == [
        {"body": "table", "parent": -1, "motion": [], "pose": [0.0, 0.0, 0.0, *UPRIGHT]},
        {"body": "cup", "parent": -2, "motion": [], "pose": []},
    ]


def test_a_motion_is_rounded_to_a_quarter_of_a_micrometer():
    geometry = Geometry([Part("link", motion=ALL_MOTION)], [], np.zeros((1, 3)), np.array([UPRIGHT]))
    motion = geometry.measure_motion(np.array([[[0.1, -0.3, 0.7]]]), np.array([[UPRIGHT]]))
    steps = motion[0, 3:] * 2**22
    assert steps.tolist() == [round(at * 2**22) for at in (0.1, -0.3, 0.7)]
    assert motion[0, :3].tolist() == [0.0, 0.0, 0.0]
