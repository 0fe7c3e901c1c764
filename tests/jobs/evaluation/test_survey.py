"""What the report needs of the records is collected while they are judged, and no record is read again for it."""

import numpy as np
import pytest

from safevla_bench import archive
from safevla_bench.jobs import demo
from safevla_bench.jobs.evaluation import survey as surveys
from safevla_bench.jobs.evaluation.judgement import judge
from safevla_bench.jobs.evaluation.outputs import render_report
from safevla_bench.jobs.evaluation.parallel import ParallelJudge
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.report import episode_table, page
from safevla_bench.sources.runs import episode_index
from safevla_bench.trajectory.batch import select_episodes


@pytest.fixture
def sources(tmp_path, monkeypatch):
    """The demo's episodes, the best first, so that each batch has worse ones; the page draws three."""
    whole = archive.open_archive(demo.unpack_archive(tmp_path))
    worst_last = episode_table.rank_by_severity(judge([tmp_path / demo.ARCHIVE], load_ruleset()).scores)[::-1]
    paths = [tmp_path / f"part-{number}.parquet" for number in range(4)]
    for path, places in zip(paths, np.array_split(worst_last, len(paths)), strict=True):
        archive.write_archive(path, select_episodes(whole, places))
    for module in (surveys, episode_table, page):
        monkeypatch.setattr(module, "MOST_DRAWN", 3)
    monkeypatch.setattr(surveys, "_MOST_SPARE", 1)
    monkeypatch.setattr(episode_index, "CHUNK_RECORDS", 1)
    return paths


def refuse(*_, **__):
    raise AssertionError("the records are read again")


@pytest.mark.parametrize("elsewhere", [None, ParallelJudge(map)], ids=["here", "elsewhere"])
def test_the_report_of_a_survey_is_that_of_records_that_are_read_again(sources, elsewhere, monkeypatch):
    ruleset, survey = load_ruleset(), surveys.Survey()
    again = render_report(judge(sources, ruleset))
    judged = judge(sources, ruleset, elsewhere=elsewhere, survey=survey)
    monkeypatch.setattr(episode_index.EpisodeIndex, "read_chunks", refuse)
    assert render_report(judged, survey=survey) == again


def test_a_survey_keeps_the_episodes_that_are_drawn_and_few_others(sources):
    survey = surveys.Survey()
    judged = judge(sources, load_ruleset(), survey=survey)
    kept = {k for numbers, _ in survey._kept for k in numbers}
    assert {*page.rank_by_severity(judged.scores)[:3]} <= kept
    assert len(kept) <= 3 + 1
