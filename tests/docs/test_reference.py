"""The reference on the site is made from code: what code has, it names."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import click
import pytest

from safevla_bench.cli import safevla

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_reference", ROOT / "docs" / "site_reference.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_every_key_and_public_name_has_its_place(reference):
    pages = reference.build_pages()  # raises where one has none
    assert "`pose_valid`" in pages["record"] or "`contacts`" in pages["record"]
    assert "`requires_all`" in pages["files"]


def test_a_key_without_a_meaning_ends_the_build(reference, monkeypatch):
    monkeypatch.delitem(reference.KEYS["SpecRow"], "severe")
    with pytest.raises(ValueError, match=r"SpecRow\.severe"):
        reference.files_page()


def test_a_public_name_that_no_heading_has_ends_the_build(reference, monkeypatch):
    monkeypatch.setitem(reference.API, "Judge", ())
    with pytest.raises(ValueError, match="judge"):
        reference.api_page()


def test_every_option_of_every_command_is_on_its_page(reference):
    pages = reference.command_pages()
    context = click.Context(safevla)
    for name in safevla.list_commands(context):
        for parameter in safevla.get_command(context, name).params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                assert parameter.opts[0] in pages[name]


@pytest.mark.parametrize("text", ["a [b] *c* _d_ <e> | f", "plain"])
def test_help_is_shown_as_it_is(reference, text):
    from markdown_it import MarkdownIt

    shown = MarkdownIt().renderInline(reference.escape_markdown(text))
    assert shown.replace("&lt;", "<").replace("&gt;", ">") == text
