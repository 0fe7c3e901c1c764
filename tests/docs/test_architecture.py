"""Every path and name on the page of the architecture exists, and its lists are those of the code."""

from __future__ import annotations

import importlib
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
PACKAGES = (ROOT / "src" / "safevla_bench", ROOT / "recorder" / "src" / "safevla_recorder")
TREE = re.findall(r"```text\n(.*?)```", TEXT, re.DOTALL)[1]
CODE = [text for text in re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", TEXT, flags=re.DOTALL)) if " " not in text]
NAMES = sorted({text for text in CODE if re.fullmatch(r"safevla_(bench|recorder)(\.\w+)+", text)})
PATHS = sorted({text for text in CODE if re.fullmatch(r"[\w.*-]+/[\w./*-]*|\w+\.(py|toml|md)", text)})
MADE_BY_RUNS = ("raw/", "archive/part-")


def tree_folders() -> Iterator[tuple[Path, list[str]]]:
    """Folder -> the modules that the tree lists in it."""
    root, folder = ROOT, ROOT
    for line in TREE.splitlines():
        words = [word for word in line.partition(" and ")[0].split() if word != "·"]
        if not line.startswith(" "):
            root = ROOT / words[0]
        elif words and not words[0].isupper():
            if line[2] != " ":
                folder = root / words.pop(0)
            yield folder, words


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


def module_exists(folder: Path, name: str) -> bool:
    return (folder / f"{name}.py").is_file() or (folder / name / "__init__.py").is_file()


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


def test_every_module_of_the_tree_exists():
    missing = [
        str(folder / name) for folder, names in tree_folders() for name in names if not module_exists(folder, name)
    ]
    assert missing == []


def test_every_module_is_in_the_tree():
    listed = {(folder.resolve(), name) for folder, names in tree_folders() for name in names}
    modules = {
        (path.parent.resolve(), path.stem)
        for package in PACKAGES
        for path in package.rglob("*.py")
        if not path.name.startswith("__")
    }
    assert sorted(map(str, modules - listed)) == []


def test_the_layers_are_those_of_the_import_contract():
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    layers = [re.sub(r"[()]", "", layer) for layer in contract["layers"] if layer != "(__main__)"]
    (shown,) = re.findall(r"```layers\n(.*?)```", TEXT, re.DOTALL)
    assert shown.splitlines() == layers
