"""Help, headings and tables use one term per concept: none of the synonyms that the glossary rejects."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from safevla_bench.cli import safevla

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)


def help_texts(command: click.Command, name: str) -> Iterator[tuple[str, str]]:
    yield name, command.help or ""
    yield from ((f"{name} {option.name}", getattr(option, "help", None) or "") for option in command.params)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for child in command.list_commands(context):
            if found := command.get_command(context, child):
                yield from help_texts(found, f"{name} {child}")


def headings() -> Iterator[tuple[str, str]]:
    pages = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for page in pages.split():
        text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        yield from ((page, line) for line in re.findall(r"^#+ .*$", text, re.MULTILINE))


def table_texts() -> Iterator[tuple[str, str]]:
    """The titles and columns of tables, and the headings of pages."""
    report = ROOT / "src" / "safevla_bench" / "report"
    for path in report.rglob("*.html"):
        yield from ((path.name, text) for text in re.findall(r"<(?:h\d|th|summary)[^>]*>([^<{]+)", path.read_text()))
    for path in report.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in (
                "Column",
                "text_column",
                "tabulate",
                "Table",
            ):
                yield from (
                    (path.name, a.value) for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)
                )


@pytest.mark.parametrize("texts", [lambda: help_texts(safevla, "safevla"), headings, table_texts])
def test_no_rejected_synonym_is_in_help_a_heading_or_a_table(texts):
    glossary = (ROOT / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")
    rejected = [word for _, words in ROW.findall(glossary)[1:] for word in words.strip().split(", ")]
    assert len(rejected) > 20
    pattern = re.compile(rf"\b(?:{'|'.join(map(re.escape, rejected))})s?\b", re.IGNORECASE)
    found = [(place, text) for place, text in texts() if pattern.search(text)]
    assert found == []
