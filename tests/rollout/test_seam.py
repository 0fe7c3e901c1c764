"""Between policy and simulator: bad actions never pass, calls are timed, an episode survives its server's death."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import numpy as np
import pytest

from folders import contents
from safevla_bench import rollout
from safevla_bench.archive import jsonl
from safevla_bench.errors import PolicyError, ServerLostError, ServerUnreachableError
from safevla_bench.hosts import make_host
from safevla_bench.hosts.protocols import load_protocol
from safevla_bench.interface.policy import Wants
from safevla_bench.jobs.evaluation.request import ExecutionOptions, Request
from safevla_bench.jobs.evaluation.rollouts import roll_out
from safevla_bench.policies.servers.codecs import OPENPI
from safevla_bench.rollout import episode
from safevla_bench.rollout.episode import EpisodeOutcome, run_episode
from safevla_bench.rollout.plan import Shard, plan_episodes
from safevla_bench.sources.runs.folder import read_greetings, read_latencies
from safevla_bench.sources.runs.parts import count_progress, episode_rows
from safevla_bench.sources.runs.shard_merge import merge_shards
from stub_servers import chunk, openpi, websockets

FAKE = make_host("fake")
(PLANNED,) = plan_episodes(FAKE.tasks("fake")[:1], 1, ["mine"], load_protocol(), max_steps=6)
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
        self.left = list(self.actions)

    def act(self, observation):
        action = self.left.pop(0)
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
        ("left", "str that is no array"),
        (None, r"None in place of an action"),
        ([GOOD, 1], "list that is no array"),
        (GOOD + 0j, "complex numbers"),
        ([*GOOD[:6], 1j], "complex numbers"),
        (at(3, 1.0000001), r"number 3 of the action, 1, is not in \[-1, 1\]"),
        (at(6, -2.0), r"number 6 of the action, -2, is not in"),
    ],
)
def test_an_action_that_must_not_pass_ends_the_episode_with_its_step_and_reason(bad, words):
    env = Counting()
    outcome = run_episode(env, Says(GOOD, GOOD, bad), PLANNED)
    assert outcome.outcome == "invalid_action"
    assert outcome.reason.startswith("step 2: ")
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(outcome.reason)
    assert outcome.steps == len(env.taken) == 2
    assert outcome.batch.headers[0].outcome == "invalid_action"
    assert not outcome.batch.headers[0].success


def test_where_a_policy_s_own_project_clips_it_is_clipped_and_counted_in_the_record():
    env = Counting()
    outcome = run_episode(env, Says(GOOD, at(0, 1.5), at(6, -9.0), GOOD, GOOD, GOOD, clip=True), PLANNED)
    assert outcome.outcome == "timeout"
    assert [action[[0, 6]].tolist() for action in env.taken[1:3]] == [[1.0, -1.0], [0.1, -1.0]]
    assert outcome.batch.extra[0]["header"][rollout.episode.CLIPPED] == 2
    none = run_episode(env, Says(*[GOOD] * 6, clip=True), PLANNED)
    assert none.batch.extra[0]["header"][rollout.episode.CLIPPED] == 0


def test_a_record_of_a_policy_that_may_not_be_clipped_says_nothing_of_clipping():
    outcome = run_episode(Counting(), Says(*[GOOD] * 6), PLANNED)
    assert rollout.episode.CLIPPED not in outcome.batch.extra[0].get("header", {})


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
    assert run_episode(Counting(), chunked, PLANNED).latency.p50_ms == pytest.approx(15.0)


def test_latencies_are_facts_of_the_day_in_run_json_and_change_no_other_byte(tmp_path):
    request = Request(host="fake", suites=("fake",), tasks=(0,), episodes=2, policies=("noop",), max_steps=6)
    rows = roll_out(request, tmp_path / "one")
    roll_out(request, tmp_path / "two", running=ExecutionOptions(workers=2))
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    for run in ("one", "two"):
        held = json.loads((tmp_path / run / "run.json").read_text())["volatile"]["policy_latency"]
        assert {name: sorted(took) for name, took in held.items()} == {
            row.episode_id: ["calls", "p50_ms", "p95_ms"] for row in rows
        }
        assert read_latencies(tmp_path / run)[rows[0].episode_id].calls == 6


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
            raise ServerUnreachableError("nobody answers")

    def act(self, observation):
        if self.attempts <= self.losses and len(self.left) == 4:
            raise ServerLostError("it went away")
        return super().act(observation)


def played(policy: Says) -> EpisodeOutcome:
    stage = episode.EnvRunner(FAKE, {"mine": policy})
    try:
        return stage.run_planned(PLANNED)
    finally:
        stage.close()


def test_an_episode_whose_server_goes_away_is_begun_again_and_then_like_any_other():
    assert episode.SERVER_RETRIES == 2
    unbroken, broken = played(Loses(0)), played(Loses(2))
    assert broken.outcome == "timeout"
    assert jsonl.encode_member(broken.batch, 0, ".jsonl") == jsonl.encode_member(unbroken.batch, 0, ".jsonl")


def test_after_the_stated_number_of_attempts_it_is_crashed_with_the_last_reason():
    policy = Loses(99)
    outcome = played(policy)
    assert (outcome.outcome, outcome.steps, policy.attempts) == ("crashed", 2, 3)
    assert outcome.reason == "the policy server was lost in each of 3 attempts, at last: it went away"
    assert "nobody answers" in played(Loses(99, unreachable_from=1)).reason


def test_a_server_that_is_not_there_to_begin_with_stops_the_run_and_costs_no_episode():
    with pytest.raises(ServerUnreachableError):
        played(Loses(0, unreachable_from=0))


def over(url: str, **changed) -> Request:
    arguments = {"cameras": "agentview,none", "connect_timeout_s": "2", "timeout_s": "5"}
    fields = {"host": "fake", "suites": ("fake",), "tasks": (0,), "episodes": 4, "max_steps": 6}
    return Request(**fields, policies=(f"openpi:{url}",), arguments=arguments, **changed)


WITHOUT_WRIST = {"observation/image": ("|u1", (224, 224, 3)), "observation/state": ("<f8", (8,)), "prompt": str}


class Dying:
    """A server that dies at its `after`-th request: it drops the connection, and a proxy answers in its place."""

    def __init__(self, after: int) -> None:
        self.left = after

    def __call__(self, connection) -> None:
        def answer(request, number):
            self.left -= 1
            if self.left <= 0:
                connection.close_socket()
            return chunk(5)

        openpi(answer, WITHOUT_WRIST)(connection)

    def refuse(self, connection, request):
        return connection.respond(503, "no upstream\n") if self.left <= 0 else None


@pytest.mark.parametrize("workers", [1, 2])
def test_a_server_that_dies_mid_run_costs_the_episodes_in_flight_and_resume_goes_on(tmp_path, workers):
    running = ExecutionOptions(workers=workers)
    with websockets(openpi(lambda request, number: chunk(5), WITHOUT_WRIST)) as peer:
        port = peer.port
        roll_out(over(peer.url), tmp_path / "unbroken")
    dying = Dying(after=4)
    with websockets(dying, port, process_request=dying.refuse) as peer, pytest.raises(ServerUnreachableError):
        roll_out(over(peer.url), tmp_path / "broken", running=running)
    done, planned = count_progress(tmp_path / "broken")
    assert 0 < done < planned == 4
    with websockets(openpi(lambda request, number: chunk(5), WITHOUT_WRIST), port) as peer:
        again = ExecutionOptions(workers=workers, resume=True, retry_crashed=True)
        rows = roll_out(over(peer.url), tmp_path / "broken", running=again)
    assert [row.outcome for row in rows] == ["timeout"] * 4
    assert contents(tmp_path / "broken") == contents(tmp_path / "unbroken")


def test_workers_share_the_servers_of_a_list(tmp_path):
    asked = threading.Event()

    def waits(request, number):  # or the first worker may have played everything before the second is there
        assert asked.wait(60)
        return chunk(5)

    def tells(request, number):
        asked.set()
        return chunk(5)

    with websockets(openpi(waits, WITHOUT_WRIST)) as first, websockets(openpi(tells, WITHOUT_WRIST)) as second:
        request = over(f"{first.url},{second.url}")
        patient = replace(request, arguments={**request.arguments, "timeout_s": "60"})
        rows = roll_out(patient, tmp_path / "run", running=ExecutionOptions(workers=2))
    assert [row.outcome for row in rows] == ["timeout"] * 4


def test_no_key_is_written_anywhere_in_a_run(tmp_path, monkeypatch):
    monkeypatch.setenv("SAFEVLA_API_KEY", "s3cret-key")
    told = openpi(lambda request, number: "ValueError: s3cret-key" if number else chunk(5), WITHOUT_WRIST)
    with websockets(told) as peer:
        rows = roll_out(replace(over(peer.url), episodes=2), tmp_path / "run")
        assert peer.headers[0] == "Api-Key s3cret-key"
    assert rows[0].outcome == "crashed"
    assert "ValueError: ***" in rows[0].reason
    for path in (tmp_path / "run").rglob("*"):
        assert path.is_dir() or b"s3cret-key" not in path.read_bytes()


# What servers say of themselves


def saying(checkpoint: str, dies_after: int = 10**6):
    """A server that names its checkpoint, and refuses connections from a request on."""
    left = [dies_after]

    def handle(connection):
        connection.send(OPENPI.pack({"checkpoint": checkpoint, "api_key": "s3cret"}))
        for _ in connection:
            left[0] -= 1
            connection.send(OPENPI.pack(chunk(5)))

    def refuse(connection, request):
        return connection.respond(503, "no upstream\n") if left[0] <= 0 else None

    return {"handle": handle, "process_request": refuse}


@pytest.mark.parametrize("workers", [1, 2])
def test_run_json_tells_two_checkpoints_apart_and_a_run_that_met_both(tmp_path, workers):
    run, again = tmp_path / "run", ExecutionOptions(workers=workers, resume=True, retry_crashed=True)
    with websockets(**saying("A", dies_after=2)) as peer, pytest.raises(ServerUnreachableError):
        roll_out(over(peer.url), run, running=ExecutionOptions(workers=workers))
    kept, _ = count_progress(run)
    with websockets(port=peer.port, **saying("B")) as peer:
        rows = roll_out(over(peer.url), run, running=again)
    told = read_greetings(run)
    assert [one.says for one in told] == [{"checkpoint": name, "api_key": "***"} for name in "AB"]
    assert [name for one in told for name in one.episodes] == [row.episode_id for row in rows]
    assert len(told[0].episodes) == kept
    assert "s3cret" not in (run / "run.json").read_text()


def test_what_was_said_outlives_the_retry_of_a_crash_and_a_merge_of_shards(tmp_path):
    failing = [True]

    def handle(connection):
        connection.send(OPENPI.pack({"checkpoint": "A"}))
        for _ in connection:
            connection.send("ValueError: once" if failing.pop() else OPENPI.pack(chunk(5)))
            failing.append(False)

    with websockets(handle) as peer:
        for number in (1, 2):
            roll_out(over(peer.url, shard=Shard(number, 2)), tmp_path / str(number))
        (before,) = read_greetings(tmp_path / "1")
        first = over(peer.url, shard=Shard(1, 2))
        assert [row.outcome for row in episode_rows(tmp_path / "1")] == ["crashed", "timeout"]
        rows = roll_out(first, tmp_path / "1", running=ExecutionOptions(resume=True, retry_crashed=True))
        assert [row.outcome for row in rows] == ["timeout"] * 2
    assert read_greetings(tmp_path / "1") == [before]
    merge_shards([tmp_path / "1", tmp_path / "2"], tmp_path / "whole")
    (whole,) = read_greetings(tmp_path / "whole")
    assert len(whole.episodes) == 4


def test_a_server_that_fails_alike_in_three_episodes_in_a_row_stops_the_run_and_resume_goes_on(tmp_path):
    """Numbers aside: a server may count its own requests in its message."""
    failing = [True]
    asked = [0]

    def answer(request, number):
        asked[0] += 1
        return f"Traceback\nRuntimeError: CUDA error in request {asked[0]}" if failing[0] else chunk(5)

    out = tmp_path / "run"
    with websockets(openpi(answer, WITHOUT_WRIST)) as peer:
        wanted = replace(over(peer.url), tasks=(0,), episodes=5)
        with pytest.raises(PolicyError, match=r"3 episodes in a row of openpi:.* failed alike") as caught:
            roll_out(wanted, out)
        assert f"--resume --retry-crashed --out {out}" in caught.value.remedy
        assert asked == [3]
        failing[0] = False
        rows = roll_out(wanted, out, running=ExecutionOptions(resume=True, retry_crashed=True))
    assert len(rows) == 5
    assert all(row.outcome != "crashed" for row in rows)


def test_three_last_episodes_that_fail_alike_end_a_run_as_any_other(tmp_path):
    """There is nothing left to spare."""
    with websockets(openpi(lambda request, number: "Traceback\nRuntimeError: no", WITHOUT_WRIST)) as peer:
        rows = roll_out(replace(over(peer.url), tasks=(0,), episodes=3), tmp_path / "run")
    assert [row.outcome for row in rows] == ["crashed"] * 3
