"""`python:module:factory`: anything with act; what cannot be made names the module and the line."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pytest

import safevla_bench as sb
from policies.servers.stub_servers import TASK, observe
from safevla_bench.errors import InvalidActionError, PolicyError
from safevla_bench.interface.policy import Wants
from safevla_bench.policies import make_policy
from safevla_bench.policies.python import adopt_object
from safevla_bench.sources.runs.parts import episode_rows

MODULE = """
import numpy as np
from safevla_bench.interface.policy import Wants
from .deep import GAIN

class Bare:
    def act(self, observation):
        return np.full(7, GAIN)

class Full(Bare):
    wants = Wants(cameras=("agentview",))
    clip = True
    calls_s = [0.5]

    def __init__(self, gain="0.5", log=None):
        self.gain, self.log = float(gain), []

    def reset(self, task, seed):
        self.log.append((task.task_id, seed))

    def close(self):
        self.log.append("closed")

ready = Bare()
number = 3

def fails(gain="1"):
    return 1 / 0

def lame():
    return object()

def odd():
    policy = Bare()
    policy.wants = ["agentview"]
    return policy
"""


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """A package of one's own in the current folder."""
    own = ("mine_pkg", "broken", "needy", "garbled", "leaving")
    for name in [name for name in sys.modules if name.split(".")[0] in own]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    package = tmp_path / "mine_pkg"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "deep.py").write_text("GAIN = 0.25\n")
    (package / "policy.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("x = 1\nraise RuntimeError('no weights')\n")
    (tmp_path / "needy.py").write_text("import no_such_library\n")
    (tmp_path / "garbled.py").write_text("x = 1\ndef f(:\n")
    (tmp_path / "leaving.py").write_text("raise SystemExit('no weights')\n")


@pytest.mark.usefixtures("packages")
class TestCurrentFolder:
    def test_relative_imports_from_the_current_folder_work_and_act_is_enough(self):
        policy = make_policy("python:mine_pkg.policy:Bare")
        policy.reset(TASK, 1)
        np.testing.assert_array_equal(policy.act(observe()), 0.25)
        policy.close()
        assert policy.wants == Wants()
        assert policy.clip is False

    def test_all_that_an_object_has_is_used(self):
        policy = make_policy("python:mine_pkg.policy:Full", {"gain": "2"})
        policy.reset(TASK, 7)
        policy.close()
        assert policy.made.log == [("task_0", 7), "closed"]
        assert policy.made.gain == 2.0
        assert policy.wants.cameras == ("agentview",)
        assert policy.clip is True
        assert policy.calls_s == [0.5]

    def test_a_finished_object_is_taken_as_it_is(self):
        assert make_policy("python:mine_pkg.policy:ready").act(None).tolist() == [0.25] * 7
        with pytest.raises(PolicyError, match="'Bare' object"):
            make_policy("python:mine_pkg.policy:ready", {"gain": "1"})

    @pytest.mark.parametrize(
        ("spec", "words"),
        [
            ("python", "not module:factory"),
            ("python:mine_pkg.policy", "not module:factory"),
            ("python:no_such:f", "module 'no_such' cannot"),
            ("python:mine_pkg.none:f", "module 'mine_pkg.none' cannot"),
            ("python:needy:f", "'no_such_library'.*needy.py, line"),
            ("python:broken:f", "broken.py, line 2"),
            ("python:garbled:f", r"\(.*garbled.py, line 2\)"),
            ("python:leaving:f", r"\(.*leaving.py, line 1\)"),
            ("python:mine_pkg.policy:nothing", "found: AttributeError"),
            ("python:mine_pkg.policy:fails", "ZeroDivisionError.*policy.py, line 28"),
            ("python:mine_pkg.policy:lame", "object without act"),
            ("python:mine_pkg.policy:number", "fails: TypeError: 'int'"),
            ("python:mine_pkg.policy:odd", "policy:odd .*the type list"),
        ],
    )
    def test_what_cannot_be_made_is_an_error_that_names_it(self, spec, words):
        with pytest.raises(PolicyError, match=words):
            make_policy(spec)

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [({"sped": "2"}, "keyword argument 'sped'"), ({"gain": "2"}, "fails fails: ")],
    )
    def test_the_error_of_a_factory_that_fails_on_its_arguments_says_that_they_are_text(self, arguments, words):
        with pytest.raises(PolicyError, match=words) as caught:
            make_policy("python:mine_pkg.policy:fails", arguments)
        assert "--policy-arg as text" in caught.value.remedy

    def test_what_can_be_called_is_listed(self):
        with pytest.raises(PolicyError) as caught:
            make_policy("python:mine_pkg.policy:nothing")
        assert "Bare, Full, fails" in caught.value.remedy


class Chunks:
    """Gives three actions at a time, each with its number in place 0, and counts how often it is asked."""

    def __init__(self, replan=None):
        self.calls = 0
        if replan is not None:
            self.replan = replan

    def act(self, observation):
        self.calls += 1
        return np.arange(3)[:, None] * 0.1 + np.zeros((3, 7))


@pytest.mark.parametrize(("replan", "calls", "first"), [(None, 2, [0, 0.1, 0.2, 0, 0.1]), (2, 3, [0, 0.1, 0, 0.1, 0])])
def test_a_chunk_is_carried_out_action_by_action(replan, calls, first):
    policy = adopt_object("chunks", Chunks(replan))
    actions = []
    for _ in range(5):
        policy_looks = policy.looks_next
        before = policy.made.calls
        actions.append(policy.act(None)[0])
        assert policy_looks == (policy.made.calls > before), "pictures are rendered when it will look"
    assert (policy.made.calls, [round(float(value), 6) for value in actions]) == (calls, first)


def test_an_empty_chunk_is_an_invalid_action():
    with pytest.raises(InvalidActionError, match="without an action"):
        adopt_object("empty", SimpleNamespace(act=lambda observation: np.zeros((0, 7)))).act(None)


def test_an_action_out_of_range_names_clip():
    class Wild:
        def act(self, observation):
            return np.full(7, 9.0)

    run = sb.evaluate(Wild(), "fake", tasks=[0], max_steps=3)
    assert run.scores.outcome == ("invalid_action",)
    rows = episode_rows(run.folder)
    assert "clip = True" in rows[0].reason
    Wild.clip = True
    assert sb.evaluate(Wild(), "fake", tasks=[0], max_steps=3).scores.outcome == ("timeout",)


def test_an_object_that_cannot_be_closed_costs_no_episode_and_is_named(tmp_path, caplog):
    class Stuck:
        def act(self, observation):
            return np.zeros(7)

        def close(self):
            raise OSError("the socket is gone")

    request = sb.Request(host="fake", suites=("fake",), tasks=(0,), policies=(f"python:{__name__}:stuck",), max_steps=2)
    sys.modules[__name__].stuck = Stuck()
    rows = sb.roll_out(request, tmp_path / "run")
    assert [row.outcome for row in rows] == ["timeout"]
    (record,) = caplog.records
    assert "the socket is" in record.getMessage()
