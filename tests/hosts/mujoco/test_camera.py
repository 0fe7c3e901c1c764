"""Cameras are chosen by what they show: the least visible body decides, a floor does not outweigh a finger."""

from __future__ import annotations

import numpy as np

from safevla_bench.hosts.mujoco.camera import chosen, close_ups, shares
from safevla_bench.interface import CLOSE_UP, Camera

CAMERAS = [Camera(name) for name in "abc"]


def test_shares_count_the_pixels_of_each_body():
    seen = np.array([[0, 1, 1], [2, 0, 1]], dtype=np.uint8)
    np.testing.assert_allclose(shares(seen, 3), [3 / 6, 1 / 6, 0])


def test_the_least_visible_body_decides():
    shown = [np.array([0.9, 0.0]), np.array([0.03, 0.03]), np.array([0.5, 0.001])]
    assert chosen(CAMERAS, shown).name == "b"


def test_a_little_more_of_a_body_does_not_beat_a_more_natural_view():
    shown = [np.array([0.050]), np.array([0.052]), np.array([0.4])]
    assert chosen(CAMERAS, shown[:2]).name == "a"
    assert chosen(CAMERAS, [np.array([0.07]), np.array([0.4])]).name == "a"


def test_where_nothing_shows_the_bodies_the_first_camera_is_taken():
    assert chosen(CAMERAS, [np.zeros(2)] * 3).name == "a"


def test_close_ups_look_at_the_point_from_within_reach():
    cameras = list(close_ups(np.array([0.1, 0.2, 0.3]), 50.0, 90.0))
    assert {camera.name for camera in cameras} == {CLOSE_UP}
    assert {camera.lookat_m for camera in cameras} == {(0.1, 0.2, 0.3)}
    assert cameras[0].azimuth_deg == 90.0
    assert all(0.3 < camera.distance_m < 2 and -90 < camera.elevation_deg < 0 for camera in cameras)
