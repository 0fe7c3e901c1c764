"""Atomic writing of files, their digests, and safe opening of foreign files."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from importlib import resources
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, TypeVar

import msgspec

from safevla_bench.errors import FileError, Place, RecordError
from safevla_bench.memory import SETTING, limit_memory, read_budget

T = TypeVar("T")
_BEGUN = ".partial"
MAX_DOCUMENT_BYTES = 1 << 26  # for a document that is read whole, such as run.json: about 400,000 episodes


def open_input(path: Path, within: Path | None = None) -> BufferedReader:
    """Open a regular file for reading; refuse anything else (a pipe, a device, a folder) without opening it, and with
    `within` also a file outside of that folder, such as through a link. Raises `OSError` if there is no such file, it
    may not be read, or it is refused, and `RecordError` for a Git LFS pointer, which a clone without LFS has instead of
    the file.
    """
    if within is not None and not path.resolve(strict=True).is_relative_to(within.resolve()):
        raise OSError(errno.EPERM, f"lies outside of {within.name}", str(path))
    _require_regular(path.stat(), path)
    stream = open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0)))  # noqa: SIM115
    _require_regular(os.fstat(stream.fileno()), path)  # the opened file may be another one by now
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
    """Return the bytes of a regular file, opened by `open_input`. Raises `OSError`, also for more than `most_bytes`."""
    with open_input(path, within) as stream:
        if os.fstat(stream.fileno()).st_size > most_bytes:
            raise OSError(errno.EFBIG, f"has more than {most_bytes >> 20} MiB", str(path))
        return stream.read()  # with a limit, `read` would allocate that much memory first


def decode_input(path: Path, decode: Callable[[bytes], T], most_bytes: int = MAX_DOCUMENT_BYTES) -> T:
    """Return `decode(bytes of the file)` within `limit_memory`. Raises as these and `read_input` do."""
    with limit_memory(path):
        return decode(read_input(path, most_bytes))


def decode_json(text: bytes | str, kind: type[T]) -> T:
    """Parse a foreign JSON text. Raises msgspec's errors, and `ValueError` for a text whose values could exhaust
    memory: msgspec 0.22.0 ends the process if a string cannot be allocated.
    """
    if len(text) * _LARGEST_GROWTH > read_budget():
        gib = len(text) * _LARGEST_GROWTH / (1 << 30)
        raise ValueError(f"its values may take more memory than allowed; set {SETTING}={gib:.2g} if you trust it")
    return msgspec.json.decode(text, type=kind)


_LARGEST_GROWTH = 30  # bytes of memory per byte of JSON: an empty object needs 88 for three


def read_shipped(package: str, name: str, kind: type[T]) -> T:
    """Return the content of a TOML file in one of our packages, converted to `kind`."""
    return msgspec.toml.decode(resources.files(package).joinpath(name).read_bytes(), type=kind)


def fill_template(package: str, name: str, filters: Mapping[str, Callable[..., str]], **values: object) -> str:
    """Return the text of a template in one of our packages, without escapes except by `filters`."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters.update(filters)
    text = resources.files(package).joinpath(name).read_text(encoding="utf-8")
    return environment.from_string(text).render(values)


def list_shipped(package: str) -> tuple[str, ...]:
    """Return the names of the TOML files in one of our packages, without the suffix, sorted."""
    files = (path.name for path in resources.files(package).iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml")))


def read_text(path: Path) -> str:
    """Return a regular file's text in UTF-8. Raises as `read_input` does, and `UnicodeDecodeError`."""
    return read_input(path).decode("utf-8")


_NAME = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"?|'[^'\n]*+'?)"""
_TEXTS = r"""\"{3}(?s:[^\\]|\\.)*?(?:\"{3}|\Z)|'{3}(?s:.)*?(?:'{3}|\Z)|\#[^\n]*+"""
_KEY = re.compile(rf"{_TEXTS}|(?P<key>{_NAME}(?:[ \t]*+\.[ \t]*+{_NAME})*+)")
_MOST_PARTS = 16


def parse_toml(text: str) -> dict[str, Any]:
    """Parse a foreign TOML text. Raises `ValueError`, or `RecursionError`, for invalid TOML, and for keys with more
    than 16 parts, since the time and memory of `tomllib` grow with the square of that number.
    """
    for key in _KEY.finditer(text) if text.count(".") >= _MOST_PARTS else ():
        if (key["key"] or "").count(".") >= _MOST_PARTS and len(re.findall(_NAME, key["key"])) > _MOST_PARTS:
            line = text.count("\n", 0, key.start()) + 1
            raise tomllib.TOMLDecodeError(f"a key has more than {_MOST_PARTS} parts (at line {line})")
    return tomllib.loads(text)


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write a file, text as UTF-8, with `open_atomically`; an existing file is replaced."""
    with open_atomically(path) as stream:
        stream.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def open_atomically(path: Path) -> Iterator[IO[bytes]]:
    """Yield a stream to a hidden file next to the target, which it replaces after the block, once it is on disk. A
    reader sees the old file or the new one, never a part. A device or a pipe is written directly. Raises `FileError` if
    the target cannot be written, or the block raised an `OSError`; an existing file is then unchanged.
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
    """Write files into a folder so that files of two writings never exist at the same time. All are on disk before any
    is renamed into place. Then the older ones are removed except `chief`, which is replaced, and the others follow: at
    any instant `chief` is the old or the new one, and no other contradicts it. Raises `FileError` if one cannot be
    written, with existing files unchanged, or cannot be renamed, when others may be missing.
    """
    with ExitStack() as staged:
        ready: dict[Path, Path] = {}
        for path in (folder / name for name in sorted(contents, key=lambda name: name != chief)):
            content = contents[path.relative_to(folder).as_posix()]
            with translated_errors(path):
                ready[path] = staged.enter_context(_temporary_path(path))
                with _synced_file(ready[path]) as stream:
                    stream.write(content.encode() if isinstance(content, str) else content)
        for path in list(ready)[1:]:
            with translated_errors(path):
                path.unlink(missing_ok=True)
        for path, beside in ready.items():
            with translated_errors(path):
                beside.replace(path)


@contextmanager
def _synced_file(path: Path) -> Iterator[IO[bytes]]:
    path.unlink(missing_ok=True)  # left by a process that died and had our number, or a link that leads elsewhere
    with path.open("x+b") as stream:
        yield stream
        stream.flush()
        os.fsync(stream.fileno())


@contextmanager
def _temporary_path(path: Path) -> Iterator[Path]:
    temporary = path.parent / f".{path.name}.{os.getpid()}{_BEGUN}"
    try:
        yield temporary
    finally:
        with suppress(OSError):  # remaining files are hidden and harmless
            temporary.unlink(missing_ok=True)


def is_leftover(path: Path) -> bool:
    """Return whether a path has the name of a file left by a killed write: hidden, ending in `.partial`."""
    return path.name.startswith(".") and path.name.endswith(_BEGUN)


def append_bytes(path: Path, content: bytes) -> None:
    """Append to a file, or make it; raise `FileError`, and restore its length, if it cannot be written completely."""
    with translated_errors(path), path.open("ab", buffering=0) as stream:
        size = os.fstat(stream.fileno()).st_size
        try:
            write_all(stream.fileno(), content)
        except BaseException:  # also for Ctrl-C: no partial data stays
            os.ftruncate(stream.fileno(), size)
            raise


def write_all(descriptor: int, content: bytes) -> None:
    """Write every byte to a file descriptor, in as many writes as needed. `OSError` propagates."""
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]


def own_path(folder: Path, *names: str) -> Path:
    """Return an output's path in a foreign folder; raise `FileError` for a device, a pipe or a link that leads out."""
    path = folder.joinpath(*names)
    with translated_errors(path):
        if not path.resolve().is_relative_to(folder.resolve()):
            raise OSError(errno.EPERM, f"a link leads out of {folder.name}", str(path))
        if path.exists() and not path.is_dir():
            _require_regular(path.stat(), path)
    return path


def make_folder(path: Path) -> None:
    """Make a folder and its parents; an existing one is unchanged. Raises `FileError` if the system refuses."""
    with translated_errors(path):
        path.mkdir(parents=True, exist_ok=True)


@contextmanager
def translated_errors(path: Path) -> Iterator[None]:
    """Raise `FileError` naming the path for any `OSError` in the block; other errors propagate."""
    try:
        yield
    except OSError as error:
        raise FileError.from_os_error(error, Place(file=str(path))) from None


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file's bytes, in hexadecimal. `OSError` propagates."""
    with open_input(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
