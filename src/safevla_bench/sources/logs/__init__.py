"""Logs of robots, and of other tools, as sources: LeRobot datasets of version 3 and MCAP files.

What a log holds is judged. It says nothing of contacts, so clauses on them are inactive with their reason. A mapping
(`logs.records`) says what the log does not say by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from safevla_bench.errors import Place, RecordError
from safevla_bench.sources.logs import lerobot, mcap_file, records
from safevla_bench.sources.logs.lerobot import INFO
from safevla_bench.trajectory.batch import Batch


@dataclass(frozen=True)
class Log:
    """A log that is not read yet, its mapping and the mapping's file; of MCAP, a file an episode."""

    path: Path
    files: tuple[Path, ...]
    """MCAP files; none for a LeRobot dataset."""
    mapping: records.LogMapping
    mapping_file: Path | None

    def read(self, wanted: Collection[int] | None = None) -> Iterator[Batch | RecordError]:
        """Yield the episodes, each a batch of one, or the error in an episode's place; all, or those at `wanted`.

        Places count from 0. A log that cannot be read at all yields its error and ends; nothing is raised.
        """
        where = self.files[0] if self.files else self.mapping_file or self.path
        try:
            self._require_mapping()
            for episode in self._read_logged(wanted):
                try:
                    yield episode if isinstance(episode, RecordError) else records.build_episode(episode, self.mapping)
                except RecordError as error:
                    yield error
        except RecordError as error:
            yield error.with_place(Place(file=str(where)))

    def _read_logged(self, wanted: Collection[int] | None) -> Iterator[records.LoggedEpisode | RecordError]:
        if not self.files:
            yield from lerobot.read_episodes(lerobot.open_dataset(self.path), self.mapping, wanted)
        for number, path in enumerate(self.files):
            if wanted is None or number in wanted:
                try:
                    yield mcap_file.read_file(path, self.mapping)
                except RecordError as error:
                    yield error.with_place(Place(file=str(path)))

    def _require_mapping(self) -> None:
        if self.mapping.sources:
            return
        if self.files:
            contents = f"topics: {mcap_file.describe_topics(self.files[0])}"
        else:
            contents = f"features: {lerobot.open_dataset(self.path).describe_features()}"
        beside = self.mapping_file or (self.path if self.path.is_dir() else self.path.parent) / records.NAME
        remedy = (
            f"Write {beside}, as docs/real-robots.md shows: [eef], [torque], [gripper], [action], [bodies.NAME], each "
            f"with `from`. The log has {contents}."
        )
        problem = "nothing says what of the log is what of a record"
        raise RecordError(problem, remedy=remedy, place=Place(str(self.path)))


def find_log(path: Path) -> Log | None:
    """Return the log at a path: a LeRobot dataset, an MCAP file, a folder of them, or a mapping that names one.

    None if it is none of these. Raises `RecordError` if a mapping cannot be read, or `path` is a mapping that names
    no log, or something that is not a log.
    """
    named = records.read_mapping(path) if path.suffix == ".toml" and path.is_file() else None
    if named is not None and named.log is None:
        remedy = 'Name the log itself, or write log = "path/to/the/log" into this file.'
        raise RecordError("this mapping names no log", remedy=remedy, place=Place(file=str(path)))
    log = path if named is None else path.parent / str(named.log)
    files = _mcap_files(log)
    if not files and not (log / INFO).is_file():
        if named is None:
            return None
        remedy = "Name a LeRobot dataset (a folder with meta/info.json), an MCAP file, or a folder of MCAP files."
        raise RecordError(f"the log {named.log!r} is none", remedy=remedy, place=Place(file=str(path), field="log"))
    mapping, mapping_file = records.default_mapping(path) if named is None else (named, path)
    return Log(log, files, mapping, mapping_file)


def _mcap_files(path: Path) -> tuple[Path, ...]:
    if path.is_dir():
        return tuple(sorted(path.glob(f"*{mcap_file.SUFFIX}")))
    return (path,) if path.suffix == mcap_file.SUFFIX and path.is_file() else ()
