"""The scripts that make pages of the documentation: their command line, and tables in Markdown."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path


def run_script(
    arguments: Sequence[str], page: Path, build_page: Callable[[], str], update: Callable[[], None] | None = None
) -> int:
    """Write the page, or with --check compare it alone; returns 1 if it is out of date then, else 0.

    `update`, if there is one, is what --update does before the page is written.
    """
    parser = argparse.ArgumentParser()
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--check", action="store_true", help="write nothing; exit code 1 if the page is out of date")
    if update is not None:
        choice.add_argument("--update", action="store_true", help="look up what is new first")
    chosen = parser.parse_args(arguments)
    if chosen.check:
        is_current = page.exists() and page.read_text(encoding="utf-8") == build_page()
        if not is_current:
            print(f"{page.name} is out of date: run python {sys.argv[0]}", file=sys.stderr)
        return 0 if is_current else 1
    if update is not None and chosen.update:
        update()
    page.write_text(build_page(), encoding="utf-8")
    return 0


def format_table(heads: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a table in Markdown."""
    names = list(heads)
    lines = [names, *([str(cell).replace("|", "\\|") for cell in row] for row in rows)]
    first, *rest = (f"| {' | '.join(line)} |" for line in lines)
    return "\n".join([first, "|---" * len(names) + "|", *rest])
