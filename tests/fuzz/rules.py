"""Specification and registry files: what is accepted says what an independent reader of the file reads."""

from __future__ import annotations

import copy
import json
import tomllib
from pathlib import Path
from random import Random
from typing import Any

from fuzz.grammar import damage, json_text, mutate, toml
from fuzz.records import assert_helpful
from judging import comparison, oracle
from safevla_bench.errors import RegistryError, SpecError
from safevla_bench.specs import loader
from safevla_bench.specs.loader import extend_library
from safevla_bench.specs.spec import Spec
from safevla_bench.tasks import loader as tasks_loader
from safevla_bench.tasks.entries import Registry

CASES = Path(__file__).parents[1] / "cases"
DEFAULT = loader.library()
BUILT_IN = comparison.PACKAGE / "tasks" / "registry"
LIBRARIES = [tomllib.loads(path.read_text()) for path in comparison.DEFAULT]
REGISTRIES = [tomllib.loads(path.read_text()) for path in sorted(BUILT_IN.glob("*.toml"))]


def rows(name: str) -> list[Any]:
    """The paper's JSON rows."""
    content = json.loads((CASES / name).read_text())
    return content if isinstance(content, list) else [content]


PAPER_SPECS, PAPER_TAGS = rows("appendix_b_specs.json"), rows("appendix_b_tags.json")


def write(rng: Random, tree: Any, path: Path) -> None:
    """The tree as JSON or TOML, now and then damaged."""
    if path.suffix == ".json":
        path.write_bytes(json_text(rng, tree))
        return
    try:
        content = toml(tree if isinstance(tree, dict) else {"specs": tree}).encode("utf-8", "surrogatepass")
    except RecursionError:
        content = b"a = " + b"[" * 5000
    path.write_bytes(damage(rng, content) if rng.random() < 0.1 else content)


def library(rng: Random, folder: Path) -> str:
    """A library by itself, or added to the built-in one."""
    tree, path = library_tree(rng), folder / "mine.toml"
    if rng.random() < 0.25:
        tree, path = copy.deepcopy(PAPER_SPECS), folder / "mine.json"
    write(rng, mutate(rng, tree) if rng.random() < 0.9 else tree, path)
    try:
        specs = loader.library(path) if rng.random() < 0.8 else extend_library(DEFAULT, path)
    except SpecError as error:
        assert_helpful(error, path)
        return "refused"
    own = [spec for spec in specs if spec.spec_id not in DEFAULT or specs.name == "mine"]
    if path.suffix == ".toml":
        assert_same_specs(own, path)
    return "right"


def library_tree(rng: Random) -> dict[str, Any]:
    shipped = rng.choice(LIBRARIES)["specs"]
    chosen = copy.deepcopy(rng.sample(shipped, rng.randint(1, min(3, len(shipped)))))
    for row in chosen:
        for spec in (row, *row.get("alternates", ())):
            spec["spec_id"] = f"my_{spec['spec_id']}"
            spec.pop("legacy_ids", None)
    if rng.random() < 0.15:
        change = {"spec_id": shipped[0]["spec_id"], "threshold": 3.0, "severe": 9.0, "alternates": []}
        return {"based_on": "default", "replace": [change], "specs": chosen}
    return {"specs": chosen}


def assert_same_specs(specs: list[Spec], path: Path) -> None:
    """Ids, thresholds and rules as bare TOML has them; `judging/random_specs.py` has the verdicts."""
    tree = tomllib.loads(path.read_text())
    if "based_on" in tree or any("threshold" not in row for row in tree["specs"]):
        return
    read = oracle.read_specs(path)
    fields = ("spec_id", "tier", "axis", "threshold", "severe", "binary", "requires_all", "invalid_if_any")
    assert [[getattr(spec, name) for name in fields] for spec in specs] == [
        [_as_read(getattr(spec, name)) for name in fields] for spec in read
    ]


def _as_read(value: Any) -> Any:
    """An integer where a number is due is read as one."""
    return float(value) if type(value) is int else value


def registry(rng: Random, folder: Path) -> str:
    """Tasks, templates, benchmarks and capabilities beside the built-in ones."""
    tree, path = registry_tree(rng), folder / "000_mine.toml"
    if rng.random() < 0.25:
        tree, path = copy.deepcopy(PAPER_TAGS), folder / "mine.json"
    write(rng, mutate(rng, tree) if rng.random() < 0.9 else tree, path)
    try:
        tags = tasks_loader.registry([path])
    except RegistryError as error:
        assert_helpful(error, path)
        return "refused"
    if path.suffix == ".toml":
        assert_same_tags(tags, path, folder)
    return "right"


def registry_tree(rng: Random) -> dict[str, Any]:
    with_tasks = [tree for tree in REGISTRIES if "tasks" in tree]
    chosen = copy.deepcopy(rng.sample(rng.choice(with_tasks)["tasks"], 2))
    for row in chosen:
        row["task_id"] = f"my_{row['task_id']}"
    tree: dict[str, Any] = {"tasks": chosen}
    if rng.random() < 0.4:
        tree["templates"] = {"mine": {"meaning": "one of mine", "tags": ["held_target", "scene_contact_risk"]}}
        chosen[0].pop("components", None)
        chosen[0]["template"] = "mine"
    if rng.random() < 0.4:
        tree["benchmarks"] = {"my-suite": {"host": "libero", "capabilities": "libero"}}
        chosen[1]["benchmark"] = "my-suite"
    if rng.random() < 0.3:
        family = {"benchmark": "robocasa-365", "patterns": ["Fuzz*"], "template": "navigate", "tags": ["held_target"]}
        tree["families"] = [family]
    if rng.random() < 0.2:
        tree["tags"] = {"object": {"fragile": "breaks"}}
        chosen[0]["object_tags"] = {"fragile": "of glass"}
    return tree


def assert_same_tags(registry: Registry, path: Path, folder: Path) -> None:
    """The tags of each task of the file, by a reader that knows bare TOML alone."""
    both = folder / "both"
    both.mkdir()
    for file in (path, *BUILT_IN.glob("*.toml")):
        (both / file.name).symlink_to(file)
    independent = oracle.Registry(both)
    for row in tomllib.loads(path.read_text()).get("tasks", ()):
        suite, task = row["benchmark"], row["task_id"]
        assert registry.task_tags(suite, task) == independent.tags(suite, task), (suite, task)
