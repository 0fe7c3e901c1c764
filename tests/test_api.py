"""The public names: all there and none heavy; the table of scores as a data frame."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import safevla_bench
from report.scenes import NAN, verdicts
from safevla_bench.errors import SafevlaError


def test_every_public_name_is_there():
    for name in safevla_bench.__all__:
        assert getattr(safevla_bench, name) is not None


def test_type_checkers_are_told_the_same_names():
    tree = ast.parse(Path(safevla_bench.__file__).read_text(encoding="utf-8"))
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    typed = {alias.asname for statement in block.body for alias in statement.names}
    assert typed | {"__version__"} == set(safevla_bench.__all__)


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
    with pytest.raises(SafevlaError, match=r"safevla-bench\[pandas\]"):
        verdicts((True, 1, 1)).to_pandas()
