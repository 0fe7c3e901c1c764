"""A file is whole or absent."""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path

import jinja2
import pytest

from safevla_bench.errors import FileError, RecordError
from safevla_bench.files import (
    decode_json,
    fill_template,
    open_input,
    read_input,
    read_text,
    sha256_of,
    write_atomically,
)
from safevla_bench.memory import SETTING


def test_a_failed_write_leaves_the_old_file_and_nothing_beside_it(tmp_path):
    path = tmp_path / "scores.json"
    write_atomically(path, "old")
    with pytest.raises(TypeError):
        write_atomically(path, 3)  # type: ignore[arg-type]
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("content", [b"data", b"version https://git-lfs.github.com/spec/v1"])
def test_a_file_that_is_refused_after_it_was_opened_is_closed(tmp_path, monkeypatch, content):
    path, opened, original = tmp_path / "file", [], os.open
    path.write_bytes(content)

    def replace_and_open(name, flags):
        if content == b"data":  # another process puts a pipe there after the first check
            path.unlink()
            os.mkfifo(path)
        opened.append(original(name, flags))
        return opened[0]

    monkeypatch.setattr(os, "open", replace_and_open)
    with pytest.raises((OSError, RecordError), match=r"not a regular file|Git LFS") as caught:
        open_input(path)
    assert caught.tb is not None, "the traceback would keep an open stream alive"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])


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


def test_a_text_has_no_byte_order_mark(tmp_path):
    (tmp_path / "x").write_bytes(b"\xef\xbb\xbfa = 1\r\n")
    assert read_text(tmp_path / "x") == "a = 1\r\n"


def test_only_regular_files_are_opened_for_reading(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "device").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        for name in ("pipe", "device", "socket"):
            with pytest.raises(OSError, match="not a regular"):
                open_input(tmp_path / name)
    with pytest.raises(IsADirectoryError):
        open_input(tmp_path)


def test_no_more_than_asked_for_is_read_and_no_link_leads_out_of_a_folder(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "outside").write_bytes(bytes(9))
    (tmp_path / "run" / "link").symlink_to(tmp_path / "outside")
    assert read_input(tmp_path / "run" / "link", 9) == bytes(9)
    with pytest.raises(OSError, match="has more than"):
        read_input(tmp_path / "run" / "link", 8)
    with pytest.raises(OSError, match="outside of run"):
        read_input(tmp_path / "run" / "link", within=tmp_path / "run")


def test_json_whose_values_could_fill_the_memory_is_refused_before_it_is_decoded(monkeypatch):
    """Where no string can be allocated, msgspec 0.22.0 ends the process by a segmentation fault."""
    text = b'["ab"' + b',"ab"' * 10_000 + b"]"
    assert len(decode_json(text, list[str])) == 10_001
    monkeypatch.setenv(SETTING, "0.001")
    with pytest.raises(ValueError, match=rf"{SETTING}=0.0014"):
        decode_json(text, list[str])


def test_a_value_that_a_template_lacks_is_an_error_instead_of_an_empty_text():
    with pytest.raises(jinja2.UndefinedError, match="calibrations"):
        fill_template("safevla_bench.sensitivity", "limits.toml.jinja", {})
