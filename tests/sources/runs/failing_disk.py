"""A disk that fails: the k-th change to what lies in a folder is refused, or is the instant at which the process dies.

Nothing of a dead process's cleaning up is done: from that instant on no change goes through.
"""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CHANGES = ("fsync", "ftruncate", "mkdir", "open", "rename", "replace", "rmdir", "truncate", "unlink", "write")


class Killed(BaseException):
    """The process is dead."""


class Disk:
    """Counts the changes to a folder, and fails at one of them."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.patched = folder.resolve(), monkeypatch
        self.at: list[str] = []
        self._fails: int | None = None
        self._fault: Callable[[], BaseException] = Killed
        self._lasts = True
        for name in CHANGES:
            monkeypatch.setattr(os, name, self._failing(getattr(os, name), name))
        monkeypatch.setattr(io, "open", self._opening(io.open))

    def fail(self, at: int, fault: int | None) -> None:
        """Fail at a change, counted from 0: with an error of this number, or by dying."""
        self.at, self._fails = [], at
        self._lasts = fault in (None, errno.EROFS)
        self._fault = Killed if fault is None else lambda: OSError(fault, os.strerror(fault))

    def work(self) -> None:
        """Fail no more."""
        self.at, self._fails = [], None

    def _failing(self, change: Callable[..., Any], name: str) -> Callable[..., Any]:
        def changing(*arguments: Any, **options: Any) -> Any:
            writes = name != "open" or bool(arguments[1] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
            if writes and self._inside(arguments[0], options.get("dir_fd")):
                self._change(name)
            return change(*arguments, **options)

        return changing

    def _opening(self, really: Callable[..., Any]) -> Callable[..., Any]:
        def opening(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            if set(mode) & set("wax+") and self._inside(file, None):
                self._change("open")
            return really(file, mode, *arguments, **options)

        return opening

    def _inside(self, target: Any, folder: int | None) -> bool:
        link = target if isinstance(target, int) else folder
        path = Path(os.readlink(f"/proc/self/fd/{link}")) if isinstance(link, int) else Path(os.path.abspath(target))
        return path.is_relative_to(self.folder) and path.name != ".lock"  # the system takes a lock back by itself

    def _change(self, name: str) -> None:
        self.at.append(name)
        number = len(self.at) - 1
        if self._fails is not None and (number == self._fails or (number > self._fails and self._lasts)):
            raise self._fault()
