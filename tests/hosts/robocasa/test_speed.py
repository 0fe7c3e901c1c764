"""Stepping RoboCasa faster: what follows from a state that a script sets is computed anew."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

import safevla_recorder
from safevla_bench.hosts import make_host
from safevla_bench.hosts.robocasa import host as kitchens
from safevla_bench.interface.policy import Wants
from safevla_bench.interface.task import EpisodeSeed

mujoco = pytest.importorskip("mujoco", reason="MuJoCo comes with the extra robocasa")
pytestmark = [pytest.mark.robocasa, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture(scope="module")
def kitchen():
    task = next(task for task in make_host("robocasa").tasks("robocasa-365") if task.task_id == "CloseFridge")
    kind = kitchens.task_class(task)
    start = kitchens.pick_scene("target", EpisodeSeed(0, 7, wait_steps=0), kind.EXCLUDE_LAYOUTS, kind.EXCLUDE_STYLES)
    with closing(kitchens.make_kitchen(task, start, Wants())) as made:
        yield made


@pytest.mark.parametrize("steps", [0, 1])
def test_a_state_set_between_steps_is_computed(kitchen, steps):
    """A reset ends in substeps of two halves; nothing computed before is taken for the state of the same instant."""
    slow_down = safevla_recorder.speed_up(kitchen)
    try:
        kitchen.reset()
        for _ in range(steps):
            kitchen.step(np.zeros(12))
        model, data = kitchen.sim.model._model, kitchen.sim.data._data
        data.qpos[0] += 0.1
        kitchen.sim.forward()
        expected = mujoco.MjData(model)
        expected.qpos[:] = data.qpos
        mujoco.mj_kinematics(model, expected)
        np.testing.assert_array_equal(data.xpos, expected.xpos)
    finally:
        slow_down()
