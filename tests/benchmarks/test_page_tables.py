"""A benchmark's tables replace those of their page, and nothing else of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest


@pytest.fixture
def page_tables(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    yield __import__("page_tables")
    sys.modules.pop("page_tables")


@pytest.mark.parametrize("last", [[], ["", "3 runs a row."]])
def test_every_line_reaches_the_page(page_tables, tmp_path, last):
    page = tmp_path / "page.md"
    page.write_text("above\n<!-- x: begin -->\nold\n<!-- x: end -->\nbelow\n")
    lines = [*page_tables.format_table(["a", "b"], [["1", "2"]]), *last]
    for _ in range(2):
        page_tables.print_tables(lines, page, "x")
        table = "| a | b |\n|---|---|\n| 1 | 2 |" + ("\n\n\n3 runs a row." if last else "")
        assert page.read_text() == f"above\n<!-- x: begin -->\n{table}\n<!-- x: end -->\nbelow\n"
