"""Reading of demonstrations from other tools: an HDF5 file, a folder of HDF5 files, or a LeRobot dataset.

The HDF5 files of robomimic, robosuite and LIBERO contain:

    data                  attributes with the task: `bddl_file_name`, `problem_info`, `env_args`, `env_info` or `env`
    data/demo_N/actions   [T, A], as given to the simulator
    data/demo_N/states    [T, S], flat MuJoCo states (time, qpos, qvel); state k precedes action k
    data/demo_N           attribute `model_file`: the model's XML, whose top-level bodies have the fixtures' poses

LIBERO removed the first five states and actions from its files. So a replay starts from the first row of `states`. The
attribute `init_state` is the state before the removed actions.

LeRobot datasets (`logs.lerobot`) have actions and instructions, but not the simulator state at which an episode starts.
lerobot-eval with `eval.recording` writes the dataset `recordings/SUITE_TASK`. With several environments, it writes one
dataset `recordings/SUITE_TASK/env_K` for each. Environment `K` starts at initial state `K` with seed `1000 + K`
(lerobot 7427f31 src/lerobot/scripts/lerobot_eval.py: run_one, rollout; src/lerobot/envs/libero.py: LiberoEnv.reset).
"""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from safevla_bench.errors import Place, RecordError
from safevla_bench.files import open_input
from safevla_bench.interface.task import Task
from safevla_bench.memory import memory_error, read_budget
from safevla_bench.plugins import install_command
from safevla_bench.sources.foreign import hdf5_child
from safevla_bench.sources.logs.lerobot import INFO, episode_name, feature_matrix, read_frames, read_instructions
from safevla_bench.sources.logs.mappings import translated_errors
from safevla_bench.text import warn_once
from safevla_recorder.episode import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedActions:
    """Actions [T, A] in the units of the simulator benchmark, and facts about their recording; None = not recorded.

    `states` are flat simulator states, [T, S] or [T + 1, S]: row k precedes action k. `benchmark` and `task_id`
    identify the task. If both are None, `task` (the name of the task's BDDL file) identifies the task, together with
    `suite` (the file's folder) if known. Without `task`, the instruction identifies the task.
    """

    name: str
    source: str
    actions: Floats
    states: Floats | None = None
    # Name of a body -> positions [m], [T + 1, 3]. If `states` is None, a replay is compared with them.
    positions_m: Mapping[str, Floats] = field(default_factory=dict)
    fixtures: tuple[tuple[str, tuple[float, ...]], ...] = ()
    benchmark: str | None = None
    task_id: str | None = None
    suite: str | None = None
    task: str | None = None
    instruction: str | None = None
    init_state_index: int | None = None
    env_seed: int | None = None
    wait_steps: int | None = None
    # Maximum number of further steps, after `wait_steps`, in which the replay waits until the objects are at rest.
    rest_steps: int = 0
    # Number of resets after the environment was seeded; None = the environment was seeded for this episode.
    earlier_resets: int | None = None
    drawn: bool = False  # True if the initial state was random, not from the suite
    # State of the end effector after each action, [T, 8].
    # It has a position [m] (3), an axis-angle rotation [rad] (3) and the finger positions [m] (2).
    proprioception: Floats | None = None
    success: bool | None = None
    policy: str | None = None
    ending: str = "timeout"
    absolute: bool = False  # True: poses in the world; False: changes of pose

    @property
    def task_label(self) -> str:
        """Return the task's name as recorded: suite and task, else the instruction in quotes, else "no task"."""
        # `benchmark` and `task_id` identify a task of a known benchmark.
        # Recordings without `benchmark` may name `suite` and `task`.
        names = (self.benchmark, self.task_id) if self.benchmark else (self.suite, self.task)
        label = "/".join(part for part in names if part)
        if label:
            return label
        return repr(self.instruction) if self.instruction else "no task"

    def is_of_task(self, task: Task) -> bool:
        """Return whether the actions belong to `task`. Compares benchmark and id if they are recorded, else the task's
        name, else the instruction; False if nothing is recorded. `libero_spatial` and `libero-spatial` count as equal.
        """
        # LeRobot and vla-evaluation-harness record `benchmark`. HDF5 files record the task's name.
        # An unknown suite matches any suite.
        suite = self.suite if self.benchmark is None else self.benchmark
        is_same_suite = suite is None or suite.replace("_", "-") == task.benchmark.replace("_", "-")
        if self.benchmark is not None:
            return is_same_suite and self.task_id in (task.task_id, f"task_{task.index}")
        if self.task is not None:
            # A task's name may be the path of its BDDL file.
            return is_same_suite and self.task == task.name.rpartition("/")[2].removesuffix(".bddl")
        task_instruction = _normalize_instruction(task.instruction)
        return self.instruction is not None and _normalize_instruction(self.instruction) == task_instruction


def _normalize_instruction(instruction: str) -> str:
    # Returns the instruction in lower case, with single spaces and without periods at its ends.
    return " ".join(instruction.lower().strip(" .").split())


SUFFIXES = (".hdf5", ".h5")
_Size = Annotated[int, msgspec.Meta(ge=0, lt=1 << 40)]


class _Demo(msgspec.Struct, frozen=True):
    name: str
    actions: tuple[_Size, _Size]
    states: tuple[_Size, _Size] | None
    suite: str | None
    task: str | None
    instruction: str | None
    fixtures: tuple[tuple[str, tuple[float, float, float, float, float, float, float]], ...]


class _Answer(msgspec.Struct, frozen=True):
    """The first line of the child process's output: `demos` or an `error`; neither key if memory ran out."""

    demos: tuple[_Demo, ...] = ()
    error: tuple[str, str, str | None, str | None] | None = None


_CHILD_SECONDS, _CHILD_BYTES_PER_S = 5, 10_000_000  # CPU time of the child process: at most 5 s + 1 s per 10 MB
_WAIT_SECONDS = 60  # limit on wall-clock time of the child process: 60 s + five times the limit on CPU time


def read_hdf5(path: Path) -> list[RecordedActions]:
    """Return the demonstrations of an HDF5 file, sorted by number. A child process reads the file.

    Raises `RecordError` if h5py is not installed, if the file cannot be read, has no demonstrations or has another
    structure, or if reading takes too much memory or time.
    """
    if find_spec("h5py") is None:
        remedy = f"Install it: {install_command('hdf5')}"
        raise RecordError("HDF5 needs h5py, which is not installed", remedy=remedy, place=Place(file=str(path)))
    with translated_errors(path, hdf5_child.REMEDY), open_input(path) as stream:
        # CPU time that the child process may use, by the size of the file.
        seconds = _CHILD_SECONDS + os.fstat(stream.fileno()).st_size // _CHILD_BYTES_PER_S
        output = _run_child(stream.fileno(), seconds)
        # In the output, the first line is JSON with the shapes, and float64 numbers follow.
        end = output.index(b"\n") + 1
        answer = msgspec.json.decode(output[:end], type=_Answer)
        if answer.error is not None:
            problem, remedy, name, field = answer.error
            raise RecordError(problem, remedy=remedy, place=Place(episode=name, field=field))
        if not answer.demos:  # no demonstrations and no error: out of memory
            raise memory_error(path)
        return list(_split_output(path.name, answer.demos, np.frombuffer(output[end:], "<f8").copy()))


def _run_child(descriptor: int, seconds: int) -> bytes:
    # Returns the bytes that the child process writes to stdout. Raises `RecordError` if it crashes or takes too long.
    # `descriptor` is the number of the open file, and `seconds` the limit on CPU time.
    # `-P` leaves the script's folder out of Python's search path, so that no module in the folder replaces a library.
    command = [sys.executable, "-P", hdf5_child.__file__, descriptor, read_budget(), seconds]
    python_path = os.pathsep.join(filter(None, sys.path))
    # Run one thread, since each thread reserves memory.
    environment = {**os.environ, "PYTHONPATH": python_path, "OPENBLAS_NUM_THREADS": "1"}
    remedy = "The file is damaged; copy it again, or leave it out."
    try:
        process = subprocess.run(
            list(map(str, command)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=[descriptor],
            env=environment,
            timeout=_WAIT_SECONDS + 5 * seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RecordError(f"reading the file took more than {_WAIT_SECONDS + 5 * seconds} s", remedy=remedy) from None
    code = process.returncode  # if negative, -`code` is the signal that ended the process
    # The kernel sends SIGXCPU at the soft limit on CPU time, and SIGKILL at the hard limit or if memory runs out.
    if -code in (signal.SIGXCPU, signal.SIGKILL):
        problem = f"reading the file took more than {seconds} s of processor time"
        problem += ", or the machine's memory ran out" if -code == signal.SIGKILL else ""
        raise RecordError(problem, remedy=remedy)
    if code:
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        raise RecordError(f"the HDF5 library crashed while reading the file ({name})", remedy=remedy)
    return process.stdout


def _split_output(source: str, demos: Sequence[_Demo], numbers: Floats) -> Iterator[RecordedActions]:
    # Yields the demonstrations. `numbers` are the actions and states of each demonstration, one after the other.
    # `actions` and `states` of a `_Demo` are the shapes of these arrays. `source` is the name of the file.
    shapes = [shape for demo in demos for shape in (demo.actions, demo.states) if shape is not None]
    # Check the output of the child process, because a damaged file may have corrupted the memory of the child.
    if sum(map(math.prod, shapes)) != len(numbers):
        raise ValueError("the child process returned unexpected data")
    remaining = numbers
    for demo in demos:
        actions, remaining = np.split(remaining, [math.prod(demo.actions)])
        states = None
        if demo.states is not None:
            flat_states, remaining = np.split(remaining, [math.prod(demo.states)])
            states = flat_states.reshape(demo.states)
        yield RecordedActions(
            name=demo.name,
            source=source,
            actions=actions.reshape(demo.actions),
            states=states,
            fixtures=demo.fixtures,
            suite=demo.suite,
            task=demo.task,
            instruction=demo.instruction,
        )


def read_dataset(folder: Path) -> list[RecordedActions]:
    """Return the episodes of a LeRobot dataset, in order. Raises `RecordError` if there are no frames, if a file cannot
    be read or lacks data that an episode needs, or if actions differ in size.
    """
    instructions = read_instructions(folder)
    episodes = []
    remedy = "Every frame needs an `action`, and all actions must have the same size."
    with translated_errors(folder, remedy):
        for frames in read_frames(folder, ["action"]):
            if isinstance(frames, RecordError):
                if frames.place.episode is not None:
                    raise frames  # an incomplete episode cannot be replayed
                warn_once(str(folder), frames.problem)  # an error without an episode: episodes are missing
                continue
            actions = feature_matrix(frames, "action")
            if np.isnan(actions).any():
                raise ValueError("a frame has no action")
            name, instruction = episode_name(frames), instructions.get(frames["task_index"][0].as_py())
            episodes.append(RecordedActions(name=name, source=folder.name, actions=actions, instruction=instruction))
        widths = dict.fromkeys(episode.actions.shape[1] for episode in episodes)
        if len(widths) != 1:
            raise ValueError(f"the sizes of actions are {' and '.join(map(str, widths)) or 'unknown'}")
    return list(_add_starts(folder.resolve(), episodes))


_FIRST_SEED, _WAIT_STEPS = 1000, 10
# The end of a dataset's path: recordings/SUITE_TASK or recordings/SUITE_TASK/env_K.
_RECORDING_PATH = re.compile(r"/recordings/((libero_[a-z0-9_]+)_(\d{1,6})(?:/env_(\d{1,6}))?)\Z")


def _add_starts(folder: Path, episodes: Sequence[RecordedActions]) -> Iterator[RecordedActions]:
    # Yields a dataset's episodes. If lerobot-eval wrote the dataset, adds facts from the dataset's path.
    # The facts from the path are the task, the initial state, and the seed (`_FIRST_SEED` plus the state's index).
    # The number of waiting steps, `_WAIT_STEPS`, is the same for all datasets of lerobot-eval.
    match = _RECORDING_PATH.search(folder.as_posix())
    if match is None:
        yield from episodes
        return
    # `environment_text` is the number K of the environment; None = the recording had only one environment.
    recording_path, suite, task, environment_text = match.groups()
    # The folders of all environments must exist, because their count determines the initial states.
    numbers = {path.name.removeprefix("env_") for path in folder.parent.glob("env_*")} if environment_text else {"0"}
    environment_count = len(numbers)
    if numbers != set(map(str, range(environment_count))):
        remedy = "copy the whole recording to replay these episodes from their initial states"
        warn_once(str(folder), f"folders of other environments (env_0, env_1, …) are missing; {remedy}")
        yield from episodes
        return
    for episode in episodes:
        # The number in the name `episode_NUMBER` counts recorded episodes, some of which may be missing in the dataset.
        number = int(episode.name.rpartition("_")[2])
        # Environments run in parallel: environment `K` has the initial states `K`, `K + environment_count`, and so on.
        init_state = int(environment_text or 0) + number * environment_count
        yield replace(
            episode,
            name=f"{recording_path}/{episode.name}",
            benchmark=suite.replace("_", "-"),
            task_id=f"task_{int(task)}",
            init_state_index=init_state,
            env_seed=_FIRST_SEED + init_state,
            wait_steps=_WAIT_STEPS,
        )


def read_demonstrations(path: Path) -> list[RecordedActions] | None:
    """Return the episodes of an HDF5 file (`.hdf5`, `.h5`), a folder of such files (in the order of their names), a
    LeRobot dataset, or a folder of datasets, such as `recordings` of lerobot-eval.

    Return None for any other path. HDF5 files are recognized by their suffix, and datasets by `meta/info.json`. Raises
    `RecordError` if a file is missing, cannot be read or has no demonstrations, or if h5py is not installed.
    """
    if path.is_dir():
        if (path / INFO).is_file():
            return read_dataset(path)
        datasets = [info.parents[1] for depth in ("*", "*/*") for info in sorted(path.glob(f"{depth}/{INFO}"))]
        if datasets:
            return [episode for folder in datasets for episode in read_dataset(folder)]
        # If a folder has datasets and HDF5 files, read only the datasets.
        files = sorted(file for suffix in SUFFIXES for file in path.glob(f"*{suffix}"))
        if not files:
            return None
        return [episode for file in files for episode in read_hdf5(file)]
    if path.suffix not in SUFFIXES:
        return None
    if not path.is_file():
        raise RecordError("there is no such file", remedy="Name an existing HDF5 file.", place=Place(file=str(path)))
    return read_hdf5(path)
