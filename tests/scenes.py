"""Scenes of runs that several files of tests play: a plug-in of one's own, a watched run, a watched disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from safevla_bench import files
from safevla_bench.rollout.episode import EpisodeOutcome
from safevla_bench.rollout.plan import PlannedEpisode

DISK_CHANGES = ("fsync", "mkdir", "replace", "rmdir", "truncate", "unlink")


def install_plugin(folder: Path, name: str, module: str, *points: str) -> Path:
    """Put a distribution into a folder: its module `NAME_plugin`, and `group = function` for each entry point NAME."""
    (folder / f"{name}-1.0.dist-info").mkdir(parents=True)
    (folder / f"{name}_plugin.py").write_text(module)
    (folder / f"{name}-1.0.dist-info" / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    groups = (point.split(" = ") for point in points)
    text = "".join(f"[safevla_bench.{group}]\n{name} = {name}_plugin:{function}\n" for group, function in groups)
    (folder / f"{name}-1.0.dist-info" / "entry_points.txt").write_text(text)
    return folder


class Watcher:
    """An observer of a run that notes what it learns, and may stop it with Ctrl-C after so many episodes."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.stop_after, self.total = stop_after, 0
        self.stepped_at: list[tuple[str, int]] = []
        self.ended: list[EpisodeOutcome] = []

    def started(self, episodes: list[PlannedEpisode]) -> None:
        self.total = len(episodes)

    def stepped(self, planned: PlannedEpisode, steps: int) -> None:
        self.stepped_at.append((planned.episode_id, steps))

    def finished(self, outcome: EpisodeOutcome) -> None:
        self.ended.append(outcome)
        if len(self.ended) == self.stop_after:
            raise KeyboardInterrupt


class _Halves:
    """A file each write of which is in two pieces, with a call between them."""

    def __init__(self, stream, note) -> None:
        self.stream, self.note = stream, note

    def __getattr__(self, name):
        return getattr(self.stream, name)

    def write(self, content: bytes) -> int:
        half = len(content) // 2
        self.stream.write(content[:half])
        self.stream.flush()
        self.note("write")
        self.stream.write(content[half:])
        return len(content)


def watch_disk(note: Callable[[str], None], patch: Callable[[object, str, object], None] = setattr) -> None:
    """Have `note` called before each change that this process makes to the disk, and in the middle of each write."""

    def before(name: str):
        change = getattr(os, name)

        def changing(*args, **given):
            note(name)
            return change(*args, **given)

        return changing

    open_whole = files._synced_file

    @contextmanager
    def open_torn(path: Path) -> Iterator[_Halves]:
        with open_whole(path) as stream:
            yield _Halves(stream, note)

    for name in DISK_CHANGES:
        patch(os, name, before(name))
    patch(files, "_synced_file", open_torn)
