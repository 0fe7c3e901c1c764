"""The run folder of a script that records: `run.json`, and two files under `raw/` for each ended episode.

`NNNNNN.npz` is the raw episode. `NNNNNN.json` is the episode's row in the run's table, and is written last: an episode
with a row is complete. A crashed episode has only a row. Several recordings of one process may share a folder.
"""

from __future__ import annotations

import atexit
import errno
import json
import os
import shlex
import sys
import threading
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from datetime import datetime, timezone
from functools import partial
from itertools import chain, count
from multiprocessing.process import parent_process
from pathlib import Path
from typing import Any, Callable, Iterator, Mapping, Sequence

from safevla_recorder import episode, errors
from safevla_recorder.attachment import LoopRules, RecordableEnv, TaskLabel, package_versions
from safevla_recorder.channels import LARGEST
from safevla_recorder.identity import describe_code
from safevla_recorder.mujoco.hook import Undo, undo_all
from safevla_recorder.recorder import WritableEpisode
from safevla_recorder.version import __version__

RUN, RAW, LOCK = "run.json", "raw", ".lock"
OWN_LOOP = "own loop"  # protocol name of a user's own loop, whose planned episodes are unknown
_PARTIAL = ".partial"
_RULES_FILE = "judged_with.json"  # written by `safevla score` if its rules are not the default
_log = errors.get_logger(__name__)
_open_folders: dict[Path, RunFolder] = {}
_claims: dict[Path, int] = {}  # maps each folder that this process has locked to the lock file's descriptor
_held_locks: set[int] = set()  # descriptors of the locks that this process itself has taken
_turn = threading.RLock()  # held while a run folder is opened, written or closed, so that threads take turns


def _renew_turn() -> None:
    # In a forked child, the thread that held the lock may not exist.
    global _turn
    _turn = threading.RLock()


if hasattr(os, "register_at_fork"):  # a forked child process must not use its parent's folders and locks
    os.register_at_fork(after_in_child=_renew_turn)
    os.register_at_fork(after_in_child=_open_folders.clear)
    os.register_at_fork(after_in_child=_claims.clear)
    os.register_at_fork(after_in_child=_held_locks.clear)


def claim_folder(out: Path, worker: str | None) -> tuple[Path, str | None]:
    """Return this process's run folder, and the process's name in the episodes' ids (None = no name).

    A process without a name uses `out`. A process with a name, or a child process of `multiprocessing`, uses a folder
    `out/worker_NAME`: its current folder, a new folder, or the folder of an ended process of this run.
    """
    # `out` is the run folder that the user chose; `worker` is the name that the user gave this process, or None.
    if worker is None and parent_process() is None:  # no name, and not a child process of `multiprocessing`
        return out, None
    # Try these names in turn, until a folder is found that this process may use.
    if worker is None:
        names: Iterator[str] = map(str, count())  # 0, 1, ...
    else:
        names = chain([worker], (f"{worker}-{number}" for number in count(2)))  # NAME, NAME-2, NAME-3, ...
    for name in names:
        worker_folder = out / f"worker_{name}"
        # `_open_folders` contains the folders into which this process already records.
        if worker_folder.resolve() in _open_folders or _claim_worker_folder(worker_folder):
            return worker_folder, name
    raise AssertionError("unreachable: the list of names has no end")


def _claim_worker_folder(path: Path) -> bool:
    """Lock a new or free folder, and return True. Return False if another process may use it."""
    # `path` is a worker's folder, `out/worker_NAME`. Raises `RunError` if another run made this folder.
    _make_folder(path.parent)
    with suppress(FileExistsError):  # the code below handles an existing folder
        path.mkdir()
        _claims[path] = lock_folder(path)  # the descriptor of the lock file, which `release_claims` unlocks
        call_at_exit(release_claims)
        return True
    if not (path / RUN).exists():  # another process has just made the folder, or ended before writing run.json
        return False
    # The folder may be taken over only if a process of this run made it, and only if that process has ended.
    try:
        stored_run = json.loads((path / RUN).read_bytes())
        is_of_this_run = stored_run["volatile"]["session"] == _session_name()
    except (OSError, ValueError, KeyError, TypeError):
        is_of_this_run = False
    if not is_of_this_run:
        # The next call raises an error, because the folder contains run.json.
        require_free_folder(path, is_writer_file, _OTHER_OUT)
    try:
        lock = lock_folder(path)
    except errors.RunError:  # another process still uses the folder
        return False
    if not _is_same_file(path / LOCK, lock):  # the file system has no locks: another process may still use the folder
        os.close(lock)
        return False
    _claims[path] = lock
    call_at_exit(release_claims)
    folder = RunFolder(path, {})
    _open_folders[path.resolve()] = folder
    folder.reopen(stored_run["host"])  # reads run.json and the episodes that are already in the folder
    # A run is complete if all its recordings (blocks) have ended normally.
    if not stored_run["complete"]:  # keep the run incomplete: count a recording that never ends normally
        folder._block_count += 1
    return True


def release_claims() -> None:
    """Unlock the folders that this process has claimed, so that later processes of this run can continue them."""
    while _claims:
        unlock_folder(*_claims.popitem())  # an item is a folder and the descriptor of its lock


def call_at_exit(function: Callable[[], None]) -> Undo:
    """Call `function` when this process ends, also in `multiprocessing` workers. Return a function to cancel this."""
    atexit.register(function)
    cancels: list[Undo] = [partial(atexit.unregister, function)]
    with suppress(ImportError):
        from multiprocessing.util import Finalize

        # Workers of `multiprocessing` do not run `atexit` handlers.
        cancels.append(Finalize(None, function, exitpriority=10).cancel)
    return partial(undo_all, cancels)


def _session_name() -> str:
    """Return a name that is the same in a process and in all `multiprocessing` workers that it starts."""
    # The name is "ID-TIME": id and start time of the process that started the workers. "ID" = the time is unknown.
    parent = parent_process()  # None unless this process is a worker of `multiprocessing`
    process_id = os.getpid() if parent is None else parent.pid
    with suppress(OSError, IndexError):  # process ids are reused, so add the process's start time (on Linux)
        # The process's own name is in parentheses and may contain blanks, so split only the text after the parentheses.
        # The start time is field 22 of the whole line, and field 19 (counted from 0) of this text.
        fields_after_name = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
        return f"{process_id}-{fields_after_name[19]}"
    return str(process_id)


def open_folder(out: Path, env: RecordableEnv, rules: LoopRules, volatile: Mapping[str, object]) -> RunFolder:
    """Return the run folder at `out`, ready for the episodes of another environment. Reuse a folder that this process
    made. Raises `RunError` if the folder contains other files, and `FileError` if it cannot be written.
    """
    # `rules` are the facts about the user's loop, such as the policy's name and the horizon.
    # `volatile` contains facts for run.json that differ between runs, such as the start time.
    # A reused folder ignores `volatile`.
    path = out.resolve()
    with _turn:
        folder = _open_folders.get(path)  # None = this process does not use the folder yet
        if folder is None or not folder._is_present():  # a folder that was removed is made again
            folder = RunFolder(out, volatile)
        folder.add_environment(env, rules)
        _open_folders[path] = folder
    return folder


class RunFolder:
    """A run folder for the episodes of several environments and policies."""

    def __init__(self, out: Path, volatile: Mapping[str, object]) -> None:
        """Prepare a folder at `out`; write nothing yet. `volatile` are facts for run.json that differ between runs."""
        self.path = out
        self.episode_ids: set[str] = set()
        self._description: dict[str, Any] = {
            "schema_version": 1,
            "host": None,
            "suites": [],
            "tasks": [],
            "policies": [],
            "protocol": {"name": OWN_LOOP, "wait_steps": [], "horizons": []},
            "versions": {},
            "code": [],
            "complete": False,
            "volatile": dict(volatile),
        }
        self._process_id = os.getpid()
        self._begun_episodes: Counter[tuple[str, str, str]] = Counter()  # (policy, benchmark, task id) -> number
        self._outcomes: Counter[str] = Counter()  # number of written episodes by outcome
        # A block is one recording, from `begin_block` to `close_block`. Complete blocks have ended normally.
        self._next_file_number = self._block_count = self._complete_blocks = self._open_blocks = 0
        self._written_description = b""  # content of run.json; empty = run.json is not written yet
        # True for a worker's folder or a new folder. Such a folder is removed if no episode is recorded.
        self._is_new = not out.exists() or out in _claims

    @contextmanager
    def take_turn(self) -> Iterator[None]:
        """Let only one thread write at a time. Raises `RunError` in a forked child of the recording process."""
        # A forked child has a copy of this object, and would overwrite the files of its parent.
        if os.getpid() != self._process_id:
            remedy = "Call record_until_closed or RunWriter in the process that records, with another out=."
            raise errors.RunError("the parent of this process already records into this folder", remedy=remedy)
        with _turn:
            yield

    def add_environment(self, env: RecordableEnv, rules: LoopRules) -> None:
        """Register another environment and its task, and begin to record the environment."""
        # run.json lists the distinct numbers of settling steps.
        protocol = self._description["protocol"]
        protocol["wait_steps"] = sorted({*protocol["wait_steps"], rules.wait_steps})
        self._add_task(env.task.benchmark, env.task.task_id, rules.horizon)
        self.begin_block(env.host, env.versions, rules.policy, privileged=rules.privileged)

    def begin_block(self, host: str | None, versions: Mapping[str, str], policy: str, *, privileged: bool) -> None:
        """Begin one recording: write run.json with host and versions, marked as incomplete. The first call makes the
        folder, unless `reopen` has read it. Raises `RunError` if the folder already contains other files, and
        `FileError` if the folder or run.json cannot be written.
        """
        # `host` is the simulator's name (None = no name). `versions` maps distributions to their versions.
        # `policy` is a name. A `privileged` policy sees simulator state that no real robot has.
        # If `versions` lacks safevla-recorder, this code's version is that of safevla-bench.
        own_package = "safevla-recorder" if "safevla-recorder" in versions else "safevla-bench"
        policies = {row["policy"]: row["privileged"] for row in self._description["policies"]}  # policies so far
        policies[policy] = privileged
        self._description.update(
            host=host,
            versions={own_package: __version__, **versions},
            policies=[{"policy": name, "privileged": is_privileged} for name, is_privileged in policies.items()],
        )
        # `describe_code` returns the hashes of the recording code; several versions may record into one folder.
        if describe_code() not in self._description["code"]:
            self._description["code"].append(describe_code())
        self._block_count += 1
        self._open_blocks += 1
        if not self._written_description:  # run.json was neither written nor read, so this is the first recording
            require_free_folder(self.path, is_writer_file, _OTHER_OUT)  # files of a killed writer may exist
            _make_folder(self.path, RAW)
        self._write_description()

    def reopen(self, host: str | None) -> None:
        """Continue an existing folder. Raises `RunError` if it is damaged, or if its host or protocol differs."""
        place = errors.Place(file=str(self.path / RUN))  # the file that an error message names
        try:
            self._written_description = (self.path / RUN).read_bytes()
            stored = json.loads(self._written_description)
            if stored["protocol"]["name"] != OWN_LOOP or stored["host"] != host:
                problem = f"the folder contains a run of {stored['host'] or 'an unnamed host'}"
                problem += f" with the protocol {stored['protocol']['name']!r}, not a user's loop on {host!r}"
                raise errors.RunError(problem, remedy="Choose another folder.", place=place)
            self._description = {name: stored[name] for name in self._description}
            # Each file is the row of one written episode; its name is a number, such as `000012.json`.
            for path in sorted((self.path / RAW).glob("*.json")):
                place = errors.Place(file=str(path))
                self._register_episode(episode.EpisodeRow(**json.loads(path.read_bytes())), int(path.stem))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            problem = f"the file cannot be read: {type(error).__name__}: {error}"
            raise errors.RunError(problem, remedy="Restore the file, or choose another folder.", place=place) from None

    def take_number(self, policy: str, task: TaskLabel) -> int:
        """Return the number (from 0) of a policy's next episode of a task, and count this episode."""
        with self.take_turn():
            number = self.next_number(policy, task)
            self._begun_episodes[policy, task.benchmark, task.task_id] += 1
            return number

    def next_number(self, policy: str, task: TaskLabel) -> int:
        """Return the number (from 0) of a policy's next episode of a task, but do not count it."""
        return self._begun_episodes[policy, task.benchmark, task.task_id]

    def write_episode(self, row: episode.EpisodeRow, content: bytes | None) -> None:
        """Write an ended episode under `raw/`: first its `.npz` with the bytes `content` (None = no such file), then
        its row. Write run.json if it has changed. Raises `FileError` if a file cannot be written.
        """
        with self.take_turn():
            if not self._is_present():
                remedy = "Leave the folder of a recording in its place; record again into another out=."
                raise errors.RunError(_REMOVED, remedy=remedy, place=errors.Place(file=str(self.path)))
            # Take the number before writing: garbage collection may write another environment's episode meanwhile.
            number, self._next_file_number = self._next_file_number, self._next_file_number + 1
            stem = self.path / RAW / f"{number:06d}"
            if content is not None:
                _write_file(stem.with_suffix(".npz"), content)
            # Add to the row the hashes that identify the recording code.
            _write_file(stem.with_suffix(".json"), _encode_json(asdict(replace(row, code=describe_code()))))
            self._register_episode(row, number)
            self._write_description()

    def _is_present(self) -> bool:
        # Return whether the folder still has this run's run.json: it may be removed, or made again by another run.
        try:
            stored = json.loads((self.path / RUN).read_bytes())
            return bool(stored["volatile"] == self._description["volatile"])
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def _register_episode(self, row: episode.EpisodeRow, file_number: int) -> None:
        # Count an episode that has been written. `row` is its row in the run's table of episodes.
        # `file_number` is the number in the names of the episode's files. Later episodes get larger numbers.
        key = (row.policy, row.benchmark, row.task_id)
        self._next_file_number = max(self._next_file_number, file_number + 1)
        self._begun_episodes[key] = max(self._begun_episodes[key], row.episode + 1)
        self._outcomes[row.outcome] += 1
        self._add_task(row.benchmark, row.task_id, row.horizon)
        self.episode_ids.add(row.episode_id)

    def _add_task(self, benchmark: str, task_id: str, horizon: int | None) -> None:
        # Add a task's benchmark, name and horizon to the content of run.json, unless they are already there.
        # `horizon` is the largest number of steps in an episode; None = unknown.
        description = self._description
        for known_names, name in ((description["suites"], benchmark), (description["tasks"], f"{benchmark}/{task_id}")):
            if name not in known_names:
                known_names.append(name)
        if horizon:
            description["protocol"]["horizons"] = sorted({*description["protocol"]["horizons"], horizon})

    def close_block(self, *, complete: bool, is_last: bool = True) -> None:
        """End one recording; `complete` is false if it was interrupted. When no recording is open any more, write
        run.json and print the folder's path. If the run has no episodes, remove it instead, and log a warning.
        """
        if os.getpid() != self._process_id:  # a forked child must not end its parent's recording
            return
        with _turn:
            self._complete_blocks += complete
            self._open_blocks -= 1
            # `is_last` is false if the caller will begin another recording in this folder at once.
            if is_last and not self._open_blocks:
                self._close()

    def _close(self) -> None:
        # Write run.json and print the folder's path; without episodes, remove the folder and log a warning.
        shown_path = shlex.quote(_shorten_path(self.path))
        if not self._is_present():
            with suppress(Exception):
                _log.warning("%s: %s", shown_path, _REMOVED)
            return
        if self._outcomes:  # at least one episode was written
            self._write_description()
            outcomes = ", ".join(f"{episodes} {outcome}" for outcome, episodes in self._outcomes.most_common())
            rules_option = " --rules as-judged" if (self.path / _RULES_FILE).exists() else ""
            # The built-in rules are only for tasks of a host (simulator) that `safevla eval` knows.
            needs_rules = not rules_option and not self._description["host"]
            rules_hint = "Tasks of your own need --rules FILE: docs/howto/tasks.md. " if needs_rules else ""
            with suppress(OSError, ValueError):  # stderr may be closed
                print(
                    f"Records: {shown_path} ({outcomes}). {rules_hint}Next: safevla score {shown_path}{rules_option}",
                    file=sys.stderr,
                )
            return
        if self.path in _claims:  # a worker's folder, which this process has locked
            unlock_folder(self.path, _claims.pop(self.path))
        remove_unused(self.path, is_new=self._is_new)
        _open_folders.pop(self.path.resolve(), None)
        with suppress(Exception):
            _log.warning("no episode was recorded, so there is no run in %s", shown_path)

    def _write_description(self) -> None:
        """Write run.json if it has changed; its `complete` is true if every recording so far has ended normally."""
        # A block is one recording; a complete block has ended normally.
        self._description["complete"] = self._complete_blocks == self._block_count
        content = _encode_json(self._description, indent=2)
        if content != self._written_description:
            _write_file(self.path / RUN, content)
        self._written_description = content


def require_policy_name(policy: object) -> None:
    """Raise `RunError` if `policy` is not a text, or is blank."""
    if not isinstance(policy, str) or not policy.strip():
        remedy = "Give the name under which the episodes are reported."
        raise errors.RunError(f"{policy!r} is not a valid name of a policy", remedy=remedy)


def describe_process() -> dict[str, object]:
    """Return facts about this process for run.json: command line without secrets, current time, session name."""
    # `started` is the time of this call, at which a recording starts, and not the start time of the process.
    # Microseconds distinguish runs that a script begins one after another in the same folder.
    started = datetime.now(timezone.utc).isoformat(timespec="microseconds")
    return {"command": errors.redact_secrets(shlex.join(sys.argv)), "started": started, "session": _session_name()}


def is_writer_file(path: Path) -> bool:
    """Return whether a path has the name of a writer's lock or of an unfinished file."""
    # Only the name is checked: the file may belong to a killed writer, or to a writer that is still running.
    return path.name == LOCK or (path.name.startswith(".") and path.name.endswith(_PARTIAL))


_REMOVED = "the run folder was removed, or made again by another run"
_OTHER_OUT = (
    "Pass another out=: each process needs its own folder (docs/howto/recording.md). Remove this folder only if no "
    "process records into it."
)


def require_free_folder(
    path: Path, may_exist: Callable[[Path], bool], remedy: str = "Choose another --out, or remove the folder first."
) -> None:
    """Raise `RunError` if `path` is a file, or a folder with an entry for which `may_exist` returns false."""
    # A path is free if nothing exists there, or if it is a folder in which `may_exist` permits each entry.
    if path.exists() and not (path.is_dir() and all(map(may_exist, path.iterdir()))):
        raise errors.RunError("the folder exists and is not empty", remedy=remedy, place=errors.Place(file=str(path)))


def remove_unused(path: Path, *, is_new: bool) -> None:
    """Delete run.json, the lock and all arrays of a run. Call this only if no episode of the run has ended. If the
    folder is new and now empty, delete it too. Other files, and files that cannot be deleted, stay.
    """
    for file in (path / RUN, path / LOCK, *(path / RAW).glob("[0-9]*.npz")):
        with suppress(OSError):
            file.unlink()
    for folder in [path / RAW, path] if is_new else [path / RAW]:
        with suppress(OSError):  # `rmdir` fails if the folder is not empty
            folder.rmdir()


def _shorten_path(path: Path) -> str:
    # Return the path as a text: relative to the user's working directory if the path is inside, otherwise unchanged.
    with suppress(ValueError, OSError):  # the path may be relative, or the working directory may be deleted
        if os.path.samefile(os.environ.get("PWD", ""), "."):  # shell and process have the same working directory
            return str(path.relative_to(Path.cwd()))
    return str(path)


def _make_folder(path: Path, subfolder: str = "") -> None:
    # Make `path`, its parents and the folder `path/subfolder` ("" = only `path`), unless they exist.
    # Raises a `FileError` that names `path`.
    with errors.translated_errors(path):
        (path / subfolder).mkdir(parents=True, exist_ok=True)


def _write_file(path: Path, content: bytes) -> None:
    # Write a temporary file, and then rename it to `path`, so that `path` is never incomplete.
    # If this fails, raise a `FileError` that names `path`, and delete the temporary file.
    partial_file = path.with_name(f".{path.name}.{os.getpid()}{_PARTIAL}")
    with suppress(OSError):
        partial_file.unlink()  # left by an ended process with the same process id, or a symbolic link
    try:
        with errors.translated_errors(path):
            with partial_file.open("xb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            partial_file.replace(path)
    finally:
        with suppress(OSError):
            partial_file.unlink()


def _encode_json(document: Mapping[str, object], indent: int | None = None) -> bytes:
    # Return JSON in UTF-8, with a line break at the end, in which invisible characters are escaped.
    text = json.dumps(document, indent=indent, ensure_ascii=False, allow_nan=False)
    return "".join(map(_escape_invisible, text)).encode() + b"\n"


def _escape_invisible(character: str) -> str:
    # Return JSON's escape sequence of an invisible character. A line break is kept, as part of the document's layout.
    if character == "\n" or errors.is_visible(character):
        return character
    # For a lone surrogate, the JSON text contains the sequence from `escape_surrogates`.
    return json.dumps(errors.escape_surrogates(character))[1:-1]  # remove JSON's quotation marks


# A lock allows one writer per run folder. The operating system releases the lock when the writer's process ends.


def lock_folder(folder: Path, option: str = "--out") -> int:
    """Lock the folder for this process; return a descriptor for `unlock_folder`. If locks do not work here, only warn.
    Raises `RunError` if another process has the lock, and `FileError` if the lock file cannot be opened. `option` is
    the caller's option that names the folder, for the error message.
    """
    while True:
        with errors.translated_errors(folder):
            descriptor = os.open(str(folder / LOCK), os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
        try:
            import fcntl  # not available on Windows

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (OSError, ImportError) as error:
            os.close(descriptor)
            if isinstance(error, OSError) and error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                place = errors.Place(file=str(folder))
                remedy = f"Wait for that run or stop it, or choose another {option}."
                raise errors.RunError("another run is writing to this folder", remedy=remedy, place=place) from None
            # Some cluster file systems have no locks; recording without a lock is better than not recording.
            _log.warning("%s: this file system does not support locks: %s", folder, error)
            return os.open(os.devnull, os.O_RDONLY)  # a descriptor that `unlock_folder` can close, without a lock
        if _is_same_file(folder / LOCK, descriptor):
            _held_locks.add(descriptor)
            return descriptor
        os.close(descriptor)  # the process with the lock removed the file after we had opened it; try again


def unlock_folder(folder: Path, descriptor: int) -> None:
    """Close the lock's `descriptor`. If this process itself, not its parent, took the lock, remove the lock file."""
    # `_held_locks` lists the descriptors of the locks that this process took; a forked child begins with an empty set.
    # If another process has replaced the lock file, the file is not removed.
    if descriptor in _held_locks and _is_same_file(folder / LOCK, descriptor):
        (folder / LOCK).unlink()
    _held_locks.discard(descriptor)
    os.close(descriptor)


def _is_same_file(path: Path, descriptor: int) -> bool:
    # Return whether `path` is the file that is open as `descriptor`; False if there is no file at `path`.
    try:
        return os.path.samestat(os.stat(str(path)), os.fstat(descriptor))
    except FileNotFoundError:
        return False


# The run folder of a user's own loop, with any simulator


_DT_TOLERANCE = 0.02  # relative tolerance, because users may round a step of 1/30 s to 0.033 s
_REQUIRED_FOR_ROW = ("benchmark", "task_id")
_REQUIRED_FOR_RECORD = (*_REQUIRED_FOR_ROW, "success", "dt", "target_object")
_TEXT_FIELDS = ("episode_id", "benchmark", "task_id", "target_object", "instruction", "embodiment", "outcome")
_FIELD_TYPES: Mapping[str, type] = {
    **dict.fromkeys(_TEXT_FIELDS, str),
    **dict.fromkeys(episode.INTEGERS, int),
    "success": bool,
    "dt": float,
}
_ALLOWED_FIELDS = tuple(
    name for name in episode.HEADER_FIELDS if name in _FIELD_TYPES or name == "joint_torque_limit_nm"
)


# (device and inode of a run folder, key of an episode) -> id under which the folder has the episode.
# All writers share this mapping, since a loop may open a writer for each episode, and rename the folder in between.
_WRITTEN: dict[tuple[int, int, str], str] = {}


class RunWriter:
    """The run folder of your own loop, for one process at a time; a context manager::

        common = {"benchmark": "my-lab", "task_id": "lift", "dt": 0.05, "target_object": "box"}
        with RunWriter("runs/mine", policy="mine", **common) as run:
            for start in range(10):
                ...                                      # recorder.begin, then substep and step
                run.write(recorder, success=lifted, init_state_index=start)

    A folder that an earlier `RunWriter` made is continued, and its episodes stay. `write` returns after the episode is
    completely written. If the `with` block raises an error, run.json says that the run is not complete.
    """

    def __init__(
        self,
        out: str | Path,
        policy: str,
        *,
        host: str | None = None,
        packages: Sequence[str] = (),
        privileged: bool = False,
        **header: object,
    ) -> None:
        """Make or continue the folder `out`, which is locked until `close`.

        Args:
            out: the run folder.
            policy: the name under which the episodes are reported.
            host: the host (simulator) of `safevla eval` whose scenes and tags fit the episodes; None = no such host.
            packages: distributions whose versions are recorded, in addition to NumPy's and the recorder's.
            privileged: whether the policy sees simulator state that no real robot has; reports mark such policies.
            header: header fields with the same value in all episodes; see `write`.

        Raises:
            RunError: the folder has unknown contents or is damaged, another process writes to it, or `policy` is not a
                valid name.
            FileError: the folder cannot be written.
        """
        require_policy_name(policy)
        self.path, self._policy = Path(out).absolute(), policy
        self._privileged, self._header = privileged, header
        self._is_closed = False
        self._versions = package_versions(("numpy", *packages))
        self._folder = RunFolder(self.path, describe_process())
        _make_folder(self.path)
        if not (self.path / RUN).exists():
            require_free_folder(self.path, is_writer_file, _OTHER_OUT)
        self._lock = lock_folder(self.path, "out=")  # "out=": the option that an error message names
        try:
            status = self.path.stat()
            self._folder_id = status.st_dev, status.st_ino  # stays the same if the folder is renamed
            if (self.path / RUN).exists():  # an earlier `RunWriter` made the folder
                self._folder.reopen(host)
            self._folder.begin_block(host, self._versions, policy, privileged=privileged)
        except BaseException:
            unlock_folder(self.path, self._lock)
            raise

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        # `kind` is the type of the error that ended the `with` block; None = no error, so the run is complete.
        self.close(complete=kind is None)

    def close(self, *, complete: bool = True) -> None:
        """Write run.json and unlock the folder. A run without episodes is removed."""
        # `complete` is false if the run was interrupted; run.json stores this. Further calls do nothing.
        if self._is_closed:  # the lock's descriptor may belong to another file now
            return
        self._is_closed = True
        try:
            self._folder.close_block(complete=complete)
        finally:
            unlock_folder(self.path, self._lock)

    def __contains__(self, episode_id: object) -> bool:
        """Return whether the folder has an episode with this id, crashed or not."""
        return episode_id in self._folder.episode_ids

    def write(
        self,
        recorder: WritableEpisode,
        *,
        reason: str | None = None,
        costs: Sequence[object] | None = None,
        **header: object,
    ) -> str:
        """Write the episode that a recorder holds, and return its id.

        Args:
            recorder: an `EpisodeRecorder` or MuJoCo's `Recorder`, between two control steps, or an episode that
                `BatchRecorder.step` returned.
            reason: why the episode was stopped, or why its action is invalid.
            costs: for each step, the result of the simulator's own safety check, such as `info["cost"]`: a number, or
                numbers by name. Costs are stored, but do not affect the verdicts. None or an empty list = no costs.
            header: the episode's `HEADER_FIELDS`; they override the constructor's fields. `benchmark`, `task_id`,
                `success`, `dt` [s] and `target_object` (None = no target) are required. Without `episode_id`, the
                episodes of a task are numbered. If `outcome` is missing, it follows from `success`.

        Raises:
            HostError: no episode has begun since the recorder's last episode was written.
            RecordError: a field is missing or unknown, has a wrong type or contradicts another, or a number is invalid.
            RunError: the folder already has an episode with this id, is closed, or was removed.
            FileError: the episode cannot be written.
        """
        with self._folder.take_turn():  # until the row is written, no other thread may get the same number
            # Two recorders have the same key only if one is a copy of the other.
            # A user's own class may lack this attribute.
            key = getattr(recorder, "episode_key", "")
            if key and _WRITTEN.get((*self._folder_id, key)) in self._folder.episode_ids:
                remedy = "Call `begin` at the start of each episode, and `write` once at its end."
                raise errors.HostError("this episode of the recorder was already written", remedy=remedy)
            episode_id = self._write_record(recorder, reason, costs, header)
            if key:
                _WRITTEN[(*self._folder_id, key)] = episode_id
            return episode_id

    def _write_record(
        self,
        recorder: WritableEpisode,
        reason: str | None,
        costs: Sequence[object] | None,
        header: Mapping[str, object],
    ) -> str:
        # Check and write the episode; return its id.
        # `reason` says why the episode was stopped, or why an action is invalid.
        # `costs` lists the simulator's own cost of each step. `fields` are the checked header fields with defaults.
        # `number` is the number of the policy's earlier episodes of the task.
        fields, number = self._complete_header(header, _REQUIRED_FOR_RECORD)
        run_fields = {"policy": self._policy, "versions": self._versions, "dropped_pairs": recorder.dropped_pairs()}
        recording = recorder.build_recording({**fields, **run_fields})
        costs = [] if costs is None else list(costs)  # an array has no single truth value
        if costs:
            recording = episode.add_costs(recording, costs)
        target, outcome = fields["target_object"], fields["outcome"]
        if target is not None and recording.roles.get(str(target)) != "target":
            problem = f"{target!r} does not have the role target"
            raise _field_error("target_object", problem, "Name a target of the scene, or None.")
        if outcome not in episode.OUTCOMES or (outcome == "success") != fields["success"]:
            problem = f"the outcome {outcome!r} contradicts success {fields['success']}"
            remedy = f"Use one of {', '.join(episode.OUTCOMES)}; success is true only with the outcome 'success'."
            raise _field_error("outcome", problem, remedy)
        # Check the length `dt` of a control step against the recorded substeps, unless their lengths are unknown.
        shortest_s, longest_s = 0.0, float("inf")
        if hasattr(recorder, "step_range_s"):  # an episode object of a user's own class may lack this method
            shortest_s, longest_s = recorder.step_range_s()
        if not shortest_s * (1 - _DT_TOLERANCE) <= fields["dt"] <= longest_s * (1 + _DT_TOLERANCE):
            range_text = " to ".join(f"{value:g}" for value in sorted({shortest_s, longest_s}))
            problem = f"dt is {fields['dt']:g} s, but the recorded substeps of a control step last {range_text} s"
            remedy = "Give the time of one control step, such as 1/60: its number of substeps times their length in s."
            raise _field_error("dt", problem, remedy)
        limits, torques = fields.get("joint_torque_limit_nm"), recording.joint_torque_nm
        if limits is not None and torques is not None and len(limits) != torques.shape[1]:
            problem = f"{len(limits)} limits were given for {torques.shape[1]} recorded torques"
            raise _field_error("joint_torque_limit_nm", problem, "Give one limit per joint, in the joints' order.")
        episode.check_recorded_numbers(recording)
        if self._privileged:  # the policy sees simulator state that no real robot has
            recording = replace(recording, extra=episode.add_header_mark(recording.extra, "privileged"))
        try:
            content = episode.encode_episode(recording)
        except (ValueError, TypeError) as error:
            raise errors.RecordError(f"the header cannot be written: {error}", remedy="Correct the header.") from None
        # An episode of n records has n - 1 steps, because record 0 is the state before the first step.
        return self._write_row(fields, number, recording.records - 1, reason, content)

    def write_crash(self, reason: str, *, steps: int = 0, **header: object) -> str:
        """Write the row of an episode that crashed after `steps` control steps, without a record; return its id.
        `header` is the same as for `write`, but only `benchmark` and `task_id` are required.
        """
        with self._folder.take_turn():
            # `number` counts the policy's earlier episodes of the task. Without content, no file of arrays is written.
            fields, number = self._complete_header(header, _REQUIRED_FOR_ROW)
            return self._write_row({**fields, "outcome": "crashed"}, number, steps, reason, None)

    def _complete_header(self, header: Mapping[str, object], required: Sequence[str]) -> tuple[dict[str, Any], int]:
        # Return the header's fields, with defaults, and the episode's number. A missing field or a used id is an error.
        # `header` contains the fields that `write` received, which override the constructor's fields.
        # `required` names the fields that must be present. The number (from 0) counts a policy's episodes of the task.
        if self._is_closed:
            remedy = "Write before `close`, inside the `with` block. A new RunWriter adds episodes to the folder."
            raise errors.RunError("the run folder is closed", remedy=remedy, place=errors.Place(file=str(self.path)))
        values = {name: _convert_field(name, value) for name, value in {**self._header, **header}.items()}
        # A field with the value None is missing, except `target_object`: None means that the task has no target.
        fields = {name: value for name, value in values.items() if value is not None or name == "target_object"}
        missing = [name for name in required if name not in fields]
        if missing:
            remedy = f"Pass the required fields here or for the whole run: {', '.join(required)}."
            raise _field_error(missing[0], "the value is missing", remedy)
        task = TaskLabel(fields["benchmark"], fields["task_id"], "")  # "": the instruction is not needed here
        episode_number = self._folder.next_number(self._policy, task)
        fields.setdefault("episode_id", f"{self._policy}/{task.benchmark}/{task.task_id}/ep_{episode_number:03d}")
        fields.setdefault("outcome", "success" if fields.get("success") else "failure")
        if fields["episode_id"] in self:
            remedy = "Give another episode_id. To resume a run, skip its episodes: `if episode_id in run: continue`."
            place = errors.Place(file=str(self.path), episode=fields["episode_id"])
            raise errors.RunError("the run already has an episode with this id", remedy=remedy, place=place)
        return fields, episode_number

    def _write_row(
        self, fields: Mapping[str, Any], episode_number: int, steps: int, reason: str | None, content: bytes | None
    ) -> str:
        # Write the episode's row, and its arrays unless `content` is None. Return the episode's id.
        # `fields` are the checked header fields, and `content` is the bytes of the `.npz` file.
        header_fields = ("episode_id", "benchmark", "task_id", "outcome", *episode.INTEGERS)
        values: dict[str, Any] = {name: fields.get(name) for name in header_fields}
        # In a user's own loop, the policy's seed is unknown.
        values.update(policy=self._policy, policy_seed=None, episode=episode_number, steps=steps, reason=reason)
        self._folder.write_episode(episode.EpisodeRow(**values), content)
        return str(fields["episode_id"])


def _convert_field(name: str, value: object) -> Any:
    # Return the value of the header field `name` as a plain Python value; None means that the field is missing.
    # Raise an error if no field has this name, or if the field cannot have this type or value.
    if name not in _ALLOWED_FIELDS:
        raise _field_error(name, "an episode has no field of this name", f"Fields: {', '.join(_ALLOWED_FIELDS)}.")
    plain: Any = value.tolist() if hasattr(value, "tolist") else value  # `tolist` exists for arrays and NumPy's numbers
    if plain is None:
        return None
    if name == "joint_torque_limit_nm":
        return _convert_limits(name, plain)
    if name == "dt" and type(plain) is int:
        plain = float(plain)
    field_type = _FIELD_TYPES[name]
    # Compare types exactly, because a bool is also an int.
    if type(plain) is not field_type or plain == "" or (name == "dt" and not plain > 0):  # type: ignore[operator]
        remedy = f"Give a value of type {field_type.__name__}; dt must be > 0."
        raise _field_error(name, f"the value is {plain!r}", remedy)
    if name in episode.INTEGERS and (problem := episode.describe_invalid_integer(name, plain)):
        raise _field_error(name, problem, "Pass a valid integer, or leave the field out.")
    return plain


def _convert_limits(name: str, limits: Any) -> list[float]:
    # Return the torque limits in the field `name`, one per joint in N·m, as plain numbers.
    # Raise an error unless all are numbers above zero.
    if isinstance(limits, (list, tuple)):
        # Convert NumPy's numbers and arrays without axes to plain numbers.
        limits = [limit.item() if getattr(limit, "ndim", None) == 0 else limit for limit in limits]
        are_numbers = [isinstance(limit, (int, float)) and not isinstance(limit, bool) for limit in limits]
        # The inverse of a limit must not exceed `LARGEST` either.
        if limits and all(are_numbers) and all(1 / LARGEST <= limit <= LARGEST for limit in limits):
            return [*limits]
    remedy = "Give a list with the limit of each joint in N·m, finite and above zero."
    raise _field_error(name, f"the value is {limits!r}", remedy)


def _field_error(field: str, problem: str, remedy: str) -> errors.RecordError:
    return errors.RecordError(problem, remedy=remedy, place=errors.Place(field=field))
