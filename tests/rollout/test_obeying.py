"""A rollout does what its protocol says, value by value, on the host without a simulator."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from safevla_bench.errors import RunError
from safevla_bench.hosts import make_host, protocols
from safevla_bench.hosts.fake.host import INIT_STATES, FakeEnv
from safevla_bench.interface.policy import Wants
from safevla_bench.policies import make_policy
from safevla_bench.rollout.episode import EnvRunner, run_episode, run_serially
from safevla_bench.rollout.plan import plan_episodes

FAKE = make_host("fake")
TASKS = FAKE.tasks("fake")[:1]


def rules(**changes):
    return msgspec.structs.replace(protocols.load_protocol(), **changes)


def batches(episodes=1, seed=0, steps=2, acting="noop", **changes):
    planned = plan_episodes(TASKS, episodes, ["p"], rules(**changes), seed=seed, max_steps=steps)
    return [batch.batch for batch in run_serially(EnvRunner(FAKE, {"p": make_policy(acting)}), planned)]


def block(batch):
    """Where the block lies in record 0."""
    return tuple(batch.sim_state.values[6:9])


def height(batch):
    return batch.eef_pos_m.values[2]


def test_the_settling_steps_and_their_action_come_before_record_0():
    raised = (0.0, 0.0, 1.0, 0.0, 0.0, 0.0, -1.0)  # 0.05 m a step
    heights = [height(batches(wait_steps=count, wait_action=raised)[0]) - 0.25 for count in (0, 1, 3)]
    np.testing.assert_allclose(heights, [0.0, 0.05, 0.15])
    (still,) = batches(wait_steps=3, wait_action="still")
    assert height(still) == 0.25
    assert still.lengths.tolist() == [3]  # they are in no horizon and no record


@pytest.mark.parametrize(
    ("rule", "seeds"), [(7, [7, 7, 7]), ("1000 + episode", [1000, 1001, 1002]), ("0 + episode", [0, 1, 2])]
)
def test_the_environment_s_seed_is_the_rule_s_and_acts(rule, seeds):
    ran = batches(episodes=3, env_seed=rule)
    assert [batch.headers[0].env_seed for batch in ran] == seeds
    other = batches(episodes=3, env_seed=5)
    assert all(block(batch) != block(two) for batch, two in zip(ran, other, strict=True))


def test_a_drawn_environment_seed_differs_by_episode_and_repeats():
    first, again = ([batch.headers[0].env_seed for batch in batches(episodes=3, env_seed="sha256")] for _ in range(2))
    assert first == again
    assert len(set(first)) == 3


def test_initial_states_go_round_or_run_out():
    indices = [
        batch.headers[0].init_state_index for batch in batches(episodes=INIT_STATES + 2, init_state="episode % count")
    ]
    assert indices == [0, 1, 2, 3, 4, 0, 1]
    with pytest.raises(RunError, match="6 are requested"):
        batches(episodes=INIT_STATES + 1, init_state="episode")


def test_drawn_starts_are_not_initial_states_and_have_no_end():
    count = INIT_STATES + 2
    starts, again = ([block(batch) for batch in batches(episodes=count, init_state="drawn")] for _ in range(2))
    assert starts == again
    assert len(set(starts)) == count
    assert not set(starts) & {block(batch) for batch in batches(episodes=INIT_STATES)}


def test_a_fixed_policy_seed_is_every_episode_s_and_the_user_s_seed_is_added():
    def actions(**changes):
        return [batch.action.values.tolist() for batch in batches(episodes=2, acting="random", **changes)]

    first, second = actions(policy_seed=7)
    assert first == second
    assert actions(policy_seed=7, seed=1)[0] == actions(policy_seed=8)[0] != first
    batch, other = actions(policy_seed="sha256")
    assert batch != other


class Succeeding(FakeEnv):
    """Succeeds in the second step alone."""

    def _is_success(self):
        return len(self._recorder.actions) == 2


@pytest.mark.parametrize(("stops", "outcome", "steps"), [(True, "success", 2), (False, "timeout", 4)])
def test_success_ends_an_episode_or_its_last_state_counts(stops, outcome, steps):
    (planned,) = plan_episodes(TASKS, 1, ["p"], rules(stop_at_success=stops), max_steps=4)
    ran = run_episode(Succeeding(TASKS[0], Wants(), {}), make_policy("noop"), planned)
    assert (ran.outcome, ran.steps, bool(ran.batch.success[0])) == (outcome, steps, outcome == "success")


def test_trials_and_horizons_are_the_protocol_s_for_the_suite():
    planned = plan_episodes(TASKS, "protocol", ["p"], rules(trials={"fake": 3}, horizons={"fake": 11}))
    assert [batch.episode for batch in planned] == [0, 1, 2]
    assert {batch.horizon for batch in planned} == {11}
    assert len(plan_episodes(TASKS, "protocol", ["p"], rules(trials={}))) == TASKS[0].episodes
    assert len(plan_episodes(TASKS, None, ["p"], rules(trials={"fake": 3}))) == TASKS[0].episodes
