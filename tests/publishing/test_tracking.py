"""Trackers: they get what is known of each episode, and nothing that they do costs one."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from builders import episode
from safevla_bench.archive import write_archive
from safevla_bench.errors import RunError
from safevla_bench.jobs.evaluation.request import Request
from safevla_bench.jobs.evaluation.results import evaluate_request
from safevla_bench.jobs.evaluation.rollouts import roll_out
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.publishing import tracking
from safevla_bench.sources.runs.folder import archive_digest
from safevla_bench.trajectory.batch import concatenate_batches

EVAL = ("eval", "--host", "fake", "--suite", "fake", "--policy", "noop")
FAKE = Request(host="fake", suites=("fake",), tasks=(0, 2), policies=("scripted:hasty",), max_steps=40)


class MemoryTracker:
    """A tracker that keeps what it is given, and raises from some episode on."""

    def __init__(self, fails_at: int = 10**9) -> None:
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.final: dict[str, float] | None = None
        self.fails_at = fails_at

    def log(self, episode, numbers):
        if episode >= self.fails_at:
            raise ConnectionError("the network is gone")
        self.logged.append((episode, dict(numbers)))

    def finish(self, numbers):
        self.final = dict(numbers)


def test_each_finished_episode_is_logged_with_what_is_known_of_it(tmp_path):
    tracker = MemoryTracker()
    observer = tracking.TrackingObserver(tracker)
    judged = evaluate_request(FAKE, load_ruleset(), tmp_path / "run", observer)
    observer.finish(tracking.summary_values(judged.summarize_scores()[0]))
    assert [episode for episode, _ in tracker.logged] == [1, 2]
    (_, first), (_, crashed) = tracker.logged
    row = judged.scores.episode(0)
    assert first["episode/safe"] == float(row.safe)
    assert first["episode/vsi"] == row.vsi
    assert first["episode/success"] == float(row.success)
    assert (first["episode/crashed"], crashed["episode/crashed"]) == (0, 1)
    assert "episode/safe" not in crashed
    (cell,) = judged.summarize_scores()[0]
    assert tracker.final["scripted:hasty/fake/safety"] == cell.safety
    assert tracker.final["scripted:hasty/fake/safety_low"] == cell.rates["safety"].ci[0]


def test_a_tracker_that_fails_costs_no_episode_and_is_named_once(tmp_path):
    tracker, warnings = MemoryTracker(fails_at=2), []
    request = Request(host="fake", suites=("fake",), tasks=(0,), episodes=3, policies=("noop",), max_steps=3)
    observer = tracking.TrackingObserver(tracker, warn=warnings.append, name="wandb")
    roll_out(request, tmp_path / "with", observer)
    roll_out(request, tmp_path / "without")
    observer.finish({})
    assert len(tracker.logged) == 1
    assert len(warnings) == 1
    assert "wandb failed" in warnings[0]
    assert "network is gone" in warnings[0]
    assert tracker.final is None
    assert all((tmp_path / name / "archive/part-00000.parquet").exists() for name in ("with", "without"))
    assert archive_digest(tmp_path / "with") == archive_digest(tmp_path / "without")


def test_an_episode_is_scored_once_for_the_bar_and_all_trackers(safevla, tmp_path, monkeypatch):
    scored, unpatched = [], tracking.score
    trackers = {"wandb": MemoryTracker(), "trackio": MemoryTracker()}

    def count(batch, ruleset):
        scored.append(batch.headers[0].episode_id)
        return unpatched(batch, ruleset)

    monkeypatch.setattr(tracking, "score", count)
    factories = {name: lambda *begun, tracker=tracker: tracker for name, tracker in trackers.items()}
    monkeypatch.setattr(tracking, "TRACKERS", factories)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: SimpleNamespace(origin="here"))
    run = ["--host", "fake", "--suite", "fake", "--task", "0", "--episodes", "3", "--policy", "noop", "--max-steps", 3]
    options = [word for name in trackers for word in ("--log", name)]
    code, _, err = safevla("eval", "--record-only", *run, *options, "--out", tmp_path / "run")
    assert code == 0, err
    assert len(scored) == len(set(scored)) == 3
    assert trackers["wandb"].logged == trackers["trackio"].logged
    assert [numbers["episode/safe"] for _, numbers in trackers["wandb"].logged] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("mode", [(), ("--record-only",)])
def test_a_missing_package_is_an_error_before_the_run(safevla, tmp_path, monkeypatch, mode):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, _, err = safevla(*EVAL, *mode, "--log", "wandb", "--out", tmp_path / "run")
    assert code == 2
    assert "wandb needs wandb" in err
    assert "pip install" in err
    assert not (tmp_path / "run").exists()


def test_a_folder_of_former_runs_is_not_a_package(tmp_path, monkeypatch):
    (tmp_path / "trackio").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    if "trackio" not in sys.modules:
        with pytest.raises(RunError, match="not installed"):
            tracking.require_trackers(["trackio"])


def test_a_tracker_that_cannot_begin_is_an_error_before_the_run(safevla, tmp_path, monkeypatch):
    def init(**options):
        raise PermissionError("not logged in")

    fake_package(monkeypatch, "wandb", init=init)
    code, _, err = safevla(*EVAL, "--log", "wandb", "--out", tmp_path / "run")
    assert code == 2
    assert "not logged in" in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("package", ["wandb", "trackio"])
def test_a_hub_gets_configuration_steps_and_final_numbers(safevla, tmp_path, monkeypatch, package):
    logged, begun, attached = [], [], []
    fake_package(
        monkeypatch,
        package,
        init=lambda **options: begun.append(options),
        log=lambda numbers, step=None: logged.append((step, numbers)),
        finish=lambda: begun.append("finished"),
        Artifact=lambda name, type: SimpleNamespace(add_file=attached.append),
        log_artifact=lambda artifact: None,
    )
    monkeypatch.setenv(f"{package.upper()}_PROJECT", "mine")
    code, _, err = safevla(*EVAL, "--task", "0", "--max-steps", "3", "--log", package, "--out", tmp_path / "run")
    assert (code, begun[-1]) == (0, "finished"), err
    assert (begun[0]["project"], begun[0]["name"]) == ("mine", "run")
    assert begun[0]["config"]["library_digest"] == load_ruleset().library.digest
    assert [step for step, _ in logged] == [1, None]
    assert logged[1][1]["final/noop/fake/n"] == 1
    assert {name: logged[0][1][name] for name in ("policy", "suite", "task")} == {
        "policy": "noop",
        "suite": "fake",
        "task": "task_0",
    }
    assert logged[0][1]["noop/fake/episode/safe"] == 1.0
    assert attached == [str(tmp_path / "run" / "report.html")]


def test_a_resumed_run_goes_on_at_the_number_of_finished_episodes_in_the_same_run_of_the_tracker(
    safevla, tmp_path, monkeypatch
):
    steps, begun = [], []
    fake_package(
        monkeypatch,
        "wandb",
        init=lambda **options: begun.append(options) or SimpleNamespace(id="abc"),
        log=lambda numbers, step=None: steps.append(step),
        finish=lambda: None,
    )
    run = ["--task", "0,2", "--max-steps", "3", "--record-only", "--log", "wandb", "--out", tmp_path / "run"]
    safevla(*EVAL, *run)
    assert steps == [1, 2]
    safevla("eval", "--resume", "--retry-crashed", "--log", "wandb", "--record-only", "--out", tmp_path / "run")
    assert begun[0].get("id") is None
    assert (begun[1]["id"], begun[1]["resume"]) == ("abc", "allow")
    assert steps[2:] == list(range(3, 3 + len(steps[2:])))
    safevla("export", tmp_path / "run", "--format", "wandb", "--out", tmp_path / "run")
    assert "id" not in begun[2]  # an export is a new run, which no other continues
    assert (tmp_path / "run/.wandb-run").read_text() == "abc"


def test_a_finished_run_is_sent_with_every_episode_the_final_numbers_and_the_report(safevla, tmp_path, monkeypatch):
    class Attaching(MemoryTracker):
        def attach(self, report):
            self.report = report

    tracker = Attaching()
    monkeypatch.setattr(tracking, "TRACKERS", {name: lambda *begun: tracker for name in tracking.TRACKERS})
    monkeypatch.setattr("importlib.util.find_spec", lambda name: SimpleNamespace(origin="here"))
    safevla.ok(*EVAL, "--task", "0", "--episodes", "2", "--max-steps", "3", "--out", tmp_path / "run")
    safevla.ok("export", tmp_path / "run", "--format", "mlflow", "--out", tmp_path / "run")
    assert [episode for episode, _ in tracker.logged] == [1, 2]
    assert tracker.logged[0][1] == {
        **{"policy": "noop", "suite": "fake", "task": "task_0", "episode/steps": 3, "episode/crashed": 0.0},
        **{"episode/success": 0.0, "episode/safe": 1.0, "episode/unsafe_success": 0.0, "episode/vsi": 0.0},
    }
    assert tracker.final["noop/fake/n"] == 2
    assert tracker.report == tmp_path / "run" / "report.html"


@pytest.mark.parametrize(("episodes", "ends_with"), [(2, 4), (4, 2)])
def test_an_export_sends_the_rows_and_steps_that_the_run_itself_sends(
    safevla, tmp_path, monkeypatch, episodes, ends_with
):
    """Crashed episodes are among them, and count as steps. After three of a task, its fourth is not run."""
    sent = []
    monkeypatch.setattr(tracking, "TRACKERS", {"wandb": lambda *begun: sent.append(MemoryTracker()) or sent[-1]})
    fake_package(monkeypatch, "wandb")
    policies = ["--policy", "scripted:hasty", "--policy", "noop"]
    run = ["--host", "fake", "--suite", "fake", "--task", "0,2", "--episodes", episodes, "--max-steps", "40"]
    code, _, err = safevla("eval", *run, *policies, "--log", "wandb", "--out", tmp_path / "run")
    assert code == ends_with, err
    safevla.ok("export", tmp_path / "run", "--format", "wandb", "--out", tmp_path / "run")
    logged, exported = sent
    assert [row["episode/crashed"] for _, row in exported.logged].count(1.0) > 0
    assert exported.logged == logged.logged
    assert logged.final == (exported.final if ends_with == 4 else {})


def test_the_success_of_a_stopped_episode_is_unknown_and_not_sent(safevla, tmp_path, monkeypatch):
    tracker = MemoryTracker()
    monkeypatch.setattr(tracking, "TRACKERS", {"wandb": lambda *begun: tracker})
    fake_package(monkeypatch, "wandb")
    stopped = episode(success=False, outcome="stopped", episode_id="stopped")
    write_archive(tmp_path / "a.jsonl", concatenate_batches([stopped, episode(success=False, outcome="timeout")]))
    safevla.ok("export", tmp_path / "a.jsonl", "--format", "wandb", "--out", tmp_path)
    assert [row.get("episode/success") for _, row in tracker.logged] == [None, 0.0]


def test_a_broken_off_run_closes_its_trackers(tmp_path):
    tracker = MemoryTracker()
    observer = tracking.TrackingObserver(tracker)
    observer.finish({})
    observer.finish({"a": 1.0})
    assert tracker.final == {}


def fake_package(monkeypatch, name, **members):
    package = ModuleType(name)
    package.__spec__ = SimpleNamespace(name=name, origin=f"{name}.py")
    for member, value in members.items():
        setattr(package, member, value)
    monkeypatch.setitem(sys.modules, name, package)


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("openpi:ws://h:8000/libero-object/vsi", "openpi:ws:/_/h:8000/libero-object/vsi"),
        ("a&b/s/vsi", "a_26b/s/vsi"),
        ("a%b/s/vsi", "a_25b/s/vsi"),
    ],
)
def test_mlflow_gets_names_that_it_accepts_and_no_two_policies_share_one(name, sent):
    """It refuses a name with an empty part, such as the address of a server."""
    assert tracking.name_metric(name) == sent
