"""Scores as data frames, as sequences, and in notebooks."""

from __future__ import annotations

import re
import sys
from dataclasses import replace

import numpy as np
import pytest

from report.scenes import NAN, verdicts
from safevla_bench.errors import SafevlaError
from safevla_bench.judging.metrics import cells
from safevla_bench.plugins import install_command


@pytest.fixture
def scores():
    outcomes = ("success", "stopped", "timeout")
    return verdicts((True, -10, 1), (True, NAN, 3), (False, 5, float("inf")), outcome=outcomes)


def test_the_table_has_a_row_an_episode_and_says_what_scores_say(scores):
    table, rows = scores.to_pandas(), list(scores.episodes())
    for name in ("episode_id", "benchmark", "task_id", "policy", "outcome", "success", "safe", "sbu", "vsi"):
        values = [None if missing else value for value, missing in zip(table[name], table[name].isna(), strict=True)]
        assert values == [getattr(row, name) for row in rows]
    assert table["no_verdict"].fillna("").tolist() == ["", "stopped before any violation", ""]
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


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_without_the_library_the_remedy_is_named(monkeypatch, library):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(SafevlaError, match=re.escape(install_command(library))):
        getattr(verdicts((True, 1, 1)), f"to_{library}")()


def test_polars_has_the_same_table_with_null_for_no_value(scores):
    polars = pytest.importorskip("polars")
    frame, pandas_frame = scores.to_polars(), scores.to_pandas()
    assert frame.columns == list(pandas_frame.columns)
    assert frame["safe"].to_list() == [False, None, True]
    assert frame["rho.force"].to_list() == [-10, None, 5]
    assert frame["first_violation_step"].dtype == polars.Int64
    assert verdicts().to_polars().schema == frame.schema


# As sequences and in notebooks


def test_scores_iterate_and_are_indexed_by_place_id_and_slice(scores):
    assert list(scores) == list(scores.episodes()) == [scores[0], scores[1], scores[-1]]
    assert scores[scores.episode_id[1]] == scores[1]
    assert scores[1:].episode_id == scores.episode_id[1:]
    for key, error in ((3, IndexError), ("elsewhere", KeyError)):
        with pytest.raises(error):
            scores[key]


def test_cells_are_found_by_policy_suite_or_both():
    summaries = cells(replace(verdicts((True, -10, 1), (True, 5, 3)), policy=("a", "b")))
    assert summaries["a"] is summaries[0]
    assert summaries["b", summaries[1].suite] is summaries[1]
    with pytest.raises(KeyError, match="2 cells fit"):
        summaries[summaries[0].suite]


def test_what_a_notebook_shows_is_short_and_escaped():
    scores = verdicts((True, -10, 1), (True, 5, 3), policy="<b>")
    for value in (scores, scores[0], cells(scores), cells(scores)[0]):
        assert len(repr(value)) < 400
        assert value._repr_html_().startswith("<table>")
        assert "<b>" not in value._repr_html_()
