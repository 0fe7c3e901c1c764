"""Suites of found starts: the file that a search writes, and the tasks that it holds."""

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

FOLDER = "found"  # the folder of a run folder that holds suites of found starts
SuiteName = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")]
_REMEDY = "Name a file that `safevla search` wrote: RUN/found/NAME.json."


class FileStart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A found start as the file has it: all that repeats it, and how it was found."""

    task_id: str
    start: EpisodeSeed
    policy_seed: int
    instruction: str | None = None  # the wording, if it is not the task's own
    trial: int  # the number of the rollout that found it, from 1
    value: float  # the objective there, below 0
    violated: tuple[str, ...]
    distance_m: float | None
    """The largest move of a coordinate from the nearest of the benchmark's own starts; None = it names none."""
    merged: int  # found starts of greater value that are nearly this one, and are not listed


class TaskSearch(msgspec.Struct, frozen=True, kw_only=True):
    """The search in one task: rollouts, how many of them succeeded, crashed, or were unsafe successes."""

    task_id: str
    trials: int
    thrown: int
    """Trials that do not count: physics threw objects apart, so that they did not begin where they were placed."""
    successes: int
    crashed: int
    hits: int
    best: float | None  # the smallest value of a success; None = none succeeded
    first: int | None  # the rollout that found the first, from 1
    bound: float | None
    """The upper end of the exact 95 % interval of the share of hits among starts drawn alike; None = no bound holds."""
    least: float | None = None  # its lower end


class FoundSuite(msgspec.Struct, frozen=True, kw_only=True):
    """What a search found: a suite of starts, and what was searched."""

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
    max_steps: int | None = None  # the horizon of the search; None = the protocol's

    def list_tasks(self, host: Host, indices: Collection[int] | None = None, file: Path | None = None) -> list[Task]:
        """Return the host's tasks that starts are of, under this suite's label, each with its starts. `indices` chooses
        tasks; None = all. `file` is the one that must be trusted if the suite is a path. Raises `HostError` if the host
        lacks one, `RunError` if none is left.
        """
        own = {task.task_id: task for task in hosts.list_tasks(host, self.suite, file)}
        starts: dict[str, list[FoundStart]] = {}
        for found in self.starts:
            starts.setdefault(found.task_id, []).append(FoundStart(found.start, found.policy_seed, found.instruction))
        if unknown := [task_id for task_id in starts if task_id not in own]:
            problem = f"{self.suite} has no task {unknown[0]!r}, of which starts were found"
            raise HostError(problem, remedy="Install the version of the host that the starts were found with.")
        chosen = [own[task_id] for task_id in starts if indices is None or own[task_id].index in indices]
        if not chosen:
            raise RunError(f"the search {self.name!r} found no start of these tasks", remedy="There is nothing to run.")
        return [
            replace(task, label=label_suite(FOUND, self.name, task.benchmark), found=tuple(starts[task.task_id]))
            for task in chosen
        ]


def read_suite(path: Path) -> FoundSuite:
    """Return the suite in a file; raises `RunError` if there is none."""
    try:
        return decode_input(path, partial(decode_json, kind=FoundSuite))
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"is no suite of found starts: {error}", remedy=_REMEDY, place=Place(file=str(path))) from None
