"""Sources of records, which can be read repeatedly: archive files, run folders (complete or not), and logs.

Unusable episodes are left out and listed: invalid episodes, and episodes that were lost in damaged files.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as dataclass_replace
from functools import partial
from pathlib import Path

import msgspec
from msgspec.structs import replace

from safevla_bench import archive
from safevla_bench.errors import DamageError, Place, RecordError, RunError
from safevla_bench.files import decode_input, decode_json
from safevla_bench.sources import foreign
from safevla_bench.sources.logs import find_log
from safevla_bench.sources.runs import folder as run_folder
from safevla_bench.sources.runs import parts
from safevla_bench.sources.runs import policy_names as naming
from safevla_bench.text import count_noun, escape_controls, list_counts
from safevla_bench.trajectory.batch import Batch, select_episodes


@dataclass(frozen=True)
class LeftOut:
    """Counts of episodes that were left out because they are invalid, lost, missing or unplanned."""

    invalid: int
    lost: int
    damaged: int  # number of damaged files, or of damaged places in files
    unknown: bool  # true if an unknown number of further episodes was lost
    missing: tuple[run_folder.AbsentEpisode, ...] = ()  # planned episodes that a run's table does not list
    unnamed: int = 0  # number of further missing episodes, whose names are unknown
    unplanned: int = 0
    nameless: int = 0  # number of `lost` episodes with unknown names

    @classmethod
    def from_problems(cls, problems: Sequence[RecordError], sources: Sequence[RecordSource] = ()) -> LeftOut:
        """Return the counts for these errors, and for the sources' differences from their plans. A `DamageError` that
        names an episode is one lost episode. Any other `DamageError` is a damaged place with `episodes` lost episodes.
        """
        damage = [problem for problem in problems if isinstance(problem, DamageError)]
        damaged_places = [problem for problem in damage if problem.place.episode is None]
        named_count = len(damage) - len(damaged_places)  # number of lost episodes with a known name
        nameless_count = sum(problem.episodes or 0 for problem in damaged_places)  # None = an unknown number
        # Planned episodes without a record: crashed ones, and those that a run's table does not list (`MISSING`).
        absent = (episode for source in sources for episode in source.absent)
        return cls(
            invalid=len(problems) - len(damage),
            lost=named_count + nameless_count,
            damaged=len(damaged_places),
            unknown=any(problem.episodes is None for problem in damaged_places),
            missing=tuple(episode for episode in absent if episode.outcome == run_folder.MISSING),
            unnamed=sum(source.plan.unnamed for source in sources),
            unplanned=sum(source.plan.unplanned for source in sources),
            nameless=nameless_count,
        )

    @property
    def count(self) -> int:
        """Number of episodes that are known to be invalid or lost; other episodes may be lost."""
        return self.invalid + self.lost

    def __bool__(self) -> bool:
        # True if an episode is left out or a file is damaged, even if no episode was lost.
        return bool(self.count or self.damaged or self.missing or self.unnamed or self.unplanned)

    def describe_uncounted(self) -> list[str]:
        """Return a phrase for each kind of episode that is left out and is not listed by name elsewhere."""
        # `nameless` counts lost episodes with unknown names; `unnamed` counts missing episodes with unknown names.
        nameless = LeftOut(self.invalid, lost=self.nameless, damaged=0, unknown=self.unknown, unnamed=self.unnamed)
        return nameless.describe_kinds()

    def describe_kinds(self) -> list[str]:
        """Return a phrase for each kind of left-out episode, and a phrase for damage that lost no episode."""
        # `unknown` is true if an unknown number of further episodes was lost. `damaged` counts damaged files or places.
        # `unnamed` counts missing episodes with unknown names. Missing episodes with known names are in `missing`.
        phrases = [f"{count_noun(self.invalid, 'invalid episode')} left out"] if self.invalid else []
        if self.lost:
            at_least = "more than " if self.unknown else ""
            phrases.append(f"{at_least}{count_noun(self.lost, 'episode')} lost in damaged files")
        elif self.unknown:
            phrases.append("an unknown number of episodes lost in damaged files")
        elif self.damaged:
            phrases.append("a file was changed, but all its episodes could be read")
        if self.missing or self.unnamed:
            # "POLICY on SUITE/TASK" -> number of missing episodes.
            scenes = Counter(f"{absent.policy} on {absent.benchmark}/{absent.task_id}" for absent in self.missing)
            named = f" ({list_counts(scenes)})" if scenes else ""
            count = len(self.missing) + self.unnamed
            phrases.append(f"{count_noun(count, 'planned episode')} missing from the run{named}")
        if self.unplanned:
            phrases.append(f"{count_noun(self.unplanned, 'episode')} in the run but not in its plan")
        return phrases


def remedy_for(problems: Sequence[RecordError], *, is_any_valid: bool) -> str:
    """Return the remedy for invalid or lost episodes: copy damaged files again, or correct the records. If
    `is_any_valid`, add the option to leave these episodes out. Return "" if no episode is valid and no file is damaged.
    """
    is_damaged = any(isinstance(problem, DamageError) for problem in problems)
    if not is_any_valid:
        return "Copy the files again from their origin." if is_damaged else ""
    first = "Copy the files again from their origin; or" if is_damaged else "Correct the records, or"
    return f"{first} pass --set invalid=skip to use the valid episodes and only report how many are invalid or lost."


# Sources


LOST = "lost"
_LOST_REASON = "its record is lost in a damaged file"
_AS_PLANNED = run_folder.PlanDifference()


@dataclass(frozen=True, slots=True)
class RecordSource:
    """A source of records that have not been read yet."""

    path: Path
    absent: tuple[run_folder.AbsentEpisode, ...]
    description: Mapping[str, object]  # content of run.json; empty for an archive file
    # Yields the batches and errors of all episodes, or of the episodes at given indices (see `archive.read_episodes`).
    read: Callable[..., Iterator[Batch | RecordError]]
    files: tuple[Path, ...] = ()  # the files to read; () for an unfinished run, whose files change
    expected: tuple[run_folder.AbsentEpisode, ...] | None = None  # episodes that must have a record; None = unknown
    complete: bool = False  # True for a complete run folder, which has a manifest
    policy_names: naming.PolicyNames = field(default_factory=dict)
    # Differences of a complete run from its plan. Missing episodes are also in `absent`.
    plan: run_folder.PlanDifference = _AS_PLANNED

    @property
    def all_absent(self) -> tuple[run_folder.AbsentEpisode, ...]:
        """The planned episodes without a record, and those that must have a record, as far as they are known."""
        return *self.absent, *(self.expected or ())

    def rename_policies(self, names: naming.PolicyNames) -> RecordSource:
        """Return the source with policies renamed in its records and absent episodes, but not in its run.json. Policies
        that are not in `names` keep their names.
        """
        if not names:
            return self

        def rename(absent: Iterable[run_folder.AbsentEpisode]) -> tuple[run_folder.AbsentEpisode, ...]:
            # A policy that is not in `names` keeps its name.
            return tuple(replace(episode, policy=names.get(episode.policy, episode.policy)) for episode in absent)

        def read(*wanted: Collection[int]) -> Iterator[Batch | RecordError]:
            # `wanted` is empty (read all episodes) or has one item, the indices of the episodes to read.
            return rename_batches(self.read(*wanted), names)

        expected = None if self.expected is None else rename(self.expected)
        return dataclass_replace(self, absent=rename(self.absent), expected=expected, read=read, policy_names=names)

    def scan(self) -> Iterator[Batch | RecordError]:
        """Yield an error for each changed part of a complete run, then the records and errors of `read`. If `expected`
        is known, also yield an error for each expected episode without a record or error. An error of `read` without an
        expected episode then counts as zero lost episodes, so that no episode is counted twice.
        """
        if self.complete:
            yield from _report_changed_parts(self.path)
        if self.expected is None:
            yield from self.read()
        else:
            # From here on, an expected episode counts as lost if there is no record and no error with its id.
            yield from self._read_and_report_lost(self.expected)

    def _read_and_report_lost(self, expected: Sequence[run_folder.AbsentEpisode]) -> Iterator[Batch | RecordError]:
        """Yield the records and errors, then an error for each expected episode without a record or error. Errors
        without an expected episode count as zero lost episodes. Records of unexpected episodes become errors.
        """
        # Escaped name -> each expected episode without a record or error so far. Names in errors are escaped.
        missing = {escape_controls(episode.episode_id): episode for episode in expected}
        planned_names = set(missing)
        surplus_problem = "the archive has a record of this episode, but the run's table of episodes does not list it"
        for batch in self.read():
            if isinstance(batch, RecordError):
                name = escape_controls(batch.place.episode or "")
                missing.pop(name, None)
                if name not in planned_names:  # also true if the error names no episode
                    batch = DamageError(batch.problem, episodes=0, remedy=batch.remedy, place=batch.place)
                yield batch
                continue
            planned_indices = []
            for index, header in enumerate(batch.headers):
                name = escape_controls(header.episode_id)
                missing.pop(name, None)
                if name in planned_names:
                    planned_indices.append(index)
                else:
                    place = Place(file=str(self.path), episode=name, policy=header.policy)
                    yield RecordError(surplus_problem, place=place)
            if planned_indices:
                yield batch if len(planned_indices) == len(batch) else select_episodes(batch, planned_indices)
        lost_problem = "the episode was recorded, but no part of the archive has a readable record of it"
        for episode in missing.values():
            place = Place(file=str(self.path), episode=episode.episode_id, policy=episode.policy)
            yield DamageError(lost_problem, place=place)


def _report_changed_parts(path: Path) -> Iterator[DamageError]:
    # Yields an error for each missing, changed or unlisted part of the archive, or one error for a damaged manifest.
    # `episodes=0`: these errors count no lost episodes, because `RecordSource.scan` reports lost episodes one by one.
    if not (path / run_folder.MANIFEST).exists():  # `safevla verify` reports a missing manifest
        return
    try:
        for name, problem in parts.changed_parts(path):
            yield DamageError(problem, episodes=0, place=Place(file=str(path / name)))
    except RunError as error:
        yield DamageError(error.problem, episodes=0, remedy=error.remedy, place=error.place)


def rename_batches(batches: Iterable[Batch | RecordError], names: naming.PolicyNames) -> Iterator[Batch | RecordError]:
    """Yield the batches with renamed policies. Policies that are not in `names` keep their names."""
    for batch in batches:
        if isinstance(batch, Batch):  # pass on errors unchanged
            headers = (replace(header, policy=names.get(header.policy, header.policy)) for header in batch.headers)
            batch = dataclass_replace(batch, headers=tuple(headers))
        yield batch


def open_sources(paths: Sequence[Path]) -> list[RecordSource]:
    """Open several sources. Policies get the names that the user gave. Then different policies with the same name get
    different names; a policy NAME of an archive becomes "NAME (FILE)". Raises the same errors as `open_source` and
    `name_source`.
    """
    sources = [open_source(path) for path in paths]
    user_names: list[naming.PolicyNames] = []  # for each source: recorded name -> the user's name
    identities: list[list[naming.PolicyIdentity]] = []  # for each source: its renamed policies
    recorded_identities = [naming.identify_policies(source.path, source.description) for source in sources]
    for path, source, recorded in zip(paths, sources, recorded_identities, strict=True):
        # Recorded name -> the user's name; {} if the user gave none.
        names = naming.name_source(path, _recorded_policies(source, recorded))
        user_names.append(names)
        identities.append([dataclass_replace(policy, name=names.get(policy.name, policy.name)) for policy in recorded])
    distinct_names = naming.distinguish_policies(identities, paths)  # for each source: name -> distinct name
    renamed = []
    for source, names, new_names in zip(sources, user_names, distinct_names, strict=True):
        # The keys of `new_names` are the user's names or, if the user gave no name, the recorded names.
        other_names = {policy: name for policy, name in new_names.items() if policy not in names.values()}
        user_named = {policy: new_names.get(name, name) for policy, name in names.items()}
        renamed.append(source.rename_policies({**other_names, **user_named}))
    return renamed


def _recorded_policies(source: RecordSource, identities: Sequence[naming.PolicyIdentity]) -> list[str | None]:
    # Returns the names of the policies in a source; perhaps [] if the user gave the source's policy no name.
    # Only `name_source` uses these names, and only if the user gave a name.
    # If the user gave no name, no records are read to find the names.
    if identities or getattr(source.path, "policy", None) is None:
        return [identity.name for identity in identities]
    batches = (batch for batch in source.read() if isinstance(batch, Batch))
    return list(dict.fromkeys(header.policy for batch in batches for header in batch.headers))


def open_source(path: Path) -> RecordSource:
    """Open an archive, a run folder or a log in its current state. An unfinished run may continue or be completed
    later. Raises `RunError` if the source does not exist, is damaged or has no trajectories; `RecordError` if a log's
    mapping is invalid or missing.
    """
    require_source(path)
    if not (path / run_folder.RUN).exists() and foreign.find_results(path):
        remedy = "`safevla score` prints the success rates. To judge safety, record the rollouts: safevla eval."
        problem = "contains results of another tool, but no trajectories"
        raise RunError(problem, remedy=remedy, place=Place(file=str(path)))
    log = None if (path / run_folder.RUN).exists() else find_log(path)
    if log is not None:
        # A log and a single file have no absent episodes, `()`, and no run.json, `{}`.
        # The last two arguments of `RecordSource` are the function that reads the episodes, and the files to read.
        log.require_mapping()
        return RecordSource(path, (), {}, log.read, (log.path,))
    if path.is_dir():
        return _open_folder(path)
    return RecordSource(path, (), {}, partial(_read_file, path), (path,))


def require_source(path: Path) -> None:
    """Raise `RunError` unless the file or folder exists."""
    if not path.exists():
        remedy = "Name an archive file or a run folder."
        raise RunError("there is no such file or folder", remedy=remedy, place=Place(file=str(path)))


def _read_file(path: Path, wanted: Collection[int] | None = None) -> Iterator[Batch | RecordError]:
    # Yields the episodes of an archive file, and an error for a file without episodes.
    # `wanted` has the indices of the episodes to read; None = all.
    is_empty = True
    for batch in archive.read_episodes([path], wanted):
        is_empty = False
        yield batch
    if is_empty and wanted is None:  # `wanted` may match no episode
        remedy = "An archive needs at least one episode."
        yield RecordError("there are no episodes", remedy=remedy, place=Place(file=str(path)))


def require_run(path: Path, remedy: str = "Name a run folder, which holds run.json; `safevla eval` makes one.") -> None:
    """Raise `RunError` unless the folder exists and contains a run."""
    # `remedy` is the error's remedy. If the folder holds scores or run folders, a more exact remedy replaces it.
    require_source(path)
    if (path / run_folder.RUN).exists():
        return
    problem = "this is not a run folder"
    if (path / run_folder.SCORES).exists():
        problem = f"contains scores, but is not a run folder: it has no {run_folder.RUN}"
        remedy = "Name the judged run folder or archive, and repeat its --set, --library or --rules."
    elif any(path.glob(f"*/{run_folder.RUN}")):
        problem = "contains run folders, but is not a run folder"
        remedy = f"Name the run folders: {shlex.quote(str(path))}/*"
    raise RunError(problem, remedy=remedy, place=Place(file=str(path)))


_ANY_SOURCE = "Name a run folder (it holds run.json), an archive file, or a log: a LeRobot dataset, or a ROS bag."


def _open_folder(path: Path) -> RecordSource:
    # Returns a run folder, complete or not, as a source. Raises `RunError` if the folder is neither a run nor scores.
    # If the folder has scores, is not a run, and contains the judged archive, returns this archive as a source.
    archive_file = None if (path / run_folder.RUN).exists() else find_scored_archive(path)
    if archive_file is not None:
        return open_source(archive_file)
    require_run(path, _ANY_SOURCE)
    description = run_folder.read_description(path)
    complete = description.get("complete") is True
    files: list[Path] = []
    # An unfinished run has raw records. A complete run has an archive, or raw records if it is a user's own run.
    if description.get("complete") is False and parts.has_raw(path):
        episodes = parts.read_raw(path)
        rows: Sequence[run_folder.EpisodeRow] = list(episodes.values())
        read = partial(parts.read_unfinished, path, episodes)
    else:
        files = parts.listed_parts(path) or parts.record_files(path)
        rows = parts.episode_rows(path)
        read = partial(archive.read_episodes, files)
    plan = run_folder.compare_plan(description, rows) if complete else _AS_PLANNED
    crashed = [run_folder.AbsentEpisode.from_row(row) for row in rows if row.outcome == "crashed"]
    recorded = (row for row in rows if row.outcome != "crashed")
    expected = None
    # Without a table, or in an unfinished run, it is unknown which episodes must have a record.
    if complete and rows:
        expected = tuple(run_folder.AbsentEpisode.from_row(row, outcome=LOST, reason=_LOST_REASON) for row in recorded)
    absent = (*crashed, *plan.missing)
    return RecordSource(path, absent, description, read, tuple(files), expected, complete, plan=plan)


def find_scored_archive(folder: Path) -> Path | None:
    """Return the judged archive in a folder of scores (from `safevla demo`); None if the folder has no such archive."""
    try:
        decode = msgspec.json.Decoder(_ScoredSources).decode
        # `sources` stays undecoded at first; only this small part is decoded with the memory check of `decode_json`.
        listed = decode_input(folder / run_folder.SCORES, decode, run_folder.MAX_SCORES_BYTES).sources
        (source,) = decode_json(listed, list[_ScoredSource])  # raises `ValueError` if there are several sources
    except (OSError, ValueError, RecursionError):
        return None
    # Only the file name counts, so that scores.json cannot name a file outside the folder.
    path = folder / Path(source.archive).name
    is_judged = source.archive and path.is_file() and run_folder.archive_digest(path) == source.archive_sha256
    return path if is_judged else None


class _ScoredSource(msgspec.Struct):
    archive: str = ""
    archive_sha256: str | None = None


class _ScoredSources(msgspec.Struct):
    sources: msgspec.Raw
