"""One writer a run folder: a lock that the operating system takes back when its holder dies, however it dies."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from pathlib import Path

from safevla_bench.errors import Place, RunError
from safevla_bench.files import translated_errors

LOCK = ".lock"


def lock_folder(folder: Path) -> int:
    """Take the folder and return the lock's descriptor; `RunError` where another process holds it."""
    path = folder / LOCK
    while True:
        descriptor = _open_lock(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                remedy = "Wait for it or stop it, or choose another --out."
                raise RunError("another run is writing here", remedy=remedy, place=Place(file=str(folder))) from None
            # Some cluster file systems are mounted without locks; a run there is still better than none.
            logging.getLogger(__name__).warning("%s: no lock here: %s", folder, error.strerror)
            return os.open(os.devnull, os.O_RDONLY)
        if _is_same_file(path, descriptor):
            return descriptor
        os.close(descriptor)  # it was removed by its last holder between our open and our lock


def unlock_folder(folder: Path, descriptor: int) -> None:
    """Give the folder back."""
    if _is_same_file(folder / LOCK, descriptor):
        (folder / LOCK).unlink()
    os.close(descriptor)


def _open_lock(path: Path) -> int:
    with translated_errors(path.parent):
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _is_same_file(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
