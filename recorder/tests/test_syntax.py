"""The package keeps to Python 3.8, imports no simulator until it is used, and needs NumPy alone."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import safevla_recorder

PACKAGE = Path(safevla_recorder.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
NEWER = re.compile(
    r"slots=True|kw_only=|strict=True|removeprefix|removesuffix|functools import cache\b|datetime import UTC"
)
"""Calls that Python 3.8 does not know."""
FOREIGN = ("mujoco", "robosuite", "libero", "robocasa", "safevla_bench", "msgspec", "pyarrow", "scipy", "torch")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_a_module_is_python_3_8(path):
    text = path.read_text(encoding="utf-8")
    ast.parse(text, feature_version=(3, 8))
    newer = NEWER.search(text)
    assert not newer, newer


def test_importing_every_module_imports_numpy_alone():
    names = [path.relative_to(PACKAGE.parent).with_suffix("").as_posix().replace("/", ".") for path in MODULES]
    code = "import sys; known = set(sys.modules)\n"
    code += "".join(f"import {name[: -len('.__init__')] if name.endswith('.__init__') else name}\n" for name in names)
    code += f"print(sorted(set({FOREIGN!r}) & set(sys.modules)))"
    process = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    assert process.stdout.strip() == "[]"
