"""Demonstrations of other tools, which can be played again: an HDF5 file, a folder of them, or a LeRobot dataset.

HDF5 as robomimic, robosuite and LIBERO write it:

    data                  attributes `bddl_file_name`, `problem_info` and `env_args` (JSON): the task, if they name it
    data/demo_N/actions   [T, A], as they were given to the simulator
    data/demo_N/states    [T, S], flat MuJoCo states (time, qpos, qvel); state k stands before action k
    data/demo_N           attribute `model_file`: the model's XML, whose top bodies have the poses of fixtures

LIBERO cuts the first five steps off, states and actions alike, and keeps the uncut beginning in the attribute
`init_state`: the actions do not start there, but at the first row of `states`.

LeRobot datasets (`logs.lerobot`) hold actions and instructions, but not where in a simulator an episode starts.
Those that lerobot-eval writes with `eval.recording` are `recordings/SUITE_TASK`, or `recordings/SUITE_TASK/env_K` of
several environments, of which K starts at initial state K, seeded with 1000 + K (lerobot 7427f31
src/lerobot/scripts/lerobot_eval.py: run_one, rollout; src/lerobot/envs/libero.py: LiberoEnv.reset).
"""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from safevla_bench.archive.record_schema import Budget
from safevla_bench.errors import Place, RecordError
from safevla_bench.files import open_input
from safevla_bench.interface.task import Task
from safevla_bench.plugins import install_command
from safevla_bench.sources.logs.lerobot import INFO, episode_name, feature_matrix, read_frames, read_instructions
from safevla_bench.sources.logs.records import translated_errors
from safevla_bench.trajectory.batch import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedActions:
    """Actions [T, A] in the host's units, and what is known of where they were played; None = not recorded.

    `states` are flat simulator states, [T, S] or [T + 1, S]: row k stands before action k. The task is named by
    `benchmark` and `task_id`, or by the name of its BDDL file (`task`), perhaps with its folder (`suite`), or by the
    instruction alone.
    """

    name: str
    source: str
    actions: Floats
    states: Floats | None = None
    positions_m: Mapping[str, Floats] = field(default_factory=dict)
    """Of bodies in the world, [T + 1, 3] each; compared where there are no states."""
    fixtures: tuple[tuple[str, tuple[float, ...]], ...] = ()
    benchmark: str | None = None
    task_id: str | None = None
    suite: str | None = None
    task: str | None = None
    instruction: str | None = None
    init_state_index: int | None = None
    env_seed: int | None = None
    wait_steps: int | None = None
    rest_steps: int = 0
    """Where `wait_steps` are known."""
    earlier_resets: int | None = None
    """Resets of the environment before this episode's, since it was made and seeded; None = seeded before this one."""
    drawn: bool = False
    """Whether the record says that its start was drawn: the initial state of that number is not its own."""
    proprioception: Floats | None = None
    """After each action, [T, 8] float32: the hand's position in m, its rotation as an axis-angle, two fingers."""
    success: bool | None = None
    policy: str | None = None
    ending: str = "timeout"
    absolute: bool = False
    """Whether the actions are poses in the world and not changes of pose."""

    @property
    def task_label(self) -> str:
        """Return the task's name as far as recorded: suite and task, else the instruction quoted, else "no task"."""
        names = (self.benchmark, self.task_id) if self.benchmark else (self.suite, self.task)
        return "/".join(part for part in names if part) or (repr(self.instruction) if self.instruction else "no task")

    def is_of_task(self, task: Task) -> bool:
        """Return whether these are actions of a task: by benchmark and id, else by task name, else by instruction.

        LIBERO writes `libero_spatial` for our `libero-spatial`. False if none of these is recorded.
        """
        if self.benchmark is not None:
            names = [name.replace("_", "-") for name in (self.benchmark, task.benchmark)]
            return len({*names}) == 1 and self.task_id in (task.task_id, f"task_{task.index}")
        if self.task is not None:
            named = task.name.rpartition("/")[2].removesuffix(".bddl")
            suites = {name.replace("_", "-") for name in (self.suite, task.benchmark) if name is not None}
            return self.task == named and len(suites) == 1
        asked = _normalize_instruction(task.instruction)
        return self.instruction is not None and _normalize_instruction(self.instruction) == asked


def _normalize_instruction(instruction: str) -> str:
    return " ".join(instruction.lower().strip(" .").split())


SUFFIXES = (".hdf5", ".h5")
_LARGEST_XML = 64 * 2**20
_MOST_NUMBERS = 1 << 28
"""Numbers of all demonstrations together, 2 GiB; a small file that says more is hostile."""
_MOST_FRAMES_NUMBERS = 1 << 26
"""Numbers of all frames of a dataset, which are copied together: 6 million frames of seven."""
_MOST_CHUNK_BYTES = 1 << 28
_NUMBER = 128


def recording_budget() -> Budget:
    """Return the budget of recordings that are read together."""
    return Budget(_MOST_NUMBERS, "numbers in all episodes together")


def read_hdf5(path: Path, budget: Budget | None = None) -> list[RecordedActions]:
    """Return the demonstrations of a file, in the order of their numbers.

    Raises `RecordError`: h5py is not installed, or the file cannot be read, holds no demonstrations, is of another
    structure or larger than the budget (None = one of its own).
    """
    budget = budget or recording_budget()
    try:
        import h5py
    except ModuleNotFoundError:
        remedy = f"Install it: {install_command('hdf5')}"
        raise RecordError(
            "HDF5 needs h5py, which is not installed", remedy=remedy, place=Place(file=str(path))
        ) from None
    with translated_errors(path, _HDF5_REMEDY), open_input(path), h5py.File(path, "r") as file:
        return list(_read_demos(path.name, file, budget))


_HDF5_REMEDY = "Name an HDF5 file of demonstrations: data/demo_N/actions and states."


def _read_demos(source: str, file: Any, budget: Budget) -> Iterator[RecordedActions]:
    data = _require_group("data", _own_item(file, "data"))
    suite, task, instruction = _read_task(data.attrs)
    names = [name for name in data if re.fullmatch(r"demo_\d{1,18}", name)]
    if not names:
        remedy = "Demonstrations are the groups data/demo_0, data/demo_1, …"
        raise RecordError("there are no demonstrations", remedy=remedy)
    for name in sorted(names, key=lambda group: int(group.removeprefix("demo_"))):
        demo = _require_group(name, _own_item(data, name))
        budget.spend(_NUMBER)
        actions = _read_matrix(name, "actions", _own_item(demo, "actions"), budget)
        states = _read_matrix(name, "states", _own_item(demo, "states"), budget) if "states" in demo else None
        if states is not None and not len(actions) <= len(states) <= len(actions) + 1:
            problem = f"{len(states)} states, but {len(actions)} actions"
            remedy = "A state stands before each action, and perhaps one after the last."
            raise RecordError(problem, remedy=remedy, place=Place(episode=name, field="states"))
        model = Place(episode=name, field="model_file")
        fixtures = _parse_fixtures(_decode_text(demo.attrs.get("model_file")), model)
        yield RecordedActions(
            name=name,
            source=source,
            actions=actions,
            states=states,
            fixtures=fixtures,
            suite=suite,
            task=task,
            instruction=instruction,
        )


def _own_item(group: Any, name: str) -> Any:
    link = group.get(name, getlink=True)
    if hasattr(link, "filename"):
        raise RecordError(f"{name} is a link to another file", remedy="Copy what it links to into this one.")
    return group[name]


def _require_group(name: str, item: Any) -> Any:
    if hasattr(item, "keys"):
        return item
    raise RecordError(f"{name} is no group", remedy=_HDF5_REMEDY)


def _read_matrix(name: str, field: str, rows: Any, budget: Budget) -> Floats:
    place = Place(episode=name, field=field)
    if getattr(rows, "is_virtual", False) or getattr(rows, "external", None):
        raise RecordError("its numbers lie in another file", remedy="Write them into this one.", place=place)
    try:
        if not hasattr(rows, "dtype"):
            raise TypeError("it is no array")
        if rows.dtype.kind not in "biuf" or math.prod(rows.chunks or ()) * rows.dtype.itemsize > _MOST_CHUNK_BYTES:
            raise ValueError(f"{rows.dtype} in chunks of {rows.chunks}")
        budget.spend(rows.size or 0)
        values = np.asarray(rows, dtype=np.float64)
    except (OSError, TypeError, ValueError) as error:
        problem = f"cannot be read as numbers: {' '.join(str(error).split())}"
        raise RecordError(problem, remedy="One row of numbers a step.", place=place) from None
    if values.ndim != 2:
        raise RecordError(f"has the shape {values.shape}", remedy="One row a step.", place=place)
    return values


def _read_task(attributes: Mapping[str, Any]) -> tuple[str | None, str | None, str | None]:
    """Return suite, task and instruction, each None if the file's attributes do not say it."""
    file = _decode_text(attributes.get("bddl_file_name"))
    parts = PurePosixPath(file) if file else None
    instruction = _decode_text(_parse_json(attributes.get("problem_info")).get("language_instruction"))
    suite = (parts.parent.name or None) if parts else None
    task = parts.stem if parts else _decode_text(_parse_json(attributes.get("env_args")).get("env_name"))
    return suite, task, instruction.strip('"') if instruction else None


def _parse_json(text: object) -> dict[str, Any]:
    try:
        tree = json.loads(_decode_text(text) or "{}")
    except (ValueError, RecursionError):
        return {}
    return tree if isinstance(tree, dict) else {}


def _decode_text(value: object) -> str | None:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value if isinstance(value, str) else None


def _parse_fixtures(xml: str | None, place: Place) -> tuple[tuple[str, tuple[float, ...]], ...]:
    """Return name and pose, position [3] in m and quaternion [4] wxyz, of each named top body without a free joint.

    () without XML, and for XML that is too large or has declarations.
    """
    if not xml or len(xml) > _LARGEST_XML or "<!" in xml:  # no entities from a stranger's file
        return ()
    try:
        world = ElementTree.fromstring(xml).find("worldbody")
        bodies = [] if world is None else world.findall("body")
        fixed = [
            (body.get("name"), [*body.get("pos", "0 0 0").split(), *body.get("quat", "1 0 0 0").split()])
            for body in bodies
            if body.find("freejoint") is None and all(joint.get("type") != "free" for joint in body.findall("joint"))
        ]
        poses = [(name, tuple(map(float, numbers))) for name, numbers in fixed]
    except (ElementTree.ParseError, ValueError) as error:
        remedy = "Copy the file again. Without this attribute, fixtures stand where the simulator puts them."
        raise RecordError(f"the model cannot be read: {error}", remedy=remedy, place=place) from None
    return tuple((name, pose) for name, pose in poses if name and len(pose) == 7)


def read_dataset(folder: Path) -> list[RecordedActions]:
    """Return the episodes of a LeRobot dataset, in their order.

    Raises `RecordError` if there are no frames, a file cannot be read or lacks what an episode needs, or actions differ
    in size.
    """
    instructions = read_instructions(folder)
    budget = Budget(_MOST_FRAMES_NUMBERS, "numbers in all frames together")
    takes = []
    with translated_errors(folder, "A frame has an `action`: a list of numbers, as many in each frame."):
        for frames in read_frames(folder, ["action"]):
            actions = feature_matrix(frames, "action")
            budget.spend(_NUMBER + actions.size)
            if np.isnan(actions).any():
                raise ValueError("a frame has no action")
            task = frames["task_index"][0].as_py()
            take = RecordedActions(
                name=episode_name(frames), source=folder.name, actions=actions, instruction=instructions.get(task)
            )
            takes.append(take)
        widths = dict.fromkeys(take.actions.shape[1] for take in takes)
        if len(widths) != 1:
            raise ValueError(f"actions have {' and '.join(map(str, widths)) or 'no'} numbers")
    return list(_add_starts(folder.resolve(), takes))


_RECORDINGS, _SEED, _WAIT_STEPS = "recordings", 1000, 10
_RECORDED = re.compile(rf"{_RECORDINGS}/((libero_[a-z0-9_]+)_(\d{{1,6}})(?:/env_(\d{{1,6}}))?)")


def _add_starts(folder: Path, takes: Sequence[RecordedActions]) -> Iterator[RecordedActions]:
    """Yield the episodes of a dataset, with task and start if its place says that lerobot-eval wrote it."""
    recorded = next(filter(None, (_RECORDED.fullmatch("/".join(folder.parts[-k:])) for k in (2, 3))), None)
    if recorded is None:
        yield from takes
        return
    place, suite, task, environment = recorded.groups()
    together = len(list(folder.parent.glob("env_*"))) if environment else 1
    for number, take in enumerate(takes):
        index = int(environment or 0) + number * together
        yield replace(
            take,
            name=f"{place}/{take.name}",
            benchmark=suite.replace("_", "-"),
            task_id=f"task_{int(task)}",
            init_state_index=index,
            env_seed=_SEED + index,
            wait_steps=_WAIT_STEPS,
        )


def read_demonstrations(path: Path) -> list[RecordedActions] | None:
    """Return the episodes of an HDF5 file (`.hdf5`, `.h5`) or a folder of these by name, of a LeRobot dataset, or of
    those in the folder `recordings` of lerobot-eval.

    None for anything else: suffixes and the file `meta/info.json` alone decide. Raises `RecordError` if such a file is
    missing, cannot be read or holds no demonstrations; or h5py is not installed.
    """
    if path.is_dir():
        if (path / INFO).is_file():
            return read_dataset(path)
        datasets = [info.parents[1] for depth in ("*", "*/*") for info in sorted(path.glob(f"{depth}/{INFO}"))]
        if datasets:
            return [take for folder in datasets for take in read_dataset(folder)]
        files = sorted(file for suffix in SUFFIXES for file in path.glob(f"*{suffix}"))
        budget = recording_budget()
        return [take for file in files for take in read_hdf5(file, budget)] if files else None
    if path.suffix not in SUFFIXES:
        return None
    if not path.is_file():
        raise RecordError("there is no such file", remedy="Name a recording.", place=Place(file=str(path)))
    return read_hdf5(path)
