"""Records and archives: what is taken is lawful, is judged as the oracle judges it, and survives every other form."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import math
import zipfile
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from builders import same_bits
from fuzz import lawful
from fuzz.grammar import damage, json_text, mutate, numbers, odd
from judging import comparison, oracle
from judging.random_records import Scene
from safevla_bench import archive
from safevla_bench.archive.jsonl import encode_json
from safevla_bench.errors import CollectedError, RecordError, SafevlaError
from safevla_bench.judging.ruleset import Ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.specs.loader import library
from safevla_bench.tasks.loader import registry
from safevla_bench.trajectory.batch import Batch, concatenate_batches, select_episodes

LIBRARY, REGISTRY = library(), registry()
ORACLE = oracle.read_specs(*comparison.DEFAULT)
SUFFIXES = (".jsonl", ".jsonl", ".json", ".jsonl.gz", ".jsonl.zst")
FORMS = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".npz", ".parquet")
COMPRESS = {
    ".gz": lambda content: gzip.compress(content, mtime=0),
    ".zst": lambda content: zstandard.ZstdCompressor(write_checksum=True).compress(content),
}


def scene(rng: Random, number: int = 0) -> dict[str, Any]:
    """A valid record, short more often than long."""
    drawn = Scene(rng, number)
    drawn.n = min(drawn.n, rng.choice([3, 6, 12]))
    return drawn.tree()


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
        wrong = lawful.find_fault(tree)
    except (ValueError, RecursionError):
        wrong = "no JSON, or a key is repeated"
    except lawful.Unsure:
        return
    if len(results) == 1:
        assert bool(problems) == bool(wrong), f"the rules say {wrong!r}, the reader {problems}"


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
        got = list(score(batch, Ruleset(LIBRARY, REGISTRY, missing="deactivate")).episodes())
    except SafevlaError:
        if simple(tree):
            assert_oracle_refuses(tree)
        return
    for rho in (*got[0].robustness.values(), *got[0].depth.values(), got[0].vsi, got[0].rho_min):
        assert rho is None or math.isfinite(rho), rho
    if simple(tree):
        agreement = comparison.Comparison(ORACLE)
        agreement.batch(comparison.judged([tree], ORACLE), got)
        assert not agreement.differences, agreement.differences[:3]


def assert_oracle_refuses(tree: dict[str, Any]) -> None:
    """The oracle knows no verdict either: the task has no entry."""
    try:
        comparison.judged([tree], ORACLE)
    except (KeyError, IndexError, ValueError):
        return
    raise AssertionError("the oracle gives a verdict, the judge refuses")


def simple(tree: dict[str, Any]) -> bool:
    """Numbers of a size at which two orders of rounding agree to nine digits."""
    values = numbers([tree["steps"], tree.get("joint_torque_limit_nm")])
    return all(value == 0 or 1e-12 < abs(value) < 1e6 for value in values)


def valid(rng: Random) -> Batch:
    return concatenate_batches([comparison.read(scene(rng, k)) for k in range(rng.choice([1, 1, 2, 3]))])


def refused_or_accepted(path: Path, folder: Path, rng: Random) -> str:
    try:
        batch = archive.open_archive(path)
    except (RecordError, CollectedError) as error:
        assert_helpful(error, path)
        return "refused"
    return accept([batch], folder, rng)


def bytes_form(rng: Random, folder: Path) -> str:
    """Any form with damaged bytes. Those with checksums over everything give what was written, or an error."""
    batch = valid(rng)
    suffix = rng.choice(FORMS)
    batch = select_episodes(batch, [0]) if suffix == ".npz" else batch
    path = folder / f"x{suffix}"
    archive.write_archive(path, batch)
    path.write_bytes(damage(rng, path.read_bytes()))
    result = refused_or_accepted(path, folder, rng)
    if result == "right" and suffix == ".npz":
        assert same_bits(archive.open_archive(path), batch), "damage that nobody notices"
    return result


def npz_form(rng: Random, folder: Path) -> str:
    """An `.npz` file with changed arrays, headers and members."""
    path = folder / "x.npz"
    archive.write_archive(path, select_episodes(valid(rng), [0]))
    with np.load(path) as members:
        arrays: dict[str, Any] = dict(members)
    for _ in range(rng.choice([1, 1, 2, 3])):
        name = rng.choice(list(arrays))
        if name in ("header", "extra") and rng.random() < 0.8:
            with contextlib.suppress(ValueError):  # it was changed before
                tree = mutate(rng, json.loads(arrays[name].tobytes()), 1)
                arrays[name] = np.frombuffer(json_text(rng, tree), np.uint8)
        else:
            change_array(rng, arrays, name)
    members = {f"{name}.npy": npy(array) for name, array in arrays.items()}
    name = rng.choice(list(members))
    if rng.random() < 0.15:
        members[name] = damage(rng, members[name])
    with zipfile.ZipFile(path, "w", rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])) as file:
        for key, content in members.items():
            file.writestr(key, content)
    return refused_or_accepted(path, folder, rng)


def change_array(rng: Random, arrays: dict[str, Any], name: str) -> None:
    array = arrays[name]
    with np.errstate(all="ignore"):
        change = rng.choice(["cut", "type", "shape", "value", "drop", "name", "empty", "order"])
        match change:
            case "cut":
                arrays[name] = array[: len(array) // 2] if array.ndim else array
            case "type":
                arrays[name] = array.astype(
                    rng.choice(["<f4", ">f8", "<i4", "<i8", "|b1", "|S3", "<U3", "<c16", "<f8"])
                )
            case "shape":
                arrays[name] = rng.choice(
                    [array.reshape(-1), array[np.newaxis], array.T, np.broadcast_to(array, (2, *array.shape))]
                )
            case "value" if array.size:
                array = array.copy()
                value = rng.choice([0, 1, -1, 2, 99, math.nan, math.inf, -math.inf, 1e308, 5e-324, 2**40])
                if array.dtype.kind == "f" or math.isfinite(value):
                    array.reshape(-1)[rng.randrange(array.size)] = np.array(value).astype(array.dtype)
                arrays[name] = array
            case "drop":
                del arrays[name]
            case "name":
                arrays[rng.choice([*arrays, "x", "../x", name.upper(), ""])] = array
            case "empty":
                arrays[name] = array[:0] if array.ndim else array
            case "order":
                arrays[name] = np.asfortranarray(array)
    arrays or arrays.update(header=np.zeros(0, np.uint8))


def npy(array: Any) -> bytes:
    sink = io.BytesIO()
    np.lib.format.write_array(sink, np.asarray(array), allow_pickle=False)
    return sink.getvalue()


def parquet_form(rng: Random, folder: Path) -> str:
    """A `.parquet` file with changed columns and values."""
    path = folder / "x.parquet"
    archive.write_archive(path, valid(rng))
    table = pq.read_table(path)
    for _ in range(rng.choice([1, 1, 2, 3])):
        table = change_table(rng, table)
    try:
        pq.write_table(table, path, compression="zstd")
    except (pa.ArrowException, UnicodeEncodeError):
        return "refused"  # nothing that Parquet can hold
    return refused_or_accepted(path, folder, rng)


def change_table(rng: Random, table: pa.Table) -> pa.Table:
    at = rng.randrange(table.num_columns)
    name, column = table.column_names[at], table.column(at)
    try:
        match rng.choice(["value", "value", "value", "drop", "rename", "twice", "null", "type", "rows", "none"]):
            case "value" if name != "versions":  # pyarrow aborts where a map holds a null
                values = column.to_pylist()
                row = rng.randrange(len(values)) if values else 0
                if values:
                    values[row] = mutate(rng, [values[row]], 1) if rng.random() < 0.1 else _changed(rng, values[row])
                return table.set_column(at, table.field(at), pa.array(values, table.field(at).type))
            case "drop":
                return table.drop_columns([name])
            case "rename":
                return table.set_column(at, rng.choice([name.upper(), "mine", *table.column_names]), column)
            case "twice":
                return table.append_column(name, column)
            case "null":
                return table.set_column(at, table.field(at), pa.nulls(len(table), table.field(at).type))
            case "type":
                return table.set_column(
                    at, name, column.cast(rng.choice([pa.string(), pa.float32(), pa.large_string()]))
                )
            case "rows":
                return pa.concat_tables([table, table.slice(0, 1)])
            case "none":
                return table.slice(0, 0)
    except (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError, RecursionError, KeyError):
        return table  # not what the type can hold
    return table


def _changed(rng: Random, value: Any) -> Any:
    """A value with one change inside, lists as trees."""
    if isinstance(value, str) and value[:1] in "{[":
        return json_text(rng, mutate(rng, json.loads(value), 1)).decode("utf-8", "replace")
    if isinstance(value, list | dict) and value:
        return mutate(rng, {"value": value}, 1).get("value")
    return odd(rng)
