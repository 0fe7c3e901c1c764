"""Actors of a Ray cluster: the same bytes as from the local engine, whatever dies."""

from __future__ import annotations

import json
import logging
import os
import platform
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import ray
from ray.cluster_utils import Cluster as SeveralNodes

import safevla_bench
import safevla_recorder
from folders import contents
from safevla_bench import cli
from safevla_bench.errors import RunError, SafevlaError
from safevla_bench.jobs.evaluation.judgement import judge
from safevla_bench.jobs.evaluation.parallel import open_judge
from safevla_bench.jobs.evaluation.request import ExecutionOptions, Request
from safevla_bench.jobs.evaluation.rollouts import roll_out
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scores import encode_scores
from safevla_bench.rollout import ray as actors
from safevla_bench.rollout import scheduler
from safevla_bench.rollout.ray import RayCluster
from safevla_bench.rollout.scheduler import READY, WorkerParts, WorkerPolicy, WorkerSpec
from safevla_bench.sources.runs.folder import read_description, read_facts
from safevla_bench.sources.runs.parts import count_progress
from scenes import Watcher, install_plugin

pytestmark = pytest.mark.long

REQUEST = Request(host="fake", suites=("fake",), episodes=2, policies=("random", "noop"), max_steps=6)
HELD = Request(host="fake", suites=("fake",), tasks=(0, 1), episodes=2, policies=("held",), max_steps=6)
STORE_BYTES = 80 * 2**20
NODE = {"num_cpus": 1, "object_store_memory": STORE_BYTES}

_MODULE = '''
"""A policy that says where it is in one of its steps, and waits there until it may go on."""
import importlib.util
import json
import os
import random
import signal
import time
from pathlib import Path

import numpy as np

from safevla_bench.interface.policy import Wants


class Held:
    wants = Wants()

    def __init__(self, place, lethal, at, pause_s):
        self.place, self.lethal, self.at, self.pause_s = Path(place), lethal, int(at), float(pause_s)

    def reset(self, task, seed):
        self.generator = np.random.default_rng(seed)
        self.task, self.steps = task.task_id, 0

    def act(self, observation):
        time.sleep(self.pause_s)
        self.steps += 1
        if self.steps == 3 and self.task == self.lethal:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.steps == self.at and not (self.place / "go").exists():
            import ray

            found = importlib.util.find_spec("brought") is not None
            asked = {"variable": os.environ.get("HELD_ASKED"), "module": found}
            (self.place / "asked").write_text(json.dumps(asked))
            note = self.place / f".{os.getpid()}"
            note.write_text(ray.get_runtime_context().get_node_id())
            note.rename(self.place / str(os.getpid()))
            while not (self.place / "go").exists():
                time.sleep(0.005)
        return self.generator.uniform(-1, 1, 7)

    def close(self):
        pass


def make(arg, place=".", lethal="", at="3", pause_s="0"):
    if "HELD_DIES" in os.environ:
        os._exit(3)
    return Held(place, lethal, at, pause_s)
'''


@pytest.fixture(scope="module", autouse=True)
def held(tmp_path_factory):
    """Installs the policy `held`, for this process and for the nodes."""
    place = install_plugin(tmp_path_factory.mktemp("installed"), "held", _MODULE, "policies = make")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(place))
        patch.setenv("PYTHONPATH", str(place), prepend=os.pathsep)
        patch.setenv("RAY_memory_monitor_refresh_ms", "0")  # what else runs here may fill the memory
        for name in ("OMP_NUM_THREADS", "RAY_ADDRESS"):
            patch.delenv(name, raising=False)
        yield place


@pytest.fixture(scope="module")
def nodes(held):
    """A cluster of a head without room for actors and two nodes with room for one each; this process is connected."""
    several = SeveralNodes(initialize_head=True, head_node_args={**NODE, "num_cpus": 0, "include_dashboard": False})
    for _ in range(2):
        several.add_node(**NODE)
    ray.init(several.address, log_to_driver=False, logging_level=logging.ERROR)
    yield several
    ray.shutdown()
    several.shutdown()


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """REQUEST by the local engine."""
    run = tmp_path_factory.mktemp("local") / "run"
    roll_out(REQUEST, run)
    return run


def on_ray(workers: int = 2, **changed) -> ExecutionOptions:
    resume = changed.pop("resume", False)
    return ExecutionOptions(workers=workers, cluster=RayCluster(**changed), resume=resume)


def wait_until(condition) -> None:
    until = time.monotonic() + 150
    while not condition() and time.monotonic() < until:
        time.sleep(0.1)


class Strikes(threading.Thread):
    """Waits until so many actors are in the middle of an episode, strikes one of them, and lets all go on."""

    def __init__(self, place: Path, count: int, strike) -> None:
        super().__init__()
        self.place, self.count, self.strike = place, count, strike
        self.start()

    def run(self) -> None:
        while len(waiting := list(self.place.glob("[0-9]*"))) < self.count:
            time.sleep(0.01)
        self.strike(int(waiting[0].name), waiting[0].read_text())
        (self.place / "go").touch()


def held_at(place: Path, **more: str) -> Request:
    place.mkdir()
    return replace(HELD, arguments={"place": str(place), **more})


# Bytes


def test_the_bytes_of_a_run_do_not_depend_on_the_engine(tmp_path, nodes, local, monkeypatch):
    monkeypatch.setattr(
        scheduler, "_CLOSE_S", 10_000.0
    )  # two of the actors find no room and are not waited for at the end
    watcher = Watcher()
    rows = roll_out(REQUEST, tmp_path / "run", watcher, on_ray(4))
    assert contents(tmp_path / "run") == contents(local)
    assert watcher.total == len(watcher.ended) == len(rows) == 12
    assert all("fake simulator crashed" in row.reason for row in rows if row.outcome == "crashed")


@pytest.mark.parametrize("first", ["local", "ray"])
def test_what_one_engine_began_the_other_goes_on_with(tmp_path, nodes, local, first):
    engines = {"local": ExecutionOptions(), "ray": on_ray()}
    other_engine = {"local": on_ray(resume=True), "ray": ExecutionOptions(resume=True)}
    with pytest.raises(KeyboardInterrupt):
        roll_out(REQUEST, tmp_path / "run", Watcher(stop_after=4), engines[first])
    done, planned = count_progress(tmp_path / "run")
    assert 0 < done < planned == 12
    watcher = Watcher()
    roll_out(REQUEST, tmp_path / "run", watcher, other_engine[first])
    assert len(watcher.ended) == planned - done
    assert contents(tmp_path / "run") == contents(local)


# Deaths


def test_an_actor_killed_in_an_episode_costs_nothing_but_time(tmp_path, nodes):
    request = held_at(tmp_path / "held")
    killer = Strikes(tmp_path / "held", 2, lambda pid, node: os.kill(pid, signal.SIGKILL))
    rows = roll_out(request, tmp_path / "run", running=on_ray())
    killer.join()
    assert [row.outcome for row in rows] == ["timeout"] * 4
    roll_out(request, tmp_path / "unbroken")
    assert contents(tmp_path / "run") == contents(tmp_path / "unbroken")


def test_a_node_that_is_lost_costs_nothing_but_time(tmp_path, nodes):
    request = held_at(tmp_path / "held")
    by_id = {node.node_id: node for node in nodes.worker_nodes}
    strikes = Strikes(tmp_path / "held", 2, lambda pid, node: nodes.remove_node(by_id[node], allow_graceful=False))
    rows = roll_out(request, tmp_path / "run", running=on_ray())
    strikes.join()
    nodes.add_node(**NODE)
    assert [row.outcome for row in rows] == ["timeout"] * 4
    assert len({row.episode_id for row in rows}) == 4
    roll_out(request, tmp_path / "unbroken")
    assert contents(tmp_path / "run") == contents(tmp_path / "unbroken")


# Code


@pytest.fixture
def other(tmp_path, nodes):
    """A third node, whose packages are a copy with another constant, of the same version."""
    root = Path(safevla_bench.__file__).parent
    for package in (root, Path(safevla_recorder.__file__).parent):
        shutil.copytree(package, tmp_path / "other" / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    changed = tmp_path / "other" / "safevla_bench" / "rollout" / "scheduler.py"
    changed.write_text(changed.read_text().replace("RETRIES = 1", "RETRIES = 2"))
    path = os.pathsep.join([str(tmp_path / "other"), os.environ["PYTHONPATH"]])
    node = nodes.add_node(**NODE, env_vars={"PYTHONPATH": path})
    yield node
    nodes.remove_node(node)


def test_a_node_with_other_code_of_the_same_version_is_refused_with_both_codes_or_marked(
    tmp_path, nodes, other, local, caplog
):
    (own,) = read_description(local)["code"]
    others = tuple(node.node_id for node in nodes.worker_nodes - {other})
    with pytest.raises(SafevlaError, match="differ from the command's environment") as raised:
        roll_out(held_at(tmp_path / "never"), tmp_path / "run", running=on_ray(1, exclude=others))
    assert str(raised.value).count("safevla_bench ") == 2
    assert own in str(raised.value)

    def wait_for_warning(pid: int, node: str) -> None:
        wait_until(lambda: "without the node" in caplog.text)

    request, go_on = held_at(tmp_path / "two"), Strikes(tmp_path / "two", 2, wait_for_warning)
    rows = roll_out(request, tmp_path / "refused", running=on_ray(3))
    go_on.join()
    assert {row.code for row in rows} == {own}
    request, go_on = held_at(tmp_path / "held"), Strikes(tmp_path / "held", 3, lambda pid, node: None)
    rows = roll_out(request, tmp_path / "mixed", running=replace(on_ray(3), other_code=True))
    go_on.join()
    codes = {row.code for row in rows}
    assert len(codes) == 2
    assert {*read_description(tmp_path / "mixed")["code"]} == codes
    assert "ran with code that differs from this command's" in caplog.text


# Nodes


def test_actors_that_never_ran_on_a_dead_node_do_not_end_the_run(tmp_path, nodes):
    dead = nodes.add_node(**{**NODE, "num_cpus": 3})
    nodes.remove_node(dead, allow_graceful=False)
    assert dead.node_id in [node["NodeID"] for node in ray.nodes() if node["Alive"]], "Ray has not noticed yet"

    def wait_for_notice(pid: int, node: str) -> None:
        wait_until(lambda: dead.node_id not in [node["NodeID"] for node in ray.nodes() if node["Alive"]])
        time.sleep(3)  # until its actors, more than `STARTS`, have been reported

    request, go_on = held_at(tmp_path / "held"), Strikes(tmp_path / "held", 1, wait_for_notice)
    rows = roll_out(request, tmp_path / "run", running=on_ray(4))
    go_on.join()
    assert [row.outcome for row in rows] == ["timeout"] * 4


def test_a_node_on_which_actors_die_while_they_start_is_left_out_and_named(tmp_path, nodes, caplog, monkeypatch):
    monkeypatch.setattr(scheduler, "STARTS", 1)  # Ray takes up to half a minute to report each death
    bad = nodes.add_node(**NODE, node_name="bad", env_vars={"HELD_DIES": "1"})

    def wait_for_warning(pid: int, node: str) -> None:
        wait_until(lambda: "without the node" in caplog.text)

    request, go_on = held_at(tmp_path / "held"), Strikes(tmp_path / "held", 2, wait_for_warning)
    rows = roll_out(request, tmp_path / "run", running=on_ray(3))
    go_on.join()
    assert [row.outcome for row in rows] == ["timeout"] * 4
    assert f"without the node {platform.node()} bad: ActorDiedError" in caplog.text
    others = tuple(node.node_id for node in nodes.worker_nodes - {bad})
    with pytest.raises(RunError, match="start: ActorDiedError"):
        roll_out(HELD, tmp_path / "none", running=on_ray(1, exclude=others))
    assert not (tmp_path / "none").exists()
    nodes.remove_node(bad)


def test_a_node_that_is_excluded_runs_nothing_and_actors_have_the_variables_given(tmp_path, nodes, caplog):
    first, *_ = sorted(node.node_id for node in nodes.worker_nodes)
    env = {"HELD_ASKED": "yes"}
    request = held_at(tmp_path / "held")
    go_on = Strikes(tmp_path / "held", 1, lambda pid, node: (tmp_path / "node").write_text(node))
    roll_out(request, tmp_path / "run", running=on_ray(2, exclude=(first, "absent"), env=env))
    go_on.join()
    assert (tmp_path / "node").read_text() != first
    assert "exclude=absent" in caplog.text
    ran_on = read_facts(tmp_path / "run").ran_on
    assert len(ran_on) == 4
    (place,) = {*ran_on.values()}
    assert re.fullmatch(rf"{platform.node()}, process \d+", place)
    assert json.loads((tmp_path / "held" / "asked").read_text()) == {"variable": "yes", "module": False}


def test_steps_of_actors_are_reported(tmp_path, nodes):
    request, watcher = held_at(tmp_path / "held", pause_s="0.7"), Watcher()
    (tmp_path / "held" / "go").touch()
    roll_out(replace(request, tasks=(0,), episodes=1), tmp_path / "run", watcher, on_ray(1))
    assert watcher.stepped_at
    assert all(0 < steps <= 6 for _, steps in watcher.stepped_at)


def test_a_kill_for_want_of_memory_is_named_as_such():
    error = ray.exceptions.OutOfMemoryError("Task was killed due to the node running low on memory.")
    assert "ran out of memory" in actors._describe_death(error, ray)


# What the user must mend


@pytest.fixture
def on_a_node(monkeypatch):
    """An actor sets variables of its own process; here they go nowhere."""
    monkeypatch.setattr(actors.os, "environ", dict(os.environ))


def test_what_a_node_lacks_is_an_error_that_names_the_node(on_a_node):
    failure = actors.RayWorker(WorkerSpec("nonsense", {"noop": WorkerPolicy("noop")}), 0, {}).prepare()
    assert isinstance(failure, SafevlaError)
    assert f"on the node {platform.node()}: " in str(failure)
    assert "nonsense" in str(failure)


def test_a_node_with_other_versions_is_refused(on_a_node):
    cast = WorkerSpec("fake", {"noop": WorkerPolicy("noop")})
    failure = actors.RayWorker(cast, 0, {"safevla-bench": "0.0", "mujoco": "9"}).prepare()
    assert isinstance(failure, SafevlaError)
    assert f"on the node {platform.node()}: this node's versions differ" in str(failure)
    assert "not 0.0" in str(failure)
    assert "mujoco None, not" in str(failure)
    versions = actors.name_installed(WorkerParts(cast).host)
    assert actors.RayWorker(cast, 0, versions).prepare()[0] == READY


def test_an_actor_knows_its_number_by_which_it_chooses_among_the_gpus_that_it_was_given(on_a_node):
    cast = WorkerSpec("fake", {"noop": WorkerPolicy("noop")})
    actors.RayWorker(cast, 5, actors.name_installed(WorkerParts(cast).host)).prepare()
    assert actors.os.environ["SAFEVLA_WORKER"] == "5"


def test_row_groups_are_judged_on_the_nodes_with_the_same_scores(nodes):
    demo = Path("src/safevla_bench/jobs/demo.parquet").absolute()
    with open_judge(2, RayCluster()) as elsewhere:
        judged = judge([demo], load_ruleset(), elsewhere=elsewhere)
    assert encode_scores(judged.scores) == encode_scores(judge([demo], load_ruleset()).scores)


def test_a_share_that_no_node_has_is_an_error_and_leaves_no_folder(tmp_path, nodes):
    with pytest.raises(RunError, match="1 CPUs and"):
        roll_out(REQUEST, tmp_path / "run", running=on_ray(gpus=3))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("address", ["ray://head:10001", ":6379", "head:port", "127.0.0.1:1"])
def test_where_nobody_listens_the_error_comes_at_once(monkeypatch, address):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with (
        pytest.raises(RunError, match=f"the Ray cluster {address} cannot be used"),
        actors.connect_ray(RayCluster(address=address), 1),
    ):
        pass


def answer_once(server: socket.socket, reply: bytes) -> None:
    server.settimeout(10)
    with suppress(OSError):
        while True:
            with server.accept()[0] as connection:
                connection.sendall(reply)
                while connection.recv(100):
                    pass


def test_the_port_of_a_node_instead_of_the_head_is_refused(monkeypatch, nodes):
    node = next(node for node in ray.nodes() if node["Alive"])
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with (
        pytest.raises(RunError, match="Ray cluster: RpcError"),
        actors.connect_ray(RayCluster(address=f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}"), 1),
    ):
        pass


@pytest.mark.parametrize("reply", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"\0\0\0\4\0\0\0\0\0"])
def test_a_server_that_is_not_ray_is_refused_at_once(monkeypatch, reply):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(actors, "_CONNECT_S", 0.2)  # a server that keeps silent is waited for as long
    monkeypatch.setattr(actors, "_ANSWER_S", 3.0)  # or as long, if it speaks HTTP/2
    with socket.create_server(("127.0.0.1", 0)) as server:
        answer = threading.Thread(target=answer_once, args=(server, reply), daemon=True)
        answer.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with (
            pytest.raises(RunError, match="cannot be used"),
            actors.connect_ray(RayCluster(address=address), 1),
        ):
            pass


# The command


def command(*words: str, **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "safevla_bench", *words],
        start_new_session=True,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


def test_on_a_cluster_of_its_own_the_command_says_what_it_always_says_even_if_every_actor_dies(tmp_path, held):
    (tmp_path / "go").touch()
    arguments = ["--host", "fake", "--suite", "fake", "--task", "0", "--max-steps", "6", "--policy", "held"]
    arguments += ["--policy-arg", f"place={tmp_path}", "--policy-arg", "lethal=task_0", "--engine", "ray"]
    run = tmp_path / "run"
    process = command("eval", "--record-only", *arguments, "--out", str(run))
    out, err = process.communicate()
    assert process.returncode == cli.CRASHED
    assert out.splitlines() == [f"Records: {run}", f"Next: safevla score {run}"]
    note, *progress, count, again = err.splitlines()
    (crash,) = [line for line in progress if line.startswith("crashed: ")]
    assert "Ray starts on this machine" in note
    assert re.match("crashed: held/fake/task_0/ep_000: .*2 attempts", crash)
    assert count.startswith("1 episode crashed")
    assert re.search(rf"\({platform.node()}, process \d+\)$", crash)
    assert again.strip().startswith("safevla eval --resume")
    assert "--record-only" in again


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, cli.INTERRUPTED), (signal.SIGTERM, cli.TERMINATED)])
def test_ctrl_c_or_sigterm_keeps_what_is_done_and_the_command_that_goes_on_names_the_engine(
    tmp_path, nodes, number, code
):
    (tmp_path / "held").mkdir()
    arguments = ["--host", "fake", "--suite", "fake", "--task", "0,1", "--max-steps", "6", "--policy", "noop"]
    arguments += ["--policy", "held", "--policy-arg", f"held:place={tmp_path / 'held'}"]
    (tmp_path / "brought").mkdir()
    (tmp_path / "brought" / "__init__.py").write_text("")
    here = ["--engine", f"ray:{nodes.address}", "--actor", "cpus=0.5", "--workers", "1"]
    here += ["--actor", f"module={tmp_path / 'brought'}", "--actor", "env=HELD_ASKED:a:b"]
    process = command("eval", "--record-only", *arguments, *here, "--out", str(tmp_path / "run"))
    raw = tmp_path / "run" / "raw"  # a row there: the episode is done, and no longer on its way to the driver
    while len(list(raw.glob("*.json"))) < 2 or not list((tmp_path / "held").glob("[0-9]*")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    os.killpg(process.pid, number)
    out, err = process.communicate()
    assert process.returncode == code
    assert not out
    assert f"ray:{nodes.address} --actor cpus=0.5" in err
    assert json.loads((tmp_path / "held" / "asked").read_text()) == {"variable": "a:b", "module": True}
    assert "2 of 4" in err
    assert "Traceback" not in err
    assert json.loads((tmp_path / "run" / "run.json").read_text())["complete"] is False


def test_a_directory_whose_path_is_too_long_for_ray_is_an_error_that_names_the_variable(tmp_path, held):
    place = tmp_path / ("long" * 30)
    place.mkdir()
    words = ["--host", "fake", "--suite", "fake", "--policy", "noop", "--engine", "ray", "--out", str(tmp_path / "run")]
    process = command("eval", "--record-only", *words, env={**os.environ, "TMPDIR": str(place)})
    _, err = process.communicate()
    assert process.returncode == cli.USER_ERROR
    assert "set RAY_TMPDIR" in err
    assert "Traceback" not in err
    assert not (tmp_path / "run").exists()


def test_a_killed_head_costs_no_finished_episode_and_the_run_goes_on_elsewhere(tmp_path, monkeypatch):
    """Ray then ends the command's process."""
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "5")
    run = tmp_path / "run"
    request = replace(held_at(tmp_path / "held", pause_s="0.1"), episodes=4)
    (tmp_path / "held" / "go").touch()
    arguments = ["--host", "fake", "--suite", "fake", "--task", "0,1", "--episodes", "4", "--max-steps", "6"]
    arguments += ["--policy", "held", *(f"--policy-arg={name}={value}" for name, value in request.arguments.items())]
    cluster = SeveralNodes(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    here = ["--engine", f"ray:{cluster.address}", "--workers", "1"]
    process = command("eval", "--record-only", "--resume", *arguments, *here, "--out", str(run))
    while len(list((run / "raw").glob("*.json"))) < 3:
        assert process.poll() is None, process.communicate()
        time.sleep(0.001)
    cluster.head_node.kill_all_processes(check_alive=False, allow_graceful=False)
    process.communicate()
    assert process.returncode != 0
    assert json.loads((run / "run.json").read_text())["complete"] is False
    assert 3 <= count_progress(run)[0] < 8
    roll_out(request, run, running=ExecutionOptions(resume=True))
    roll_out(request, tmp_path / "unbroken")
    assert contents(run) == contents(tmp_path / "unbroken")
