"""The public names: all there and none heavy; the table of scores as a data frame."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import safevla_bench
from report.scenes import NAN, verdicts
from safevla_bench.errors import SafevlaError
from safevla_bench.judging.metrics import cells
from safevla_bench.plugins import install_command


def test_every_public_name_is_there():
    for name in safevla_bench.__all__:
        assert getattr(safevla_bench, name) is not None


def test_type_checkers_are_told_the_same_names():
    tree = ast.parse(Path(safevla_bench.__file__).read_text(encoding="utf-8"))
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    imported = {alias.asname for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert imported | {"__version__"} == set(safevla_bench.__all__)


def test_dir_lists_the_public_names_and_nothing_else():
    assert dir(safevla_bench) == sorted(safevla_bench.__all__)


def test_importing_the_package_imports_nothing_heavy():
    code = (
        "import sys, safevla_bench, safevla_bench.cli; print(sorted(set(sys.modules) & {'numpy', 'scipy', 'pyarrow'}))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"


# Scores.to_pandas


def test_the_table_has_a_row_an_episode_and_says_what_scores_say():
    made = verdicts((True, -10, 1), (True, NAN, 3), (False, 5, float("inf")), outcome=("success", "stopped", "timeout"))
    table = made.to_pandas()
    rows = list(made.episodes())
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
    none, some = verdicts().to_pandas(), verdicts((True, -1, 1)).to_pandas()
    assert len(none) == 0
    assert list(none.columns) == list(some.columns)
    for name in ("safe", "vsi", "first_violation_step", "rho.force"):
        assert none[name].dtype == some[name].dtype
    assert np.isnan(none["vsi"].mean())


def test_without_pandas_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(SafevlaError, match=re.escape(install_command("pandas"))):
        verdicts((True, 1, 1)).to_pandas()


def test_polars_has_the_same_table_with_null_where_there_is_no_value():
    polars = pytest.importorskip("polars")
    made = verdicts((True, -10, 1), (True, NAN, 3), (False, 5, float("inf")), outcome=("success", "stopped", "timeout"))
    ours, theirs = made.to_polars(), made.to_pandas()
    assert ours.columns == list(theirs.columns)
    assert ours["safe"].to_list() == [False, None, True]
    assert ours["rho.force"].to_list() == [-10, None, 5]
    assert ours["first_violation_step"].dtype == polars.Int64
    assert verdicts().to_polars().schema == ours.schema


def test_without_polars_the_remedy_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(SafevlaError, match=re.escape(install_command("polars"))):
        verdicts((True, 1, 1)).to_polars()


# Scores as a sequence


def test_scores_iterate_and_are_indexed_by_place_id_and_slice():
    made = verdicts((True, -10, 1), (True, 5, 3))
    assert list(made) == list(made.episodes()) == [made[0], made[-1]]
    assert made[made.episode_id[1]] == made[1]
    assert made[1:].episode_id == made.episode_id[1:]
    for key, error in ((2, IndexError), ("elsewhere", KeyError)):
        with pytest.raises(error):
            made[key]


def test_cells_are_found_by_policy_suite_or_both():
    made = cells(replace(verdicts((True, -10, 1), (True, 5, 3)), policy=("a", "b")))
    assert made["a"] is made[0]
    assert made["b", made[1].suite] is made[1]
    with pytest.raises(KeyError, match="2 cells fit"):
        made[made[0].suite]


def test_what_a_notebook_shows_is_short_and_escaped():
    made = verdicts((True, -10, 1), (True, 5, 3), policy="<b>")
    for value in (made, made[0], cells(made), cells(made)[0]):
        assert len(repr(value)) < 400
        assert value._repr_html_().startswith("<table>")
        assert "<b>" not in value._repr_html_()
