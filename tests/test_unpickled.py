"""Nothing that comes from outside is unpickled, evaluated or executed: by what the source says, and by what it does."""

from __future__ import annotations

import ast
import io
import pickle
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


def sources():
    paths = [(folder, path) for folder in SOURCES for path in sorted(folder.rglob("*.py"))]
    return {path.relative_to(folder).as_posix(): ast.parse(path.read_text()) for folder, path in paths}


def imported(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (node.module.partition(".")[0], node.module)


def calls(tree):
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def test_no_module_imports_what_unpickles():
    assert {name: found for name, tree in sources().items() if (found := UNPICKLING & set(imported(tree)))} == {}


def test_objects_go_over_pipes_between_our_own_processes_only():
    """`multiprocessing.util` alone opens no pipe: it says when a process ends."""
    modules = {name: {module for module in imported(tree) if "multiprocessing" in module}
               for name, tree in sources().items()}  # fmt: skip
    speaking = {name for name, used in modules.items() if used and "multiprocessing.util" not in used}
    assert speaking <= OWN_PROCESSES


def test_numpy_is_told_that_nothing_is_pickled_wherever_it_loads_or_saves():
    found = 0
    for name, tree in sources().items():
        for call in calls(tree):
            if ast.unparse(call.func) in ("np.load", "np.save", "np.savez", "np.lib.format.write_array"):
                options = {option.arg: ast.unparse(option.value) for option in call.keywords}
                assert options.get("allow_pickle") == "False", f"{name}:{call.lineno}"
                found += 1
    assert found >= 3


def test_no_source_evaluates_text_or_loads_objects():
    for name, tree in sources().items():
        for call in calls(tree):
            called = ast.unparse(call.func)
            assert called not in ("eval", "exec", "compile", "__import__"), f"{name}:{call.lineno}"
            assert called not in LOADING, f"{name}:{call.lineno}"


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
