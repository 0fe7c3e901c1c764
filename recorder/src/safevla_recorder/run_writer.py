"""Episodes of your own loop, of any simulator, as a run folder that `safevla score` judges."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Mapping, Sequence

from safevla_recorder.attachment import TaskLabel, package_versions
from safevla_recorder.episode import (
    HEADER_FIELDS,
    INTEGERS,
    OUTCOMES,
    add_costs,
    add_header_mark,
    check_recorded_numbers,
)
from safevla_recorder.episode_cutter import RecordedRow
from safevla_recorder.episode_log import RecordedEpisode
from safevla_recorder.errors import FileError, Place, RecordError, RunError
from safevla_recorder.folder import (
    RUN,
    RunFolder,
    facts_of_the_day,
    is_of_killed_writer,
    lock_folder,
    require_free_folder,
    unlock_folder,
)
from safevla_recorder.npz import encode_episode

_OF_EPISODE = ("benchmark", "task_id")
_OF_RECORD = (*_OF_EPISODE, "success", "dt", "target_object")
_TEXTS = ("episode_id", "benchmark", "task_id", "target_object", "instruction", "embodiment", "outcome")
_TYPES: Mapping[str, type] = {
    **dict.fromkeys(_TEXTS, str),
    **dict.fromkeys(INTEGERS, int),
    "success": bool,
    "dt": float,
}
_TYPE_NAMES = {str: "a text", int: "a whole number", float: "a number above zero", bool: "True or False"}
_FIELDS = tuple(name for name in HEADER_FIELDS if name in _TYPES or name == "joint_torque_limit_nm")


class RunWriter:
    """The run folder of your own loop, for one process at a time; a context manager::

        common = {"benchmark": "my-lab", "task_id": "lift", "dt": 0.05, "target_object": "box"}
        with RunWriter("runs/mine", policy="mine", **common) as run:
            for start in range(10):
                ...                                      # recorder.begin, then substep and step
                run.write(recorder, success=lifted, init_state_index=start)

    A folder that a `RunWriter` made before is continued: its episodes stay. Each episode is written whole before
    `write` returns. If the block raises, run.json says that the run is not complete.
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
            host: the host of `safevla eval` whose tags and scenes are those of the episodes; None = there is none.
            packages: distributions whose versions the records tell, beside NumPy's and the recorder's.
            privileged: whether the policy sees simulator state that no robot has; reports mark it.
            header: what is the same in all episodes, see `write`.

        Raises:
            RunError: the folder holds something else or is damaged, or another process writes there.
            FileError: the folder cannot be written.
        """
        self.path, self._policy, self._privileged, self._header = Path(out), policy, privileged, header
        self._versions = package_versions(("numpy", *packages))
        self._folder = RunFolder(self.path, facts_of_the_day())
        self._lock = _lock_run(self.path)
        try:
            if (self.path / RUN).exists():
                self._folder.reopen(host)
            self._folder.begin_block(host, self._versions, policy, privileged=privileged)
        except BaseException:
            unlock_folder(self.path, self._lock)
            raise

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(complete=kind is None)

    def close(self, *, complete: bool = True) -> None:
        """Write run.json and let go of the folder, which is removed if it has no episodes; say where the records are.
        Raises `FileError` if run.json cannot be written.
        """
        try:
            self._folder.close_block(complete=complete)
        finally:
            unlock_folder(self.path, self._lock)

    def __contains__(self, episode_id: object) -> bool:
        """Return whether the folder has an episode of that id, crashed ones included."""
        return episode_id in self._folder.episode_ids

    def write(
        self, recorder: RecordedEpisode, *, reason: str | None = None, costs: Sequence[object] = (), **header: object
    ) -> str:
        """Write the episode that a recorder holds, and return its id.

        Args:
            recorder: an `EpisodeRecorder` or MuJoCo's `Recorder`, between two control steps, or an episode that
                `BatchRecorder.step` returns.
            reason: why the episode was stopped or its action invalid.
            costs: what the simulator's own safety check says of each step, such as `info["cost"]`: a number, or numbers
                by name; they are kept beside our verdicts and enter none.
            header: the episode's fields of `HEADER_FIELDS`, over those of all episodes. `benchmark`, `task_id`,
                `success`, `dt` [s] and `target_object` (None = no target) are required. Without an `episode_id` the
                episodes of a task are counted; without an `outcome` it is `success` or `failure`.

        Raises:
            HostError: no episode has begun.
            RecordError: a field is missing, unknown, of another type or contradicts others, or a number is one that no
                record may have.
            RunError: the folder has an episode of that id.
            FileError: the episode cannot be written.
        """
        fields, number = self._complete_header(header, _OF_RECORD)
        about = {"policy": self._policy, "versions": self._versions, "dropped_pairs": recorder.dropped_pairs()}
        recording = recorder.build_recording({**fields, **about})
        recording = add_costs(recording, costs) if costs else recording
        target, outcome = fields["target_object"], fields["outcome"]
        if target is not None and recording.roles.get(str(target)) != "target":
            raise _refuse(
                "target_object", f"{target!r} has not the role target", "Name a target of the scene, or None."
            )
        if outcome not in OUTCOMES or (outcome == "success") != fields["success"]:
            problem = f"the outcome {outcome!r} does not go with success {fields['success']}"
            raise _refuse("outcome", problem, f"Outcomes: {', '.join(OUTCOMES)}; success has its own.")
        check_recorded_numbers(recording)
        if self._privileged:
            recording = replace(recording, extra=add_header_mark(recording.extra, "privileged"))
        try:
            content = encode_episode(recording)
        except (ValueError, TypeError) as error:
            raise RecordError(f"the header cannot be written: {error}", remedy="Mend its fields.") from None
        return self._write_row(fields, number, recording.records - 1, reason, content)

    def write_crash(self, reason: str, *, steps: int = 0, **header: object) -> str:
        """Write that an episode crashed after so many control steps, which leaves no record; return its id.

        `reason` is the traceback or what else is known. `header` is as for `write`, and `benchmark` and `task_id` are
        required. Raises `RecordError`, `RunError` and `FileError` as `write` does.
        """
        fields, number = self._complete_header(header, _OF_EPISODE)
        return self._write_row({**fields, "outcome": "crashed"}, number, steps, reason, None)

    def _complete_header(self, header: Mapping[str, object], required: Sequence[str]) -> tuple[dict[str, Any], int]:
        """Return the checked fields of an episode, with id and outcome, and its number among those of its task."""
        plain = {name: _read_field(name, value) for name, value in {**self._header, **header}.items()}
        fields = {name: value for name, value in plain.items() if value is not None or name == "target_object"}
        absent = [name for name in required if name not in fields]
        if absent:
            raise _refuse(
                absent[0], "the value is missing", f"Required: {', '.join(required)}; here or for the whole run."
            )
        task = TaskLabel(fields["benchmark"], fields["task_id"], "")
        number = self._folder.next_number(self._policy, task)
        fields.setdefault("episode_id", f"{self._policy}/{task.benchmark}/{task.task_id}/ep_{number:03d}")
        fields.setdefault("outcome", "success" if fields.get("success") else "failure")
        if fields["episode_id"] in self:
            remedy = "Give another episode_id; to go on where a run stopped: if episode_id in run: continue."
            place = Place(file=str(self.path), episode=fields["episode_id"])
            raise RunError("the run has an episode of that id already", remedy=remedy, place=place)
        return fields, number

    def _write_row(
        self, fields: Mapping[str, Any], number: int, steps: int, reason: str | None, content: bytes | None
    ) -> str:
        known = ("episode_id", "benchmark", "task_id", "outcome", *INTEGERS)
        row = {name: fields.get(name) for name in known}
        further = {"policy": self._policy, "policy_seed": None, "episode": number, "steps": steps, "reason": reason}
        self._folder.write_episode(RecordedRow(**row, **further), content)  # type: ignore[arg-type]
        return str(fields["episode_id"])


def _lock_run(path: Path) -> int:
    """Make the folder if it is missing, and lock it; it is to hold a run or nothing. Raises as `RunWriter` does."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError.from_os_error(error, Place(file=str(path))) from None
    if not (path / RUN).exists():
        require_free_folder(path, is_of_killed_writer)
    return lock_folder(path)


def _read_field(name: str, value: object) -> Any:
    """Return a field's value, NumPy's as Python's own; raises `RecordError` for an unknown name or another type."""
    if name not in _FIELDS:
        raise _refuse(name, "there is no such field of an episode", f"Fields: {', '.join(_FIELDS)}.")
    plain: Any = value.tolist() if hasattr(value, "tolist") else value
    if name == "dt" and type(plain) is int:
        plain = float(plain)
    kind = _TYPES.get(name)
    fits = plain is None or kind is None or (type(plain) is kind and plain != "")
    if not fits or (name == "dt" and plain is not None and not plain > 0):
        raise _refuse(name, f"the value is {plain!r}", f"Give {_TYPE_NAMES[_TYPES[name]]}.")
    return plain


def _refuse(field: str, problem: str, remedy: str) -> RecordError:
    return RecordError(problem, remedy=remedy, place=Place(field=field))
