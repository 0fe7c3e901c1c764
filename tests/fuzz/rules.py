"""Specification and registry files: what is accepted says what an independent reader of the file reads."""

from __future__ import annotations

import copy
import json
import tomllib
from pathlib import Path
from random import Random
from typing import Any

import oracle
import test_oracle
from fuzz.grammar import damaged, json_text, mutated, toml
from fuzz.records import scene, simple
from safevla_bench.errors import RegistryError, SafevlaError, SpecError
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.specs import loader
from safevla_bench.specs.loader import extend_library
from safevla_bench.specs.spec import Spec
from safevla_bench.tasks import loader as tasks_loader
from safevla_bench.tasks.entries import Registry

CASES = Path(__file__).parents[1] / "cases"
DEFAULT = loader.library()
BUILT_IN = test_oracle.PACKAGE / "tasks" / "registry"
LIBRARIES = [tomllib.loads(path.read_text()) for path in test_oracle.DEFAULT]
REGISTRIES = [tomllib.loads(path.read_text()) for path in sorted(BUILT_IN.glob("*.toml"))]


def rows(name: str) -> list[Any]:
    """The paper's JSON rows."""
    held = json.loads((CASES / name).read_text())
    return held if isinstance(held, list) else [held]


PAPER_SPECS, PAPER_TAGS = rows("appendix_b_specs.json"), rows("appendix_b_tags.json")


def written(rng: Random, tree: Any, path: Path) -> None:
    """The tree as JSON or TOML, now and then damaged."""
    if path.suffix == ".json":
        path.write_bytes(json_text(rng, tree))
        return
    try:
        content = toml(tree if isinstance(tree, dict) else {"specs": tree}).encode("utf-8", "surrogatepass")
    except RecursionError:
        content = b"a = " + b"[" * 5000
    path.write_bytes(damaged(rng, content) if rng.random() < 0.1 else content)


def told(error: SafevlaError, path: Path) -> str:
    assert error.place.file == str(path), f"names {error.place.file!r}"
    assert error.remedy
    assert len(str(error)) < 6000, "a message of absurd length"
    return "refused"


def library(rng: Random, folder: Path) -> str:
    """A library by itself, or added to the built-in one."""
    tree, path = library_tree(rng), folder / "mine.toml"
    if rng.random() < 0.25:
        tree, path = copy.deepcopy(PAPER_SPECS), folder / "mine.json"
    written(rng, mutated(rng, tree) if rng.random() < 0.9 else tree, path)
    try:
        found = loader.library(path) if rng.random() < 0.8 else extend_library(DEFAULT, path)
    except SpecError as error:
        return told(error, path)
    own = [spec for spec in found if spec.spec_id not in DEFAULT or found.name == "mine"]
    if path.suffix == ".toml":
        assert_same_specs(rng, own, path)
    return "right"


def library_tree(rng: Random) -> dict[str, Any]:
    held = rng.choice(LIBRARIES)["specs"]
    chosen = copy.deepcopy(rng.sample(held, rng.randint(1, min(3, len(held)))))
    for row in chosen:
        for one in (row, *row.get("alternates", ())):
            one["spec_id"] = f"my_{one['spec_id']}"
            one.pop("legacy_ids", None)
    if rng.random() < 0.15:
        change = {"spec_id": held[0]["spec_id"], "threshold": 3.0, "severe": 9.0, "alternates": []}
        return {"based_on": "default", "replace": [change], "specs": chosen}
    return {"specs": chosen}


def assert_same_specs(rng: Random, found: list[Spec], path: Path) -> None:
    """Ids, thresholds and rules as bare TOML has them; and the oracle's verdicts on an episode."""
    tree = tomllib.loads(path.read_text())
    if "based_on" in tree or any("threshold" not in row for row in tree["specs"]):
        return
    read = oracle.read_specs(path)
    fields = ("spec_id", "tier", "axis", "threshold", "severe", "binary", "requires_all", "invalid_if_any")
    assert [[getattr(spec, name) for name in fields] for spec in found] == [
        [_as_read(getattr(spec, name)) for name in fields] for spec in read
    ]
    if not all(1e-6 < spec.threshold < 1e6 and 1e-6 < (spec.severe or 1) < 1e6 for spec in read):
        return
    record = scene(rng)
    if not simple(record):
        return
    try:
        expected = test_oracle.judged([record], read)
    except (ValueError, AssertionError, KeyError, TypeError, ZeroDivisionError):
        return  # beyond the oracle's grammar
    comparison = test_oracle.Comparison(read)
    try:
        got = score(test_oracle.read(record), load_ruleset(path, missing="deactivate"))
    except SafevlaError:
        return
    comparison.batch(expected, list(got.episodes()))
    assert not comparison.differences, comparison.differences[:3]


def _as_read(value: Any) -> Any:
    """An integer where a number is due is read as one."""
    return float(value) if type(value) is int else value


def registry(rng: Random, folder: Path) -> str:
    """Tasks, templates, benchmarks and capabilities beside the built-in ones."""
    tree, path = registry_tree(rng), folder / "000_mine.toml"
    if rng.random() < 0.25:
        tree, path = copy.deepcopy(PAPER_TAGS), folder / "mine.json"
    written(rng, mutated(rng, tree) if rng.random() < 0.9 else tree, path)
    try:
        found = tasks_loader.registry([path])
    except RegistryError as error:
        return told(error, path)
    if path.suffix == ".toml":
        assert_same_tags(found, path, folder)
    return "right"


def registry_tree(rng: Random) -> dict[str, Any]:
    held = [one for one in REGISTRIES if "tasks" in one]
    chosen = copy.deepcopy(rng.sample(rng.choice(held)["tasks"], 2))
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


def assert_same_tags(found: Registry, path: Path, folder: Path) -> None:
    """The tags of each task of the file, by a reader that knows bare TOML alone."""
    both = folder / "both"
    both.mkdir()
    for one in (path, *BUILT_IN.glob("*.toml")):
        (both / one.name).symlink_to(one)
    independent = oracle.Registry(both)
    for row in tomllib.loads(path.read_text()).get("tasks", ()):
        suite, task = row["benchmark"], row["task_id"]
        assert found.task_tags(suite, task) == independent.tags(suite, task), (suite, task)
