"""Tables in Markdown, and their place in a page between two marks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path


def format_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield from (f"| {' | '.join(heads)} |", "|---" * len(heads) + "|")
    yield from (f"| {' | '.join(row)} |" for row in rows)
    yield ""


def print_tables(lines: Iterable[str], page: Path | None, name: str) -> None:
    """Print the lines as they come; then put them between the marks of that name in the page, if there is one."""
    printed = []
    for line in lines:
        printed.append(line)
        print(line, flush=True)
    if page:
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        block = "\n".join([begin, *printed]).rstrip("\n") + f"\n{end}"
        page.write_text(re.sub(f"{begin}.*{end}", lambda _: block, page.read_text(), flags=re.S))
