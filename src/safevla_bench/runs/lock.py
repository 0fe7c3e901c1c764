"""One writer a run folder: a lock that the operating system takes back when its holder dies, however it dies."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from pathlib import Path

from safevla_bench.errors import Place, RunError
from safevla_bench.files import writing

LOCK = ".lock"


def lock(folder: Path) -> int:
    """Take the folder and return the lock's descriptor; `RunError` where another process holds it."""
    path = folder / LOCK
    while True:
        held = _open(path)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(held)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                remedy = "Wait for it or stop it, or choose another --out."
                raise RunError("another run is writing here", remedy=remedy, place=Place(file=str(folder))) from None
            # Some cluster file systems are mounted without locks; a run there is still better than none.
            logging.getLogger(__name__).warning("%s: no lock here: %s", folder, error.strerror)
            return os.open(os.devnull, os.O_RDONLY)
        if _is(path, held):
            return held
        os.close(held)  # it was removed by its last holder between our open and our lock


def unlock(folder: Path, held: int) -> None:
    """Give the folder back."""
    if _is(folder / LOCK, held):
        (folder / LOCK).unlink()
    os.close(held)


def _open(path: Path) -> int:
    with writing(path.parent):
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def _is(path: Path, held: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(held))
    except FileNotFoundError:
        return False
