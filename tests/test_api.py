"""The public names: all there, none heavy, and the docstring's example runs."""

from __future__ import annotations

import doctest
import subprocess
import sys

import safevla_bench
import safevla_bench.statistics


def test_every_public_name_is_there_and_is_the_one_of_its_module():
    for name in safevla_bench.__all__:
        assert getattr(safevla_bench, name) is not None
    assert set(safevla_bench._HOME) | {"__version__"} == set(safevla_bench.__all__)


def test_the_examples_run(monkeypatch, request):
    monkeypatch.chdir(request.config.rootpath)
    for module in (safevla_bench, safevla_bench.statistics):
        assert doctest.testmod(module).failed == 0


def test_importing_the_package_imports_nothing_heavy():
    code = (
        "import sys, safevla_bench, safevla_bench.cli; print(sorted(set(sys.modules) & {'numpy', 'scipy', 'pyarrow'}))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
