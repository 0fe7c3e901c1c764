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
    given = json.dumps({name: str(path) for name, path in paths.items()})
    done = subprocess.run(
        [sys.executable, "-m", "archive.bombs", str(LIMIT)],
        cwd=Path(bombs.__file__).parents[1],
        input=given,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    assert not re.search("alloc|MemoryError", " ".join(said.values())), said
    return said


def made(folder: Path, makers: Mapping[str, Callable[[Path], Path]]) -> dict[str, Path]:
    paths = {}
    for number, (name, make) in enumerate(makers.items()):
        (folder / str(number)).mkdir()
        paths[name] = make(folder / str(number))
    return paths


REFUSED = (
    "cannot be read|not a regular file|not an archive|no such file|not a run folder|no footer|no plain table|"
    "nothing can be decompressed|more than|far too"
)


def test_devices_and_pipes_are_refused_unopened_in_the_place_of_every_file(tmp_path):
    for name, said in outcomes(made(tmp_path, bombs.ENDLESS)).items():
        assert re.search(REFUSED, said) or said == "0 recordings", (name, said)


@pytest.mark.long
@pytest.mark.parametrize("kind", [bombs.SPARSE, bombs.QUICK], ids=["sparse", "quick"])
def test_files_that_stand_for_more_than_is_read_are_refused(tmp_path, kind):
    for name, said in outcomes(made(tmp_path, kind)).items():
        assert re.search(REFUSED, said) or said == "0 recordings", (name, said)


@pytest.mark.long
@pytest.mark.parametrize("name", bombs.SLOW)
def test_the_largest_that_is_read_takes_no_more_than_the_limit(tmp_path, name):
    assert outcomes(made(tmp_path, {name: bombs.SLOW[name]}))[name]
