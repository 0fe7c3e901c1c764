"""The example of docs/tables.md runs."""

from __future__ import annotations

import doctest


def test_the_example_runs(monkeypatch, request):
    monkeypatch.chdir(request.config.rootpath)
    ran = doctest.testfile(str(request.config.rootpath / "docs" / "tables.md"), module_relative=False)
    assert ran.attempted > 5
    assert ran.failed == 0
