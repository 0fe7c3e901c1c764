"""A run folder without a plan: the episodes of a loop that is not ours, in the order in which they come."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from safevla_bench import archive
from safevla_bench.errors import Place, RunError
from safevla_bench.files import append, begun, make_folder, write_atomically
from safevla_bench.runs.folder import ARCHIVE, RUN, EpisodeRow, archive_parts, dump, write_episodes
from safevla_bench.runs.journal import SUFFIX
from safevla_bench.runs.manifest import write_manifest
from safevla_bench.trajectory import Batch


class GrowingRun:
    """Writes one run folder: records as they come, the tables whenever it is whole for now. Nothing can be resumed."""

    def __init__(self, folder: Path, description: Mapping[str, object]) -> None:
        """Make the folder and write run.json; `RunError` where the folder already holds something."""
        self.folder = folder
        if folder.exists() and not (folder.is_dir() and all(map(begun, folder.iterdir()))):
            remedy = "Choose another --out, or remove it first."
            raise RunError("the folder exists and is not empty", remedy=remedy, place=Place(file=str(folder)))
        make_folder(folder / ARCHIVE)
        write_atomically(folder / RUN, dump(description))
        self._part = folder / ARCHIVE / f"part-00000{SUFFIX}"
        append(self._part, b"")

    def append(self, batch: Batch) -> None:
        """Add the records of a finished episode to the archive."""
        archive.append(self._part, batch)

    def discard(self) -> None:
        """Remove the folder: nothing was recorded, and nothing may look as if it had been."""
        shutil.rmtree(self.folder)

    def finish(self, rows: Sequence[EpisodeRow], description: Mapping[str, object]) -> None:
        """Write the table of episodes, the manifest and run.json as they are now; more may follow."""
        write_episodes(self.folder, rows)
        write_manifest(self.folder, archive_parts(self.folder), len(rows))
        write_atomically(self.folder / RUN, dump(description))
