"""Atomic writing of files, digests of files, and safe opening of untrusted files."""

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

from safevla_bench.errors import DamageError, Place
from safevla_bench.memory import SETTING, limit_memory, read_budget
from safevla_recorder.errors import translated_errors as translated_errors

T = TypeVar("T")
_PARTIAL_SUFFIX = ".partial"
MAX_DOCUMENT_BYTES = 1 << 26  # limit for files that are read whole: the size of a run.json of 400,000 episodes


def open_input(path: Path, within: Path | None = None) -> BufferedReader:
    """Open a regular file for reading. Refuses a pipe, a device or a folder without opening it. If `within` is given,
    a file outside of this folder is refused, too, for example behind a link. Raises `OSError` if the file is missing,
    not readable or refused, and `DamageError` for a Git LFS pointer, which clones without LFS have instead of the file.
    """
    if within is not None and not path.resolve(strict=True).is_relative_to(within.resolve()):
        raise OSError(errno.EPERM, f"lies outside of {within.name}", str(path))
    _require_regular(path.stat(), path)
    # O_NONBLOCK: a pipe may replace the file after the check above; opening the pipe must not block.
    stream = open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0)))  # noqa: SIM115
    try:
        _require_regular(os.fstat(stream.fileno()), path)
        if stream.peek(len(_LFS_POINTER)).startswith(_LFS_POINTER):
            remedy = "Fetch the content: git lfs pull, or download the file itself."
            raise DamageError("the file is a Git LFS pointer, not data", remedy=remedy, place=Place(file=str(path)))
    except BaseException:
        stream.close()
        raise
    return stream


_LFS_POINTER = b"version https://git-lfs.github.com/spec/"


def _require_regular(status: os.stat_result, path: Path) -> None:
    # Raises `OSError` unless the status is that of a regular file. `path` is only used in messages.
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))


def read_input(path: Path, most_bytes: int = MAX_DOCUMENT_BYTES, within: Path | None = None) -> bytes:
    """Return the bytes of a regular file. Raises the errors of `open_input`, and `OSError` if too large."""
    # `within` is a folder that must contain the file; None = any folder.
    with open_input(path, within) as stream:
        if os.fstat(stream.fileno()).st_size > most_bytes:
            raise OSError(errno.EFBIG, f"has more than {most_bytes >> 20} MiB", str(path))
        return stream.read()  # `read(most_bytes)` would allocate `most_bytes` even for a small file


def decode_input(path: Path, decode: Callable[[bytes], T], most_bytes: int = MAX_DOCUMENT_BYTES) -> T:
    """Read and decode a file within `limit_memory`. Raises the errors of `read_input`, `limit_memory` and `decode`."""
    with limit_memory(path):
        return decode(read_input(path, most_bytes))


def decode_json(text: bytes | str, kind: type[T]) -> T:
    """Parse a JSON text from an untrusted source. Raises msgspec's errors, and `ValueError` if the values could exhaust
    memory. This check is needed because msgspec 0.22.0 ends the process when an allocation fails.
    """
    if len(text) * _LARGEST_GROWTH > read_budget():
        gib = len(text) * _LARGEST_GROWTH / (1 << 30)
        raise ValueError(f"values may need more memory than allowed; if you trust the text, set {SETTING}={gib:.2g}")
    return msgspec.json.decode(text, type=kind)


_LARGEST_GROWTH = 30  # maximum bytes of memory per byte of JSON: 3 bytes of text, `{},`, take 88 bytes of memory


def read_shipped(package: str, name: str, kind: type[T]) -> T:
    """Return the content of a TOML file in one of our packages, converted to `kind`."""
    return msgspec.toml.decode(resources.files(package).joinpath(name).read_bytes(), type=kind)


def fill_template(package: str, name: str, filters: Mapping[str, Callable[..., str]], **values: object) -> str:
    """Fill a template from one of our packages with `values`. Values are only escaped by filters in the template."""
    # `filters` maps names to functions that the template can apply to values. A missing value raises an error.
    from jinja2 import Environment, StrictUndefined

    engine = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    engine.filters.update(filters)
    text = resources.files(package).joinpath(name).read_text(encoding="utf-8")
    return engine.from_string(text).render(values)


def list_shipped(package: str) -> tuple[str, ...]:
    """Return the names of the TOML files in one of our packages, without the suffix, sorted."""
    files = (path.name for path in resources.files(package).iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml")))


def read_text(path: Path) -> str:
    """Return a regular file's UTF-8 text. Raises the errors of `read_input`, and `UnicodeDecodeError`."""
    return read_input(path).decode("utf-8-sig")  # without a byte order mark, which editors on Windows write


_KEY_PART = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"?|'[^'\n]*+'?)"""
_STRINGS_AND_COMMENTS = r"""\"{3}(?s:[^\\]|\\.)*?(?:\"{3}|\Z)|'{3}(?s:.)*?(?:'{3}|\Z)|\#[^\n]*+"""
_KEY = re.compile(rf"{_STRINGS_AND_COMMENTS}|(?P<key>{_KEY_PART}(?:[ \t]*+\.[ \t]*+{_KEY_PART})*+)")
_MAX_PARTS = 16


def parse_toml(text: str) -> dict[str, Any]:
    """Parse a TOML text from an untrusted source. Raises `ValueError` or `RecursionError` for invalid TOML. Raises
    `ValueError` for a key of more than 16 parts: for n parts, `tomllib` needs time and memory proportional to n².
    """
    if text.count(".") < _MAX_PARTS:
        return tomllib.loads(text)  # with so few dots, no key can exceed the limit of parts
    # Multi-line strings and comments also match, but without the group `key`, so that their dots do not count.
    for match in _KEY.finditer(text):
        key = match["key"] or ""
        if key.count(".") >= _MAX_PARTS and len(re.findall(_KEY_PART, key)) > _MAX_PARTS:
            line = text.count("\n", 0, match.start()) + 1
            raise tomllib.TOMLDecodeError(f"a key has more than {_MAX_PARTS} parts (at line {line})")
    return tomllib.loads(text)


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write a file with `open_atomically`; text is encoded as UTF-8. Replaces an existing file."""
    with open_atomically(path) as stream:
        stream.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def open_atomically(path: Path) -> Iterator[IO[bytes]]:
    """Yield a stream to a hidden file next to the target. After the block, the complete file is on disk and replaces
    the target, so that readers see the old or the new file. A device or a pipe is written directly. Raises `FileError`
    if writing fails or the block raises an `OSError`; an existing target then stays unchanged.
    """
    with translated_errors(path):  # turns an `OSError` into a `FileError`
        if path.exists() and not path.is_file() and not path.is_dir():  # a device or a pipe
            with path.open("wb") as stream:
                yield stream
            return
        with _temporary_path(path) as temporary:
            with _synced_file(temporary) as stream:
                yield stream
            temporary.replace(path)


def write_together(folder: Path, contents: Mapping[str, bytes | str], chief: str) -> None:
    """Write files into a folder so that old and new files never exist together. First, all new files are written under
    temporary names. Then, all old files except `chief` are removed. Finally, the new `chief` replaces the old one, and
    the other new files get their names. This way, `chief` always exists, and no other file contradicts it. Raises
    `FileError` if a file cannot be written (existing files are then unchanged) or renamed (files may then be missing).
    """
    with ExitStack() as stack:
        temporaries: dict[Path, Path] = {}  # final path -> path of the finished temporary file
        for name in sorted(contents, key=lambda name: name != chief):  # `chief` comes first
            path, content = folder / name, contents[name]
            with translated_errors(path):
                # When the stack is left, temporary files that were not renamed are removed.
                temporaries[path] = stack.enter_context(_temporary_path(path))
                with _synced_file(temporaries[path]) as stream:
                    stream.write(content.encode() if isinstance(content, str) else content)
        for path in list(temporaries)[1:]:  # skip `chief`, the first file
            with translated_errors(path):
                path.unlink(missing_ok=True)
        for path, temporary in temporaries.items():
            with translated_errors(path):
                temporary.replace(path)


@contextmanager
def _synced_file(path: Path) -> Iterator[IO[bytes]]:
    # Creates an empty file and yields its stream. After the `with` block, the content is safely on disk.
    path.unlink(missing_ok=True)  # remove a link, or the file of a dead process with this process id
    with path.open("x+b") as stream:
        yield stream
        stream.flush()
        os.fsync(stream.fileno())


@contextmanager
def _temporary_path(path: Path) -> Iterator[Path]:
    # Yields a hidden path in the folder of `path`; the caller creates the file.
    # After the `with` block, removes the file at this path, unless it was renamed.
    temporary = path.parent / f".{path.name}.{os.getpid()}{_PARTIAL_SUFFIX}"
    try:
        yield temporary
    finally:
        with suppress(OSError):  # a file that cannot be removed is hidden and harmless
            temporary.unlink(missing_ok=True)


def has_partial_name(path: Path) -> bool:
    """Return whether a file has the name of an unfinished write, which may still run: hidden, ending in `.partial`."""
    return path.name.startswith(".") and path.name.endswith(_PARTIAL_SUFFIX)


def append_bytes(path: Path, content: bytes) -> None:
    """Append to a file, and create it if missing. On failure, restore the file's length and raise `FileError`."""
    with translated_errors(path), path.open("ab", buffering=0) as stream:
        old_size = os.fstat(stream.fileno()).st_size
        try:
            write_all(stream.fileno(), content)
        except BaseException:  # Ctrl-C, too, must leave no partial data
            os.ftruncate(stream.fileno(), old_size)
            raise


def write_all(descriptor: int, content: bytes) -> None:
    """Write every byte to a file descriptor, in as many writes as needed. `OSError` propagates."""
    remaining = memoryview(content)
    while remaining:
        remaining = remaining[os.write(descriptor, remaining) :]  # `os.write` returns the number of written bytes


def own_path(folder: Path, *names: str) -> Path:
    """Return the path of an output in a folder. Raises `FileError` for a device, a pipe, or a link out of `folder`."""
    path = folder.joinpath(*names)
    with translated_errors(path):
        # `translated_errors` turns the `OSError` of a refused path into a `FileError`.
        if not path.resolve().is_relative_to(folder.resolve()):
            raise OSError(errno.EPERM, f"a link leads out of {folder.name}", str(path))
        if path.exists() and not path.is_dir():
            _require_regular(path.stat(), path)
    return path


def make_folder(path: Path) -> None:
    """Make a folder and its parents; an existing folder stays unchanged. Raises `FileError` if this fails."""
    with translated_errors(path):
        path.mkdir(parents=True, exist_ok=True)


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file's bytes, in hexadecimal. `OSError` propagates."""
    with open_input(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
