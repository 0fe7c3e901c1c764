"""Runs of policies behind servers: what is kept if a server goes away, fails or changes, and what it says of itself."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import numpy as np
import pytest

from folders import contents
from policies.servers.stub_servers import chunk, openpi, websockets
from policies.servers.test_serve import served
from safevla_bench.errors import HostError, PolicyError, RunError, ServerRefusedError, ServerUnreachableError
from safevla_bench.hosts.fake.host import FakeEnv
from safevla_bench.interface.policy import Wants
from safevla_bench.jobs.evaluation.request import ExecutionOptions, Request, RequestedPolicy
from safevla_bench.jobs.evaluation.rollouts import roll_out
from safevla_bench.policies.python import adopt_object
from safevla_bench.policies.servers import REQUESTS, endpoint
from safevla_bench.policies.servers.codecs import OPENPI
from safevla_bench.rollout.plan import Shard
from safevla_bench.sources.runs.folder import Repeats, read_facts
from safevla_bench.sources.runs.parts import count_progress, episode_rows, read_records
from safevla_bench.sources.runs.writer import merge_shards
from scenes import WITHOUT_WRIST

WORKERS = pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.long)])


def test_latencies_are_facts_of_the_day_in_run_json(tmp_path):
    request = Request(host="fake", suites=("fake",), tasks=(0,), episodes=2, policies=("noop",), max_steps=6)
    rows = roll_out(request, tmp_path)
    volatile = json.loads((tmp_path / "run.json").read_text())["volatile"]["policy_latency"]
    assert {name: sorted(took) for name, took in volatile.items()} == {
        row.episode_id: ["calls", "p50_ms", "p95_ms"] for row in rows
    }
    assert read_facts(tmp_path).policy_latency[rows[0].episode_id].calls == 6


def request_of(url: str, **changed) -> Request:
    arguments = {"cameras": "agentview,none", "connect_timeout_s": "2", "timeout_s": "5"}
    fields = {"host": "fake", "suites": ("fake",), "tasks": (0,), "episodes": 4, "max_steps": 6}
    return Request(**fields, policies=(f"openpi:{url}",), arguments=arguments, **changed)


class Dying:
    """A server that dies at its `after`-th request: it drops the connection, and a proxy answers in its place."""

    def __init__(self, after: int) -> None:
        self.remaining = after

    def __call__(self, connection) -> None:
        def answer(request, number):
            self.remaining -= 1
            if self.remaining <= 0:
                connection.close_socket()
            return chunk(5)

        openpi(answer, WITHOUT_WRIST)(connection)

    def refuse(self, connection, request):
        return connection.respond(503, "no upstream\n") if self.remaining <= 0 else None


@WORKERS
def test_a_server_that_dies_mid_run_costs_the_episodes_in_flight_and_resume_goes_on(tmp_path, workers):
    running = ExecutionOptions(workers=workers)
    with websockets(openpi(lambda request, number: chunk(5), WITHOUT_WRIST)) as server:
        port = server.port
        roll_out(request_of(server.url), tmp_path / "unbroken")
    dying = Dying(after=4)
    with websockets(dying, port, process_request=dying.refuse) as server, pytest.raises(ServerUnreachableError):
        roll_out(request_of(server.url), tmp_path / "broken", running=running)
    done, planned = count_progress(tmp_path / "broken")
    assert 0 < done < planned == 4
    with websockets(openpi(lambda request, number: chunk(5), WITHOUT_WRIST), port) as server:
        again = ExecutionOptions(workers=workers, resume=True, retry_crashed=True)
        rows = roll_out(request_of(server.url), tmp_path / "broken", running=again)
    assert [row.outcome for row in rows] == ["timeout"] * 4
    assert contents(tmp_path / "broken") == contents(tmp_path / "unbroken")


def test_workers_share_the_servers_of_a_list(tmp_path):
    second_asked = threading.Event()

    def waits(request, number):  # or the first worker may have played everything before the second is there
        assert second_asked.wait(60)
        return chunk(5)

    def tells(request, number):
        second_asked.set()
        return chunk(5)

    with websockets(openpi(waits, WITHOUT_WRIST)) as first, websockets(openpi(tells, WITHOUT_WRIST)) as second:
        request = request_of(f"{first.url},{second.url}")
        patient = replace(request, arguments={**request.arguments, "timeout_s": "60"})
        rows = roll_out(patient, tmp_path / "run", running=ExecutionOptions(workers=2))
    assert [row.outcome for row in rows] == ["timeout"] * 4


# What servers say of themselves


def checkpoint_server(checkpoint: str, dies_after: int = 10**6):
    """A server that names its checkpoint, and refuses connections from a request on."""
    remaining = [dies_after]

    def handle(connection):
        connection.send(OPENPI.pack({"checkpoint": checkpoint, "api_key": "s3cret"}))
        for _ in connection:
            remaining[0] -= 1
            connection.send(OPENPI.pack(chunk(5)))

    def refuse(connection, request):
        return connection.respond(503, "no upstream\n") if remaining[0] <= 0 else None

    return {"handle": handle, "process_request": refuse}


@WORKERS
def test_run_json_tells_two_checkpoints_apart_and_a_run_that_met_both(tmp_path, workers):
    run, again = tmp_path / "run", ExecutionOptions(workers=workers, resume=True, retry_crashed=True)
    with websockets(**checkpoint_server("A", dies_after=2)) as server, pytest.raises(ServerUnreachableError):
        roll_out(request_of(server.url), run, running=ExecutionOptions(workers=workers))
    done, _ = count_progress(run)
    with websockets(port=server.port, **checkpoint_server("B")) as server:
        rows = roll_out(request_of(server.url), run, running=again)
    greetings = read_facts(run).policies_say
    assert [greeting.says for greeting in greetings] == [{"checkpoint": name, "api_key": "***"} for name in "AB"]
    assert [name for greeting in greetings for name in greeting.episodes] == [row.episode_id for row in rows]
    assert len(greetings[0].episodes) == done
    assert "s3cret" not in (run / "run.json").read_text()


def test_what_was_said_outlives_the_retry_of_a_crash_and_a_merge_of_shards(tmp_path):
    fails = iter([True])

    def handle(connection):
        connection.send(OPENPI.pack({"checkpoint": "A"}))
        for _ in connection:
            connection.send("ValueError: once" if next(fails, False) else OPENPI.pack(chunk(5)))

    with websockets(handle) as server:
        for number in (1, 2):
            roll_out(request_of(server.url, shard=Shard(number, 2)), tmp_path / str(number))
        (before,) = read_facts(tmp_path / "1").policies_say
        first = request_of(server.url, shard=Shard(1, 2))
        assert [row.outcome for row in episode_rows(tmp_path / "1")] == ["crashed", "timeout"]
        rows = roll_out(first, tmp_path / "1", running=ExecutionOptions(resume=True, retry_crashed=True))
        assert [row.outcome for row in rows] == ["timeout"] * 2
    assert read_facts(tmp_path / "1").policies_say == [before]
    merge_shards([tmp_path / "1", tmp_path / "2"], tmp_path / "whole")
    (whole,) = read_facts(tmp_path / "whole").policies_say
    assert len(whole.episodes) == 4
    assert [*read_facts(tmp_path / "whole").repeated_answers.values()] == [Repeats(asked=2 * (REQUESTS - 1), other=0)]


def test_a_server_that_fails_alike_in_three_episodes_in_a_row_stops_the_run_and_resume_goes_on(tmp_path):
    """Numbers aside: a server may count its own requests in its message."""
    failing = [True]
    requests = [0]

    def answer(request, number):
        requests[0] += 1
        return f"Traceback\nRuntimeError: CUDA error in request {requests[0]}" if failing[0] else chunk(5)

    out = tmp_path / "run"
    with websockets(openpi(answer, WITHOUT_WRIST)) as server:
        plan = replace(request_of(server.url), tasks=(0,), episodes=5)
        with pytest.raises(PolicyError, match=r"openpi:.*same way") as caught:
            roll_out(plan, out)
        assert f"--resume --retry-crashed --out {out}" in caught.value.remedy
        assert requests == [3]
        failing[0] = False
        rows = roll_out(plan, out, running=ExecutionOptions(resume=True, retry_crashed=True))
    assert len(rows) == 5
    assert all(row.outcome != "crashed" for row in rows)


def test_three_last_episodes_that_fail_alike_end_a_run_as_any_other(tmp_path):
    """There is nothing left to spare."""
    with websockets(openpi(lambda request, number: "Traceback\nRuntimeError: no", WITHOUT_WRIST)) as server:
        rows = roll_out(replace(request_of(server.url), tasks=(0,), episodes=3), tmp_path / "run")
    assert [row.outcome for row in rows] == ["crashed"] * 3


class Crashes:
    """Raises in the first step, or from step `after` on."""

    wants = Wants()

    def __init__(self, after=0, wrap=lambda error: error):
        self.after, self.wrap, self.steps = after, wrap, 0

    def reset(self, task, seed):
        self.steps = 0

    def act(self, observation):
        self.steps += 1
        if self.steps > self.after:
            raise self.wrap(RuntimeError(f"no EGL device {self.steps}"))
        return np.zeros(7)


@pytest.mark.parametrize("wrap", [lambda error: error, lambda error: ExceptionGroup("all", [error])])
@pytest.mark.parametrize(("after", "when"), [(0, " before any .*"), (2, "")])
def test_a_run_ends_if_equal_crashes_begin_no_episode_or_end_three_tasks_in_a_row(tmp_path, after, when, wrap):
    policy = RequestedPolicy("p", "", made=adopt_object("p", Crashes(after, wrap)))
    request = bare_request("", policies=(policy,), tasks=(0, 1, 2), episodes=4, arguments={})
    with pytest.raises(PolicyError, match=f"crashed .*same way{when}: RuntimeError") as caught:
        roll_out(request, tmp_path / "run")
    assert "doctor" not in caught.value.remedy


def test_a_simulator_that_crashes_at_each_start_is_not_blamed_on_the_policy(tmp_path, monkeypatch):
    def reset(self, seed):
        raise RuntimeError("no EGL device")

    monkeypatch.setattr(FakeEnv, "reset", reset)
    with pytest.raises(HostError, match="before any episode") as caught:
        roll_out(bare_request("", policies=("noop",), episodes=4, arguments={}), tmp_path / "run")
    assert "`safevla doctor` checks" in caught.value.remedy


def test_the_rest_of_a_task_that_crashes_alike_is_left_for_a_resume_and_other_tasks_are_run(tmp_path):
    class CrashesInOneTask(Crashes):
        def reset(self, task, seed):
            self.steps, self.after = 0, 2 if task.task_id == "task_0" else 100

    policy = RequestedPolicy("p", "", made=adopt_object("p", CrashesInOneTask()))
    request = bare_request("", policies=(policy,), tasks=(0, 1), episodes=5, arguments={})
    with pytest.raises(HostError, match="remaining episodes of p/fake/task_0") as caught:
        roll_out(request, tmp_path / "run")
    assert "--resume --retry-crashed" in caught.value.remedy
    outcomes = sorted(row.outcome for row in episode_rows(tmp_path / "run"))
    assert outcomes == [*["crashed"] * 3, *["timeout"] * 5]


# What `safevla serve` asks for


class Chases:
    """Moves by the picture, three steps a look."""

    def __init__(self, side=64):
        self.wants = Wants(("agentview",), (side, side))

    def act(self, observation):
        (image,) = observation.images.values()
        assert image.shape == (*self.wants.image_size, 3)
        return np.full((3, 7), image.mean() / 1000)


def serve_chaser(side=64, make=Chases, port=0):
    return served(lambda: adopt_object("chases", make(side)), port=port)


def bare_request(url: str, **changed) -> Request:
    """A request that says of the server nothing but its address."""
    arguments = {"connect_timeout_s": "2", "timeout_s": "5"}
    fields = {"host": "fake", "suites": ("fake",), "tasks": (0,), "episodes": 2, "max_steps": 7, "arguments": arguments}
    return Request(**{**fields, "policies": (RequestedPolicy("mine", f"openpi:{url}"),), **changed})


def described(run):
    return json.loads((run / "run.json").read_text())["policies"][0]


@WORKERS
def test_a_served_policy_is_asked_as_it_wants_and_moves_as_in_process(tmp_path, workers):
    with serve_chaser() as url:
        rows = roll_out(bare_request(url), tmp_path / "far", running=ExecutionOptions(workers=workers))
    near = bare_request("", arguments={}, policies=(RequestedPolicy("mine", made=adopt_object("mine", Chases())),))
    assert roll_out(near, tmp_path / "near") == rows
    for far, here in zip(read_records(tmp_path / "far"), read_records(tmp_path / "near"), strict=True):
        np.testing.assert_array_equal(far.channel("action").values, here.channel("action").values)
    row = described(tmp_path / "far")
    assert row["server_arguments"] == {"cameras": "agentview,none", "image_size": "64", "replan": "all"}
    assert (row["cameras"], row["dialect"]["image_size"], row["dialect"]["replan"]) == (["agentview"], [64, 64], None)
    facts = read_facts(tmp_path / "far")
    assert facts.policy_latency[rows[0].episode_id].calls == 3, "once for each chunk of three"
    assert facts.repeated_answers["mine"].asked == REQUESTS - 1, "the server has one policy alone, which was given back"


def test_what_is_given_stands_and_what_another_server_says_changes_nothing(tmp_path):
    with serve_chaser() as url:
        plan = bare_request(url)
        roll_out(replace(plan, arguments={**plan.arguments, "replan": "1"}), tmp_path / "given")
    row = described(tmp_path / "given")
    assert "replan" not in row["server_arguments"]
    assert row["dialect"]["replan"] == 1
    with websockets(openpi(lambda request, number: chunk(5), WITHOUT_WRIST)) as server:
        roll_out(replace(request_of(server.url), episodes=1), tmp_path / "other")
    assert "server_arguments" not in described(tmp_path / "other")


def test_a_resumed_run_asks_as_it_began_and_refuses_a_server_that_wants_otherwise(tmp_path):
    run, again = tmp_path / "run", ExecutionOptions(resume=True, retry_crashed=True)
    failing = [True]

    class Fails(Chases):
        def act(self, observation):
            if failing:
                raise ZeroDivisionError
            return super().act(observation)

    with serve_chaser(make=Fails) as url:
        plan, port = bare_request(url), int(url.rpartition(":")[2])
        assert {row.outcome for row in roll_out(plan, run)} == {"crashed"}
    failing.clear()
    with serve_chaser(32, port=port), pytest.raises(ServerRefusedError, match="of 32 pixels"):
        roll_out(plan, run, running=again)
    with serve_chaser(port=port):
        assert {row.outcome for row in roll_out(plan, run, running=again)} == {"timeout"}
    before = contents(run)
    roll_out(plan, run, running=again)
    assert contents(run) == before, "a complete run needs no server"


def test_a_run_s_file_chooses_nothing_of_a_client_but_what_a_server_may_ask_for(tmp_path):
    with serve_chaser() as url:
        roll_out(bare_request(url), tmp_path)
    description = json.loads((tmp_path / "run.json").read_text())
    description["policies"][0]["server_arguments"]["key_file"] = "/etc/hostname"
    (tmp_path / "run.json").write_text(json.dumps(description))
    assert "key_file" not in Request.from_run(tmp_path).roster[0].asked


def test_a_server_that_is_not_up_is_waited_for_once_and_does_not_stop_the_policies_before_it(tmp_path, monkeypatch):
    waited, find = [], endpoint.find_server
    monkeypatch.setattr(endpoint, "find_server", lambda *arguments: waited.append(1) or find(*arguments))
    alone = bare_request("ws://127.0.0.1:1", arguments={"connect_timeout_s": "0.2"})
    with pytest.raises(ServerUnreachableError):
        roll_out(alone, tmp_path / "alone")
    assert len(waited) == 1
    second = replace(alone, policies=("noop", *alone.roster), arguments={})
    with pytest.raises(ServerUnreachableError):
        roll_out(second, tmp_path / "second")
    assert count_progress(tmp_path / "second") == (2, 4)


def test_shards_whose_servers_asked_for_different_things_are_not_merged(tmp_path):
    for number, side in ((1, 64), (2, 32)):
        with serve_chaser(side) as url:
            changed = bare_request(url, shard=Shard(number, 2))
            roll_out(changed, tmp_path / str(number))
    with pytest.raises(RunError, match=r"policies\[0\]\.server_arguments\.image_size"):
        merge_shards([tmp_path / "1", tmp_path / "2"], tmp_path / "whole")


@pytest.mark.parametrize(("cameras", "tasks", "count"), [(("agentview",), 3, 1), (("agentview",), 2, 0), ((), 3, 0)])
def test_a_policy_that_looks_is_named_once_if_its_first_ten_episodes_fail(tmp_path, caplog, cameras, tasks, count):
    class Fails:
        wants = Wants(cameras=cameras, image_size=(8, 8))

        def act(self, observation):
            return np.zeros(7)

    policy = RequestedPolicy("p", "", made=adopt_object("p", Fails()))
    request = bare_request("", policies=(policy,), tasks=(*range(tasks),), episodes=4, arguments={}, max_steps=2)
    roll_out(request, tmp_path / "run")
    said = [record.message for record in caplog.records if "none of the first 10" in record.message]
    assert len(said) == count
    assert all("safevla doctor --server" in line for line in said)
