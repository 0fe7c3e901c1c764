"""Nothing that comes from outside is unpickled, evaluated or executed: by what the source says, and by what it does."""

from __future__ import annotations

import ast
import io
import pickle
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import safevla_bench
import safevla_recorder
from safevla_bench import archive
from safevla_bench.archive import jsonl, npz, parquet
from safevla_bench.errors import PolicyError, SafevlaError
from safevla_bench.policies.servers import codecs

SOURCES = (Path(safevla_bench.__file__).parent, Path(safevla_recorder.__file__).parent)
UNPICKLING = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve", "jsonpickle"}
LOADING = {"torch.load", "yaml.load", "yaml.unsafe_load", "pandas.read_pickle", "pd.read_pickle", "np.fromregex"}
OWN_PROCESSES = {"rollout/worker.py", "rollout/scheduler.py"}
"""A run and its workers, which are the same program, speak over a pipe of their own that nobody else has."""


@cache
def sources():
    """Path -> the imported modules and the calls of each source file, of which each is parsed once."""
    paths = [(folder, path) for folder in SOURCES for path in sorted(folder.rglob("*.py"))]
    trees = {path.relative_to(folder).as_posix(): ast.parse(path.read_text()) for folder, path in paths}
    return {name: _imports_and_calls(tree) for name, tree in trees.items()}


def _imports_and_calls(tree):
    modules, calls = set(), []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules |= {node.module.partition(".")[0], node.module}
        elif isinstance(node, ast.Call):
            calls.append((ast.unparse(node.func), node))
    return modules, calls


def test_no_module_imports_what_unpickles():
    assert {name: found for name, (modules, _) in sources().items() if (found := UNPICKLING & modules)} == {}


def test_objects_go_over_pipes_between_our_own_processes_only():
    """`multiprocessing.util` alone opens no pipe: it says when a process ends."""
    used = {name: {module for module in modules if "multiprocessing" in module}
            for name, (modules, _) in sources().items()}  # fmt: skip
    assert {
        name for name, modules in used.items() if modules and "multiprocessing.util" not in modules
    } <= OWN_PROCESSES


def test_no_source_evaluates_text_or_loads_objects_and_numpy_is_told_that_nothing_is_pickled():
    checked = 0
    for name, (_, calls) in sources().items():
        for called, call in calls:
            assert called not in ("eval", "exec", "compile", "__import__"), f"{name}:{call.lineno}"
            assert called not in LOADING, f"{name}:{call.lineno}"
            if called in ("np.load", "np.save", "np.savez", "np.lib.format.write_array"):
                options = {option.arg: ast.unparse(option.value) for option in call.keywords}
                assert options.get("allow_pickle") == "False", f"{name}:{call.lineno}"
                checked += 1
    assert checked >= 3


class Trap:
    """Fails the test as soon as it is unpickled."""

    def __reduce__(self):
        return pytest.fail, ("it was unpickled",)


TRAP = pickle.dumps(Trap())


@pytest.mark.parametrize("suffix", [*jsonl.SUFFIXES, jsonl.WHOLE, npz.SUFFIX, parquet.SUFFIX])
def test_a_pickle_under_the_name_of_an_archive_is_refused(tmp_path, suffix):
    for content in (TRAP, b"\x80\x05" + TRAP, npy()):
        path = tmp_path / f"x{suffix}"
        path.write_bytes(content)
        with pytest.raises(SafevlaError):
            archive.open_archive(path)


def npy():
    sink = io.BytesIO()
    np.save(sink, np.array([Trap()], dtype=object), allow_pickle=True)
    return sink.getvalue()


def test_a_pickle_within_parquet_stays_bytes(tmp_path):
    pq.write_table(pa.table({"episode_id": pa.array([TRAP])}), tmp_path / "x.parquet")
    with pytest.raises(SafevlaError):
        archive.open_archive(tmp_path / "x.parquet")


@pytest.mark.parametrize("codec", [codecs.OPENPI, codecs.VLA_EVAL, codecs.GR00T])
def test_a_pickle_from_a_policy_server_is_refused(codec):
    wires = [
        {"__ndarray_class__": True, "as_npy": npy()},
        {b"__ndarray__": True, b"data": TRAP, b"dtype": "|O", b"shape": [1]},
        {"__ndarray__": True, "data": TRAP, "dtype": "|O", "shape": [1]},
    ]
    for wire in wires:
        packed = msgspec.msgpack.encode(wire)
        try:
            found = codec.unpack(packed)
        except PolicyError:
            continue
        assert isinstance(found, dict)  # an array of another kind of server: left as it came
    assert codec.unpack(msgspec.msgpack.encode(msgspec.msgpack.Ext(5, TRAP))) == msgspec.msgpack.Ext(5, TRAP)
