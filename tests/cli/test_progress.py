"""Progress of a run: the bar of a terminal, and the lines of a log."""

import io
from types import SimpleNamespace

import pytest
from rich.console import Console
from rich.progress import Progress

from builders import episode
from safevla_bench import cli
from safevla_bench.cli.progress import EpisodeLines, RunProgressBar, make_progress
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.publishing.tracking import OutcomeScorer
from safevla_bench.rollout.episode import EpisodeOutcome


@pytest.mark.parametrize(("applicability", "safe"), [("on", 1), ("off", 0)])
def test_the_bar_of_a_run_judged_without_tags_counts_what_its_scores_will(applicability, safe):
    """The target tips over in the task of which tilt is not judged."""
    from report.tables.test_tasks import tipped

    batch = tipped(benchmark="libero-spatial", task_id="task_0")
    bar = RunProgressBar(Progress(), OutcomeScorer(load_ruleset(applicability=applicability)))
    bar.finished(SimpleNamespace(batch=batch, planned=SimpleNamespace(episode_id="e0")))
    assert bar.safe == (safe, 1)


def test_an_episode_that_cannot_be_judged_is_not_counted():
    bar = RunProgressBar(Progress(), OutcomeScorer(load_ruleset()))
    outcome = SimpleNamespace(
        batch=episode(benchmark="nobody-knows", task_id="x"), planned=SimpleNamespace(episode_id="e")
    )
    bar.finished(outcome)
    assert (bar.success, bar.safe, bar.sbu) == ((0, 0),) * 3


def test_an_episode_without_a_verdict_is_in_the_success_rate_alone():
    bar = RunProgressBar(Progress(), OutcomeScorer(load_ruleset()))
    batch = episode(outcome="invalid_action", success=False)
    bar.finished(SimpleNamespace(batch=batch, planned=SimpleNamespace(episode_id="e")))
    assert (bar.success, bar.safe, bar.sbu) == ((0, 1), (0, 0), (0, 0))


def test_the_bar_keeps_count_and_remaining_time_at_eighty_columns():
    """What is long is the episode's id, and that is what gives way."""
    drawn = io.StringIO()
    with make_progress(Console(file=drawn, width=80, force_terminal=True, color_system=None)) as progress:
        bar = RunProgressBar(progress, OutcomeScorer(load_ruleset()))
        progress.update(bar.task, total=2000, completed=1234)
        bar.success = bar.safe = bar.sbu = (3, 10)
        bar.stepped(SimpleNamespace(episode_id=f"scripted:careful/{'long' * 20}"), 20)
        progress.refresh()
    last = [line for line in drawn.getvalue().split("\r") if "1234/2000" in line][-1]
    assert "-:--:--" in last
    assert "SR 30 % · Safety 30 % · SBU 30 %" in last


def test_a_log_has_a_line_for_each_episode_with_outcome_verdict_and_seconds(capsys):
    lines = EpisodeLines(OutcomeScorer(load_ruleset()))
    planned = SimpleNamespace(episode_id="mine/\x1b[2Jep_000")
    lines.started([planned] * 10)
    batch = episode(outcome="success", success=True)
    lines.finished(EpisodeOutcome(planned, "success", 11, batch, wall_s=12.345))
    lines.finished(EpisodeOutcome(planned, "crashed", 3, None, "it fell over"))
    printed = capsys.readouterr()
    start, judged, crashed = printed.err.splitlines()
    assert printed.out == ""
    assert start == "10 episodes to run"
    assert judged.split() == ["[", "1/10]", "success", "safe", "12.3", "s", "mine/\\x1b[2Jep_000"]
    assert crashed.split()[:6] == ["[", "2/10]", "crashed", "no", "verdict", "–"]


def test_a_run_away_from_a_terminal_is_seen_in_its_log(tmp_path, capsys):
    arguments = [
        "eval",
        "--record-only",
        "--host",
        "fake",
        "--suite",
        "fake",
        "--task",
        "0",
        "--episodes",
        "2",
        "--policy",
        "noop",
    ]
    cli.run_command_line([*arguments, "--max-steps", "5", "--out", str(tmp_path / "run")])
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in lines if line.startswith("[")] == ["timeout", "timeout"]
