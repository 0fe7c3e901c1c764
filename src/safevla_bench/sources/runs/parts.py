"""The records of a run folder: files in `raw/` while the run is unfinished, and later the parts of an archive.

Episode NNNNNN of the plan has a record, `raw/NNNNNN.npz`, and a row of facts, `raw/NNNNNN.json`, which is written last.
An episode without a row is run again, and its record is overwritten. A crashed episode has a row but no record.
`safevla_recorder` writes the same files, but counts episodes in the order in which they end, and makes no archive.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from itertools import chain, islice
from pathlib import Path

import msgspec
from msgspec.structs import replace

from safevla_bench import archive
from safevla_bench.archive import npz, parquet
from safevla_bench.archive.record_schema import EpisodeSelection
from safevla_bench.errors import DamageError, Place, RecordError, RunError, describe_cause
from safevla_bench.files import decode_input, decode_json, own_path, read_input, sha256_of, write_atomically
from safevla_bench.memory import limit_memory
from safevla_bench.sources.runs import folder as run_folder
from safevla_bench.trajectory.batch import Batch, select_episodes

RAW = "raw"
_ROW_SUFFIX = ".json"
_CRASHED = "crashed"
_ROW_FIELDS = tuple(field.name for field in fields(run_folder.EpisodeRow))


@dataclass(frozen=True)
class RawEpisode(run_folder.EpisodeRow):
    """A finished episode: the fields of its row, and three facts that vary between repetitions of a run."""

    latency: run_folder.Latency | None = None
    greeting: Mapping[str, object] | None = None
    ran_on: str | None = None

    @property
    def row(self) -> run_folder.EpisodeRow:
        """The row for the table of episodes, without the facts that vary between repetitions."""
        return run_folder.EpisodeRow(**{name: getattr(self, name) for name in _ROW_FIELDS})

    @property
    def has_record(self) -> bool:
        # False only for an episode in which the simulator, the policy or its server failed.
        return self.outcome != _CRASHED


def has_raw(folder: Path) -> bool:
    """Return whether a run folder has the folder `raw` of finished episodes."""
    return (folder / RAW).is_dir()


def record_path(folder: Path, index: int) -> Path:
    """Return the path of an episode's raw record; `index` is the episode's index in the plan."""
    return folder / RAW / f"{index:06d}{npz.SUFFIX}"


def write_raw(folder: Path, index: int, episode: RawEpisode, record: bytes | None) -> None:
    """Write a finished episode: first its record, which is the bytes of an `.npz` file, then its row. For a crashed
    episode, `record` is None, and the record of an earlier attempt is removed.
    """
    path = own_path(folder, RAW, record_path(folder, index).name)
    if record is None:
        path.unlink(missing_ok=True)
    else:
        write_atomically(path, record)
    # The row is written last: an episode without a row counts as unfinished.
    write_atomically(own_path(folder, RAW, path.with_suffix(_ROW_SUFFIX).name), run_folder.encode_json(episode) + b"\n")


def remove_raw(folder: Path, index: int) -> None:
    """Remove a finished episode: first its row, so that the episode counts as unfinished, then its record."""
    path = record_path(folder, index)
    path.with_suffix(_ROW_SUFFIX).unlink(missing_ok=True)
    path.unlink(missing_ok=True)


def count_progress(folder: Path) -> tuple[int, int]:
    """Return (number of finished episodes, number of planned episodes) of a run folder; both are equal for a complete
    run. Return (0, 0) if run.json lacks the planned number. Raises `RunError` if run.json is missing or damaged.
    """
    description = run_folder.read_description(folder)
    planned = description.get("planned")
    if not isinstance(planned, int):
        return 0, 0
    done = 0
    if description.get("complete"):
        done = planned
    elif has_raw(folder):
        done = len(_row_paths(folder))
    return done, planned


def read_raw(folder: Path) -> dict[int, RawEpisode]:
    """Return index in the plan -> finished episode, in plan order. Raises `FileNotFoundError` without raw episodes (the
    run may just have been completed), and `RunError` if a row is damaged.
    """
    return {index: _read_row(path) for index, path in _row_paths(folder).items()}


def record_files(folder: Path) -> list[Path]:
    """Return, in order, the files with the records of a complete run: the parts of its archive, or its raw records if
    there are no parts; [] if both are missing. Raises `RunError` if a raw row is damaged.
    """
    parts = run_folder.archive_parts(folder)
    if parts or not has_raw(folder):
        return parts  # [] if the folder `raw` is missing, too
    return [record_path(folder, index) for index, episode in read_raw(folder).items() if episode.has_record]


def episode_rows(folder: Path) -> list[run_folder.EpisodeRow]:
    """Return the row of every planned episode of a complete run, in plan order. The source is the table of episodes or,
    if it is missing, the raw rows; [] if both are missing. Raises `RunError` if the table or a raw row is damaged.
    """
    if (folder / run_folder.EPISODES).exists() or not has_raw(folder):
        return run_folder.read_episodes(folder)
    return [episode.row for episode in read_raw(folder).values()]


def complete_episodes(folder: Path) -> list[RawEpisode]:
    """Return every planned episode of a complete run, in plan order, with the facts that vary between repetitions.
    Raises `RunError` if run.json, the table or a raw row is damaged.
    """
    facts = run_folder.read_facts(folder)
    statements = facts.statements  # computed once, for all rows of the table
    episodes = []
    for row in episode_rows(folder):
        # Facts that were not recorded are None.
        latency, ran_on = facts.policy_latency.get(row.episode_id), facts.ran_on.get(row.episode_id)
        greeting = statements.get(row.episode_id)
        episodes.append(RawEpisode(**asdict(row), latency=latency, greeting=greeting, ran_on=ran_on))
    return episodes


def collect_facts(episodes: Iterable[RawEpisode], repeats: Mapping[str, run_folder.Repeats]) -> run_folder.DayFacts:
    """Return the facts of a run that vary between repetitions. Equal statements of a policy in a suite are merged."""
    # `repeats` maps each policy to two counts: requests that were repeated, and repetitions with a different answer.
    latencies: dict[str, run_folder.Latency] = {}
    ran_on: dict[str, str] = {}
    # (policy, suite, statement as JSON) -> the statement, and the ids of the episodes in which it was made.
    greetings: dict[tuple[str, str, bytes], run_folder.PolicyGreeting] = {}
    for episode in episodes:
        if episode.ran_on:
            ran_on[episode.episode_id] = episode.ran_on
        if episode.latency:
            latencies[episode.episode_id] = episode.latency
        if episode.greeting:
            policy, suite, statement = episode.policy, episode.benchmark, episode.greeting
            key = (policy, suite, msgspec.json.encode(statement))
            new_greeting = run_folder.PolicyGreeting(policy=policy, suite=suite, says=statement, episodes=[])
            greetings.setdefault(key, new_greeting).episodes.append(episode.episode_id)
    says = list(greetings.values())
    return run_folder.DayFacts(policy_latency=latencies, ran_on=ran_on, policies_say=says, repeated_answers=repeats)


_PLANNED_FIELDS = ("policy", "episode_id", "benchmark", "task_id", "init_state_index", "env_seed", "seed", "horizon")


def plan_digest(folder: Path) -> str:
    """Return the sha256 of a complete run's plan (all episodes, in order). The digest does not depend on outcomes.
    Raises the same errors as `episode_rows`.
    """
    # `_PLANNED_FIELDS` are known before an episode runs, such as policy, task and seeds.
    planned = [[getattr(row, name) for name in _PLANNED_FIELDS] for row in episode_rows(folder)]
    return hashlib.sha256(msgspec.json.encode(planned)).hexdigest()


def read_record(folder: Path, index: int) -> Batch:
    """Return the raw record of the episode at a plan index. Raises `RecordError` if it is missing or damaged."""
    path = record_path(folder, index)
    try:
        with limit_memory(path):
            # A raw file has one episode.
            # Reading a raw file gives a batch of one episode, or an error for invalid content.
            # `EpisodeSelection()` selects all episodes.
            (record,) = npz.read_npz(path, EpisodeSelection())
    except OSError as error:
        row_path = path.with_suffix(_ROW_SUFFIX)
        remedy = f"Restore the file; or remove {row_path} and resume the run, to run the episode again."
        is_missing = isinstance(error, FileNotFoundError)
        problem = "the record is missing" if is_missing else f"cannot be read: {describe_cause(error)}"
        raise DamageError(problem, episodes=1, remedy=remedy, place=Place(file=str(path))) from None
    if isinstance(record, RecordError):
        raise record
    return record


def read_unfinished(
    folder: Path, episodes: Mapping[int, RawEpisode], wanted: Collection[int] | None = None
) -> Iterator[Batch | RecordError]:
    """Yield the records of an unfinished run's `episodes`, and an error for each bad record. `wanted` has the indices
    of the records to read, counted over all records of `episodes`; None = all. Raises `RunError` if the run was
    completed in the meantime.
    """
    selection = EpisodeSelection(wanted)
    for index, episode in episodes.items():
        # `next_wanted` counts its calls, so call it once for each episode with a record.
        if episode.has_record and selection.next_wanted():
            try:
                yield read_record(folder, index)
            except RecordError as error:
                # If the raw records are missing, another process completed the run and moved them into an archive.
                if not has_raw(folder):
                    problem, place = "the run was completed while it was read", Place(file=str(folder))
                    raise RunError(problem, remedy="Run the command again.", place=place) from None
                yield error.with_place(Place(episode=episode.episode_id, policy=episode.policy))


def require_records(folder: Path, episodes: Mapping[int, RawEpisode]) -> None:
    """Raise `RunError` if the record of a finished episode is missing."""
    for index, episode in episodes.items():
        path = record_path(folder, index)
        if episode.has_record and not path.exists():
            remedy = f"Restore the file; or remove {path.with_suffix(_ROW_SUFFIX)}, so that the episode is run again."
            raise RunError("the record of a finished episode is missing", remedy=remedy, place=Place(file=str(path)))


def _row_paths(folder: Path) -> dict[int, Path]:
    # Returns index in the plan -> file of the episode's row, in plan order; other files are ignored.
    paths = [path for path in (folder / RAW).iterdir() if path.suffix == _ROW_SUFFIX and path.stem.isdecimal()]
    return dict(sorted((int(path.stem), path) for path in paths))


def _read_row(path: Path) -> RawEpisode:
    # Returns a finished episode from the JSON file in `raw/` that has only the row of this episode.
    try:
        return decode_input(path, partial(decode_json, kind=RawEpisode))
    except FileNotFoundError:  # another process may have removed the row
        raise
    except (OSError, ValueError, RecursionError) as error:
        remedy = "Restore the file; or remove it, so that the episode is run again."
        raise RunError(f"the row is damaged: {error}", remedy=remedy, place=Place(file=str(path))) from None


# The files of a complete run


SEAL = "file_sha256"  # last key of manifest.json and of `volatile` in run.json: sha256 of all other bytes of the file


def seal_json(document: Mapping[str, object]) -> bytes:
    """Return a document as JSON. The value "" of its last key, `SEAL`, is replaced by the sha256 of all other bytes."""
    # `_SEAL_KEY` ends with the value's opening quotation mark. `tail` begins with the closing quotation mark.
    head, key, tail = run_folder.dump_json(document).rpartition(_SEAL_KEY)
    return head + key + hashlib.sha256(head + key + tail).hexdigest().encode() + tail  # insert the digest before `tail`


def is_sealed(content: bytes) -> bool:
    """Return whether the bytes of a file are those that `seal_json` returned."""
    # After the key `_SEAL_KEY`, a sealed file has the sha256 of all other bytes.
    head, key, rest = content.rpartition(_SEAL_KEY)  # `key` is empty if the file has no `SEAL`
    digest, tail = rest[:_DIGEST_LENGTH], rest[_DIGEST_LENGTH:]
    return bool(key) and digest == hashlib.sha256(head + key + tail).hexdigest().encode()


_SEAL_KEY, _DIGEST_LENGTH = f'"{SEAL}": "'.encode(), 64


def write_manifest(folder: Path, parts: Sequence[Path], episodes: int, description: Mapping[str, object]) -> None:
    """Write manifest.json of a complete run. It has the sha256 of the archive's `parts`, of the table of episodes, and
    of `description` (the content of run.json) without `volatile`. `episodes` is the number of planned episodes.
    """
    # Convert the description to JSON values before the digest is computed, since readers get lists, not tuples.
    files = {
        run_folder.EPISODES: sha256_of(folder / run_folder.EPISODES),
        run_folder.RUN: _digest_description(json.loads(run_folder.dump_json(description))),
    }
    digests = {_part_name(part): sha256_of(part) for part in parts}
    _write_sealed_manifest(folder, run_folder.Manifest(parts=digests, episodes=episodes, files=files))


def _write_sealed_manifest(folder: Path, manifest: run_folder.Manifest) -> None:
    # Writes manifest.json with the sha256 of its other bytes as the last value.
    write_atomically(own_path(folder, run_folder.MANIFEST), seal_json({**msgspec.structs.asdict(manifest), SEAL: ""}))


def add_digests(folder: Path, contents: Mapping[str, bytes | None]) -> None:
    """Add digests of files that were written after a run to the run's manifest; content None = remove the file's
    digest. Does nothing if the manifest is missing or damaged. Raises `FileError` if writing fails.
    """
    try:
        manifest = run_folder.read_manifest(folder)
    except RunError:
        return
    # New digests are appended, so the manifest's order is the order of writing.
    other_digests = {name: digest for name, digest in manifest.files.items() if name not in contents}
    present = {name: content for name, content in contents.items() if content is not None}
    new_digests = {name: hashlib.sha256(content).hexdigest() for name, content in present.items()}
    _write_sealed_manifest(folder, replace(manifest, files={**other_digests, **new_digests}))


def later_files(folder: Path, name: str) -> list[str]:
    """Return the files outside the archive that were written after the file `name`, by their order in the manifest.
    Return [] without a manifest, as for a run with raw records. Raises `RunError` if the manifest is damaged.
    """
    if not (folder / run_folder.MANIFEST).exists():
        return []
    files = list(run_folder.read_manifest(folder).files)
    return files[files.index(name) + 1 :] if name in files else []  # [] if the manifest does not name the file


# Names of the files that are compared with the manifest: pictures, and files directly in the run folder.
_OUTSIDE_ARCHIVE = re.compile(r"(?:(?:frames|found)/)?\w[\w.-]*", re.ASCII)


def changed_files(folder: Path) -> Iterator[str]:
    """Yield a sentence for each file outside the archive that differs from the manifest, and for run.json and
    manifest.json if they do not match their own digest. Raises `RunError` if run.json or manifest.json cannot be read.
    """
    files = run_folder.read_manifest(folder).files
    for name in (run_folder.MANIFEST, run_folder.RUN):
        if not is_sealed(read_input(folder / name)):
            yield f"{name} was changed since it was written: its bytes do not match its {SEAL}"
    # Always check the table and run.json, even if the manifest does not name them. Check each file once.
    # `_OUTSIDE_ARCHIVE` matches the names of files outside the archive.
    for name in dict.fromkeys([run_folder.EPISODES, run_folder.RUN, *filter(_OUTSIDE_ARCHIVE.fullmatch, files)]):
        path = folder / name
        digest = ""  # "" = the file is missing or outside the folder
        if name == run_folder.RUN:
            digest = _digest_description(run_folder.read_description(folder))
        elif path.is_file() and path.resolve().is_relative_to(folder.resolve()):
            digest = sha256_of(path)
        if digest != files.get(name):
            yield f"{name} {_describe_change(digest, files.get(name))}"


def _describe_change(digest: str, stated_digest: str | None) -> str:
    # Returns the end of a sentence about a file. `digest` is "" for a missing file.
    # `stated_digest` is None if the manifest does not name the file.
    if stated_digest is None:
        return f"is not named by {run_folder.MANIFEST}{'' if digest else ', and is missing'}"
    if not digest:
        return f"is missing, but {run_folder.MANIFEST} names it"
    return f"was changed since it was written: its sha256 is {digest}, but {run_folder.MANIFEST} states {stated_digest}"


def _digest_description(description: Mapping[str, object]) -> str:
    # Returns the sha256 of run.json without `volatile`, the facts that vary between repetitions of the run.
    repeatable = {name: value for name, value in description.items() if name != "volatile"}
    return hashlib.sha256(json.dumps(repeatable).encode()).hexdigest()


def listed_parts(folder: Path) -> list[Path]:
    """Return, sorted, the parts of the archive that exist, and those in the manifest (if it can be read)."""
    try:
        names = run_folder.read_manifest(folder).parts
    except RunError:
        names = {}
    # Use only the file name, so that a manifest cannot name files outside the archive.
    listed = (folder / run_folder.ARCHIVE / Path(name).name for name in names)
    return sorted({*run_folder.archive_parts(folder), *listed})


def changed_parts(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield (name, problem) for each missing, changed or unlisted part. Raises `RunError` for a damaged manifest."""
    stated_digests = run_folder.read_manifest(folder).parts
    existing = {_part_name(part): part for part in run_folder.archive_parts(folder)}
    for name, expected in stated_digests.items():
        digest = sha256_of(existing[name]) if name in existing else ""  # "" = missing
        if digest != expected:
            yield name, _describe_change(digest, expected)
    for name in existing:
        if name not in stated_digests:
            yield name, f"is not in {run_folder.MANIFEST}"


def _part_name(part: Path) -> str:
    # Returns the part's name in the manifest, such as `archive/part-00000.parquet`.
    return f"{run_folder.ARCHIVE}/{part.name}"


EPISODES_A_PART = 200
JSONL, PARQUET = "jsonl", "parquet"
FORMS: Mapping[str, str] = {PARQUET: parquet.SUFFIX, JSONL: ".jsonl.zst"}


def write_run(
    folder: Path, description: Mapping[str, object], rows: Sequence[run_folder.EpisodeRow], records: Iterable[Batch]
) -> None:
    """Write all files of a complete run, run.json last. Existing files are replaced. `description` becomes run.json,
    with `complete` true; its key `archive` is the archive's format. `records` has a batch for each episode in `rows`
    that has a record, in plan order.
    """
    # `FORMS` maps the archive's format to the ending of its files.
    parts = list(_write_parts(folder, records, FORMS[str(description.get("archive", PARQUET))]))
    # Remove the parts of an earlier archive, which may be more or have another format.
    for stale in set(run_folder.archive_parts(folder)) - set(parts):
        stale.unlink()
    run_folder.write_episodes(folder, rows)
    completed = {**description, "complete": True}
    write_manifest(folder, parts, len(rows), completed)
    # Reset the value of `SEAL`, since `volatile` may have an old digest. `seal_json` fills in the new digest.
    volatile = {name: value for name, value in run_folder.read_volatile(description).items() if name != SEAL}
    write_atomically(own_path(folder, run_folder.RUN), seal_json({**completed, "volatile": {**volatile, SEAL: ""}}))


def read_records(folder: Path) -> Iterator[Batch]:
    """Yield the records of a complete run in order, one episode per batch. Raises `RecordError` if unreadable."""
    for batch in archive.read_episodes(run_folder.archive_parts(folder)):
        if isinstance(batch, RecordError):
            raise batch
        for index in range(len(batch)):
            yield select_episodes(batch, [index])


def _write_parts(folder: Path, records: Iterable[Batch], suffix: str) -> Iterator[Path]:
    # Writes the archive's files, of up to 200 episodes each, and yields their paths. `suffix` determines the format.
    own_path(folder, run_folder.ARCHIVE).mkdir(exist_ok=True)
    remaining = iter(records)
    for number, first_record in enumerate(remaining):  # `islice` reads the other records of the part
        path = folder / run_folder.ARCHIVE / f"part-{number:05d}{suffix}"
        archive.write_batches(path, chain([first_record], islice(remaining, EPISODES_A_PART - 1)))
        yield path
