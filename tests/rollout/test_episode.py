"""The loop, on the fake host: outcomes, records, crashes that cost one episode, and repeatable bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from safevla_bench.archive.json_text import decode_json, encode_json
from safevla_bench.errors import HostError
from safevla_bench.hosts import make_host
from safevla_bench.hosts.fake.host import FakeEnv, FakeHost
from safevla_bench.hosts.protocols import load_protocol
from safevla_bench.interface.policy import Observation, Wants
from safevla_bench.interface.task import Task
from safevla_bench.policies.servers.client import ChunkedPolicy, ChunkModel
from safevla_bench.policies.servers.dialects import choose_dialect
from safevla_bench.rollout.episode import run_serially
from safevla_bench.rollout.plan import plan_episodes
from safevla_bench.trajectory.marks import PRIVILEGED, mark_flags

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
    return list(run_serially(FAKE, planned, {"p": policy}))


def test_n_actions_give_n_plus_1_records_and_the_run_s_own_fields():
    (one, other) = run(TASKS[:1], Scripted(), max_steps=6)
    assert (one.outcome, one.steps, one.batch.lengths.tolist()) == ("timeout", 6, [7])
    header = one.batch.headers[0]
    assert (header.policy, header.seed, header.horizon, header.outcome) == ("p", 0, 6, "timeout")
    assert header.episode_id == "p/fake/task_0/ep_000"
    assert other.batch.headers[0].init_state_index == 1


def test_a_crash_is_an_outcome_with_its_traceback_and_the_run_goes_on():
    outcomes = run([TASKS[2], TASKS[0]], Scripted(), max_steps=6)
    assert [one.outcome for one in outcomes] == ["crashed", "crashed", "timeout", "timeout"]
    assert outcomes[0].batch is None
    assert outcomes[0].steps == 4
    assert "RuntimeError: the fake simulator crashed" in outcomes[0].reason


def test_a_simulator_that_raises_when_asked_for_its_record_crashes_the_episode_only(monkeypatch):
    recorded, asked = FakeEnv.recorded, []

    def recorded_second_time(env):
        asked.append(env)
        if len(asked) == 1:
            raise RuntimeError("the record is lost")
        return recorded(env)

    monkeypatch.setattr(FakeEnv, "recorded", recorded_second_time)
    crashed, other = run(TASKS[:1], Scripted(), max_steps=3)
    assert (crashed.outcome, crashed.batch, other.outcome) == ("crashed", None, "timeout")
    assert "the record is lost" in crashed.reason


def test_an_environment_that_raises_at_its_end_costs_no_episode_and_is_logged(monkeypatch, caplog):
    def close(env):
        raise RuntimeError("cannot be closed")

    monkeypatch.setattr(FakeEnv, "close", close)
    assert [outcome.outcome for outcome in run(TASKS[:2], Scripted(), 1, max_steps=3)] == ["timeout", "timeout"]
    assert [record.message for record in caplog.records] == [
        f"the environment of {task.task_id} could not be closed: cannot be closed" for task in TASKS[:2]
    ]


def test_a_policy_that_raises_crashes_its_episodes_only():
    def raises(observation: Observation) -> np.ndarray:
        raise KeyError("lost")

    outcomes = run(TASKS[:1], Scripted(raises))
    assert [one.outcome for one in outcomes] == ["crashed", "crashed"]
    assert "KeyError: 'lost'" in outcomes[0].reason


@pytest.mark.parametrize("error", [SystemExit(0), GeneratorExit(), BaseException("lost")], ids=repr)
@pytest.mark.parametrize("where", ["act", "policy reset", "make", "reset", "step", "recorded", "close"])
def test_what_ends_a_process_or_a_generator_is_the_crash_of_its_episode(monkeypatch, where, error):
    """Ctrl-C alone ends a run: see `test_interrupted.py`."""
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
    assert where == "close" or type(error).__name__ in outcomes[0].reason


@pytest.mark.parametrize("action", [np.full(7, np.nan), np.zeros(6)])
def test_an_invalid_action_is_a_failure_with_a_record_of_what_came_before(action):
    outcomes = run(TASKS[:1], Scripted(lambda observation: action), episodes=1)
    assert [one.outcome for one in outcomes] == ["invalid_action"]
    assert outcomes[0].batch.lengths.tolist() == [1]
    assert not outcomes[0].batch.success[0]
    assert outcomes[0].reason


def test_a_still_action_of_another_length_is_the_host_s_fault_and_no_failure_of_the_policy():
    """Three numbers in the place of seven: the policy `noop` would give them, and be refused as if it had erred."""
    with pytest.raises(HostError, match=r"`Task\.still` has 3 numbers, an action 7"):
        run([replace(TASKS[0], still=(0.0, 0.0, 0.0))], Scripted(), episodes=1)


def test_the_same_plan_gives_the_same_bytes():
    once, twice = (
        b"".join(encode_json(one.batch) for one in run(TASKS[:2], Scripted(), max_steps=8)) for _ in range(2)
    )
    assert once == twice
    other = b"".join(encode_json(one.batch) for one in run(TASKS[:2], Scripted(), max_steps=8, seed=1))
    assert other != once


def test_an_observer_sees_every_step_and_every_end():
    seen = []

    class Watcher:
        def started(self, episodes):
            seen.append(("started", len(episodes)))

        def stepped(self, planned, steps):
            seen.append(("stepped", steps))

        def finished(self, outcome):
            seen.append(("finished", outcome.outcome))

    planned = plan_episodes(TASKS[:1], 1, ["p"], load_protocol(), max_steps=2)
    list(run_serially(FAKE, planned, {"p": Scripted()}, Watcher()))
    assert seen == [("started", 1), ("stepped", 1), ("stepped", 2), ("finished", "timeout")]


def test_a_policy_that_sees_privileged_state_is_marked_in_every_record():
    class Seeing(Scripted):
        wants = Wants(privileged=True)

    marked = run(TASKS[:1], Seeing(), episodes=1, max_steps=2)[0].batch
    assert mark_flags(marked, PRIVILEGED) == (True,)
    assert mark_flags(decode_json(encode_json(marked)), PRIVILEGED) == (True,)
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
    list(run_serially(Loud(log), planned, {"p": Remote(log)}))
    assert log == ["connect task_0", "make task_0", "connect task_1", "make task_1"]


def test_the_server_s_seed_is_the_simulator_s_only_where_the_protocol_says_so():
    for protocol, seed in (("vla-eval", 3), ("openpi", 7)):
        planned = plan_episodes(TASKS[:1], 1, ["p"], load_protocol(protocol), max_steps=2)
        (outcome,) = run_serially(FAKE, planned, {"p": Remote([])})
        assert (outcome.planned.start.env_seed, outcome.batch.headers[0].env_seed) == (seed, seed)
    planned = plan_episodes(TASKS[:1], 1, ["p"], load_protocol("vla-eval"), max_steps=2)
    (outcome,) = run_serially(FAKE, planned, {"p": Scripted()})
    assert outcome.planned.start.env_seed == 7, "the protocol's own, where there is no server"


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
    assert "agentview was not rendered" in outcome.reason


def test_a_policy_gets_the_readings_that_it_asks_for():
    policy, seen = Scripted(), []
    policy.wants = Wants(extra=("state",))
    policy.scripted = lambda observation: seen.append(observation.extra["state"]) or np.zeros(7)
    (outcome,) = run(TASKS[:1], policy, episodes=1, max_steps=2)
    np.testing.assert_array_equal(seen, outcome.batch.sim_state.episode_rows(0)[:2, 1:])


def test_a_reading_that_the_host_has_not_is_an_error_that_lists_those_it_has():
    policy = Scripted()
    policy.wants = Wants(extra=("odour",))
    with pytest.raises(HostError, match=r"no reading 'odour'\n.*It has: state"):
        run(TASKS[:1], policy)


class Blind(FakeEnv):
    """Gives no further readings, and does not say so when it is made."""

    def _observe(self):
        return replace(super()._observe(), extra={})


def test_a_host_that_leaves_out_what_was_asked_for_costs_the_episode_with_one_sentence(monkeypatch):
    monkeypatch.setattr(FAKE, "make", lambda task, wants: Blind(task, wants, {}), raising=False)
    policy = Scripted()
    policy.wants = Wants(extra=("state",))
    (outcome,) = run(TASKS[:1], policy, episodes=1)
    assert outcome.outcome == "crashed"
    assert outcome.reason.startswith("the policy asks for the reading 'state', which this host does not give")


def test_an_environment_without_close_is_an_error_that_names_it(monkeypatch):
    class Endless:
        task, dt_s, action_low, action_high, reset, step, recorded = TASKS[0], 0.05, [0] * 7, [1] * 7, None, None, None

    monkeypatch.setattr(FAKE, "make", lambda task, wants: Endless(), raising=False)
    with pytest.raises(HostError, match="is a Endless without 'close'"):
        run(TASKS[:1], Scripted())
