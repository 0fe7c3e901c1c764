"""Logs of robots and of other tools as sources of records: LeRobot datasets (version 3), ROS and Foxglove recordings.

A log is judged without a replay. Logs have no contacts, so specifications on contacts are inactive. A mapping
(`logs.mappings`) supplies facts that the log lacks, such as the task.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from safevla_bench.archive.record_schema import refuse_field
from safevla_bench.errors import Place, RecordError
from safevla_bench.memory import limit_each, limit_memory
from safevla_bench.sources.logs import lerobot, mappings, proposal, recordings, records, summary, trials
from safevla_bench.text import escape_controls
from safevla_bench.trajectory.batch import Batch

_MOST_NAMED = 8


@dataclass(frozen=True)
class Log:
    """A log whose episodes have not been read yet, its mapping, and the mapping's file (None if there is no file)."""

    path: Path
    # The recordings in the log; () for a LeRobot dataset. A recording is one episode, or is cut into trials.
    recordings: tuple[recordings.Recording, ...]
    mapping: mappings.LogMapping
    mapping_file: Path | None

    def read(self, wanted: Collection[int] | None = None) -> Iterator[Batch | RecordError]:
        """Yield a batch for each valid episode, and an error for each invalid episode. `wanted` are the indices of the
        episodes to read; None = all. Errors are yielded, not raised. A log that cannot be read yields one error.
        """
        # A batch has the records of an episode.
        # If an error names no file, `location` is added. In a dataset, an error without a file is about the mapping.
        location = self.path if self.recordings else self.mapping_file or self.path
        try:
            yield from limit_each(self.path, self._build_episodes(wanted))
        except RecordError as error:
            yield error.with_place(Place(file=str(location)))

    def _build_episodes(self, wanted: Collection[int] | None) -> Iterator[Batch | RecordError]:
        # Yields the batch of each episode whose index is in `wanted` (None = all), or the episode's error.
        self.require_mapping()
        recording_names = [recording.name for recording in self.recordings]
        # Task ids come from the names of recordings, or from the instructions of a dataset.
        tasks = records.name_tasks(recording_names or lerobot.read_instructions(self.path).values())
        episode_names = set[str]()
        for episode in self.read_logged(wanted):
            if isinstance(episode, RecordError):
                if episode.place.episode is not None:  # an error about a whole file names no episode
                    episode_names.add(episode.place.episode)
                yield episode
                continue
            episode_names.add(episode.name)
            try:
                yield records.build_episode(episode, self.mapping, tasks)
            except RecordError as error:
                yield error.with_place(Place(file=episode.file, episode=episode.name))
        # Refuse an outcome in the mapping for an episode that does not exist. The name is probably misspelled.
        all_facts = (self.mapping.episode, *self.mapping.trials)
        unknown_names = {name for facts in all_facts for name in facts.outcomes} - episode_names
        if unknown_names and wanted is None:  # to check names, all episodes must be read
            remedy = f"Correct the name. The episodes are: {', '.join(sorted(episode_names)[:_MOST_NAMED])}."
            problem = f"there is no episode named {min(unknown_names)!r}"
            refuse_field(problem, escape_controls(remedy), "episode.outcomes")

    def read_logged(self, wanted: Collection[int] | None = None) -> Iterator[records.LoggedEpisode | RecordError]:
        """Yield each episode, or the episode's error. Raises `RecordError` if a LeRobot dataset cannot be read."""
        # `wanted` are the indices of the episodes to read; None = all.
        # The caller converts each episode to records with `build_episode`.
        # Without recordings, the log is a LeRobot dataset.
        if not self.recordings:
            yield from lerobot.read_episodes(lerobot.open_dataset(self.path), self.mapping, wanted)
        index = 0  # index of the next episode in the log
        for recording in self.recordings:
            # Without trials, a recording is one episode; an episode that is not wanted is not read.
            if wanted is not None and not self.mapping.trials and index not in wanted:
                index += 1
                continue
            try:
                for episode in limit_each(recording.parts[0], trials.read_episodes(recording, self.mapping)):
                    if wanted is None or index in wanted:
                        yield episode
                    index += 1
            except RecordError as error:
                # An unreadable recording counts as one episode.
                yield error.with_place(Place(file=str(recording.parts[0])))
                index += 1

    def require_mapping(self) -> None:
        """If no topic or feature is mapped, raise `MappingNeededError`, or `RecordError` if the log is damaged."""
        # If a topic or feature is mapped, return without reading the log. `MappingNeededError` proposes a mapping.
        if self.mapping.sources:
            return
        try:
            with limit_memory(self.path):
                sources, says_success, robot = self._find_sources()
        except RecordError as error:
            raise error.with_place(Place(file=str(self.path))) from None
        mapping_path = self.mapping_file or (self.path if self.path.is_dir() else self.path.parent) / mappings.NAME
        listed = "; ".join(f"{source.name} {source.kind}".rstrip() for source in sources) or "nothing"
        remedy = f"Save the mapping from standard output as {mapping_path}, and fill it in. The log has: {listed}."
        problem = "the log needs a mapping, which assigns its topics or features to parts of a record"
        mapping = proposal.propose_mapping(sources, says_success, robot)
        raise MappingNeededError(problem, mapping, remedy=escape_controls(remedy), place=Place(str(self.path)))

    def _find_sources(self) -> tuple[list[proposal.FoundSource], bool, str | None]:
        # Returns the sources (topics or features), whether the log says how episodes ended, and the robot's name.
        # Without recordings, the log is a LeRobot dataset.
        if not self.recordings:
            dataset = lerobot.open_dataset(self.path)
            return list(dataset.list_sources()), lerobot.SUCCESS in dataset.features, dataset.robot
        topics = recordings.scan_topics(self.recordings[0].parts)  # other recordings should have the same topics
        topics.require_messages()
        kinds = sorted(topics.list_kinds().items())
        # Before messages are decoded, a topic's numbers are unknown: no names, `()`, and a count of 0.
        return [proposal.FoundSource(topic, kind, (), 0) for topic, kind in kinds], False, None


class MappingNeededError(RecordError):
    """The log has no mapping; `mapping` is the text of a proposed mapping."""

    def __init__(self, problem: str, mapping: str, *, remedy: str, place: Place) -> None:
        # `mapping` is the text of a proposed mapping file (TOML), for the user to save and complete.
        super().__init__(problem, remedy=remedy, place=place)
        self.mapping = mapping


def describe_log(path: Path) -> Iterator[str]:
    """Yield the lines of `summary.describe_channels` for a log; yield nothing for a source that is not a log."""
    # A channel is a part of the record, such as the hand's poses, that the mapping assigns to a topic or feature.
    log = find_log(path)
    if log is not None:
        episodes = (episode for episode in log.read_logged() if not isinstance(episode, RecordError))
        with suppress(RecordError):  # the error is ignored here, since the scan of the log reports it
            yield from limit_each(path, summary.describe_channels(episodes, log.mapping))


def find_log(path: Path) -> Log | None:
    """Return the log at a path: a LeRobot dataset, a recording, a folder of recordings, or a mapping that names a log.

    Return None for anything else. Raises `RecordError` if a mapping cannot be read or does not name a log, if the log
    is a LeRobot dataset of version 1, or if the metadata of a recording is damaged.
    """
    # If the path is a mapping file, read the mapping. Such a file must name a log.
    given_mapping = mappings.read_mapping(path) if path.suffix == ".toml" and path.is_file() else None
    if given_mapping is not None and given_mapping.log is None:
        remedy = 'Name the log itself, or write `log = "path/to/the/log"` into this file.'
        raise RecordError("this mapping names no log", remedy=remedy, place=Place(file=str(path)))
    log_path = path if given_mapping is None else path.parent / str(given_mapping.log)
    with limit_memory(log_path):
        found_recordings = recordings.find_recordings(log_path)
    if found_recordings and (log_path / lerobot.INFO).is_file():
        listed_files = ", ".join(recording.parts[0].name for recording in found_recordings[:_MOST_NAMED])
        problem = f"the folder is a LeRobot dataset, but also has recordings: {escape_controls(listed_files)}"
        remedy = "Move the recordings to another folder, and name the folder that you mean."
        raise RecordError(problem, remedy=remedy, place=Place(file=str(log_path)))
    if (log_path / lerobot.INFO_1).is_file():  # only version 1 has the file `INFO_1`
        raise lerobot.version_error("v1").with_place(Place(file=str(log_path / lerobot.INFO_1)))
    if not found_recordings and not (log_path / lerobot.INFO).is_file():
        if given_mapping is None:
            return None
        remedy = (
            "Name a LeRobot dataset (a folder with meta/info.json), a bag of ROS (.mcap, .db3, .bag, or the folder "
            "with its metadata.yaml), or a folder of these."
        )
        place = Place(file=str(path), field="log")
        raise RecordError(f"{given_mapping.log!r} is not a log", remedy=remedy, place=place)
    # If the path is not a mapping file, use `safevla-log.toml` in the log's folder, if this file exists.
    mapping, mapping_file = mappings.default_mapping(path) if given_mapping is None else (given_mapping, path)
    return Log(log_path, found_recordings, mapping, mapping_file)
