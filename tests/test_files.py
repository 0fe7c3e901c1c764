"""A file is whole or absent."""

from __future__ import annotations

import hashlib

import pytest

from safevla_bench.files import sha256_of, write_atomically


def test_a_failed_write_leaves_the_old_file_and_nothing_beside_it(tmp_path):
    path = tmp_path / "scores.json"
    write_atomically(path, "old")
    with pytest.raises(TypeError):
        write_atomically(path, 3)  # type: ignore[arg-type]
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_digest_is_sha256(tmp_path):
    write_atomically(tmp_path / "x", b"abc")
    assert sha256_of(tmp_path / "x") == hashlib.sha256(b"abc").hexdigest()
