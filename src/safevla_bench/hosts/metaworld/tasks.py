"""Meta-World's suites and tasks, from `metaworld.toml`, and what each task moves. Imports no simulator."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources

import msgspec

from safevla_bench.errors import HostError
from safevla_bench.interface import Task

STILL = (0.0, 0.0, 0.0, -1.0)
"""No motion, gripper opening."""


class MetaworldTask(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One task: what it asks for, the bodies that its goal moves, and the fixture of which it moves a part."""

    instruction: str
    targets: tuple[str, ...] = ()
    moves: str | None = None


class _TaskFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    horizon: int
    init_states: int
    names: Mapping[str, str]
    suites: Mapping[str, tuple[str, ...]]
    tasks: Mapping[str, MetaworldTask]


@cache
def _read_tasks() -> _TaskFile:
    text = (resources.files(__package__) / "metaworld.toml").read_text(encoding="utf-8")
    return msgspec.toml.decode(text, type=_TaskFile)


def suites() -> tuple[str, ...]:
    """Return the names of the suites."""
    return tuple(_read_tasks().suites)


def suite_tasks(suite: str) -> tuple[Task, ...]:
    """Return a suite's tasks in Meta-World's order; raises `HostError` where there is no such suite."""
    file = _read_tasks()
    if suite not in file.suites:
        raise HostError(f"Meta-World has no suite {suite!r}", remedy=f"Suites: {', '.join(file.suites)}.")
    return tuple(
        Task(suite, name, index, name, file.tasks[name].instruction, STILL, file.init_states, file.horizon)
        for index, name in enumerate(file.suites[suite])
    )


def metaworld_task(name: str) -> MetaworldTask:
    """Return what one task asks for, by Meta-World's name; raises `HostError` where there is none."""
    tasks = _read_tasks().tasks
    if name not in tasks:
        raise HostError(f"Meta-World has no task {name!r}", remedy="`tasks(suite)` lists them.")
    return tasks[name]


def moving_part_names() -> Mapping[str, str]:
    """Return the names of moving bodies that the models leave unnamed, by the body that they hang on."""
    return _read_tasks().names
