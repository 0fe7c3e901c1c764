"""Files that are whole or absent, their digests, and the way to open a file that may be anybody's."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec

from safevla_bench.errors import FileError, Place, RecordError
from safevla_bench.memory import SETTING, limit_memory, read_budget

T = TypeVar("T")
_BEGUN = ".partial"
MAX_DOCUMENT_BYTES = 1 << 26  # a document that is read whole, such as run.json: that of some 400,000 episodes


def open_input(path: Path, within: Path | None = None) -> BufferedReader:
    """Open a regular file for reading; anything else (a pipe, a device, a folder) is refused without opening it. With
    `within`, a file that lies outside of that folder, by a link say, is refused too. Raises `OSError` if there is no
    such file, it may not be read, or it is refused, and `RecordError` for a Git LFS pointer, which a clone without LFS
    leaves in the file's place.
    """
    if within is not None and not path.resolve(strict=True).is_relative_to(within.resolve()):
        raise OSError(errno.EPERM, f"lies outside of {within.name}", str(path))
    _require_regular(path.stat(), path)
    stream = open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0)))  # noqa: SIM115
    _require_regular(os.fstat(stream.fileno()), path)  # what was opened may be another file by now
    if stream.peek(len(_POINTER)).startswith(_POINTER):
        stream.close()
        remedy = "Fetch the content: git lfs pull, or download the file itself."
        raise RecordError("this is a Git LFS pointer, not the file", remedy=remedy, place=Place(file=str(path)))
    return stream


_POINTER = b"version https://git-lfs.github.com/spec/"


def _require_regular(status: os.stat_result, path: Path) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))


def read_input(path: Path, most_bytes: int = MAX_DOCUMENT_BYTES, within: Path | None = None) -> bytes:
    """Return the bytes of a regular file, as `open_input` opens it; `OSError` too for more than `most_bytes`."""
    with open_input(path, within) as stream:
        if os.fstat(stream.fileno()).st_size > most_bytes:
            raise OSError(errno.EFBIG, f"has more than {most_bytes >> 20} MiB", str(path))
        return stream.read()  # with a limit, it would ask for that much memory first


def decode_input(path: Path, decode: Callable[[bytes], T], most_bytes: int = MAX_DOCUMENT_BYTES) -> T:
    """Return what `decode` makes of a file's bytes, within `limit_memory`; raises as that, `read_input` and it do."""
    with limit_memory(path):
        return decode(read_input(path, most_bytes))


def decode_json(text: bytes | str, kind: type[T]) -> T:
    """Return the value of a foreign JSON text. Raises msgspec's errors, and `ValueError` for a text whose values could
    fill the memory: msgspec 0.22.0 ends the process where a string cannot be allocated.
    """
    if len(text) * _LARGEST_GROWTH > read_budget():
        gib = len(text) * _LARGEST_GROWTH / (1 << 30)
        raise ValueError(f"its values may take more memory than allowed; set {SETTING}={gib:.2g} if you trust it")
    return msgspec.json.decode(text, type=kind)


_LARGEST_GROWTH = 30  # bytes of memory for a byte of JSON: an empty object takes 88 for three


def read_text(path: Path) -> str:
    """Return a regular file's text in UTF-8; raises as `read_input` does, and `UnicodeDecodeError`."""
    return read_input(path).decode("utf-8")


_NAME = r"""(?:[\w-]{1,200}+|"(?:[^"\\\n]|\\.){0,200}+"|'[^'\n]{0,200}+')"""
_LONG_KEY = re.compile(rf"(?<![\w-])(?:{_NAME}[ \t]*+\.[ \t]*+){{64}}")


def parse_toml(text: str) -> dict[str, Any]:
    """Return the tables of a foreign TOML text; raise `ValueError`, or `RecursionError`, for what is not TOML. A key of
    more than 64 parts is refused, because `tomllib` needs memory that grows with the square of its parts.
    """
    if key := _LONG_KEY.search(text):
        line = text.count("\n", 0, key.start()) + 1
        raise tomllib.TOMLDecodeError(f"a key has more than 64 parts (at line {line})")
    return tomllib.loads(text)


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write a whole file, text as UTF-8, as `open_atomically` does; an existing file is replaced."""
    with open_atomically(path) as stream:
        stream.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def open_atomically(path: Path) -> Iterator[IO[bytes]]:
    """Yield a stream to a hidden file beside the target, which replaces the target after the block. Its content is on
    the disk by then. A reader sees the old file or the new one, never a part. A device or a pipe is written to and
    never replaced. Raises `FileError` if the target cannot be written, or the block raised an `OSError`; what was there
    before still is.
    """
    with translated_errors(path):
        if path.exists() and not path.is_file() and not path.is_dir():
            with path.open("wb") as stream:
                yield stream
            return
        with _temporary_path(path) as beside:
            with _synced_file(beside) as stream:
                yield stream
            beside.replace(path)


def write_together(folder: Path, contents: Mapping[str, bytes | str], chief: str) -> None:
    """Write files into a folder so that those of two writings are never there at once. All are on the disk before any
    is put in place. Then the older ones are removed but for `chief`, which is replaced, and the others follow: at any
    instant `chief` is the old or the new one, and no other contradicts it. Raises `FileError` if one cannot be written:
    what was there before is. Or one cannot be put in place: others may be absent.
    """
    with ExitStack() as staged:
        ready: dict[Path, Path] = {}
        for path in (folder / name for name in sorted(contents, key=lambda name: name != chief)):
            with translated_errors(path):
                ready[path] = staged.enter_context(_staged_content(path, contents[path.relative_to(folder).as_posix()]))
        for path in list(ready)[1:]:
            with translated_errors(path):
                path.unlink(missing_ok=True)
        for path, beside in ready.items():
            with translated_errors(path):
                beside.replace(path)


@contextmanager
def _staged_content(path: Path, content: bytes | str) -> Iterator[Path]:
    with _temporary_path(path) as beside:
        with _synced_file(beside) as stream:
            stream.write(content.encode() if isinstance(content, str) else content)
        yield beside


@contextmanager
def _synced_file(path: Path) -> Iterator[IO[bytes]]:
    path.unlink(missing_ok=True)  # of a process that died and had our number, or a link that leads elsewhere
    with path.open("x+b") as stream:
        yield stream
        stream.flush()
        os.fsync(stream.fileno())


@contextmanager
def _temporary_path(path: Path) -> Iterator[Path]:
    beside = path.with_name(f".{path.name}.{os.getpid()}{_BEGUN}")
    try:
        yield beside
    finally:
        with suppress(OSError):  # what is left is hidden, and harmless
            beside.unlink(missing_ok=True)


def is_leftover(path: Path) -> bool:
    """Return whether a path has the name of a file that a killed write leaves: hidden, ending in `.partial`."""
    return path.name.startswith(".") and path.name.endswith(_BEGUN)


def append_bytes(path: Path, content: bytes) -> None:
    """Add to a file's end, all or nothing as long as this process lives; a missing file is made. Raises `FileError` if
    the file cannot be written to, and is as long as before.
    """
    with translated_errors(path), path.open("ab", buffering=0) as stream:
        size = os.fstat(stream.fileno()).st_size
        try:
            write_all(stream.fileno(), content)
        except BaseException:  # whatever ends it, Ctrl-C too: no half of it stays
            os.ftruncate(stream.fileno(), size)
            raise


def write_all(descriptor: int, content: bytes) -> None:
    """Write every byte to a file descriptor, however few the system takes at a time; `OSError` is passed on."""
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]


def own_path(folder: Path, *names: str) -> Path:
    """Return the path of an output within a folder, which somebody else may have made. Raises `FileError` if a link
    leads out of the folder, or a device or a pipe is there.
    """
    path = folder.joinpath(*names)
    with translated_errors(path):
        if not path.resolve().is_relative_to(folder.resolve()):
            raise OSError(errno.EPERM, f"a link leads out of {folder.name}", str(path))
        if path.exists() and not path.is_dir():
            _require_regular(path.stat(), path)
    return path


def make_folder(path: Path) -> None:
    """Make a folder and those that it lies in; an existing one stays as it is. Raises `FileError` where the system
    refuses.
    """
    with translated_errors(path):
        path.mkdir(parents=True, exist_ok=True)


@contextmanager
def translated_errors(path: Path) -> Iterator[None]:
    """Raise `FileError` naming the path for any `OSError` in the block; other errors pass unchanged."""
    try:
        yield
    except OSError as error:
        raise FileError.from_os_error(error, Place(file=str(path))) from None


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file's bytes, in hexadecimal; `OSError` is passed on."""
    with open_input(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
