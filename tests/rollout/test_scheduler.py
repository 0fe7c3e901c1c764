"""The crew: whatever dies, every episode ends once, and a worker that is lost costs only what it had in flight.

Workers: the same bytes from any number of them, and a death costs nothing but time.
"""

from __future__ import annotations

import signal
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from folders import contents
from safevla_bench.errors import HostError, RunError
from safevla_bench.hosts import make_host
from safevla_bench.hosts.protocols import load_protocol
from safevla_bench.jobs.evaluation.request import ExecutionOptions, Request
from safevla_bench.jobs.evaluation.rollouts import roll_out
from safevla_bench.rollout import scheduler
from safevla_bench.rollout.episode import EpisodeOutcome
from safevla_bench.rollout.plan import PlannedEpisode, plan_episodes
from safevla_bench.rollout.scheduler import (
    ONE_THREAD,
    READY,
    RETRIES,
    ProcessPool,
    WorkerPolicy,
    WorkerSpec,
    run_pool,
    worker_environment,
)
from safevla_bench.sources.runs.episode_index import read_sources
from scenes import Watcher

EPISODES = plan_episodes(make_host("fake").tasks("fake"), 3, ["noop"], load_protocol(), max_steps=6)


class Puppet:
    """A worker that does what the pool's script says."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.messages: list[object] = [READY]
        self.dismissed = self.ended = False

    def begin(self, planned) -> None:
        assert not self.messages
        assert not self.dismissed
        self.messages.append(planned)

    def dismiss(self) -> None:
        self.dismissed = True

    def end(self, timeout_s: float) -> str:
        self.ended = True
        return "the script says so"


class Stage:
    """A pool whose workers die where the script says True, one word after the other."""

    remedy = "Mend the script."

    def __init__(self, dies=(), absent=()) -> None:
        self.dies, self.absent = iter(dies), absent
        self.workers: list[Puppet] = []
        self.attempts: Counter[str] = Counter()

    def start(self, number: int) -> Puppet:
        self.workers.append(Puppet(number))
        return self.workers[-1]

    def tolerate_failed_start(self, worker, cause, *, is_final):
        return False

    def receive_messages(self, workers):
        for number, worker in workers.items():
            if number in self.absent or not worker.messages:
                continue
            message = worker.messages.pop()
            if isinstance(message, PlannedEpisode):
                self.attempts[message.episode_id] += 1
                message = EpisodeOutcome(message, "timeout", 6, b"record")
            yield number, None if next(self.dies, False) else message


@pytest.fixture
def patient(monkeypatch):
    """However many workers die before they can begin, the run goes on."""
    monkeypatch.setattr(scheduler, "STARTS", 99)


FIXTURE_IS_CONSTANT = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@FIXTURE_IS_CONSTANT
@given(dies=st.lists(st.booleans(), max_size=30), count=st.integers(min_value=1, max_value=5))
def test_whatever_dies_every_episode_ends_once_and_every_worker_is_ended(patient, dies, count):
    pool = Stage(dies)
    ended = list(run_pool(pool, EPISODES, count))
    assert sorted(end.planned.episode_id for end in ended) == sorted(e.episode_id for e in EPISODES)
    for end in ended:
        attempts = pool.attempts[end.planned.episode_id]
        assert (end.outcome == "crashed") == (end.record is None)
        assert attempts <= 1 + RETRIES
        if end.outcome == "crashed":
            assert attempts == 1 + RETRIES
            assert "of 2 attempts" in end.reason
            assert "script says so" in end.reason
    assert all(worker.ended for worker in pool.workers)


def test_a_worker_that_never_comes_is_not_waited_for_once_the_others_have_done_everything():
    pool = Stage(absent={1})
    assert len(list(run_pool(pool, EPISODES, 2))) == 9
    assert pool.workers[1].dismissed
    assert pool.workers[1].ended


def test_workers_that_die_before_they_can_begin_end_the_run_after_so_many_in_a_row():
    pool = Stage([True] * 9)
    with pytest.raises(RunError, match="script says so") as raised:
        list(run_pool(pool, EPISODES, 1))
    assert raised.value.remedy == "Mend the script."
    assert len(pool.workers) == scheduler.STARTS


def test_a_worker_that_is_working_finishes_the_run_however_often_others_die_before_they_can_begin():
    class OneWorks(Stage):
        def start(self, number):
            worker = super().start(number)
            worker.messages = [None] if number else [READY]
            return worker

    pool = OneWorks()
    assert len(list(run_pool(pool, EPISODES, 2))) == 9


def test_after_the_given_time_no_episode_starts_and_the_running_ones_end(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(scheduler, "time", SimpleNamespace(monotonic=lambda: now[0]))
    pool, ended = Stage(), []
    for end in run_pool(pool, EPISODES, 2, ends_s=1.0):
        ended.append(end)
        now[0] = 1.0 if len(ended) == 3 else now[0]
    assert 3 <= len(ended) <= 5
    assert len(ended) == sum(pool.attempts.values())
    assert all(worker.ended for worker in pool.workers)


def test_what_a_worker_cannot_mend_ends_the_run_and_all_workers():
    pool = Stage()
    crew = run_pool(pool, EPISODES, 2)
    next(crew)
    pool.workers[0].messages = [HostError("no simulator")]
    with pytest.raises(HostError, match="no simulator"):
        list(crew)
    assert all(worker.ended for worker in pool.workers)


TASKS = make_host("fake").tasks("fake")
REQUEST = Request(host="fake", suites=("fake",), episodes=3, policies=("random", "noop"), max_steps=6)
LETHAL = Request(host="fake", suites=("fake",), tasks=(0, 1), episodes=2, policies=("lethal",), max_steps=6)


def test_the_bytes_of_a_run_do_not_depend_on_the_number_of_workers_and_an_observer_sees_every_episode(tmp_path):
    request, watcher = replace(REQUEST, max_steps=21), Watcher()
    roll_out(request, tmp_path / "one")
    rows = roll_out(request, tmp_path / "three", watcher, ExecutionOptions(workers=3))
    assert contents(tmp_path / "three") == contents(tmp_path / "one")
    assert [row.outcome for row in rows].count("crashed") == 6
    assert all("fake simulator crashed" in row.reason for row in rows if row.outcome == "crashed")
    assert watcher.total == len(watcher.ended) == len(rows) == 18
    lengths = {end.planned.episode_id: end.batch and end.batch.lengths.tolist() for end in watcher.ended}
    assert lengths == {row.episode_id: None if row.outcome == "crashed" else [row.steps + 1] for row in rows}
    assert (rows[0].episode_id, 20) in watcher.stepped_at


@pytest.mark.parametrize(
    "how", ["SIGKILL", *(pytest.param(how, marks=pytest.mark.long) for how in ("exit", "SIGSEGV"))]
)
def test_an_episode_whose_worker_dies_is_run_again_and_nothing_is_lost_or_doubled(tmp_path, lethal, how):
    once = {"task": "task_0", "how": how, "once": str(tmp_path / "died")}
    rows = roll_out(replace(LETHAL, arguments=once), tmp_path / "died-once", running=ExecutionOptions(workers=2))
    assert (tmp_path / "died").exists()
    assert [row.outcome for row in rows] == ["timeout"] * 4
    roll_out(replace(LETHAL, arguments=once), tmp_path / "unbroken")
    assert contents(tmp_path / "died-once") == contents(tmp_path / "unbroken")


def test_an_episode_that_kills_every_worker_is_crashed_and_its_reason_names_the_signal(tmp_path, lethal, capfd):
    request = replace(LETHAL, arguments={"task": "task_0", "how": "SIGSEGV"}, episodes=1)
    rows = roll_out(request, tmp_path / "run", running=ExecutionOptions(workers=2))
    assert [row.outcome for row in rows] == ["crashed", "timeout"]
    assert scheduler.RETRIES == 1
    assert "0 steps or" in rows[0].reason
    (header,) = read_sources([tmp_path / "run"])[0].headers
    assert header.episode_id == rows[1].episode_id
    assert "Segmentation fault" in capfd.readouterr().err


def test_a_worker_that_dies_before_it_can_begin_ends_the_run_with_its_cause(tmp_path, lethal):
    with pytest.raises(RunError, match="with status 3"):
        roll_out(replace(LETHAL, arguments={"at_start": "3"}), tmp_path / "run", running=ExecutionOptions(workers=2))
    assert not (tmp_path / "run").exists()


def test_what_a_worker_cannot_mend_is_the_same_error_as_without_workers(tmp_path, monkeypatch):
    cast = WorkerSpec("nonsense", {"noop": WorkerPolicy("noop")})
    with pytest.raises(HostError, match="nonsense") as raised:
        list(run_pool(ProcessPool(cast), plan_episodes(TASKS, 1, ["noop"], load_protocol()), 1))
    assert "fake" in raised.value.remedy


@pytest.mark.parametrize(
    ("returncode", "words"),
    [
        (7, "the process exited with status 7"),
        (-signal.SIGKILL, "SIGKILL, often because memory ran out"),
        (-signal.SIGSEGV, "SIGSEGV"),
        (-99, "signal 99"),
    ],
)
def test_a_death_is_told_in_words(returncode, words):
    assert scheduler.describe_exit(returncode) == words


# A worker's share of the machine


def test_a_worker_computes_on_one_thread_unless_the_user_says_how_many():
    assert [worker_environment(0, {})[name] for name in ONE_THREAD] == ["1", "1", "1"]
    assert worker_environment(0, {"OMP_NUM_THREADS": "4"})["OMP_NUM_THREADS"] == "4"


@FIXTURE_IS_CONSTANT
@given(dies=st.lists(st.booleans(), max_size=20), count=st.integers(min_value=1, max_value=4))
def test_a_later_batch_is_asked_for_when_all_before_have_ended_and_the_same_workers_run_it(patient, dies, count):
    pool, ended = Stage(dies), []

    def later():
        for first in (0, 2, 7):
            assert len(ended) == first
            yield EPISODES[first : {0: 2, 2: 7, 7: 9}[first]]

    for finished in run_pool(pool, (), count, None, later()):
        ended.append(finished)
    assert sorted(end.planned.episode_id for end in ended) == sorted(e.episode_id for e in EPISODES)
    assert all(worker.ended for worker in pool.workers)
    if not any(dies):
        assert len(pool.workers) == min(count, 5)
