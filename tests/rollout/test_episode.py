"""The loop, on the fake host: outcomes, records, crashes that cost one episode, bad actions, and repeatable bytes."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from safevla_bench.archive import jsonl
from safevla_bench.archive.jsonl import decode_json, encode_json
from safevla_bench.errors import HostError, PolicyError, ServerLostError, ServerUnreachableError
from safevla_bench.hosts import make_host
from safevla_bench.hosts.fake.host import FakeEnv, FakeHost
from safevla_bench.hosts.protocols import load_protocol
from safevla_bench.interface.policy import Observation, Wants
from safevla_bench.interface.task import Task
from safevla_bench.policies.servers import ChunkedPolicy, ChunkModel
from safevla_bench.policies.servers.dialects import choose_dialect
from safevla_bench.rollout import episode
from safevla_bench.rollout.episode import EnvRunner, run_episode, run_serially
from safevla_bench.rollout.plan import plan_episodes
from safevla_bench.trajectory.marks import CLIPPED, PRIVILEGED, mark_flags
from scenes import Watcher

FAKE = make_host("fake")
TASKS = FAKE.tasks("fake")


class Scripted:
    """Moves at random from its seed, or does what a test says."""

    wants = Wants()

    def __init__(self, act=None) -> None:
        self.scripted = act
        self.closed = False

    def reset(self, task: Task, seed: int) -> None:
        self.generator = np.random.default_rng(seed)

    def act(self, observation: Observation) -> np.ndarray:
        return self.scripted(observation) if self.scripted else self.generator.uniform(-1, 1, 7)

    def close(self) -> None:
        self.closed = True


def run(tasks, policy, episodes=2, **options):
    planned = plan_episodes(tasks, episodes, ["p"], load_protocol(), **options)
    return list(run_serially(EnvRunner(FAKE, {"p": policy}, skips_crashing=True), planned))


def test_n_actions_give_n_plus_1_records_and_the_run_s_own_fields():
    (outcome, other) = run(TASKS[:1], Scripted(), max_steps=6)
    assert (outcome.outcome, outcome.steps, outcome.batch.lengths.tolist()) == ("timeout", 6, [7])
    header = outcome.batch.headers[0]
    assert (header.policy, header.seed, header.horizon, header.outcome) == ("p", 0, 6, "timeout")
    assert header.episode_id == "p/fake/task_0/ep_000"
    assert other.batch.headers[0].init_state_index == 1


def test_a_crash_is_an_outcome_with_its_traceback_and_the_run_goes_on():
    outcomes = run([TASKS[2], TASKS[0]], Scripted(), max_steps=6)
    assert [outcome.outcome for outcome in outcomes] == ["crashed", "crashed", "timeout", "timeout"]
    assert outcomes[0].batch is None
    assert outcomes[0].steps == 4
    assert "fake simulator crashed" in outcomes[0].reason


def test_after_three_equal_crashes_the_rest_of_a_task_is_not_run_and_other_tasks_are():
    """Equal up to numbers. A resume with --retry-crashed makes a new runner, which tries again."""
    calls = []

    def act(observation):
        calls.append(len(calls))
        raise RuntimeError(f"CUDA error 7 in call {len(calls)}")

    outcomes = run(TASKS[:2], Scripted(act), episodes=5)
    assert [outcome.outcome for outcome in outcomes] == [*["crashed"] * 3, *["not run"] * 2] * 2
    assert len(calls) == 6
    assert outcomes[3].reason.startswith("3 episodes of")


def test_crashes_that_differ_or_do_not_follow_one_another_stop_nothing():
    calls = []

    def act(observation):
        calls.append(len(calls))
        raise (KeyError, ValueError)[len(calls) % 2]("lost")

    run(TASKS[:1], Scripted(act), episodes=5)
    assert len(calls) == 5


@pytest.mark.parametrize("error", [KeyError("lost"), SystemExit(0), GeneratorExit(), BaseException("lost")], ids=repr)
@pytest.mark.parametrize("where", ["act", "policy reset", "make", "reset", "step", "recorded", "close"])
def test_whatever_a_policy_or_a_simulator_raises_is_the_crash_of_its_episode(monkeypatch, caplog, where, error):
    """Ctrl-C alone ends a run: see `test_interrupted.py`. An environment that cannot be closed costs nothing."""
    owner = {"act": Scripted, "policy reset": Scripted, "make": FakeHost}.get(where, FakeEnv)
    name = where.removeprefix("policy ")
    original, calls = getattr(owner, name), []

    def raises_once(self, *args):
        calls.append(args)
        if len(calls) == 1:
            raise error
        return original(self, *args)

    monkeypatch.setattr(owner, name, raises_once)
    outcomes = run(TASKS[:2], Scripted(), max_steps=3)
    first = "timeout" if where == "close" else "crashed"
    assert [outcome.outcome for outcome in outcomes] == [first, "timeout", "timeout", "timeout"]
    if where == "close":
        (message,) = caplog.messages
        assert message.endswith(f"closed: {error}")
        return
    assert outcomes[0].batch is None
    assert type(error).__name__ in outcomes[0].reason


def test_a_still_action_of_another_length_is_the_host_s_fault_and_no_failure_of_the_policy():
    """Three numbers in the place of seven: the policy `noop` would give them, and be refused as if it had erred."""
    with pytest.raises(HostError, match="has 3 numbers"):
        run([replace(TASKS[0], still=(0.0, 0.0, 0.0))], Scripted(), episodes=1)


def test_the_same_plan_gives_the_same_bytes():
    once, twice = (
        b"".join(encode_json(outcome.batch) for outcome in run(TASKS[:2], Scripted(), max_steps=8)) for _ in range(2)
    )
    assert once == twice
    other = b"".join(encode_json(outcome.batch) for outcome in run(TASKS[:2], Scripted(), max_steps=8, seed=1))
    assert other != once


def test_an_observer_sees_every_step():
    watcher = Watcher()
    planned = plan_episodes(TASKS[:1], 1, ["p"], load_protocol(), max_steps=2)
    list(run_serially(EnvRunner(FAKE, {"p": Scripted()}), planned, watcher.stepped))
    assert watcher.stepped_at == [(planned[0].episode_id, 1), (planned[0].episode_id, 2)]


def test_a_policy_that_sees_privileged_state_is_marked_in_every_record():
    class Seeing(Scripted):
        wants = Wants(privileged=True)

    batch = run(TASKS[:1], Seeing(), episodes=1, max_steps=2)[0].batch
    assert mark_flags(batch, PRIVILEGED) == (True,)
    assert mark_flags(decode_json(encode_json(batch)), PRIVILEGED) == (True,)
    assert mark_flags(run(TASKS[:1], Scripted(), episodes=1, max_steps=2)[0].batch, PRIVILEGED) == (False,)


class Remote(Scripted):
    """A policy whose server asks for a seed of the simulator's; notes when it was reached."""

    env_seed = 3

    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self.log = log

    def connect(self, task: Task) -> None:
        self.log.append(f"connect {task.task_id}")


class Loud(type(FAKE)):
    """The fake host; notes when an environment is made."""

    def __init__(self, log: list[str]) -> None:
        super().__init__()
        self.log = log

    def make(self, task, wants):
        self.log.append(f"make {task.task_id}")
        return super().make(task, wants)


def test_a_server_is_reached_before_each_environment_is_made_and_not_before_each_episode():
    log: list[str] = []
    planned = plan_episodes(TASKS[:2], 2, ["p"], load_protocol(), max_steps=2)
    list(run_serially(EnvRunner(Loud(log), {"p": Remote(log)}), planned))
    assert log == ["connect task_0", "make task_0", "connect task_1", "make task_1"]


def test_the_server_s_seed_is_the_simulator_s_only_if_the_protocol_says_so():
    for protocol, seed in (("vla-eval", 3), ("openpi", 7)):
        planned = plan_episodes(TASKS[:1], 1, ["p"], load_protocol(protocol), max_steps=2)
        (outcome,) = run_serially(EnvRunner(FAKE, {"p": Remote([])}), planned)
        assert (outcome.planned.start.env_seed, outcome.batch.headers[0].env_seed) == (seed, seed)
    planned = plan_episodes(TASKS[:1], 1, ["p"], load_protocol("vla-eval"), max_steps=2)
    (outcome,) = run_serially(EnvRunner(FAKE, {"p": Scripted()}), planned)
    assert outcome.planned.start.env_seed == 7, "the protocol's own, if there is no server"


class Chunks(ChunkModel):
    """A model that gives four actions at a time, and notes what it looked at."""

    def __init__(self, looked: list[int]) -> None:
        super().__init__(choose_dialect("openpi-libero", "openpi", "agentview,none"))
        self.looked = looked

    def begin(self, task: Task, seed: int) -> None: ...

    def query(self, observation: Observation) -> dict[str, object]:
        self.looked.append(int(observation.images["agentview"].sum()))
        return {"actions": np.tile(np.array([0.1, 0, 0, 0, 0, 0, -1.0]), (4, 1))}


def test_pictures_are_rendered_for_the_model_alone_and_not_for_the_rest_of_its_chunk(monkeypatch):
    rendered: list[int] = []
    render = FakeEnv._render_image
    monkeypatch.setattr(FakeEnv, "_render_image", lambda env: rendered.append(1) or render(env))
    looked: list[int] = []
    (outcome,) = run(TASKS[:1], ChunkedPolicy(Chunks(looked), 2), episodes=1, max_steps=8)
    assert outcome.outcome == "timeout"
    assert len(looked) == 4
    assert len(rendered) == 4, "at steps 0, 2, 4 and 6; nobody looks after the last"


def test_a_policy_that_looks_where_it_said_it_would_not_gets_an_error_and_no_old_picture():
    class Peeking(ChunkedPolicy):
        looks_next = False

    policy = Peeking(Chunks([]), 1)
    (outcome,) = run(TASKS[:1], policy, episodes=1, max_steps=3)
    assert outcome.outcome == "crashed"
    assert "agentview was not" in outcome.reason


def test_a_policy_gets_the_readings_that_it_asks_for():
    policy, readings = Scripted(), []
    policy.wants = Wants(extra=("state",))
    policy.scripted = lambda observation: readings.append(observation.extra["state"]) or np.zeros(7)
    (outcome,) = run(TASKS[:1], policy, episodes=1, max_steps=2)
    np.testing.assert_array_equal(readings, outcome.batch.sim_state.episode_rows(0)[:2, 1:])


def test_a_reading_that_the_host_has_not_is_an_error_that_lists_those_it_has():
    policy = Scripted()
    policy.wants = Wants(extra=("odour",))
    with pytest.raises(HostError, match="extra observation 'odour'"):  # words: ok
        run(TASKS[:1], policy)


# Actions, between policy and simulator


(PLANNED,) = plan_episodes(TASKS[:1], 1, ["mine"], load_protocol(), max_steps=6)
GOOD = np.array([0.1, 0, 0, 0, 0, 0, -1])


class Counting:
    """An environment that counts what reaches it."""

    def __init__(self) -> None:
        self._env = FAKE.make(PLANNED.task, Wants())
        self.taken: list[np.ndarray] = []

    def __getattr__(self, name):
        return getattr(self._env, name)

    def step(self, action):
        self.taken.append(action)
        return self._env.step(action)


class Says:
    """A policy that gives these, one after the other."""

    wants = Wants()

    def __init__(self, *actions, clip=False) -> None:
        self.actions, self.clip = actions, clip

    def reset(self, task, seed):
        self.remaining = list(self.actions)

    def act(self, observation):
        action = self.remaining.pop(0)
        if isinstance(action, Exception):
            raise action
        return action

    def close(self):
        pass


def at(place: int, value: float) -> np.ndarray:
    action = GOOD.copy()
    action[place] = value
    return action


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (at(2, np.nan), "not finite"),
        (at(2, np.inf), "not finite"),
        (GOOD[:6], r"shape \(6,\)"),
        (GOOD[None], r"shape \(1, 7\)"),
        (3.0, r"shape \(\)"),
        ("left", "an action of dtype <U4; expected integers or floats"),
        (None, r"None instead of an action"),
        ([GOOD, 1], "list, which is not an array"),
        (GOOD + 0j, "an action of dtype complex128"),
        ([*GOOD[:6], 1j], "an action of dtype complex128"),
        (GOOD > 0, "an action of dtype bool"),
        ([*GOOD[:6], True], "an action of dtype bool"),
        (GOOD.astype("m8[s]"), r"an action of dtype timedelta64\[s\]"),
        (GOOD.astype("M8[s]"), r"an action of dtype datetime64\[s\]"),
        (np.zeros(7, [("x", "f8")]), r"an action of dtype \[\('x', '<f8'\)\]"),
        (GOOD.astype(str), "an action of dtype <U"),
        (GOOD.astype(bytes), r"an action of dtype \|S"),
        (GOOD.astype(object), "an action of dtype object"),
        (np.ma.masked_array(GOOD, mask=[0, 0, 1, 0, 0, 0, 0]), "an action in a masked array"),
        ([*GOOD[:6], np.ma.masked], "an action in a masked array"),
        (at(3, 1.0000001), r"number 3 .* 1\.0000001, .*\[-1\.0, 1\.0\]"),
        (at(6, -2.0), r"number 6 .* -2\.0, .*\[-1\.0, 1\.0\]"),
    ],
)
def test_an_action_that_must_not_pass_ends_the_episode_with_its_step_and_reason(bad, words):
    env = Counting()
    outcome = run_episode(env, Says(GOOD, GOOD, bad), PLANNED)
    assert outcome.outcome == "invalid_action"
    assert re.match(f"step 2: .*{words}", outcome.reason)
    assert outcome.steps == len(env.taken) == 2
    assert outcome.batch.headers[0].outcome == "invalid_action"
    assert not outcome.batch.headers[0].success


def test_if_a_policy_s_own_project_clips_it_is_clipped_and_counted_in_the_record():
    env = Counting()
    outcome = run_episode(env, Says(GOOD, at(0, 1.5), at(6, -9.0), GOOD, GOOD, GOOD, clip=True), PLANNED)
    assert outcome.outcome == "timeout"
    assert [action[[0, 6]].tolist() for action in env.taken[1:3]] == [[1.0, -1.0], [0.1, -1.0]]
    assert outcome.batch.extra[0]["header"][CLIPPED] == 2
    none = run_episode(env, Says(*[GOOD] * 6, clip=True), PLANNED)
    assert none.batch.extra[0]["header"][CLIPPED] == 0
    unclipped = run_episode(Counting(), Says(*[GOOD] * 6), PLANNED)
    assert CLIPPED not in unclipped.batch.extra[0].get("header", {})


@pytest.mark.parametrize("bad", [at(2, np.nan), GOOD[:6]])
def test_clipping_lets_neither_nan_nor_another_shape_pass(bad):
    assert run_episode(Counting(), Says(bad, clip=True), PLANNED).outcome == "invalid_action"


def test_what_a_policy_says_is_wrong_is_the_reason_of_the_crash_and_no_traceback_of_ours():
    error = PolicyError("the policy server failed: ValueError", remedy="Mend it there.")
    outcome = run_episode(Counting(), Says(GOOD, error), PLANNED)
    assert (outcome.outcome, outcome.steps, outcome.batch) == ("crashed", 1, None)
    assert outcome.reason == str(error)


# Latency


def test_calls_are_timed_each_and_a_policy_s_own_account_goes_first():
    outcome = run_episode(Counting(), Says(*[GOOD] * 6), PLANNED)
    assert outcome.latency.calls == 6
    assert 0 < outcome.latency.p50_ms <= outcome.latency.p95_ms
    chunked = Says(*[GOOD] * 6)
    chunked.calls_s = [0.010, 0.020]
    latency = run_episode(Counting(), chunked, PLANNED).latency
    assert latency.p50_ms == pytest.approx(15.0)
    assert latency.waiting_p50_ms is None
    chunked = Says(*[GOOD] * 6)
    chunked.calls_s, chunked.waits_s = [0.010], [0.004]
    assert run_episode(Counting(), chunked, PLANNED).latency.waiting_p50_ms == pytest.approx(4.0)


# Servers that go away


class Loses(Says):
    """Loses its server in the third step of the first attempts, or cannot reach it from some attempt on."""

    def __init__(self, losses: int, unreachable_from: int = 99) -> None:
        super().__init__(*[GOOD] * 6)
        self.losses, self.unreachable_from, self.attempts = losses, unreachable_from, 0

    def reset(self, task, seed):
        super().reset(task, seed)
        self.attempts += 1
        if self.attempts > self.unreachable_from:
            raise ServerUnreachableError("no server answers")

    def act(self, observation):
        if self.attempts <= self.losses and len(self.remaining) == 4:
            raise ServerLostError("it went away")
        return super().act(observation)


def play(policy: Says) -> episode.EpisodeOutcome:
    with closing(EnvRunner(FAKE, {"mine": policy})) as runner:
        return runner.run_planned(PLANNED)


def test_an_episode_whose_server_goes_away_is_begun_again_and_then_like_any_other():
    assert episode.SERVER_RETRIES == 2
    unbroken, broken = play(Loses(0)), play(Loses(2))
    assert broken.outcome == "timeout"
    assert jsonl.encode_member(broken.batch, 0, ".jsonl") == jsonl.encode_member(unbroken.batch, 0, ".jsonl")


def test_after_the_stated_number_of_attempts_it_is_crashed_with_the_last_reason():
    policy = Loses(99)
    outcome = play(policy)
    assert (outcome.outcome, outcome.steps, policy.attempts) == ("crashed", 2, 3)
    assert "of 3 attempts" in outcome.reason
    unreachable = play(Loses(99, unreachable_from=1))
    assert "no server answers" in unreachable.reason
    assert unreachable.steps == 0  # of the last attempt, not of an earlier one


def test_a_server_that_is_not_there_to_begin_with_stops_the_run_and_costs_no_episode():
    with pytest.raises(ServerUnreachableError):
        play(Loses(0, unreachable_from=0))
