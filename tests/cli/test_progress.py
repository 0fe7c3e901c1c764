"""Progress of a run: the bar of a terminal, and the lines of a log."""

import io
import re
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console
from rich.progress import Progress

from builders import episode
from report.tables.test_tasks import tipped
from safevla_bench.archive.npz import encode_npz
from safevla_bench.cli import escape_output
from safevla_bench.cli.progress import EpisodeLines, RunProgressBar, make_progress, show_frame_progress, show_status
from safevla_bench.interface.task import EpisodeSeed
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.publishing.tracking import OutcomeScorer
from safevla_bench.rollout.episode import NOT_RUN, EpisodeOutcome
from safevla_bench.sources.runs.folder import Latency


def scorer(applicability="on"):
    return OutcomeScorer(load_ruleset(applicability=applicability))


TIPPED = tipped(benchmark="libero-spatial", task_id="task_0")
"""The target tips over in a task whose tilt is not judged."""


@pytest.mark.parametrize(
    ("applicability", "batch", "counts"),
    [
        ("on", TIPPED, ((1, 1), (1, 1), (0, 1))),
        ("off", TIPPED, ((1, 1), (0, 1), (1, 1))),
        ("on", episode(benchmark="nobody-knows", task_id="x"), ((0, 0), (0, 0), (0, 0))),
        ("on", episode(outcome="invalid_action", success=False), ((0, 1), (0, 0), (0, 0))),
    ],
    ids=["judged by its tags", "judged without tags", "not judged", "without a verdict"],
)
def test_the_bar_counts_what_the_scores_will(applicability, batch, counts):
    bar = RunProgressBar(Progress(), scorer(applicability))
    bar.finished(
        SimpleNamespace(batch=batch, outcome="success", latency=None, planned=SimpleNamespace(episode_id="e0"))
    )
    assert tuple((sum(known), len(known)) for known in bar.rates.values()) == counts


def test_the_bar_does_not_count_a_skipped_episode_as_crashed():
    bar = RunProgressBar(Progress(), scorer())
    planned = SimpleNamespace(episode_id="e0")
    for outcome in (NOT_RUN, "crashed"):
        bar.finished(SimpleNamespace(batch=None, outcome=outcome, latency=None, planned=planned))
    assert (bar.crashed, bar.progress.tasks[0].completed) == (1, 2)


def test_the_bar_keeps_count_and_remaining_time_at_eighty_columns():
    """What is long is the episode's id, and that is what gives way."""
    stream = io.StringIO()
    with make_progress(Console(file=stream, width=80, force_terminal=True, color_system=None)) as progress:
        bar = RunProgressBar(progress, scorer())
        progress.update(bar.task, total=2000, completed=1234)
        bar.rates = dict.fromkeys(bar.rates, [True] * 3 + [False] * 7)
        bar.stepped(SimpleNamespace(episode_id=f"scripted:careful/{'long' * 20}"), 20)
        progress.refresh()
    last = [line for line in stream.getvalue().split("\r") if "1234/2000" in line][-1]
    assert "-:--:--" in last
    assert "Safety 30 %" in last


@pytest.mark.parametrize("show", [lambda: show_status("judging"), lambda: show_frame_progress(3)])
def test_what_is_printed_meanwhile_is_escaped_and_what_is_drawn_is_not(show, monkeypatch):
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr("sys.stderr", terminal)
    with escape_output(), show():
        print("\x1b[31mred \x1bc")
        print("::error::x", file=sys.stderr)
    drawn = terminal.getvalue()
    assert "\\x1b[31mred \\x1bc" in drawn
    assert ": :error::x" in drawn
    assert re.findall(r"\\x1b\S*", drawn) == ["\\x1b[31mred", "\\x1bc"]
    assert drawn.count("\x1b[2K") > 2  # it was drawn again after each line


def test_a_log_has_a_line_for_each_episode_with_outcome_verdict_and_seconds(capsys):
    lines = EpisodeLines(scorer())
    planned = SimpleNamespace(episode_id="mine/\x1b[2Jep_000", start=EpisodeSeed(0, 7, 0))
    lines.started([planned] * 10)
    batch = episode(outcome="success", success=True)
    lines.finished(EpisodeOutcome(planned, "success", 11, encode_npz(batch), wall_s=12.345))
    lines.finished(EpisodeOutcome(planned, "crashed", 3, None, "it fell over"))
    took = Latency(calls=3, p50_ms=412.4, p95_ms=500.0, waiting_p50_ms=300.2)
    lines.finished(EpisodeOutcome(planned, "crashed", 3, None, "it fell over", took))
    printed = capsys.readouterr()
    start, judged, crashed, served = printed.err.splitlines()
    assert "(412 ms" in served
    assert printed.out == ""
    assert "10 episodes" in start
    assert judged.split() == ["[", "1/10]", "success", "safe", "12.3", "s", "mine/\\x1b[2Jep_000"]
    assert crashed.split()[:6] == ["[", "2/10]", "crashed", "no", "verdict", "–"]
