"""Which episodes of several policies are the same one: by suite, task, initial state and seed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from safevla_bench.compare.policy_results import Entrant
from safevla_bench.errors import RunError
from safevla_bench.scores import Absent
from safevla_bench.trajectory import Header

_SHOWN = 5
_UNPAIRED = "Or pass --unpaired, which takes the episodes as independent and needs more of them."


class Key(NamedTuple):
    """What makes two episodes of different policies a pair."""

    suite: str
    task_id: str
    init_state_index: int
    seed: int | None

    def __str__(self) -> str:
        seed = "" if self.seed is None else f" seed {self.seed}"
        return f"{self.suite}/{self.task_id} state {self.init_state_index}{seed}"


@dataclass(frozen=True)
class Paired:
    """Entrants with the same episodes in the same order; `left_out` pairs were lost on some side."""

    entrants: tuple[Entrant, ...]
    keys: tuple[Key, ...]
    left_out: tuple[Key, ...]


def pair(entrants: Sequence[Entrant], *, across_seeds: bool = False) -> Paired:
    """The episodes that all entrants finished, in the order of the first; pairs that one lost are left out and counted.

    Args:
        entrants: with names that differ.
        across_seeds: pair by suite, task and initial state alone.

    Raises:
        RunError: what makes them no pairs: initial states that were not recorded, an episode twice, episodes that one
            ran and another did not, another environment seed, horizon or protocol.
    """
    indices = [_index(one, across_seeds) for one in entrants]
    lost = [{_lost_key(one, across_seeds) for one in entrant.lost} - {None} for entrant in entrants]
    planned = [{*index, *gone} for index, gone in zip(indices, lost, strict=True)]
    _refuse_missing(entrants, planned)
    order = [key for key in indices[0] if all(key in index for index in indices)]
    chosen = tuple(
        one.select(np.array([index[key] for key in order], dtype=np.int64))
        for one, index in zip(entrants, indices, strict=True)
    )
    _refuse_different(chosen, order)
    finished = set(order)
    left_out = {key for keys in planned for key in keys if key is not None} - finished
    return Paired(chosen, tuple(order), tuple(_in_order(left_out)))


def _index(entrant: Entrant, across_seeds: bool) -> dict[Key, int]:
    unknown = [header.episode_id for header in entrant.headers if header.init_state_index is None]
    if unknown:
        problem = f"{_count(unknown)} of {entrant.name} do not say from which initial state they started"
        remedy = f"Record init_state_index (and seed), so that episodes can be paired. {_UNPAIRED}"
        raise RunError(f"{problem}: {_some(unknown)}", remedy=remedy)
    index: dict[Key, int] = {}
    for e, header in enumerate(entrant.headers):
        key = _key(header, across_seeds)
        if key in index:
            problem = (
                f"{entrant.name} has {key} twice: {entrant.headers[index[key]].episode_id} and {header.episode_id}"
            )
            raise RunError(problem, remedy=f"Give repetitions different seeds. {_UNPAIRED}")
        index[key] = e
    return index


def _key(one: Header | Absent, across_seeds: bool) -> Key:
    assert one.init_state_index is not None
    return Key(one.benchmark, one.task_id, one.init_state_index, None if across_seeds else one.seed)


def _lost_key(one: Absent, across_seeds: bool) -> Key | None:
    return None if one.init_state_index is None else _key(one, across_seeds)


def _refuse_missing(entrants: Sequence[Entrant], planned: Sequence[set[Key | None]]) -> None:
    every = {key for keys in planned for key in keys if key is not None}
    lines = [
        f"{entrant.name} lacks {_count(absent)} that another ran: {_some([str(key) for key in _in_order(absent)])}"
        for entrant, keys in zip(entrants, planned, strict=True)
        if (absent := every - keys)
    ]
    if lines:
        remedy = f"Roll out all policies on the same tasks, initial states and seed; or see --across-seeds. {_UNPAIRED}"
        raise RunError("these are not the same episodes:\n  " + "\n  ".join(lines), remedy=remedy)


def _in_order(keys: Iterable[Key]) -> list[Key]:
    return sorted(keys, key=lambda key: (*key[:3], -1 if key.seed is None else key.seed))


def _refuse_different(entrants: Sequence[Entrant], keys: Sequence[Key]) -> None:
    first = entrants[0]
    for other in entrants[1:]:
        for name in ("env_seed", "horizon"):
            values = [[getattr(header, name) for header in one.headers] for one in (first, other)]
            unlike = [f"{key} ({x} and {y})" for key, x, y in zip(keys, *values, strict=True) if x != y]
            if unlike:
                problem = f"{first.name} and {other.name} differ in {name} in {_count(unlike)}: {_some(unlike)}"
                raise RunError(problem, remedy=f"Roll both out under one protocol. {_UNPAIRED}")
        _refuse_protocols(first, other)


def _refuse_protocols(first: Entrant, other: Entrant) -> None:
    mine, theirs = first.protocol, other.protocol
    if mine is None or theirs is None or mine == theirs:
        return
    names = sorted(name for name in {*mine, *theirs} if mine.get(name) != theirs.get(name))
    problem = f"{first.name} and {other.name} were run under different protocols: {', '.join(names)} differ"
    raise RunError(problem, remedy=f"Roll both out under one protocol. {_UNPAIRED}")


def unlike_versions(entrants: Sequence[Entrant]) -> dict[str, list[str]]:
    """The programs of which the entrants record different versions."""
    names = dict.fromkeys(name for one in entrants for name in one.versions)
    found = {name: [one.versions.get(name, "unknown") for one in entrants] for name in names}
    return {name: versions for name, versions in found.items() if len(set(versions)) > 1}


def _count(found: Sequence[object] | set[Key]) -> str:
    return f"{len(found)} episode{'' if len(found) == 1 else 's'}"


def _some(found: Sequence[str]) -> str:
    more = len(found) - _SHOWN
    return ", ".join(found[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def tasks(headers: Iterable[Header]) -> Mapping[tuple[str, str], int]:
    """A number for each task."""
    return {task: k for k, task in enumerate(dict.fromkeys((one.benchmark, one.task_id) for one in headers))}
