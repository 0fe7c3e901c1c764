"""The writer of a run folder. If the process is killed, at most the episodes in progress are lost.

A run is complete when run.json, which is written last, has `complete` = true. A repeated step writes the same bytes.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

import msgspec

from safevla_bench.archive import npz
from safevla_bench.errors import FileError, Place, RunError
from safevla_bench.files import make_folder, own_path, translated_errors, write_atomically
from safevla_bench.sources.runs import folder as run_folder
from safevla_bench.sources.runs import parts
from safevla_bench.sources.runs.sources import require_run
from safevla_bench.trajectory.batch import Batch
from safevla_recorder.folder import is_writer_file, lock_folder, remove_unused, require_free_folder, unlock_folder
from safevla_recorder.identity import UNKNOWN


class RunFolderWriter:
    """A context manager that fills a run folder, and locks the folder while it is open. `complete` is true if the run
    is complete; else `episodes` maps indices in the plan to finished episodes. `fresh`: the folder had no run.
    """

    def __init__(
        self,
        folder: Path,
        description: Mapping[str, object],
        *,
        resume: bool = False,
        continuation: str = "",
        other_code: bool = False,
    ) -> None:
        """Make the folder with its run.json. With `resume`, continue the run in the folder; `other_code` allows a run
        that another version of the code began. `continuation` is the command that continues the run, for error
        messages; "" = the command of `safevla eval`. Raises `RunError` if another process writes to the folder, or if
        the folder has other files or a damaged run. If the folder has a run, raises `RunError` unless `resume` is true
        and the request equals the run's request. Raises `FileError` if the folder cannot be written.
        """
        # `description` is the content of run.json, which has the run's request.
        # `episodes` maps indices in the plan to finished episodes.
        self.folder, self._continuation = folder, continuation or format_resume_command(folder)
        self.episodes: dict[int, parts.RawEpisode] = {}
        self._is_new = not folder.exists()
        make_folder(folder)
        with translated_errors(folder):
            # A folder without a run must be empty, except for files of killed writers.
            # Check that the folder is empty before making the lock.
            # `is_of_killed_writer` compares only names, so it is also true for the lock that is made below.
            if not (folder / run_folder.RUN).exists():
                require_free_folder(folder, is_writer_file)
        self._lock = lock_folder(folder)
        try:
            self.fresh = all(map(is_writer_file, folder.iterdir()))  # `all` is also True for an empty folder
            if self.fresh:
                write_atomically(folder / run_folder.RUN, run_folder.dump_json({**description, "complete": False}))
            else:
                # If the third argument is a command, `_require_continuable` always raises an error.
                _require_continuable(folder, description, "" if resume else self._continuation)
                existing = run_folder.read_description(folder)
                # The versions of the code that recorded the run so far, and the version that continues it.
                codes = run_folder.recorded_code(existing), run_folder.recorded_code(description)
                run_folder.require_same_code(str(folder), *codes, is_allowed=other_code)
            self.description = run_folder.read_description(folder)
            self.complete = self.description.get("complete") is True
            with self._resumable_errors():
                if self.complete:
                    _remove_leftovers(folder)  # a process may have been killed after it completed the run
                else:
                    own_path(folder, parts.RAW).mkdir(exist_ok=True)
                    self.episodes = parts.read_raw(folder)
                    parts.require_records(folder, self.episodes)
        except BaseException:
            unlock_folder(folder, self._lock)
            if self._is_new:  # the folder did not exist before
                with suppress(OSError):
                    folder.rmdir()  # fails harmlessly if the folder is not empty
            raise

    def __enter__(self) -> Self:
        # `__init__` has locked the folder.
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Unlocks the folder; an error in the `with` block propagates.
        unlock_folder(self.folder, self._lock)

    def add_episode(self, index: int, episode: parts.RawEpisode, record: bytes | None) -> None:
        """Store a finished episode. `index` is its index in the plan, `record` the bytes of an `.npz` file; None = no
        record. Raises `FileError` if the files cannot be written; the remedy is the command that resumes the run.
        """
        with self._resumable_errors():
            parts.write_raw(self.folder, index, episode, record)
            self.episodes[index] = episode

    def reopen(self, places: Mapping[str, int]) -> None:
        """Make a complete run unfinished again, and drop its crashed episodes, so that they can be repeated. `places`
        maps episode ids to indices in the plan. Raises `RunError` or `RecordError` if the run is damaged, and
        `FileError` if files cannot be written.
        """
        for name, problem in parts.changed_parts(self.folder):  # raise an error for the first changed file
            remedy = "Restore the file first: repeating episodes removes the manifest with the file's digest."
            raise RunError(problem, remedy=remedy, place=Place(file=str(self.folder / name)))
        unplanned = [row.episode_id for row in parts.episode_rows(self.folder) if row.episode_id not in places]
        if unplanned:
            problem = f"the run lists {unplanned[0]!r}, which was not planned"
            place = Place(file=str(self.folder / run_folder.EPISODES))
            raise RunError(problem, remedy="Restore this table first.", place=place)
        with self._resumable_errors():
            self._unpack_archive(places)

    def _unpack_archive(self, plan_indices: Mapping[str, int]) -> None:
        # Writes the episodes in the archive as raw episodes, except crashed ones, then removes the archive.
        records = parts.read_records(self.folder)  # in plan order; crashed episodes have no record
        own_path(self.folder, parts.RAW).mkdir(exist_ok=True)
        for episode in parts.complete_episodes(self.folder):
            if episode.has_record:
                parts.write_raw(self.folder, plan_indices[episode.episode_id], episode, npz.encode_npz(next(records)))
        # Until run.json is written, readers use the archive's records; afterwards, they use the raw records.
        write_atomically(self.folder / run_folder.RUN, run_folder.dump_json({**self.description, "complete": False}))
        self.episodes, self.complete = parts.read_raw(self.folder), False
        stale_files = [self.folder / run_folder.EPISODES, self.folder / run_folder.MANIFEST]
        for stale in [*stale_files, *run_folder.archive_parts(self.folder)]:
            stale.unlink(missing_ok=True)

    def read_record(self, index: int) -> Batch:
        """Return the record of a finished episode of an unfinished run, by its index in the plan. Raises `RecordError`
        if the record is missing or damaged.
        """
        return parts.read_record(self.folder, index)

    def keep_episodes(self, indices: Collection[int]) -> None:
        """Remove the unfinished run's episodes, except those at plan `indices`. Raises `FileError` if this fails."""
        # `episodes` maps indices in the plan to finished episodes.
        with self._resumable_errors():
            for index in set(self.episodes) - set(indices):
                parts.remove_raw(self.folder, index)
                del self.episodes[index]

    def finish(self, decision: object = None, repeats: Mapping[str, run_folder.Repeats] | None = None) -> None:
        """Complete the run: write the archive in plan order, the table of episodes and run.json; then remove the raw
        episodes. `decision` is the result of the run's stopping rule (None = no rule); `repeats` is policy -> `Repeats`
        of its server. Both go into run.json. Raises `RecordError` if a record is missing or damaged, and `FileError` if
        the run cannot be written.
        """
        with self._resumable_errors():
            # `episodes` maps indices in the plan to finished episodes.
            episodes = {index: self.episodes[index] for index in sorted(self.episodes)}
            recorded = (index for index, episode in episodes.items() if episode.has_record)
            records = map(self.read_record, recorded)  # reads records one by one, while the archive is written
            facts = parts.collect_facts(episodes.values(), repeats or {})
            # Versions of the code: those in run.json, if any, and those of all recorded episodes.
            codes = run_folder.recorded_code(self.description) if "code" in self.description else []
            codes += [episode.code or UNKNOWN for episode in episodes.values() if episode.has_record]
            description = {**facts.add_to(self.description), "code": list(dict.fromkeys(codes))}
            if decision is not None:
                description[run_folder.DECISION] = decision
            parts.write_run(self.folder, description, [episode.row for episode in episodes.values()], records)
            self.complete = True
            _remove_leftovers(self.folder)  # removes the raw episodes

    @contextmanager
    def _resumable_errors(self) -> Iterator[None]:
        # Turns errors of the file system into a `FileError` whose remedy has the command that continues the run.
        try:
            with translated_errors(self.folder):
                yield
        except FileError as error:
            error.remedy = f"Finished episodes are kept. Correct the cause, then continue: {self._continuation}"
            raise

    def discard(self) -> None:
        """Remove the files of a run without recorded episodes. Also remove the folder if the run created it."""
        # `is_new`: the folder did not exist before this run.
        remove_unused(self.folder, is_new=self._is_new)


def _require_continuable(folder: Path, description: Mapping[str, object], continuation: str) -> None:
    # Raises `RunError` unless the request `description` may resume the folder's run.
    # If `continuation` is "", the request must equal the run's request. Otherwise, always raises an error.
    # The error's remedy has the command `continuation`, unless the user's own script recorded the run.
    place = Place(file=str(folder))
    existing = run_folder.read_description(folder)
    if continuation and run_folder.is_own_loop(existing):
        raise RunError("the folder holds a run that your script recorded", remedy=_OTHER_FOLDER, place=place)
    if continuation and existing.get("complete") is False:
        remedy = f"Choose another --out, or continue the run: {continuation}"
        done, planned = parts.count_progress(folder)
        problem = f"the folder holds an unfinished run, {done} of {planned} episodes done"
        raise RunError(problem, remedy=remedy, place=place)
    if continuation:
        remedy = f"Judge the run again: {continuation}; or choose another --out, or remove the folder first."
        raise RunError("the folder is not empty: it holds a complete run", remedy=remedy, place=place)
    requested = json.loads(run_folder.dump_json(description))
    differing = list(list_differences(_repeatable_fields(existing), _repeatable_fields(requested)))
    if differing:
        problem = "the request differs from the run to resume:\n  " + "\n  ".join(differing)
        raise RunError(problem, remedy="Repeat the original request, or choose another --out.", place=place)


_OTHER_FOLDER = "Choose another --out, or remove the folder first."


def _repeatable_fields(description: Mapping[str, object]) -> dict[str, object]:
    # Returns the fields of run.json that must be equal when the same run is requested again.
    varying = ("volatile", "complete", "code", run_folder.DECISION)
    return {name: value for name, value in description.items() if name not in varying}


def list_differences(
    existing: object, asked: object, words: tuple[str, str] = ("the run has", "the request has"), name: str = ""
) -> Iterator[str]:
    """Yield a line for each value that differs between two JSON values; a missing key counts as None. A line has both
    values, each after one of `words`. `name` is the path of the two values in their documents, such as `a.b[2]`.
    """
    if isinstance(existing, dict) and isinstance(asked, dict):
        for key in existing | asked:
            yield from list_differences(existing.get(key), asked.get(key), words, f"{name}.{key}" if name else key)
    # Lists of different lengths are shown as one differing value.
    elif isinstance(existing, list) and isinstance(asked, list) and len(existing) == len(asked):
        for index, (value, counterpart) in enumerate(zip(existing, asked, strict=True)):
            yield from list_differences(value, counterpart, words, f"{name}[{index}]")
    elif existing != asked:
        yield f"{name}: {words[0]} {_format_value(existing)}, {words[1]} {_format_value(asked)}"


def _format_value(value: object) -> str:
    # Returns a JSON value as text, cut after 200 characters.
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


def _remove_leftovers(folder: Path) -> None:
    # Removes raw episodes if the manifest exists (the archive then has their records), and files of killed processes.
    if (folder / run_folder.MANIFEST).exists() and (folder / parts.RAW).is_dir():
        shutil.rmtree(folder / parts.RAW)
    for path in [*folder.glob(".*.partial"), *own_path(folder, run_folder.ARCHIVE).glob(".*.partial")]:
        path.unlink()


def format_resume_command(folder: Path, *words: str) -> str:
    """Return the shell command that continues a run of `safevla eval` in a folder."""
    # `words` are further options of the command.
    return shlex.join(["safevla", "eval", "--resume", *words, "--out", str(folder)])


# Merging of the shards of a plan into one run folder, with the same bytes as if the plan had been run without shards


_DAMAGED = "Copy the shard again from its origin, or run it again."
# Keys of run.json that differ between the shards of one plan.
_SHARD_FIELDS = ("shard", "planned", "volatile", "complete", "code")


@dataclass(frozen=True)
class _Shard:
    folder: Path
    description: Mapping[str, object]
    position: run_folder.PlanStretch  # number and count of shards, the first episode's index, and the plan's length
    episodes: Sequence[parts.RawEpisode]

    @property
    def plan(self) -> dict[str, object]:
        # The content of run.json that must be the same in all shards of a plan.
        common = {name: value for name, value in self.description.items() if name not in _SHARD_FIELDS}
        # Leave out the number and the first episode in `shard`, because they differ between shards.
        return {**common, "shard": {"count": self.position.count, "whole": self.position.whole}}


def merge_shards(
    folders: Sequence[Path],
    out: Path,
    format_continuation: Callable[[Path], str] = format_resume_command,
    *,
    other_code: bool = False,
) -> list[run_folder.EpisodeRow]:
    """Merge complete shards (in any order) into the run folder `out`; return the row of each episode, in plan order.
    The folder `out` appears complete or not at all. If it exists, it must have the same content, and is not changed.
    `format_continuation` returns the command that completes a shard. `other_code` allows shards that different versions
    of the code recorded. Raises `RunError` unless `folders` are all shards of one plan, each once and intact;
    `RecordError` for an unreadable record; `FileError` if the folder cannot be written.
    """
    existing_digests = _result_digests(out)  # {} if `out` is not a complete, intact run
    if out.exists() and not existing_digests:
        _refuse_folder(out, "exists already", _OTHER_FOLDER)
    unsorted_shards = [_read_shard(folder, format_continuation) for folder in folders]
    shards = sorted(unsorted_shards, key=lambda shard: shard.position.number)
    _require_whole_plan(shards)
    # `codes` are the versions of the code that recorded this shard, and those that recorded the first shard.
    for shard in shards[1:]:
        codes = run_folder.recorded_code(shard.description), run_folder.recorded_code(shards[0].description)
        run_folder.require_same_code(str(shard.folder), *codes, is_allowed=other_code)
    rows = [episode.row for shard in shards for episode in shard.episodes]
    # The run is written next to `out` and renamed at the end, so that `out` never holds half a run.
    scratch = out.with_name(f".{out.name}.{os.getpid()}.partial")
    try:
        with translated_errors(out):
            shutil.rmtree(scratch, ignore_errors=True)  # remove what a killed process with the same id left
            scratch.mkdir(parents=True)
            records = chain.from_iterable(map(_shard_records, shards))
            parts.write_run(scratch, _merged_description(shards), rows, records)
            if not existing_digests:
                try:
                    scratch.rename(out)
                except OSError:
                    existing_digests = _result_digests(out)  # another process merged into `out` meanwhile
                    if not existing_digests:
                        raise
            if existing_digests and _result_digests(scratch) != existing_digests:
                _refuse_folder(out, "exists already, and differs from the merged shards", _OTHER_FOLDER)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return rows


def _result_digests(folder: Path) -> dict[str, str]:
    # Returns file -> digest for archive, table and run.json of a complete, intact run; {} for any other folder.
    try:
        is_complete = run_folder.read_description(folder).get("complete") is True
        # Any item of `changed_parts` is a missing, changed or unlisted part of the archive.
        if not is_complete or any(parts.changed_parts(folder)):
            return {}
        manifest = run_folder.read_manifest(folder)
    except RunError:
        return {}
    # Ignore other files, such as scores and pictures, which may be written after the run.
    files = {name: digest for name, digest in manifest.files.items() if name in (run_folder.EPISODES, run_folder.RUN)}
    return {**manifest.parts, **files}


def _read_shard(folder: Path, format_continuation: Callable[[Path], str]) -> _Shard:
    # Returns the shard in a run folder. Raises `RunError` unless it is complete, and its archive and table are intact.
    # `format_continuation` returns the command that continues the run in a folder.
    require_run(folder)
    description = run_folder.read_description(folder)
    try:
        position = msgspec.convert(description.get("shard"), run_folder.PlanStretch)
    except msgspec.ValidationError:
        _refuse_folder(folder, "this run is not a shard", "Shards are made with --shard 1/8 and so on.")
    if description.get("complete") is not True:
        done, planned = parts.count_progress(folder)
        remedy = f"Continue it: {format_continuation(folder)}"
        _refuse_folder(folder, f"the shard is unfinished, {done} of {planned} episodes done", remedy)
    for name, problem in parts.changed_parts(folder):
        _refuse_folder(folder / name, problem, _DAMAGED)
    for problem in parts.changed_files(folder):
        if problem.startswith(f"{run_folder.EPISODES} was changed"):  # scores and pictures are not merged
            _refuse_folder(folder, problem, _DAMAGED)
    return _Shard(folder, description, position, parts.complete_episodes(folder))


def _require_whole_plan(shards: Sequence[_Shard]) -> None:
    # Raises `RunError` unless `shards` (sorted by number) are all shards of one plan.
    # Each shard must be given once and have all episodes of the shard.
    # A shard's `position` has the shard's number, counted from 1, and the count of shards.
    # A shard's `position` also has the index of its first episode, and the length of the whole plan.
    for shard in shards[1:]:
        differing = list(list_differences(shards[0].plan, shard.plan, ("that has", "this has")))
        if differing:
            listed = "\n  ".join(differing)
            problem = f"the plan of this shard differs from the plan of {shards[0].folder}:\n  {listed}"
            _refuse_folder(shard.folder, problem, "Merge only shards of one plan; run any other shard again.")
    by_number: dict[int, list[Path]] = {}
    for shard in shards:
        by_number.setdefault(shard.position.number, []).append(shard.folder)
    count = shards[0].position.count if shards else 1  # without shards, shard 1 of 1 is missing
    problems = [
        f"shard {number}/{count} is given twice: {' and '.join(map(str, folders))}"
        for number, folders in by_number.items()
        if len(folders) > 1
    ]
    missing = list(islice(find_missing(by_number, count), _MAX_NAMED + 1))  # `count` may be huge
    if missing:
        named = ", ".join(map(str, missing[:_MAX_NAMED]))
        further = " and more" if len(missing) > _MAX_NAMED else ""
        problems.append(f"of {count} shards, these are missing: {named}{further}")
    if problems:
        remedy = "Name the run folders of all shards, each once; `safevla merge SHARD... --status` prints the commands."
        raise RunError("\n  ".join(problems), remedy=remedy)
    # Each shard ends where the next one begins; the last shard ends with the plan.
    expected_ends = [*(shard.position.first for shard in shards[1:]), shards[0].position.whole]
    for shard, end in zip(shards, expected_ends, strict=True):
        if shard.position.first + len(shard.episodes) != end:
            _refuse_folder(shard.folder, f"the episodes do not end at {end}, where the next shard begins", _DAMAGED)


_MAX_NAMED = 6  # maximum number of missing shards that a message names


def find_missing(numbers: Collection[int], count: int) -> Iterator[int]:
    """Yield the numbers of missing shards: those from 1 to `count` that are not among `numbers`."""
    return (number for number in range(1, count + 1) if number not in numbers)


def list_shard_states(
    folders: Sequence[Path], format_continuation: Callable[[Path], str] = format_resume_command
) -> Iterator[tuple[str, str]]:
    """Yield (state, command) for each shard that is unfinished, given twice or missing, and for each folder without a
    shard or with a shard of a different plan. The command continues or starts the shard; "" = no command. Raises
    `RunError` if no folder has a shard.
    """
    # `format_continuation` returns the command that continues the run in a folder.
    shard_by_number: dict[int, _Shard] = {}
    for folder in folders:
        try:
            description = run_folder.read_description(folder)
            position = msgspec.convert(description.get("shard"), run_folder.PlanStretch)
            done, planned = parts.count_progress(folder)
        except (RunError, msgspec.ValidationError) as error:
            yield f"{folder}: not a shard: {error.problem if isinstance(error, RunError) else 'a whole run'}", ""
            continue
        shard = _Shard(folder, description, position, ())  # read only the plan of the shard, not its episodes
        # The plans of all shards must be equal to the plan of the first shard.
        first_shard = next(iter(shard_by_number.values()), shard)
        name = f"shard {position.number}/{position.count} in {folder}"
        differences = list(list_differences(first_shard.plan, shard.plan, ("that has", "this has")))
        if differences:
            yield f"{name}: the plan differs from the plan of {first_shard.folder}: {differences[0]}", ""
            continue
        if same_shard := shard_by_number.get(position.number):
            yield f"{name}: doubled; {same_shard.folder} is the same shard. Leave out one of the two folders.", ""
        elif done < planned or description.get("complete") is not True:
            yield f"{name}: unfinished, {done} of {planned} episodes done", format_continuation(folder)
        shard_by_number.setdefault(position.number, shard)
    if not shard_by_number:
        raise RunError("none of the folders is a shard", remedy="Shards are made with --shard 1/8 and so on.")
    example_command, count = "", 0  # the first known command of a shard; the number of shards in the plan
    for shard in shard_by_number.values():
        count = shard.position.count  # this value is the same for all shards
        example_command = example_command or str(run_folder.read_volatile(shard.description).get("command", ""))
    for number in find_missing(shard_by_number, count):
        yield f"shard {number}/{count}: missing", _format_shard_command(example_command, number, count)


def _format_shard_command(command: str, number: int, count: int) -> str:
    """Return `command`, which runs another shard of the plan, with --shard and --out changed for shard `number`."""
    words: list[str] = []
    with suppress(ValueError):  # `shlex` raises this error for a damaged command
        words = shlex.split(command)
    # The command must have --shard and --out, each followed by a value, so neither option can be the last word.
    if not {"--shard", "--out"} <= {*words[:-1]}:
        return f"the command of another shard, with --shard {number}/{count} and another --out"
    shard_word, out_word = words.index("--shard") + 1, words.index("--out") + 1
    # For example, from the command of shard 3 in `runs/x3`, shard 5 gets the folder `runs/x5`.
    stem = words[out_word].removesuffix(words[shard_word].partition("/")[0])
    # If --out ends in the other shard's number, replace this number. Otherwise, append the new number.
    words[out_word] = f"{stem}{number}" if stem != words[out_word] else f"{stem}-{number}"
    words[shard_word] = f"{number}/{count}"
    return shlex.join(words)


def _merged_description(shards: Sequence[_Shard]) -> dict[str, object]:
    # Returns the content of run.json for the merged run.
    # `Repeats` counts requests to a policy that were repeated (`asked`), and those with a different answer (`other`).
    repeats: dict[str, run_folder.Repeats] = {}
    for shard in shards:
        for policy, counts in run_folder.read_facts(shard.folder).repeated_answers.items():
            total = repeats.get(policy, run_folder.Repeats(asked=0, other=0))  # sum over earlier shards
            repeats[policy] = run_folder.Repeats(asked=total.asked + counts.asked, other=total.other + counts.other)
    facts = parts.collect_facts((episode for shard in shards for episode in shard.episodes), repeats)
    volatile = {"shards": [shard.description.get("volatile") for shard in shards]}
    codes = list(dict.fromkeys(chain.from_iterable(run_folder.recorded_code(shard.description) for shard in shards)))
    # Replace the fields that differ between shards. All other fields are those of the first shard.
    changes = {"shard": None, "planned": shards[0].position.whole, "code": codes, "volatile": volatile}
    return facts.add_to({**shards[0].description, **changes})


def _shard_records(shard: _Shard) -> Iterator[Batch]:
    # Yields the shard's records. Raises `RunError` after the last record if there are too few or too many.
    expected = sum(episode.has_record for episode in shard.episodes)  # number of episodes with a record
    count = 0
    for record in parts.read_records(shard.folder):
        count += 1
        yield record
    if count != expected:
        _refuse_folder(shard.folder, f"the shard's archive has {count} records, but should have {expected}", _DAMAGED)


def _refuse_folder(path: Path, problem: str, remedy: str) -> NoReturn:
    # Raises a `RunError` about a file or folder.
    raise RunError(problem, remedy=remedy, place=Place(file=str(path)))
