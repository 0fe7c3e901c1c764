"""The run folder of a script that records: `run.json`, and under `raw/` two files for each ended episode.

`NNNNNN.npz` is the raw episode and `NNNNNN.json` its row, written last: an episode is done if its row is there. A
crashed episode has its row alone. Blocks of one process add to the folder that the first of them made.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Callable, Mapping

from safevla_recorder.attachment import RecordableEnv, TaskLabel
from safevla_recorder.episode_cutter import LoopRules, RecordedRow
from safevla_recorder.errors import FileError, Place, RunError
from safevla_recorder.version import __version__

RUN, RAW = "run.json", "raw"
_PARTIAL = ".partial"
_open_folders: dict[Path, RunFolder] = {}


def open_folder(out: Path, env: RecordableEnv, rules: LoopRules, volatile: Mapping[str, object]) -> RunFolder:
    """Return the run folder at `out`, ready for the episodes of one more environment; run.json is written.

    A folder that this process made before is used again; otherwise a new one is made, whose run.json holds `volatile`.
    Raises `RunError` if the folder holds something that this process did not put there, and `FileError` if it or
    run.json cannot be written.
    """
    path = out.resolve()
    folder = _open_folders.get(path)
    if folder is None or not (path / RUN).exists():  # removed meanwhile: begin anew
        folder = RunFolder(out, volatile)
    folder.add_environment(env, rules)
    _open_folders[path] = folder
    return folder


class RunFolder:
    """A run folder for the episodes of several environments and policies."""

    def __init__(self, out: Path, volatile: Mapping[str, object]) -> None:
        """Describe a folder at `out` without environments; nothing is written. `volatile` goes into run.json: facts
        such as the time, that differ from run to run.
        """
        self.path = out
        self._volatile = volatile
        self._host = ""
        self._versions: dict[str, str] = {}
        self._tasks: dict[str, TaskLabel] = {}
        self._rules: list[LoopRules] = []
        self._begun: Counter[tuple[str, str, str]] = Counter()
        self._outcomes: Counter[str] = Counter()
        self._blocks = self._complete_blocks = 0

    def add_environment(self, env: RecordableEnv, rules: LoopRules) -> None:
        """Take in one more environment, and write run.json, which says from now on that the run is not complete, and
        names the host and versions of this environment. The first call makes the folder.

        Raises `RunError` if the folder is there before the first call and not empty, and `FileError` if it or run.json
        cannot be written.
        """
        task = env.task
        self._host, self._versions = env.host, env.versions
        self._tasks[f"{task.benchmark}/{task.task_id}"] = task
        self._rules.append(rules)
        self._blocks += 1
        if self._blocks == 1:
            _make_empty_folder(self.path)
        self._write_description()

    def take_number(self, policy: str, task: TaskLabel) -> int:
        """Return the number of the policy's next episode of a task, from 0, and count it."""
        key = (policy, task.benchmark, task.task_id)
        self._begun[key] += 1
        return self._begun[key] - 1

    def write_episode(self, row: RecordedRow, content: bytes | None) -> None:
        """Write an ended episode under `raw/`, by the number of episodes written before: `content`, the bytes of its
        `.npz` (None = it has none), then its row. Raises `FileError` if either cannot be written.
        """
        stem = self.path / RAW / f"{sum(self._outcomes.values()):06d}"
        if content is not None:
            _write_file(stem.with_suffix(".npz"), content)
        _write_file(stem.with_suffix(".json"), _encode_json(asdict(row)))
        self._outcomes[row.outcome] += 1

    def close_block(self, *, complete: bool) -> None:
        """End a block of recording, `complete` unless something broke it off, and write run.json; remove the folder
        instead if no block has written an episode so far. Raises `FileError` if run.json cannot be written, `OSError`
        if the folder cannot be removed.
        """
        self._complete_blocks += complete
        if self._outcomes:
            self._write_description()
            return
        shutil.rmtree(self.path)
        del _open_folders[self.path.resolve()]

    def count_outcomes(self) -> str:
        """Return how many episodes had each outcome, most frequent first, as text; "" for no episodes."""
        return ", ".join(f"{count} {outcome}" for outcome, count in self._outcomes.most_common())

    def _write_description(self) -> None:
        _write_file(self.path / RUN, _encode_json(self._describe_run(), indent=2))

    def _describe_run(self) -> dict[str, object]:
        """Return the content of run.json; `complete` is true if every block so far has ended completely."""
        suites = dict.fromkeys(task.benchmark for task in self._tasks.values())
        policies = {rules.policy: {"policy": rules.policy, "privileged": rules.privileged} for rules in self._rules}
        own_name = "safevla-recorder" if "safevla-recorder" in self._versions else "safevla-bench"
        return {
            "schema_version": 1,
            "host": self._host,
            "suites": list(suites),
            "tasks": list(self._tasks),
            "policies": list(policies.values()),
            "protocol": {
                "name": "own loop",
                "wait_steps": sorted({rules.wait_steps for rules in self._rules}),
                "horizons": sorted({rules.horizon for rules in self._rules if rules.horizon}),
            },
            "versions": {own_name: __version__, **self._versions},
            "complete": self._complete_blocks == self._blocks,
            "volatile": dict(self._volatile),
        }


def require_free_folder(path: Path, is_leftover: Callable[[Path], bool]) -> None:
    """Raise `RunError` if `path` is a file, or a folder with an entry that `is_leftover` does not accept."""
    if path.exists() and not (path.is_dir() and all(map(is_leftover, path.iterdir()))):
        remedy = "Choose another --out, or remove it first."
        raise RunError("the folder exists and is not empty", remedy=remedy, place=Place(file=str(path)))


def _make_empty_folder(path: Path) -> None:
    require_free_folder(path, lambda file: file.name.startswith(".") and file.name.endswith(_PARTIAL))
    try:
        (path / RAW).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError.from_os_error(error, Place(file=str(path))) from None


def _write_file(path: Path, content: bytes) -> None:
    """Write a whole file under a hidden name, flush it to disk and rename it; raises `FileError`."""
    partial = path.with_name(f".{path.name}.{os.getpid()}{_PARTIAL}")
    try:
        with partial.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        partial.replace(path)
    except OSError as error:
        raise FileError.from_os_error(error, Place(file=str(path))) from None
    finally:
        with suppress(OSError):
            partial.unlink()


def _encode_json(document: Mapping[str, object], indent: int | None = None) -> bytes:
    text = json.dumps(document, indent=indent, ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "replace") + b"\n"  # a file name in a traceback may hold lone surrogates
