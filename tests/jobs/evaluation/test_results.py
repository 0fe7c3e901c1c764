"""Evaluations in Python: a policy object is rolled out and judged, and what comes back can be looked at."""

from __future__ import annotations

import gc
import pickle
import sys
from dataclasses import replace

import numpy as np
import pytest

import safevla_bench as sb
from safevla_bench.errors import PolicyError, RunError
from safevla_bench.jobs.evaluation.preparation import prepare_run
from safevla_bench.jobs.evaluation.request import RequestedPolicy
from safevla_bench.sources.runs.folder import read_description


class Still:
    """A policy of one's own that moves nothing; it counts its episodes."""

    def __init__(self):
        self.episodes = 0

    def reset(self, task, seed):
        self.episodes += 1

    def act(self, observation):
        return np.zeros(7)


class Closing(Still):
    wants = sb.Wants()
    closed = False

    def close(self):
        self.closed = True


def still_run(policy=None, **options):
    return sb.evaluate(policy or Still(), "fake", tasks=[0], episodes=2, max_steps=4, **options)


def test_a_policy_object_is_rolled_out_and_named_by_its_class():
    policy = Still()
    run = still_run(policy)
    assert policy.episodes == len(run) == 2
    assert run.scores.policy == ("Still", "Still")
    assert [cell.policy for cell in run.cells] == ["Still"]


def test_an_object_s_run_can_be_read_by_every_command_and_says_what_made_it(tmp_path):
    run = still_run(name="mine", out=tmp_path / "run")
    described = read_description(tmp_path / "run")["policies"]
    assert [(policy["policy"], policy["object"]) for policy in described] == [("mine", f"{__name__}.Still")]
    assert (tmp_path / "run" / "report.html").exists()
    assert sb.load(str(tmp_path / "run")).scores.episode_id == run.scores.episode_id


def test_several_policies_run_on_the_same_initial_states():
    run = still_run({"a": Still(), "noop": "noop"})
    assert run.scores.policy == ("a", "a", "noop", "noop")
    starts = [header.init_state_index for header in run.judged.headers]
    assert starts[:2] == starts[2:]


def test_the_caller_s_object_stays_open():
    policy = Closing()
    still_run(policy)
    still_run(policy)
    assert policy.episodes == 4
    assert not policy.closed


def test_without_out_the_folder_lasts_as_long_as_the_evaluation():
    run = still_run()
    folder = run.folder
    assert (folder / "run.json").exists()
    del run
    gc.collect()
    assert not folder.exists()


def test_a_run_that_fails_leaves_no_folder_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(RunError, match="no protocol"):
        sb.evaluate(Still(), "fake", protocol="nothing")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("policy", "options", "message"),
    [
        (Still, {}, "is a class"),
        (object(), {}, "without act"),
        (Still(), {"workers": 2}, "sent to other"),
        ({"a": Still()}, {"name": "b"}, "name= is for"),
        (Still(), {"episodes": 2.0}, "episodes is 2.0"),
        (Still(), {"seed": True}, "seed is True"),
        (Still(), {"tasks": "task_0"}, "tasks is 'task_0'"),
        (Still(), {"tasks": 0}, "tasks is 0"),
    ],
)
def test_a_wrong_call_says_what_to_pass(policy, options, message):
    with pytest.raises((PolicyError, RunError), match=message):
        sb.evaluate(policy, "fake", **{"tasks": [0], "episodes": 2, "max_steps": 20, **options})


def test_an_unknown_suite_is_told_of_host():
    with pytest.raises(RunError, match="Pass `host=`"):
        sb.evaluate(Still(), "nowhere")


def test_episodes_are_found_by_place_id_and_end_of_id():
    run = still_run()
    assert [episode.index for episode in run] == [0, 1]
    assert run["ep_001"].score == run[1].score == run[-1].score
    assert [episode.index for episode in run[1:]] == [1]
    assert all(run[0].score.episode_id in part for part in (run, run.scores))
    assert "ep_9" not in run
    assert run.scores[0] in run.scores
    with pytest.raises(IndexError):
        run[2]
    with pytest.raises(RunError, match="is no episode"):
        run["ep_9"]


def test_the_worst_episode_comes_first_and_shows_itself(capsys):
    run = sb.load("src/safevla_bench/jobs/demo.parquet")
    worst = run.worst()
    assert worst.score.vsi == np.nanmax(run.scores.vsi)
    assert [episode.score.safe for episode in run.episodes(unsafe=True)] == [False] * int(run.scores.unsafe.sum())
    worst.show()
    assert worst.score.worst_spec in capsys.readouterr().out
    assert len(worst.record) == 1


def test_tables_print_as_text_and_show_as_html(tmp_path):
    run = still_run()
    assert "Safety %" in repr(run.table())
    assert run.table()._repr_html_().startswith("<table>")
    assert run.table("tasks").render("md").count("|") > 4
    assert run.write_report(str(tmp_path / "page.html")).read_text().startswith("<!doctype html>")
    assert len(repr(run)) < 400
    assert run._repr_html_() == run.table()._repr_html_()
    assert repr(run[0]) == repr(run.scores[0])


def test_an_evaluation_can_be_pickled(tmp_path):
    still_run(out=tmp_path / "run")
    run = sb.load(str(tmp_path / "run"))
    copy = pickle.loads(pickle.dumps(run))
    assert copy.table().render() == run.table().render()
    assert repr(copy[0].explanation) == repr(run[0].explanation)
    assert repr(pickle.loads(pickle.dumps(still_run())).scores) == repr(run.scores)
    rescored = copy.judged.score_records(copy.judged.records, copy.judged.ruleset)
    assert np.array_equal(rescored.rho, run.scores.rho, equal_nan=True)


def test_nothing_to_load_is_an_error_that_says_what_to_name():
    with pytest.raises(RunError, match="nothing to load"):
        sb.load()
    with pytest.raises(RunError, match="of type list, not a path"):
        sb.load([])  # type: ignore[arg-type]


@pytest.mark.long
def test_a_notebook_shows_tables_and_never_a_raw_dump(tmp_path):
    """In a real kernel: what a cell ends with is shown as HTML, and `show` prints."""
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    sources = (
        "import safevla_bench as sb\nrun = sb.evaluate('noop', 'fake', tasks=[0], episodes=2, max_steps=4); run",
        "run.scores[0]",
        "run.table('tasks')",
        "run.worst().show()",
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    *tables, printed = [cell["outputs"] for cell in notebook["cells"]]
    for outputs in tables:
        [result] = [output for output in outputs if output["output_type"] == "execute_result"]
        assert result["data"]["text/html"].startswith("<table>")
        assert len(result["data"]["text/plain"]) < 2000
    assert "noop/fake/task_0/ep_000" in "".join(output.get("text", "") for output in printed)


def test_no_suite_is_an_error_that_says_so():
    with pytest.raises(RunError, match="suite is named") as caught:
        sb.evaluate("noop", [])
    assert "libero-spatial" in caught.value.remedy


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_steps": 0}, "max_steps is 0"),
        ({"max_steps": 2**63}, "max_steps is 9223372036854775808"),
        ({"max_steps": -3}, "max_steps is -3"),
        ({"workers": 0}, "workers is 0"),
        ({"workers": -1}, "workers is -1"),
    ],
)
def test_a_count_below_1_or_over_64_bits_is_an_error_and_no_run(tmp_path, options, message):
    with pytest.raises(RunError, match=message) as caught:
        sb.evaluate("noop", "fake", tasks=[0], out=tmp_path / "run", **options)
    assert "1 or more" in caught.value.remedy
    assert not (tmp_path / "run").exists()


MINE = RequestedPolicy("mine", f"python:{__name__}:make")


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"until": "speed >= 1"}, "not a condition"), ({"policies": (MINE, "nope")}, "no policy")],
)
def test_a_run_that_cannot_be_prepared_closes_the_policies_it_made(monkeypatch, changes, message):
    policies = []

    def make():
        policies.append(Closing())
        return policies[-1]

    monkeypatch.setattr(sys.modules[__name__], "make", make, raising=False)
    request = sb.Request(host="fake", suites=("fake",), policies=(MINE,))
    with pytest.raises((PolicyError, RunError), match=message):
        prepare_run(replace(request, **changes))
    assert [policy.closed for policy in policies] == [True]
    prepared = prepare_run(request)
    assert policies[-1].closed is False
    prepared.resources.close()
    assert policies[-1].closed is True
