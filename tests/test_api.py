"""The public names: all there and none heavy."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import safevla_bench


def test_every_public_name_is_there():
    for name in safevla_bench.__all__:
        assert getattr(safevla_bench, name) is not None


def test_type_checkers_are_told_the_same_names():
    tree = ast.parse(Path(safevla_bench.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    assert [alias.asname for node in tree.body for alias in node.names] == safevla_bench.__all__


def test_dir_lists_the_public_names_and_nothing_else():
    assert dir(safevla_bench) == sorted(safevla_bench.__all__)


def test_importing_the_package_imports_nothing_heavy():
    code = (
        "import sys, safevla_bench, safevla_bench.cli; print(sorted(set(sys.modules) & {'numpy', 'scipy', 'pyarrow'}))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
