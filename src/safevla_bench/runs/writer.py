"""Filling a run folder so that a kill at any instant loses at most the episodes in flight.

An episode's end is one line of the journal. When all have ended, the archive, the tables and run.json are written from
the journal, each whole or not at all, and only then the working state is removed: run.json with `"complete": true` is
the instant at which the run is complete. Every step can be done again with the same bytes.
"""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from safevla_bench.errors import FileError, Place, RunError
from safevla_bench.files import make_folder, write_atomically, writing
from safevla_bench.runs.folder import (
    ARCHIVE,
    EPISODES,
    GREETINGS,
    LATENCY,
    MANIFEST,
    RUN,
    EpisodeRow,
    Latency,
    archive_parts,
    described,
    dump,
    episode_rows,
    gathered,
    greetings,
    latencies,
)
from safevla_bench.runs.journal import PARTIAL, Entry, Journal, exists, progress
from safevla_bench.runs.lock import LOCK, lock, unlock
from safevla_bench.runs.manifest import changed
from safevla_bench.runs.parts import framed, records, write_run


class RunWriter:
    """One run folder, held by this process while it is filled; a context manager.

    `complete` says that there is nothing left to add; else `entries` holds the episodes that are done, by their place
    in the plan.
    """

    def __init__(self, folder: Path, description: Mapping[str, object], *, resume: bool = False) -> None:
        """Make the folder with its run.json, or continue the run in it.

        Raises `RunError` where the folder holds something else, a run that is not to be resumed or that was asked for
        differently, or where another process is writing to it.
        """
        self.folder = folder
        _make(folder)
        self._held = lock(folder)
        self._journal: Journal | None = None
        try:
            self.fresh = _untouched(folder)
            if self.fresh:
                write_atomically(folder / RUN, dump({**description, "complete": False}))
            else:
                _may_continue(folder, description, resume=resume)
            self.description = described(folder)
            self.complete = self.description.get("complete") is True
            with _writing(folder):
                if self.complete:
                    _tidy(folder)
                else:
                    self._journal = Journal(folder)
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._journal:
            self._journal.close()
        unlock(self.folder, self._held)

    @property
    def entries(self) -> Mapping[int, Entry]:
        return self._journal.entries if self._journal else {}

    def append(
        self,
        index: int,
        row: EpisodeRow,
        frame: bytes | None,
        latency: Latency | None = None,
        greeting: Mapping[str, object] | None = None,
    ) -> None:
        """Keep a finished episode, `index` its place in the plan; Ctrl-C waits until it is written."""
        assert self._journal is not None
        with _undisturbed(), _writing(self.folder):
            self._journal.append(index, row, frame, latency, greeting)

    def reopen(self) -> None:
        """Make a complete run unfinished again, without its crashed episodes, so that they can be run anew."""
        for name, problem in changed(self.folder):
            remedy = "Restore it first: its digest would be lost with the manifest."
            raise RunError(problem, remedy=remedy, place=Place(file=str(self.folder / name)))
        with _writing(self.folder):
            self._reopen()

    def _reopen(self) -> None:
        left = records(self.folder)
        journal, spent, said = Journal(self.folder), latencies(self.folder), greetings(self.folder)
        for index, row in enumerate(episode_rows(self.folder)):
            if row.outcome != "crashed":
                name = row.episode_id
                journal.append(index, row, framed(next(left)), spent.get(name), said.get(name))
        # Until this write the archive counts, and from then on the journal.
        write_atomically(self.folder / RUN, dump({**self.description, "complete": False}))
        self._journal, self.complete = journal, False
        for stale in (self.folder / EPISODES, self.folder / MANIFEST, *archive_parts(self.folder)):
            stale.unlink(missing_ok=True)

    def finish(self) -> None:
        """Complete the run: the archive in plan order, the tables, run.json; then remove the working state."""
        assert self._journal is not None
        with _writing(self.folder):
            self._complete(self._journal)

    def discard(self) -> None:
        """Remove the folder: nothing was recorded, and nothing may look as if it had been."""
        shutil.rmtree(self.folder)

    def _complete(self, journal: Journal) -> None:
        entries = [self.entries[index] for index in sorted(self.entries)]
        records = (journal.frame(entry) for entry in entries if entry.length)
        description = _with_today(self.description, entries)
        write_run(self.folder, description, [entry.row for entry in entries], records)
        self.complete = True
        self._journal = None
        journal.close()
        _tidy(self.folder)


def _make(folder: Path) -> None:
    """Make the folder where it is missing; what is neither new nor a run is refused before it is touched."""
    place = Place(file=str(folder))
    make_folder(folder)
    with writing(folder):
        foreign = not (_untouched(folder) or (folder / RUN).exists())
    if foreign:
        remedy = "Choose another --out, or remove it first."
        raise RunError("the folder exists and is not empty", remedy=remedy, place=place)


def _untouched(folder: Path) -> bool:
    """Whether the folder is empty, but for what a run leaves that was killed before its run.json was there."""
    names = [path.name for path in folder.iterdir()]
    return all(name == LOCK or (name.startswith(f".{RUN}.") and name.endswith(".partial")) for name in names)


def _may_continue(folder: Path, description: Mapping[str, object], *, resume: bool) -> None:
    place = Place(file=str(folder))
    held = described(folder)
    if not resume and held.get("complete") is False:
        remedy = f"Continue it: safevla eval --resume --out {shlex.quote(str(folder))}; or choose another --out."
        done, planned = progress(folder)
        problem = f"the folder holds an unfinished run, {done} of {planned} episodes done"
        raise RunError(problem, remedy=remedy, place=place)
    if not resume:
        remedy = "Choose another --out, or remove it first."
        raise RunError("the folder is not empty: it holds a run", remedy=remedy, place=place)
    differing = list(differences(_lasting(held), _lasting(json.loads(dump(description)))))
    if differing:
        problem = "what is asked differs from the run that is to be resumed:\n  " + "\n  ".join(differing)
        raise RunError(problem, remedy="Ask for the same, or choose another --out for another run.", place=place)


def _lasting(description: Mapping[str, object]) -> dict[str, object]:
    """What changes results."""
    return {name: value for name, value in description.items() if name not in ("volatile", "complete")}


def differences(
    held: object, asked: object, words: tuple[str, str] = ("the run has", "asked is"), name: str = ""
) -> Iterator[str]:
    """One line for each value that differs between two JSON documents."""
    if isinstance(held, dict) and isinstance(asked, dict):
        for key in [*held, *(key for key in asked if key not in held)]:
            yield from differences(held.get(key), asked.get(key), words, f"{name}.{key}" if name else key)
    elif isinstance(held, list) and isinstance(asked, list) and len(held) == len(asked):
        for place, (one, other) in enumerate(zip(held, asked, strict=True)):
            yield from differences(one, other, words, f"{name}[{place}]")
    elif held != asked:
        yield f"{name}: {words[0]} {json.dumps(held)}, {words[1]} {json.dumps(asked)}"


def _with_today(description: Mapping[str, object], entries: Sequence[Entry]) -> dict[str, object]:
    """The run's description with what each episode's policy took and said of itself, among the facts of the day."""
    spent = {entry.row.episode_id: entry.latency for entry in entries if entry.latency}
    said = gathered((entry.row, entry.greeting) for entry in entries if entry.greeting)
    facts = {name: value for name, value in ((LATENCY, spent), (GREETINGS, said)) if value}
    if not facts:
        return dict(description)
    volatile = description.get("volatile")
    return {**description, "volatile": {**(volatile if isinstance(volatile, dict) else {}), **facts}}


def _tidy(folder: Path) -> None:
    """Remove from a complete run what it needed on the way, and what killed writes have left."""
    if exists(folder):
        shutil.rmtree(folder / PARTIAL)
    for left in [*folder.glob(".*.partial"), *(folder / ARCHIVE).glob(".*.partial")]:
        left.unlink()


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    """A disk that is full or gone is the user's to mend; what was kept before stays."""
    try:
        with writing(folder):
            yield
    except FileError as error:
        going_on = f"safevla eval --resume --out {shlex.quote(str(folder))}"
        error.remedy = f"What is finished is kept. Mend that, and go on: {going_on}."
        raise


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Hold Ctrl-C back until the block is done; a second one comes through at once."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    held: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        if held:
            raise KeyboardInterrupt
        held.append(number)

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if held:
        raise KeyboardInterrupt
