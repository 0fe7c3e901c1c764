"""Memory has a bound, whatever a file says: each form is read and judged by a process that has no more."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from archive import bombs

LIMIT = 4 << 30
"""Bytes of address space, the libraries' own included."""


def outcomes(paths: Mapping[str, Path]) -> dict[str, str]:
    """The outcome of each file, all of them read by one process under the limit."""
    texts = json.dumps({name: str(path) for name, path in paths.items()})
    process = subprocess.run(
        [sys.executable, "-m", "archive.bombs", str(LIMIT)],
        cwd=Path(bombs.__file__).parents[1],
        input=texts,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    messages: dict[str, str] = json.loads(process.stdout.splitlines()[-1])
    assert not re.search("alloc|MemoryError", " ".join(messages.values())), messages
    return messages


def make_files(folder: Path, makers: Mapping[str, Callable[[Path], Path]]) -> dict[str, Path]:
    paths = {}
    for number, (name, make) in enumerate(makers.items()):
        (folder / str(number)).mkdir()
        paths[name] = make(folder / str(number))
    return paths


REFUSED = (
    "cannot be read|not a regular file|not an archive|no such file|not a run folder|no footer|no plain table|"
    "nothing can be decompressed|more than|far too"
)


def long(value):
    return pytest.param(value, marks=pytest.mark.long)


@pytest.mark.parametrize("kind", ["ENDLESS", long("SPARSE"), long("QUICK")])
def test_devices_pipes_and_files_that_stand_for_more_than_is_read_are_refused(tmp_path, kind):
    for name, message in outcomes(make_files(tmp_path, getattr(bombs, kind))).items():
        assert re.search(REFUSED, message) or message == "0 recordings", (name, message)


@pytest.mark.long
@pytest.mark.parametrize("name", bombs.SLOW)
def test_the_largest_that_is_read_takes_no_more_than_the_limit(tmp_path, name):
    assert outcomes(make_files(tmp_path, {name: bombs.SLOW[name]}))[name]
