"""The outputs that docs/comparing.md shows are what the commands print."""

from __future__ import annotations

import importlib.util


def test_the_outputs_on_the_page_are_those_of_the_commands(monkeypatch, request):
    module_spec = importlib.util.spec_from_file_location(
        "compare", request.config.rootpath / "docs" / "tools" / "compare.py"
    )
    pages = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(pages)
    monkeypatch.setenv("COLUMNS", pages.WIDTH)
    shown = pages.PAGE.read_text(encoding="utf-8")
    assert len(pages.SHOWN.findall(shown)) >= 2
    assert pages.build_page() == shown, "run python docs/tools/compare.py"
