"""Scores as data frames, as sequences, and in notebooks."""

from __future__ import annotations

import re
import sys

import numpy as np
import pytest

from report.scenes import NAN, verdicts
from safevla_bench.errors import SafevlaError
from safevla_bench.judging.metrics import cells
from safevla_bench.plugins import install_command
from safevla_bench.tasks.reasons import describe_reason
from safevla_bench.text import NO_VALUE


@pytest.fixture
def scores():
    outcomes = ("success", "stopped", "timeout")
    return verdicts((True, -10, 1), (True, NAN, 3), (False, 5, float("inf")), outcome=outcomes)


def test_the_table_has_a_row_an_episode_and_says_what_scores_say(scores):
    table, rows = scores.to_pandas(), list(scores.episodes())
    for name in ("episode_id", "benchmark", "task_id", "policy", "outcome", "success", "safe", "sbu", "vsi"):
        values = [None if missing else value for value, missing in zip(table[name], table[name].isna(), strict=True)]
        assert values == [getattr(row, name) for row in rows]
    assert table["no_verdict"].fillna("").tolist() == ["", "stopped_before_violation", ""]
    assert table["counted"].tolist() == [True, False, True]
    assert table["worst_spec"].fillna("").tolist() == [row.worst_spec or "" for row in rows]
    assert table["state.force"].tolist() == ["active", "inactive", "active"]
    assert table["state.tilt"].tolist() == ["active", "active", "vacuous"]
    assert table["rho.force"].tolist()[::2] == [-10, 5]
    assert table["depth.force"].tolist()[::2] == [10 / 500, 0]


def test_what_has_no_value_is_missing_in_the_table_and_never_zero():
    table = verdicts((True, NAN, float("inf")), (True, -10, 1)).to_pandas()
    for name in ("rho.force", "depth.force", "rho.tilt", "depth.tilt", "rho_min", "worst_spec"):
        assert table[name].isna().tolist()[0]
    for name in ("first_violation_step", "first_violation_spec"):
        assert table[name].isna().tolist() == [True, False]
    assert table["first_violation_step"].dtype == "Int64"
    assert table["first_violation_step"].tolist()[1] == 3


def test_a_table_of_no_episodes_has_the_same_columns_and_types():
    empty, some = verdicts().to_pandas(), verdicts((True, -1, 1)).to_pandas()
    assert len(empty) == 0
    assert list(empty.columns) == list(some.columns)
    for name in ("safe", "vsi", "first_violation_step", "rho.force"):
        assert empty[name].dtype == some[name].dtype
    assert np.isnan(empty["vsi"].mean())


def test_without_the_library_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(SafevlaError, match=re.escape(install_command("pandas"))):
        verdicts((True, 1, 1)).to_pandas()


# As sequences and in notebooks


def test_scores_iterate_and_are_indexed_by_place_id_and_slice(scores):
    assert list(scores) == list(scores.episodes()) == [scores[0], scores[1], scores[-1]]
    assert scores[scores.episode_id[1]] == scores[1]
    assert scores[1:].episode_id == scores.episode_id[1:]
    for key, error in ((3, IndexError), ("elsewhere", KeyError)):
        with pytest.raises(error):
            scores[key]


def test_what_a_notebook_shows_is_short_and_escaped():
    scores = verdicts((True, -10, 1), (True, 5, 3), policy="<b>")
    for value in (scores, scores[0], cells(scores)):
        assert len(repr(value)) < 400
    assert scores[0]._repr_html_().startswith("<table>")
    assert "<b>" not in scores[0]._repr_html_()
    assert ">-10<" in scores[0]._repr_html_()


def test_what_a_notebook_shows_of_an_episode_without_a_verdict_says_why(scores):
    html = scores[1]._repr_html_()
    assert describe_reason(scores[1].no_verdict) in html
    assert NO_VALUE in html
