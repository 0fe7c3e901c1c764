"""The limit on memory while foreign files are read."""

from __future__ import annotations

import ast
import errno
import json
import resource
import sys
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import safevla_bench
from safevla_bench.errors import DamageError, SafevlaError
from safevla_bench.files import decode_input, parse_toml
from safevla_bench.memory import SETTING, limit_each, limit_memory, read_budget

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux enforces the limit")


@pytest.fixture(autouse=True)
def budget(monkeypatch):
    """A quarter of a GiB, beyond what earlier tests left reserved: half of that counts for sure."""
    monkeypatch.setenv(SETTING, "0.25")


def soft_limit():
    return resource.getrlimit(resource.RLIMIT_DATA)[0]


ALLOCATIONS = {
    "Python": lambda: bytearray(1 << 31),
    "NumPy": lambda: np.ones(1 << 28),
    "Arrow": lambda: pa.allocate_buffer(1 << 31),
    "JSON": lambda: json.loads("[" + "[]," * (1 << 25) + "0]"),
}


@pytest.mark.parametrize("kind", ALLOCATIONS)
def test_memory_that_runs_out_is_an_error_about_the_file_and_the_limit_is_lifted(kind):
    before = soft_limit()
    said = rf"x\.json: reading needs more memory .* 0\.25 GiB\n.*{SETTING}=0\.5"
    with pytest.raises(DamageError, match=said), limit_memory(Path("x.json")):
        ALLOCATIONS[kind]()
    assert soft_limit() == before


@pytest.mark.parametrize(
    "error",
    [
        SystemError("error return without exception set"),  # an import in CPython 3.11
        ImportError("lib.so: failed to map segment from shared object"),
        RuntimeError("can't start new thread"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_memory_that_runs_out_in_an_import_or_a_thread_is_the_same_error(error):
    with pytest.raises(DamageError, match=r"x\.json: .*more memory"), limit_memory("x.json"):
        raise error


def test_a_limit_that_cannot_be_lowered_is_an_error_about_the_file_and_the_next_block_lowers_it(monkeypatch):
    before = soft_limit()

    def fail(_):
        raise MemoryError

    monkeypatch.setattr(pa, "allocate_buffer", fail)
    with pytest.raises(DamageError, match=r"x\.json: reading needs"), limit_memory("x.json"):
        raise AssertionError("the block must not run")
    monkeypatch.undo()
    monkeypatch.setenv(SETTING, "0.25")
    with limit_memory("x.json"):
        assert soft_limit() != before
    assert soft_limit() == before


def test_the_error_keeps_nothing_that_was_read():
    with pytest.raises(DamageError) as raised, limit_memory("x"):
        bytearray(1 << 31)
    assert raised.value.__context__.__traceback__ is None


def test_nested_and_parallel_readers_share_one_limit_that_the_last_lifts():
    before, limits = soft_limit(), []
    inside, done = threading.Event(), threading.Event()

    def read():
        with limit_memory("b"):
            inside.set()
            done.wait()

    thread = threading.Thread(target=read)
    with limit_memory("a"):
        limits.append(soft_limit())
        with limit_memory("a/b"):
            limits.append(soft_limit())
        limits.append(soft_limit())
        thread.start()
        inside.wait()
    limits.append(soft_limit())
    done.set()
    thread.join()
    assert len(set(limits)) == 1
    assert limits[0] != before
    assert soft_limit() == before


def test_the_limit_is_off_while_the_caller_has_an_item():
    before, made = soft_limit(), []
    for _ in limit_each("x", (made.append(soft_limit()) for _ in range(2))):
        assert soft_limit() == before
    assert before not in made


@pytest.mark.parametrize(
    "error", [KeyError(), SystemError("bad argument"), ImportError("x"), OSError(errno.ENOENT, "x")]
)
def test_other_errors_pass_and_lift_the_limit(error):
    before = soft_limit()
    with pytest.raises(type(error)), limit_memory("x"):
        raise error
    assert soft_limit() == before


GUARDS = {"limit_memory", "readable"}
"""Context managers that limit memory."""
GUARDED = {
    "files.py": {"read_text"},
    "hosts/libero/plus.py": {"_read_state", "_read_text"},  # at most 4 MiB each
    "jobs/search/__init__.py": {"_read_wordings"},
    "jobs/verify/files.py": {"_check_report"},
    "judging/registration.py": {"read_registration"},
    "publishing/board.py": {"_is_replaceable"},
    "sources/foreign/__init__.py": {"_read_lerobot"},
    "sources/logs/lerobot.py": {"open_dataset", "read_frames", "read_instructions"},
    "sources/logs/recordings.py": {"_read_rosbag2"},
    "sources/runs/folder.py": {"read_picture"},
    "sources/runs/parts.py": {"changed_files"},
    "tasks/bddl.py": {"read_bddl"},
}
"""Functions by module that read a file outside such a block: what they do with its bytes takes no more memory than
these, or every caller limits it."""


def test_every_file_is_decoded_within_the_limit():
    """A function that reads a whole file does so in a block that limits memory, or its callers do, which are named."""
    root = Path(safevla_bench.__file__).parent
    outside = {}
    for path in sorted(root.rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef):
                nodes = {node for node in ast.walk(function) if is_call(node, {"read_input"})}
                for block in ast.walk(function):
                    if isinstance(block, ast.With) and any(is_call(item.context_expr, GUARDS) for item in block.items):
                        nodes -= set(ast.walk(block))
                if nodes:
                    outside.setdefault(path.relative_to(root).as_posix(), set()).add(function.name)
    assert outside == GUARDED


def is_call(node, names):
    name = getattr(node, "func", None)
    return isinstance(node, ast.Call) and getattr(name, "attr", getattr(name, "id", "")) in names


@pytest.mark.parametrize("text", ["", "0.5", "16"])
def test_the_setting_is_a_size_in_gib(monkeypatch, text):
    monkeypatch.setenv(SETTING, text)
    assert read_budget() == float(text or 4) * 2**30


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "4G"])
def test_a_setting_that_is_not_a_size_is_refused(monkeypatch, text):
    monkeypatch.setenv(SETTING, text)
    with pytest.raises(SafevlaError, match=f"{SETTING}={text} is"), limit_memory("x"):
        pass


# TOML


PARTS = ["a", '"a"', "'a'", '"\\"."', "a-b_1", f"'{201 * 'a'}'"]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("form", ["{} = 1", "[{}]", "x = {{ {} = 1 }}", "x = {{ y = '''\n ''', {} = 1 }}"])
@pytest.mark.parametrize("dot", [".", " \t. "])
def test_a_toml_key_of_very_many_parts_is_refused_before_it_is_parsed(part, form, dot):
    assert parse_toml(form.format(dot.join([part] * 16)))
    with pytest.raises(ValueError, match="16 parts"):
        parse_toml(form.format(dot.join([part] * 17)))


def test_texts_and_numbers_with_many_dots_are_no_keys():
    text = f"x = [{'0.5, ' * 500}]\ny = '{'. ' * 500}'\nz = 'www.example.org/a.b.c'"
    assert len(parse_toml(text)["x"]) == 500


@pytest.mark.parametrize("text", ['"' + '\\\\"' * 200_000, "a" * 500_000, "a." * 9 + " " * 500_000, "'" * 300_001])
def test_the_search_for_long_keys_takes_linear_time(text):
    with pytest.raises(ValueError, match=r"at (line|end)"):
        parse_toml(text)


def test_a_dotted_key_takes_no_memory(tmp_path):
    (tmp_path / "x.toml").write_text(".".join("a" * 50_000) + " = 1")
    with pytest.raises(ValueError, match="16 parts"):
        decode_input(tmp_path / "x.toml", lambda content: parse_toml(content.decode()))


def test_what_is_decoded_is_decoded_within_the_limit(tmp_path):
    (tmp_path / "x.json").write_text("[" + "[]," * (1 << 24) + "0]")
    with pytest.raises(DamageError, match="reading needs more"):
        decode_input(tmp_path / "x.json", json.loads)
    assert decode_input(tmp_path / "x.json", partial(len)) > 1 << 23
