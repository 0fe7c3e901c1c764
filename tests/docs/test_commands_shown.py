"""Every command that a page shows exists under that name, with those options."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from safevla_bench.cli import safevla

ROOT = Path(__file__).parents[2]
PATTERNS = ("docs/*.md", "docs/*/*.md", "docs/tutorials/*.ipynb", "examples/*.sh", "README.md", "CONTRIBUTING.md",
            ".github/ISSUE_TEMPLATE/*.yml")  # fmt: skip
PAGES = [path for pattern in PATTERNS for path in sorted(ROOT.glob(pattern))]


def read_text(page: Path) -> str:
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".ipynb":
        text = "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
    return re.sub(r"\\\n\s*", " ", text)


def list_commands(text: str) -> Iterator[list[str]]:
    lines = re.findall(r"^\s*(?:\S*/)?safevla ([a-z].*)$", text, re.M)
    inline = [command.replace("\n", " ") for command in re.findall(r"`safevla ([a-z][^`]*)`", text)]
    for command in (*lines, *inline):
        try:
            words = shlex.split(command.partition(" | ")[0], comments=True)
        except ValueError:  # a sentence that begins a line with the word
            continue
        if words and words[0].isalpha():
            yield words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_shows_commands_and_options_that_exist(page):
    context = click.Context(safevla)
    for name, *words in list_commands(read_text(page)):
        assert name in safevla.list_commands(context)
        parameters = safevla.get_command(context, name).params
        options = [option for option in parameters if isinstance(option, click.Option) and not option.hidden]
        spellings = {spelling for option in options for spelling in (*option.opts, *option.secondary_opts)}
        typed = {word.partition("=")[0].rstrip("…].,") for word in words if word.startswith("--")}
        assert typed - spellings - {"--", ""} == set(), f"safevla {name}"


def test_an_option_that_does_not_exist_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("```sh\nsafevla score runs/mine --no-such-option\n```\n", encoding="utf-8")
    with pytest.raises(AssertionError, match="safevla score"):
        test_a_page_shows_commands_and_options_that_exist(page)
