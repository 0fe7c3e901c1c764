"""The examples of docs/python.md give what the page says."""

from __future__ import annotations

import doctest


def test_the_examples_run(monkeypatch, request):
    monkeypatch.chdir(request.config.rootpath)
    ran = doctest.testfile(str(request.config.rootpath / "docs" / "python.md"), module_relative=False)
    assert ran.attempted > 10
    assert ran.failed == 0
