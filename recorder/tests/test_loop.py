"""A loop whose wrapper makes its simulator in a reset: each simulator is recorded from its making to its close."""

from __future__ import annotations

import json
import sys
from threading import Barrier, Thread
from types import SimpleNamespace

import pytest

from recorder_builders import StillEnv
from safevla_recorder import loop
from safevla_recorder.attachment import find_layer, is_unmade
from safevla_recorder.errors import HostError, RunError


class Kitchen:
    def reset(self): ...


class UndoneEnv(StillEnv):
    """Notes whether its hooks were removed."""

    is_undone = False

    def subscribe(self, listener):
        super().subscribe(listener)
        return lambda: setattr(self, "is_undone", True)


class Lazy:
    """A wrapper that makes another simulator in every reset."""

    _env = None

    def reset(self, kind=Kitchen):
        self._env = kind()
        return "observation"


@pytest.fixture
def recorded(monkeypatch):
    """The recordable environments that were made of simulators, with these."""
    made = []

    def find(env, goal):
        made.append((env, UndoneEnv()))
        return made[-1][1]

    monkeypatch.setitem(sys.modules, "robocasa.environments.kitchen.kitchen", SimpleNamespace(Kitchen=Kitchen))
    monkeypatch.setattr(loop, "find_recordable", find)
    return made


def test_a_simulator_that_a_reset_makes_is_recorded_and_the_next_one_after_it_was_closed(recorded, tmp_path, caplog):
    with loop.record(Lazy(), policy="mine", out=tmp_path / "run") as env:
        assert not (tmp_path / "run").exists()
        assert env.reset() == "observation"
        assert [simulator for simulator, _ in recorded] == [env._env]
        assert (tmp_path / "run" / "run.json").exists()
        assert caplog.text == ""
        env.reset()
        assert len(recorded) == 1
        assert "second simulator" in caplog.text
        recorded[0][1].listener.is_closed = True
        env.reset()
        assert [simulator for simulator, _ in recorded][1:] == [env._env]
        assert "no episode was recorded" not in caplog.text, "the recording goes on with the next simulator"
        assert recorded[0][1].is_undone
        assert not recorded[1][1].is_undone
    assert recorded[1][1].is_undone
    assert "reset" not in vars(env)


def test_simulators_that_threads_make_at_the_same_time_are_recorded_for_their_own_policies(recorded, tmp_path):
    barrier, policies = Barrier(2), {}

    class Slow(Kitchen):
        def __init__(self):
            barrier.wait(60)  # both resets have begun
            super().__init__()
            barrier.wait(60)  # and none has ended

    def reset(policy):
        env = Lazy()
        session = loop.record(env, policy=policy, out=tmp_path / policy)
        env.reset(Slow)
        policies[policy] = session._recording[0]._rules.policy, session._simulator is env._env
        session.close()

    threads = [Thread(target=reset, args=(policy,)) for policy in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert policies == {"one": ("one", True), "two": ("two", True)}
    assert len(recorded) == 2


def test_a_simulator_that_cannot_be_recorded_stops_no_loop(recorded, tmp_path, monkeypatch, caplog):
    def refuse(env, goal):
        raise HostError("not this one")

    monkeypatch.setattr(loop, "find_recordable", refuse)
    with loop.record(Lazy(), policy="mine", out=tmp_path / "run") as env:
        assert env.reset() == "observation"
    assert "Kitchen is not recorded: not this one" in caplog.text


def test_a_wrapper_that_was_never_reset_is_said_to_have_no_episode(recorded, tmp_path, caplog):
    session = loop.record(Lazy(), policy="mine", out=tmp_path / "run")
    session.close()
    assert "not been reset" in caplog.text
    caplog.clear()
    session.close()
    assert caplog.text == ""


def test_what_is_given_to_record_replaces_the_names_and_states_of_the_environment(recorded, tmp_path):
    rules = {"wait_steps": 3, "benchmark": "ours", "task_id": "lift", "init_states": [[1.0]]}
    for options in ({}, rules):
        with loop.record(Kitchen(), policy="mine", out=tmp_path / "run", **options):
            pass
    (_, plain), (_, given) = recorded
    assert (plain.task.benchmark, plain.task.task_id, plain.listener._rules.wait_steps) == ("b", "t", 2)
    assert not hasattr(plain, "init_states")
    assert (given.task.benchmark, given.task.task_id, given.listener._rules.wait_steps) == ("ours", "lift", 3)
    assert given.init_states == [[1.0]]


def test_unless_it_is_asked_for_a_loop_is_neither_privileged_nor_made_faster(recorded, tmp_path, monkeypatch):
    faster = []
    monkeypatch.setattr(loop, "speed_up", lambda env: faster.append(env) or (lambda: faster.append("undone")))
    for name, options in (("plain", {}), ("asked", {"privileged": True, "fast": True})):
        with loop.record(Kitchen(), policy="mine", out=tmp_path / "run" / name, **options):
            run = json.loads((tmp_path / "run" / name / "run.json").read_text())
            assert run["policies"] == [{"policy": "mine", "privileged": name == "asked"}]
        assert [type(entry).__name__ for entry in faster] == (["Kitchen", "str"] if name == "asked" else [])


def test_an_environment_is_recorded_once_at_a_time(recorded, tmp_path, monkeypatch):
    monkeypatch.setattr(StillEnv, "is_recorded", True)
    with pytest.raises(HostError, match="already"):
        loop.record(Kitchen(), policy="mine", out=tmp_path / "run")


@pytest.mark.parametrize(
    ("worker", "is_valid"), [(3, True), ("a-b_2", True), ("", False), ("a/b", False), ("é", False)]
)
def test_the_name_of_a_worker_can_be_part_of_a_folders(recorded, tmp_path, worker, is_valid):
    if is_valid:
        with loop.record(Kitchen(), policy="mine", out=tmp_path / "run", worker=worker):
            assert recorded[0][1].listener._rules.worker == str(worker)
        return
    with pytest.raises(RunError, match="worker name"):
        loop.record(Kitchen(), policy="mine", out=tmp_path / "run", worker=worker)


def wrap(env, times):
    for _ in range(times):
        env = SimpleNamespace(env=env)
    return env


@pytest.mark.parametrize(("times", "is_found"), [(0, True), (15, True), (16, False)])
def test_an_environment_is_sought_in_sixteen_layers(times, is_found):
    kitchen = Kitchen()
    assert find_layer(wrap(kitchen, times), Kitchen) is (kitchen if is_found else None)


def test_a_wrapper_that_holds_itself_is_looked_through_once():
    env = SimpleNamespace()
    env.env = env
    assert find_layer(env, Kitchen) is None


@pytest.mark.parametrize(
    ("env", "is_lazy"),
    [
        (Lazy(), True),
        (SimpleNamespace(reset=print, env=Lazy()), True),
        (SimpleNamespace(reset=print, env=Kitchen()), False),
        (SimpleNamespace(env=None), False),
        (Kitchen(), False),
    ],
)
def test_a_wrapper_is_unmade_while_it_holds_none(env, is_lazy):
    assert is_unmade(env) is is_lazy


@pytest.mark.parametrize("count", [0, -1, 2.5, "5", True, float("nan"), float("inf")])
def test_a_horizon_that_is_no_number_of_steps_is_refused_before_anything_is_recorded(tmp_path, count):
    with pytest.raises(RunError, match="not a valid number"):
        loop.record(Lazy(), policy="mine", out=tmp_path / "run", horizon=count)


@pytest.mark.parametrize(
    "option", [{"task_id": 0}, {"task_id": 8}, {"benchmark": " "}, {"seed": 2**63}, {"seed": 0.5}, {"seed": "7"}]
)
def test_a_name_or_seed_that_no_record_can_hold_is_refused_before_anything_is_recorded(recorded, tmp_path, option):
    """The variable `task_id` of openpi's loop is a number."""
    with pytest.raises(RunError, match=f"{next(iter(option))}=.* is not a"):
        loop.record(Kitchen(), policy="mine", out=tmp_path / "run", **option)
    assert recorded == []
    loop.record(Kitchen(), policy="mine", out=tmp_path / "run", task_id="task_8", benchmark="b", seed=-7.0).close()
    assert (recorded[0][1].task.task_id, recorded[0][1].task.benchmark) == ("task_8", "b")
