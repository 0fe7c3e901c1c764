"""Records: what is taken is lawful, is judged as the oracle judges it, and survives every other form.

Damage to other forms than text is `archive/test_hostile_files.py`'s.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import math
from pathlib import Path
from random import Random
from typing import Any

import zstandard

from builders import same_bits
from fuzz import lawful
from fuzz.grammar import json_text, mutate, numbers
from judging import comparison, oracle
from judging.random_records import Scene, add_arm
from safevla_bench import archive
from safevla_bench.archive.jsonl import encode_json
from safevla_bench.errors import CollectedError, RecordError, SafevlaError
from safevla_bench.judging.ruleset import Ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.specs.loader import load_library
from safevla_bench.tasks.loader import load_registry
from safevla_bench.trajectory.batch import Batch, select_episodes

LIBRARY, REGISTRY = load_library(), load_registry()
ORACLE = oracle.read_specs(*comparison.DEFAULT)
SUFFIXES = (".jsonl", ".jsonl", ".json", ".jsonl.gz", ".jsonl.zst")
FORMS = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".npz", ".parquet")
COMPRESS = {
    ".gz": lambda content: gzip.compress(content, mtime=0),
    ".zst": lambda content: zstandard.ZstdCompressor(write_checksum=True).compress(content),
}


def scene(rng: Random, number: int = 0) -> dict[str, Any]:
    """A valid record of one or two arms, short more often than long."""
    random_scene = Scene(rng, number)
    random_scene.n = min(random_scene.n, rng.choice([3, 6, 12]))
    tree = random_scene.tree()
    return add_arm(tree, rng.randrange(9)) if rng.random() < 0.25 else tree


def text_form(rng: Random, folder: Path) -> str:
    """A changed record as text, alone or between two good ones, compressed or not."""
    tree = mutate(rng, scene(rng)) if rng.random() < 0.85 else scene(rng)
    line = json_text(rng, tree)
    suffix = rng.choice(SUFFIXES)
    good = [encode_json(comparison.read(scene(rng, 900 + k)), 0) for k in range(2)] if suffix != ".json" else []
    between = bool(good) and b"\n" not in line and rng.random() < 0.5
    content = good[0] + line + b"\n" + good[1] if between else line
    path = folder / f"x{suffix}"
    path.write_bytes(COMPRESS.get(path.suffix, bytes)(content))
    results = list(archive.read_episodes([path]))
    if between:
        assert isinstance(results[0], Batch)
        assert isinstance(results[-1], Batch), "a bad line takes the good one behind it along"
        results = results[1:-1]
    assert_as_the_law_says(results, line, path)
    return accept([result for result in results if isinstance(result, Batch)], folder, rng)


def assert_as_the_law_says(results: list[Batch | RecordError], line: bytes, path: Path) -> None:
    """Errors name their place; a line by itself is taken iff an independent reading of the rules takes it."""
    problems = [result for result in results if isinstance(result, RecordError)]
    for problem in problems:
        assert_helpful(problem, path)
    try:
        tree = json.loads(line.decode(), object_pairs_hook=unrepeated)
        fault = lawful.find_fault(tree)
    except (ValueError, RecursionError):
        fault = "no JSON, or a key is repeated"
    except lawful.Unsure:
        return
    if len(results) == 1:
        assert bool(problems) == bool(fault), f"the rules say {fault!r}, the reader {problems}"


def unrepeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    tree = dict(pairs)
    if len(tree) < len(pairs):
        raise ValueError("a key is repeated")
    return tree


def assert_helpful(error: SafevlaError, path: Path) -> None:
    """An error names the file, what is wrong and what to do."""
    for part in error.errors if isinstance(error, CollectedError) else [error]:
        assert part.place.file == str(path), f"names {part.place.file!r}"
        assert part.problem
        assert part.remedy
        assert len(str(part)) < 6000, "a message of absurd length"


def accept(batches: list[Batch], folder: Path, rng: Random) -> str:
    """What was taken: it goes through another form unchanged, is lawful there, and is judged rightly or not at all."""
    for batch in batches:
        for e in range(len(batch)):
            episode = select_episodes(batch, [e])
            tree = json.loads(encode_json(episode, 0))
            with contextlib.suppress(lawful.Unsure):
                assert lawful.find_fault(tree) is None, lawful.find_fault(tree)
            other = folder / f"again{rng.choice(FORMS)}"
            archive.write_archive(other, episode)
            assert same_bits(archive.open_archive(other), episode), f"another episode out of {other.suffix}"
            assert_judged(episode, tree)
    return "right" if batches else "refused"


def assert_judged(batch: Batch, tree: dict[str, Any]) -> None:
    """Finite scores that the oracle gives too, or an error that says why there are none."""
    try:
        results = list(score(batch, Ruleset(LIBRARY, REGISTRY, missing="deactivate")).episodes())
    except SafevlaError:
        if simple(tree):
            assert_oracle_refuses(tree)
        return
    for rho in (*results[0].robustness.values(), *results[0].depth.values(), results[0].vsi, results[0].rho_min):
        assert rho is None or math.isfinite(rho), rho
    if simple(tree):
        agreement = comparison.Comparison(ORACLE)
        agreement.batch(comparison.judge([tree], ORACLE), results)
        assert not agreement.differences, agreement.differences[:3]


def assert_oracle_refuses(tree: dict[str, Any]) -> None:
    """The oracle knows no verdict either: the task has no entry."""
    try:
        comparison.judge([tree], ORACLE)
    except (KeyError, IndexError, ValueError):
        return
    raise AssertionError("the oracle gives a verdict, the judge refuses")


def simple(tree: dict[str, Any]) -> bool:
    """Numbers of a size at which two orders of rounding agree to nine digits."""
    values = numbers([tree["steps"], tree.get("joint_torque_limit_nm")])
    return all(value == 0 or 1e-12 < abs(value) < 1e6 for value in values)
