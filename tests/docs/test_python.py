"""The examples in docs/ give what the pages say."""

from __future__ import annotations

import doctest

import pytest


@pytest.mark.parametrize(("page", "least"), [("python.md", 10), ("figures.md", 5)])
def test_the_examples_run(monkeypatch, request, page, least):
    monkeypatch.chdir(request.config.rootpath)
    ran = doctest.testfile(str(request.config.rootpath / "docs" / page), module_relative=False)
    assert ran.attempted > least
    assert ran.failed == 0
