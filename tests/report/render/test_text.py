"""Tables as text and Markdown: aligned, within the width, and never an escape from somebody's file."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from report.scenes import joined, verdicts
from safevla_bench.judging.metrics import aggregate, cells
from safevla_bench.report.render.text import render_markdown, render_text
from safevla_bench.report.tables.cells import headline_table
from safevla_bench.report.tables.table import Cell, Column, Table
from safevla_bench.text import escape_controls

HOSTILE = "\x1b[31mred\x1b]0;title\x07\u202eevil\r\n\x9b\ud800|*<b>`"


def table(*names: str) -> Table:
    scores = joined(*(verdicts((True, 1, 1), (False, -5, 1), policy=name) for name in names))
    return headline_table(cells(scores), aggregate(scores))


def test_columns_are_aligned_and_numbers_stand_at_the_right():
    lines = render_text(table("short", "a-longer-name"), width=200).splitlines()
    head, rule = lines[2], lines[3]
    rows = [line for line in lines if line.startswith(("short", "a-longer-name"))]
    ends = [match.end() for match in re.finditer("-+", rule)]
    assert len(rows) == 2
    assert head.index("Suite") == rule.index(" -") + 1
    assert all(line[end - 1] != " " and line[end : end + 1] in ("", " ") for line in [head, *rows] for end in ends[2:])


def test_long_names_are_wrapped_and_numbers_are_not_cut():
    printed = render_text(table("openpi:" + "checkpoint-" * 20, "x" * 200), width=120)
    assert max(cell_len(line) for line in printed.splitlines()[2:8]) <= 120
    assert "50.0" in printed
    assert printed.replace("\n", "").replace(" ", "").count("x") >= 200 - 5


def test_a_narrow_terminal_cuts_nothing():
    printed = render_text(table("policy-with-a-name"), width=20)
    assert "9.5–90.5" in printed
    assert "…" not in printed


def test_wide_characters_are_measured_as_the_terminal_does():
    printed = render_text(table("日本語の方策", "b"), width=200).splitlines()
    starts = {cell_len(line[: line.index("libero-goal")]) for line in printed if "libero-goal" in line}
    assert len(starts) == 1


@given(st.text(max_size=40))
def test_inert_text_has_no_character_that_acts(name):
    shown = escape_controls(name)
    assert all(c.isprintable() or unicodedata.category(c) == "Zs" for c in shown)
    assert not set(shown) & set("\x1b\n\r\x07\u202e\u2066\u200b")
    shown.encode()


def test_ordinary_text_stays_as_it_is():
    assert escape_controls("π0.5 – naïve 方策") == "π0.5 – naïve 方策"


@pytest.mark.parametrize("write", [render_text, render_markdown])
def test_hostile_names_reach_neither_terminal_nor_page(write):
    shown = write(table(HOSTILE, "b"))
    assert not set(shown) & set("\x1b\x07\r\x9b\u202e\ud800")
    assert "\\x1b" in shown.replace("\\\\", "\\").replace("\n", "")


def test_markdown_escapes_what_would_mark_up():
    shown = render_markdown(Table("t", (Column("a|b", numeric=False),), ((Cell("<img>|*x*_y_`z`[q](u)"),),)))
    (row,) = [line for line in shown.splitlines() if "img" in line]
    assert row == r"| \<img\>\|\*x\*\_y\_\`z\`\[q\](u) |"


def test_markdown_has_as_many_cells_in_every_row():
    lines = [line for line in render_markdown(table("a", "b")).splitlines() if line.startswith("|")]
    assert len({line.replace("\\|", "").count("|") for line in lines}) == 1


def test_an_empty_table_is_a_table():
    assert "n" in render_text(headline_table([]))
    assert render_markdown(headline_table([])).count("\n") >= 3
