"""LaTeX tables fit the page of a two-column paper, and TeX itself sets them."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from golden_commands import FOLDER
from report.example_tables import demo_tables, paper_tables
from safevla_bench.report.render.latex import render_latex
from safevla_bench.report.tables.cells import Roster
from safevla_bench.report.tables.columns import DASH, drop_empty_columns
from safevla_bench.report.tables.published import paper_policies
from safevla_bench.report.tables.table import Cell, Column, Table

NARROW = Table("t", (Column("Policy", numeric=False), Column("SR %")), ((Cell("mine"), Cell("90.0", 90.0)),))
PREAMBLE = r"""\documentclass[twocolumn]{article}
\usepackage{booktabs,graphicx}
\setlength{\textwidth}{487pt}\setlength{\columnsep}{19pt}
\begin{document}
"""


@pytest.fixture(scope="module")
def shipped() -> list[Table]:
    beside_paper = demo_tables(["main", "violations", "tasks"], Roster(published=paper_policies()))
    of_demo = msgspec.json.decode((FOLDER / "tables" / "tables.json").read_bytes(), type=list[Table])
    return [*of_demo, *beside_paper, *paper_tables()]


def widened(table: Table, times: int) -> Table:
    head, *others = table.columns
    return replace(table, columns=(head, *others * times), rows=tuple((row[0], *row[1:] * times) for row in table.rows))


def test_a_table_takes_both_columns_only_where_one_is_too_narrow():
    assert r"\begin{table}" in render_latex(NARROW)
    assert r"\begin{table*}" in render_latex(widened(NARROW, 12))


def test_a_column_of_long_texts_is_wrapped():
    table = replace(NARROW, rows=((Cell("a_policy " * 9), Cell("90.0", 90.0)),))
    assert r"{tabular}{p{0.35\linewidth}r}" in render_latex(table)
    assert r"{tabular}{lr}" in render_latex(NARROW)


def test_a_column_without_any_value_vanishes_and_a_note_names_it(shipped: list[Table]):
    heads = (*NARROW.columns, Column("Training", numeric=False), Column("tilt"), Column("VSI"), Column("SBU %"))
    empty = (Cell.dash(), Cell.dash(), Cell.dash("not known"))
    rows = ((*NARROW.rows[0], *empty, Cell("1.0", 1.0)), (Cell("b"), Cell.dash(), *empty, Cell.dash()))
    table = Table("t", heads, rows, (DASH,))
    printed = render_latex(table)
    assert r"Policy & SR \% & SBU \% \\" in printed
    assert "(not known)" in printed
    assert render_latex(replace(table, rows=())).count("Training") == 1
    for shown in shipped:
        columns = list(zip(*(drop_empty_columns(shown).rows), strict=True))[1:]
        assert all(any(cell.text not in ("", "—") for cell in column) for column in columns)


LONG = replace(NARROW, rows=NARROW.rows * 200, notes=("a note " * 40,))


def test_a_long_table_keeps_every_row_in_parts_of_a_page_under_one_number():
    parts = render_latex(LONG).split(r"\begin{table}")[1:]
    rows = [part.count("mine &") for part in parts]
    assert sum(rows) == 200
    assert max(rows) <= 36
    assert [r"\addtocounter{table}{-1}" in part for part in parts] == [False, *[True] * (len(parts) - 1)]
    assert [" (continued)}" in part for part in parts] == [False, *[True] * (len(parts) - 1)]
    assert [r"\footnotesize" in part for part in parts] == [*[False] * (len(parts) - 1), True]
    wrapped = render_latex(replace(LONG, rows=((Cell("a_policy " * 9), Cell("90.0", 90.0)),) * 40))
    assert wrapped.count(r"\begin{table}") > render_latex(replace(LONG, rows=LONG.rows[:40])).count(r"\begin{table}")


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex, booktabs and graphicx")
def test_tex_sets_every_shipped_table_within_its_columns(shipped: list[Table], tmp_path: Path):
    tables = "\\clearpage\n".join(render_latex(table) for table in [NARROW, LONG, *shipped])
    (tmp_path / "paper.tex").write_text(f"{PREAMBLE}{tables}\\end{{document}}\n")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace")
    assert result.returncode == 0, result.stdout[-2000:]
    assert re.findall(r"Overfull \\hbox.*", result.stdout) == []
    assert "Float too large" not in result.stdout  # TeX cuts off what is below the page
    assert (tmp_path / "paper.pdf").is_file()
