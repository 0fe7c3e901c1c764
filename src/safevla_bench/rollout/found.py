"""Suites of initial states that a search found: the file that the search writes, and the tasks in the file."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import msgspec

from safevla_bench import hosts
from safevla_bench.errors import HostError, Place, RunError
from safevla_bench.files import decode_input, decode_json
from safevla_bench.interface.environment import Host
from safevla_bench.interface.task import EpisodeSeed, FoundStart, Task
from safevla_bench.trajectory.marks import FOUND, label_suite

FOLDER = "found"  # subfolder of a run folder, for suites of found starts
SuiteName = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")]
_REMEDY = "Name a file that `safevla search` wrote: `RUN/found/NAME.json`."


class FileStart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A found start in the file: the data that repeat the rollout from this start, and facts about the search."""

    task_id: str
    start: EpisodeSeed
    policy_seed: int
    instruction: str | None = None  # None = the task's instruction
    trial: int  # index of the rollout that found the start, from 1
    value: float | None  # value of the search's objective for the start, below 0; None in suites for preference pairs
    violated: tuple[str, ...]
    distance_m: float | None  # distance to the nearest initial state of the benchmark; None = undefined
    merged: int  # number of nearly equal initial states that were left out in favor of this one


class TaskSearch(msgspec.Struct, frozen=True, kw_only=True):
    """Summary of the search in one task: numbers of rollouts, successes, crashes and unsafe successes (hits)."""

    task_id: str
    trials: int
    thrown: int  # trials that do not count, because physics moved overlapping objects away from their placements
    successes: int
    crashed: int
    hits: int
    best: float | None  # smallest value of the objective in a successful rollout; None if no rollout has a finite value
    first: int | None  # index of the first rollout with an unsafe success (hit), from 1
    bound: float | None  # upper end of the 95 % interval for the share of hits; None if the end is 1 or not valid
    least: float | None = None  # lower end of the 95 % interval for the share of hits; None without hits or interval


class FoundSuite(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a search: a suite of found starts, and a description of the search."""

    schema_version: int = 1
    name: SuiteName
    host: str
    host_arguments: dict[str, str]
    suite: str
    protocol: str
    policy: str
    objective: str
    method: str
    seed: int
    tasks: tuple[TaskSearch, ...]
    starts: tuple[FileStart, ...]
    max_steps: int | None = None  # horizon of the search in steps; None = the protocol's horizon

    def list_tasks(self, host: Host, indices: Collection[int] | None = None, file: Path | None = None) -> list[Task]:
        """Return the host's tasks for which the search found initial states, with these states and the suite's label.
        `indices` selects tasks (None = all). `file` names the suite, and must be trusted if the suite is a path. Raises
        `HostError` if the host lacks a task, and `RunError` if no task is selected.
        """
        # Task id -> the host's task, and task id -> the found start states in the file's order.
        tasks = {task.task_id: task for task in hosts.list_tasks(host, self.suite, file)}
        starts: dict[str, list[FoundStart]] = {}
        for row in self.starts:
            starts.setdefault(row.task_id, []).append(FoundStart(row.start, row.policy_seed, row.instruction))
        if unknown_ids := [task_id for task_id in starts if task_id not in tasks]:
            problem = f"{self.suite} has no task {unknown_ids[0]!r}, but the file has starts of this task"
            raise HostError(problem, remedy="Install the version of the host that the starts were found with.")
        chosen = [tasks[task_id] for task_id in starts if indices is None or tasks[task_id].index in indices]
        if not chosen:
            raise RunError(f"the search {self.name!r} found no start of these tasks", remedy="There is nothing to run.")
        return [
            replace(task, label=label_suite(FOUND, self.name, task.benchmark), found=tuple(starts[task.task_id]))
            for task in chosen
        ]


def read_suite(path: Path) -> FoundSuite:
    """Return the suite of found starts in a file; raise `RunError` if the file does not contain a suite."""
    try:
        return decode_input(path, partial(decode_json, kind=FoundSuite))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"not a suite of found starts: {error}", remedy=_REMEDY, place=Place(file=str(path))) from None
