"""A script's own loop around a real RoboCasa kitchen: the records are `rollout`'s, the kitchen is none the wiser."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace

import msgspec
import numpy as np
import pytest

import safevla_bench as sb
from builders import same_bits
from safevla_bench.compare.comparison import compare_policies
from safevla_bench.errors import HostError, RunError
from safevla_bench.hosts import make_host
from safevla_bench.hosts.robocasa import host as kitchens
from safevla_bench.interface.policy import Wants
from safevla_bench.interface.task import EpisodeSeed
from safevla_bench.jobs.evaluation.judgement import load_policy_results
from safevla_bench.jobs.evaluation.request import Request
from safevla_bench.jobs.evaluation.rollouts import roll_out
from safevla_bench.jobs.verify import verify_run
from safevla_bench.sources.runs.episode_index import read_sources

pytestmark = [pytest.mark.robocasa, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

STILL = np.array(kitchens.STILL)
TASK = "PickPlaceCounterToStove"


def task_of(name=TASK):
    return next(task for task in make_host("robocasa").tasks("robocasa-365") if task.task_id == name)


def kitchen(index=0, env_seed=7, name=TASK):
    """The kitchen of an episode of the host's, made as a script would make it."""
    kind = kitchens.task_class(task_of(name))
    start = kitchens.pick_scene(
        "target", EpisodeSeed(index, env_seed, wait_steps=0), kind.EXCLUDE_LAYOUTS, kind.EXCLUDE_STYLES
    )
    return kitchens.make_kitchen(task_of(name), start, Wants())


def actions(steps, seed=0):
    drawn = np.random.default_rng(seed).uniform(-1, 1, (steps, 12))
    drawn[:, 11] = np.where(np.arange(steps) < steps // 2, -1, 1)  # the arm moves, then the base
    return drawn


def run_loop(env, episodes, steps):
    results = []
    for episode in range(episodes):
        results.append(env.reset())
        for action in actions(steps, seed=episode):
            observation, reward, done, _ = env.step(action)
            results += [observation, {"reward": reward, "done": done, "state": env.sim.get_state().flatten()}]
    return results


def same_results(first, second):
    return [list(part) for part in first] == [list(part) for part in second] and all(
        np.asarray(a[key]).tobytes() == np.asarray(b[key]).tobytes()
        for a, b in zip(first, second, strict=True)
        for key in a
    )


@pytest.mark.parametrize("name", [TASK, "CloseFridge"])
def test_records_are_those_of_a_rollout_but_for_the_names(tmp_path, name):
    steps = 40
    with closing(make_host("robocasa").make(task_of(name), Wants())) as rolled_env:
        rolled_env.reset(EpisodeSeed(1, 7, wait_steps=0))
        for action in actions(steps):
            rolled_env.step(action)
        rolled = rolled_env.recorded()
    recording = {"policy": "fixed", "out": tmp_path / "run", "seed": 0, "horizon": steps}
    with closing(kitchen(index=1, name=name)) as env, sb.record(env, **recording) as recorded_env:
        assert recorded_env is env
        run_loop(env, 1, steps)
    recorded = read_sources([tmp_path / "run"])[0]
    header, expected = recorded.headers[0], rolled.headers[0]
    assert header.env_seed == 7001  # of the kitchen's own generator, which the host's 7 and the index 1 make
    told_by_plan = ("episode_id", "env_seed", "init_state_index", "policy", "seed", "horizon", "outcome")
    assert header == msgspec.structs.replace(expected, **{field: getattr(header, field) for field in told_by_plan})
    meta = recorded.extra[0]["header"]["robocasa"]["ep_meta"]
    assert meta == rolled.extra[0]["header"]["robocasa"]["ep_meta"]
    assert same_bits(replace(recorded, headers=rolled.headers, extra=rolled.extra), rolled)


def test_the_kitchen_returns_the_same_bytes_with_and_without_recording(tmp_path):
    with closing(kitchen()) as plain:
        expected = run_loop(plain, 2, 8)
    with closing(kitchen()) as watched, sb.record(watched, policy="mine", out=tmp_path / "run"):
        results = run_loop(watched, 2, 8)
    assert same_results(results, expected)
    assert not {"step", "reset", "close"} & set(vars(watched))


class Holding:
    """As RoboCasa's own Gymnasium environment holds a kitchen: what it lacks, it asks of the kitchen."""

    def __init__(self, env):
        self.env = env

    def reset(self, seed=None):
        if seed is not None:
            self.env.rng = np.random.default_rng(seed)
        return self.env.reset()

    def __getattr__(self, name):
        return getattr(self.env, name)


def test_a_wrapped_kitchen_has_the_seed_of_each_reset_unless_the_generator_has_gone_on(tmp_path):
    wrapper = Holding(kitchen())
    with sb.record(wrapper, policy="mine", out=tmp_path / "run"):
        for seed in (5, None, 6):
            wrapper.reset(seed=seed)
            for action in actions(3):
                wrapper.step(action)
        wrapper.close()
    batch = read_sources([tmp_path / "run"])[0]
    assert [header.env_seed for header in batch.headers] == [5, None, 6]
    assert [header.init_state_index for header in batch.headers] == [None] * 3
    assert {header.outcome for header in batch.headers} == {"timeout"}
    rows = [json.loads(path.read_text()) for path in sorted((tmp_path / "run" / "raw").glob("*.json"))]
    assert [row["env_seed"] for row in rows] == [5, None, 6]
    judged = sb.judge([tmp_path / "run"], sb.load_ruleset())
    assert len(judged.scores) == 3


def test_an_episode_of_ones_own_loop_is_neither_shown_nor_played_again(tmp_path):
    with closing(kitchen()) as env, sb.record(env, policy="mine", out=tmp_path / "run"):
        run_loop(env, 1, 3)
    with pytest.raises(HostError, match="lacks the split"):
        make_host("robocasa").stage(task_of(), read_sources([tmp_path / "run"])[0])
    findings = [finding for finding in verify_run(tmp_path / "run", replay=9).findings if finding.check == "replay"]
    assert "agrees" not in {finding.verdict for finding in findings}


def load(folder):
    (results,) = load_policy_results([folder], sb.load_ruleset())
    return results


def test_a_loop_is_compared_with_a_rollout_of_the_same_kitchens(tmp_path):
    """By split, layout, style and the seed of the generator, which a rollout tells too; others are not pairs."""
    request = Request(
        host="robocasa", suites=("robocasa-365",), tasks=(task_of().index,), episodes=2, policies=("noop",), max_steps=3
    )
    roll_out(request, tmp_path / "eval")
    for policy, env_seed in (("same", 7), ("other", 8)):
        for index in (1, 0):
            env = kitchen(index=index, env_seed=env_seed)
            with sb.record(env, policy=policy, out=tmp_path / policy, seed=0, horizon=3):
                run_loop(env, 1, 3)
            env.close()
    rolled, same, elsewhere = (load(tmp_path / name) for name in ("eval", "same", "other"))
    compared = compare_policies([rolled, same])
    assert compared.paired
    assert compared.scopes[0].pairs == 2
    assert compare_policies([replace(same, name="again"), same]).paired
    with pytest.raises(RunError, match="ran different episodes"):
        compare_policies([rolled, elsewhere])
    moved = {key: scene._replace(style=scene.style + 1) for key, scene in rolled.kitchens.items()}
    with pytest.raises(RunError, match="differ in kitchen"):
        compare_policies([rolled, replace(rolled, name="moved", kitchens=moved)])


def test_a_task_of_an_unknown_goal_is_recorded_once_the_goal_is_given(tmp_path):
    env = kitchen()
    type(env).__name__, name = "PickPlaceSomething", type(env).__name__
    try:
        refused = pytest.raises(HostError, match="task PickPlaceSomething")
        with refused as caught, sb.record(env, policy="mine", out=tmp_path / "run"):
            pass
        assert "goal=" in caught.value.remedy
        names = {"benchmark": "my-kitchen", "task_id": "stove"}
        with sb.record(env, policy="mine", out=tmp_path / "run", goal=("in", "obj", "container"), **names):
            run_loop(env, 1, 2)
    finally:
        type(env).__name__ = name
    env.close()
    (header,) = read_sources([tmp_path / "run"])[0].headers
    assert (header.benchmark, header.task_id, header.target_object) == ("my-kitchen", "stove", "obj")


def test_what_cannot_be_recorded_is_refused_with_the_reason(tmp_path):
    with closing(kitchen()) as env:
        with pytest.raises(HostError, match="starts of episodes"):
            sb.record(env, policy="mine", out=tmp_path / "two", init_states=np.zeros((1, 3))).__enter__()
        with sb.record(env, policy="mine", out=tmp_path / "one"), pytest.raises(HostError, match="recorded already"):
            sb.record(env, policy="mine", out=tmp_path / "two").__enter__()
    assert not (tmp_path / "two").exists()
