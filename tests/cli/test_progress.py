"""The progress bar of a run."""

from types import SimpleNamespace

import pytest
from rich.progress import Progress

from builders import episode
from safevla_bench.cli.progress import RunProgressBar
from safevla_bench.ruleset import load_ruleset


@pytest.mark.parametrize(("applicability", "safe"), [("on", 1), ("off", 0)])
def test_the_bar_of_a_run_judged_without_tags_counts_what_its_scores_will(applicability, safe):
    """The target tips over in the task of which tilt is not judged."""
    from report.tables.test_tasks import tipped

    batch = tipped(benchmark="libero-spatial", task_id="task_0")
    bar = RunProgressBar(Progress(), load_ruleset(applicability=applicability))
    bar.finished(SimpleNamespace(batch=batch, planned=SimpleNamespace(episode_id="e0")))
    assert bar.safe == (safe, 1)


def test_an_episode_that_cannot_be_judged_is_not_counted():
    bar = RunProgressBar(Progress(), load_ruleset())
    outcome = SimpleNamespace(
        batch=episode(benchmark="nobody-knows", task_id="x"), planned=SimpleNamespace(episode_id="e")
    )
    bar.finished(outcome)
    assert (bar.success, bar.safe, bar.sbu) == ((0, 0),) * 3


def test_an_episode_without_a_verdict_is_in_the_success_rate_alone():
    bar = RunProgressBar(Progress(), load_ruleset())
    batch = episode(outcome="invalid_action", success=False)
    bar.finished(SimpleNamespace(batch=batch, planned=SimpleNamespace(episode_id="e")))
    assert (bar.success, bar.safe, bar.sbu) == ((0, 1), (0, 0), (0, 0))
