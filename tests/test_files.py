"""A file is whole or absent."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from safevla_bench.errors import FileError
from safevla_bench.files import sha256_of, write_atomically


def test_a_failed_write_leaves_the_old_file_and_nothing_beside_it(tmp_path):
    path = tmp_path / "scores.json"
    write_atomically(path, "old")
    with pytest.raises(TypeError):
        write_atomically(path, 3)  # type: ignore[arg-type]
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_pipe_is_written_to_and_stays_one(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    write_atomically(path, "content")
    assert os.read(reader, 100) == b"content"
    os.close(reader)
    assert path.is_fifo()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="no /dev/full")
def test_a_full_device_is_an_error_and_stays_a_device():
    with pytest.raises(FileError, match="No space left"):
        write_atomically(Path("/dev/full"), "content")
    assert Path("/dev/full").is_char_device()


def test_the_digest_is_sha256(tmp_path):
    write_atomically(tmp_path / "x", b"abc")
    assert sha256_of(tmp_path / "x") == hashlib.sha256(b"abc").hexdigest()
