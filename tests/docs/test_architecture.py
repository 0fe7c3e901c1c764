"""Every path and name on the page of the architecture exists, and its lists are those of the code."""

from __future__ import annotations

import importlib
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "explanation" / "architecture.md").read_text(encoding="utf-8")
PACKAGES = (ROOT / "src" / "safevla_bench", ROOT / "recorder" / "src" / "safevla_recorder")
TREE = re.findall(r"```text\n(.*?)```", TEXT, re.DOTALL)[1]
CODE = [text for text in re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", TEXT, flags=re.DOTALL)) if " " not in text]
NAMES = sorted({text for text in CODE if re.fullmatch(r"safevla_(bench|recorder)(\.\w+)+", text)})
PATHS = sorted({text for text in CODE if re.fullmatch(r"[\w.*-]+/[\w./*-]*|\w+\.(py|toml|md)", text)})
MADE_BY_RUNS = ("raw/", "archive/part-")


def tree_folders() -> Iterator[Path]:
    """Yield the packages that the page names, with the two roots."""
    root = folder = ROOT
    for line in TREE.splitlines():
        if not line.startswith(" "):
            root = folder = ROOT / line.strip()
            yield root
            continue
        for word in re.findall(r"([\w-]+(?:/[\w-]+)*)/", line):
            top = root / word
            folder = top if top.is_dir() else folder
            yield top if top.is_dir() else folder / word


def has_name(name: str) -> bool:
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            if not hasattr(value, part):
                return False
            value = getattr(value, part)
        return True
    return False


def test_the_page_names_something():
    assert len(NAMES) > 20
    assert len(PATHS) > 20
    assert len(list(tree_folders())) > 40


@pytest.mark.parametrize("name", NAMES)
def test_every_dotted_name_exists(name):
    assert has_name(name)


@pytest.mark.parametrize("path", [path for path in PATHS if not path.startswith(MADE_BY_RUNS)])
def test_every_path_exists(path):
    folders = (ROOT, ROOT / "docs", *PACKAGES, PACKAGES[0] / "signals")
    assert any(any(folder.glob(path.rstrip("/"))) for folder in folders)


def test_the_rooms_of_the_tree_are_those_of_the_packages():
    packages = {path.parent for package in PACKAGES for path in package.rglob("__init__.py")}
    assert set(tree_folders()) == packages


def test_the_layers_are_those_of_the_import_contract():
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    layers = [re.sub(r"[()]", "", layer) for layer in contract["layers"] if layer != "(__main__)"]
    (printed,) = re.findall(r"```layers\n(.*?)```", TEXT, re.DOTALL)
    assert printed.splitlines() == layers
