"""The crew: whatever dies, every episode ends once, and a worker that is lost costs only what it had in flight."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safevla_bench.errors import HostError, RunError
from safevla_bench.hosts import make_host
from safevla_bench.rollout import FinishedEpisode, load_protocol, plan_episodes
from safevla_bench.rollout.scheduler import RETRIES, run_pool
from safevla_bench.rollout.worker import WorkerFailed, WorkerReady

EPISODES = plan_episodes(make_host("fake").tasks("fake"), 3, ["noop"], load_protocol(), max_steps=6)


class Puppet:
    """A worker that does what the pool's script says."""

    def __init__(self, number: int, lasts: int) -> None:
        self.number, self.left = number, lasts
        self.said: list[object] = [WorkerReady()]
        self.dismissed = self.ended = False

    @property
    def spent(self) -> bool:
        return self.left <= 0

    def begin(self, planned) -> None:
        assert not self.said
        assert not self.dismissed
        assert self.left > 0
        self.left -= 1
        self.said.append(planned)

    def dismiss(self) -> None:
        self.dismissed = True

    def end(self, timeout_s: float) -> str:
        self.ended = True
        return "the script says so"


class Stage:
    """A pool whose workers die where the script says True, one word after the other."""

    starts, remedy = 3, "Mend the script."

    def __init__(self, dies=(), lasts: int = 99, absent=()) -> None:
        self.dies, self.lasts, self.absent = iter(dies), lasts, absent
        self.made: list[Puppet] = []
        self.attempts: Counter[str] = Counter()

    def start(self, number: int) -> Puppet:
        self.made.append(Puppet(number, self.lasts))
        return self.made[-1]

    def receive_messages(self, workers):
        for number, worker in workers.items():
            if number in self.absent or not worker.said:
                continue
            word = worker.said.pop()
            if not isinstance(word, (WorkerReady, WorkerFailed)):
                self.attempts[word.episode_id] += 1
            if next(self.dies, False):
                yield number, None
            else:
                yield (
                    number,
                    word
                    if isinstance(word, (WorkerReady, WorkerFailed))
                    else FinishedEpisode(word, "timeout", 6, b"record"),
                )


@given(
    st.lists(st.booleans(), max_size=30), st.integers(min_value=1, max_value=5), st.integers(min_value=1, max_value=4)
)
def test_whatever_dies_every_episode_ends_once_and_every_worker_is_ended(dies, count, lasts):
    pool = Stage(dies, lasts)
    pool.starts = 99
    ended = list(run_pool(pool, EPISODES, count))
    assert Counter(one.planned.episode_id for one in ended) == Counter(one.episode_id for one in EPISODES)
    for one in ended:
        assert (one.outcome == "crashed") == (one.record is None)
        assert pool.attempts[one.planned.episode_id] <= 1 + RETRIES
        if one.outcome == "crashed":
            assert pool.attempts[one.planned.episode_id] == 1 + RETRIES
            assert "died in each of 2 attempts" in one.reason
            assert "the script says so" in one.reason
    assert all(worker.ended for worker in pool.made)


def test_a_worker_that_is_spent_is_replaced_before_it_gets_another_episode():
    pool = Stage(lasts=2)
    assert len(list(run_pool(pool, EPISODES, 1))) == 9
    assert len(pool.made) == 5
    assert all(worker.dismissed for worker in pool.made)


def test_a_worker_that_never_comes_is_not_waited_for_once_the_others_have_done_everything():
    pool = Stage(absent={1})
    assert len(list(run_pool(pool, EPISODES, 2))) == 9
    assert pool.made[1].dismissed
    assert pool.made[1].ended


@pytest.mark.parametrize(("starts", "made"), [(1, 1), (3, 3)])
def test_workers_that_die_before_they_can_begin_end_the_run_after_so_many_in_a_row(starts, made):
    pool = Stage([True] * 9)
    pool.starts = starts
    with pytest.raises(RunError, match="while it started: the script says so") as raised:
        list(run_pool(pool, EPISODES, 1))
    assert raised.value.remedy == "Mend the script."
    assert len(pool.made) == made


def test_what_a_worker_cannot_mend_ends_the_run_and_all_workers():
    pool = Stage()
    crew = run_pool(pool, EPISODES, 2)
    next(crew)
    pool.made[0].said = [WorkerFailed(HostError("no simulator"))]
    with pytest.raises(HostError, match="no simulator"):
        list(crew)
    assert all(worker.ended for worker in pool.made)
