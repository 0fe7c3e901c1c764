"""The policy `replay:FILE`: recorded actions, played again open loop from where they were recorded.

FILE is an archive or run folder of ours, an HDF5 file of demonstrations or a folder of them, or a LeRobot dataset.
Which of its episodes is played in which planned one:

- an archive's by suite, task and initial state; where its record names no initial state, as below;
- a demonstration's by its task, the first in the first planned episode and so on, from its own first recorded state.

What came of it is compared with the recorded states, and the record says so under `replay`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from safevla_bench import foreign, runs
from safevla_bench.errors import CollectedError, PolicyError, RecordError, RunError
from safevla_bench.files import digest
from safevla_bench.foreign import Take
from safevla_bench.interface import Action, Coordinate, EpisodeSeed, Observation, Recorded, Task, Wants
from safevla_bench.policies.divergence import compare
from safevla_bench.trajectory import Batch

TOLERANCE = 1e-3
"""From where on a difference counts as divergence: 1 mm, 1 mrad."""
_SHOWN = 5


class Replay:
    """Plays one recorded episode after another; it looks at nothing."""

    wants = Wants()
    clip = True
    """What was recorded beyond a simulator's range was clipped by it then, too; how often is counted."""

    def __init__(self, path: Path, takes: Sequence[Take], tolerance: float, from_host: bool) -> None:
        self._takes, self._tolerance, self._from_host = takes, tolerance, from_host
        self.described: Mapping[str, object] = {"recording": path.name, "sha256": digests(path), "episodes": len(takes)}
        self._start: EpisodeSeed | None = None
        self._step = 0

    def match(self, task: Task, start: EpisodeSeed) -> EpisodeSeed:
        """The start of the recorded episode for a planned one.

        Raises:
            PolicyError: the recording holds none for this task and initial state, or several, or does not say where it
                starts; lists what it holds.
        """
        take = self._chosen(task, start.init_state_index)
        start = _known(start, take)
        played = Recorded(take.name, take.source, len(take.actions), ending=take.ending)
        if take.init_state_index is not None:
            return dataclasses.replace(start, recorded=played)
        if take.states is not None:
            state = tuple(take.states[0].tolist())
            first = tuple(take.actions[0].tolist()) if len(take.actions) else ()
            played = dataclasses.replace(played, state=state, first_action=first, fixtures=take.fixtures)
            return dataclasses.replace(start, wait_steps=0, rest_steps=0, recorded=played)
        if self._from_host:
            return dataclasses.replace(start, recorded=played)
        remedy = "--policy-arg start=host plays it from the host's own initial states, one after another: a guess."
        raise PolicyError(f"{take.source} does not say where {take.name} starts", remedy=remedy)

    def cue(self, start: EpisodeSeed) -> None:
        """Said before `reset`: which recorded episode comes."""
        self._start = start

    def reset(self, task: Task, seed: int) -> None:
        """From the first action."""
        self._step = 0

    def act(self, observation: Observation) -> Action:
        """The next recorded action, [A]; whatever the simulator shows."""
        action: Action = self._take().actions[self._step].copy()
        self._step += 1
        return action

    def compared(self, played: Batch, coordinates: Sequence[Coordinate]) -> Batch:
        """The record with how far it went from the recording, under `replay` in its header."""
        take, start = self._take(), self._start
        assert start is not None
        told = {
            "source": take.source,
            "episode": take.name,
            **({"policy": take.policy} if take.policy else {}),
            "start": _start(start, take),
            **compare(take, played, coordinates, self._tolerance),
        }
        (extra,) = played.extra
        header = extra.get("header", {})
        assert isinstance(header, Mapping)
        return dataclasses.replace(played, extra=({**extra, "header": {**header, "replay": told}},))

    def close(self) -> None:
        """Nothing to free."""

    def _take(self) -> Take:
        assert self._start is not None
        assert self._start.recorded is not None
        wanted = (self._start.recorded.source, self._start.recorded.episode)
        return next(take for take in self._takes if (take.source, take.name) == wanted)

    def _chosen(self, task: Task, index: int) -> Take:
        fitting = [take for take in self._takes if take.fits(task)]
        if not fitting:
            raise PolicyError(
                f"nothing recorded is of {task.benchmark} {task.task_id} ({task.name})", remedy=self._held()
            )
        named = [take for take in fitting if take.init_state_index is not None]
        if named:
            fitting = [take for take in named if take.init_state_index == index]
            if len(fitting) == 1:
                return fitting[0]
            return self._refuse(task, index, named, fitting)
        if index < len(fitting):
            return fitting[index]
        problem = f"{len(fitting)} recorded episodes are of {task.benchmark} {task.task_id}, more are asked for"
        raise PolicyError(problem, remedy=f"Pass --episodes {len(fitting)} or fewer.")

    def _refuse(self, task: Task, index: int, named: Sequence[Take], several: Sequence[Take]) -> Take:
        where = f"{task.benchmark} {task.task_id} from initial state {index}"
        if several:
            policies = ", ".join(dict.fromkeys(str(take.policy) for take in several))
            problem = f"{len(several)} recorded episodes are of {where}"
            raise PolicyError(problem, remedy=f"Say whose: --policy-arg policy=NAME, one of {policies}.")
        known = ", ".join(str(one) for one in sorted({take.init_state_index or 0 for take in named}))
        raise PolicyError(f"nothing recorded is of {where}", remedy=f"Recorded of this task: initial states {known}.")

    def _held(self) -> str:
        held = list(dict.fromkeys(take.of for take in self._takes))
        more = f" and {len(held) - _SHOWN} more" if len(held) > _SHOWN else ""
        return f"The recording holds {', '.join(held[:_SHOWN])}{more}."


def make(
    arg: str | None, tolerance: str = str(TOLERANCE), policy: str | None = None, start: str | None = None
) -> Replay:
    """The policy.

    Args:
        arg: the recording's path.
        tolerance: from where on a difference from the recorded states counts, in m and rad.
        policy: whose episodes, where an archive holds several policies'.
        start: `host` = where a recording does not say where it starts, from the host's initial states in turn.
    """
    if not arg:
        raise PolicyError("replay plays a recording, but none is named", remedy="Write replay:FILE.")
    if start not in (None, "host"):
        raise PolicyError(f"replay has no start {start!r}", remedy="Write start=host, or leave it out.")
    try:
        limit = float(tolerance)
    except ValueError:
        limit = -1.0
    if not 0 <= limit < float("inf"):
        raise PolicyError(f"the tolerance {tolerance!r} is not one", remedy="Write a number such as 0.001.")
    path = Path(arg)
    try:
        takes = foreign.takes(path)
        found = _own(path) if takes is None else takes
    except (RecordError, RunError, CollectedError) as error:
        raise PolicyError(f"replay:{arg} cannot be read: {error}") from error
    return Replay(path, _of(found, policy), limit, start == "host")


def _of(takes: Sequence[Take], policy: str | None) -> Sequence[Take]:
    chosen = [take for take in takes if policy in (None, take.policy)]
    if takes and not chosen:
        known = ", ".join(dict.fromkeys(str(take.policy) for take in takes))
        raise PolicyError(f"the recording has no episodes of {policy!r}", remedy=f"It has those of {known}.")
    return chosen


def _own(path: Path) -> list[Take]:
    batch, (source,) = runs.open_sources([path])
    protocol = source.description.get("protocol")
    waited = protocol if isinstance(protocol, Mapping) and isinstance(protocol.get("wait_steps"), int) else {}
    return [] if batch is None else list(_takes(path, batch, waited))


def _takes(path: Path, batch: Batch, waited: Mapping[str, Any]) -> Iterator[Take]:
    for e, header in enumerate(batch.headers):
        actions = batch.action.episode(e)
        if len(actions) != batch.lengths[e] - 1:
            problem = f"episode {header.episode_id!r} of {path.name} holds no actions"
            raise PolicyError(problem, remedy="Only records with actions can be replayed.")
        states = batch.sim_state.episode(e)
        bodies, places = batch.body_pos_m.episode(e)
        yield Take(
            name=f"{header.policy}: {header.episode_id}" if header.policy else header.episode_id,
            source=path.name,
            actions=actions,
            states=states if len(states) else None,
            positions_m={batch.name(int(body)): places[:, k] for k, body in enumerate(bodies)},
            benchmark=header.benchmark,
            task_id=header.task_id,
            init_state_index=header.init_state_index,
            env_seed=header.env_seed,
            wait_steps=waited.get("wait_steps"),
            rest_steps=waited.get("rest_steps", 0),
            policy=header.policy,
            ending="stopped" if header.outcome == "stopped" else "timeout",
        )


def digests(path: Path) -> str | dict[str, str]:
    """sha256 of a file, or of every file in a folder by its path there."""
    if path.is_file():
        return digest(path)
    return {str(one.relative_to(path)): digest(one) for one in sorted(path.rglob("*")) if one.is_file()}


def _known(start: EpisodeSeed, take: Take) -> EpisodeSeed:
    """The start with the seed and the settling steps that the recording knows of."""
    seed = start.env_seed if take.env_seed is None else take.env_seed
    if take.wait_steps is None:
        return dataclasses.replace(start, env_seed=seed)
    return dataclasses.replace(start, env_seed=seed, wait_steps=take.wait_steps, rest_steps=take.rest_steps)


def _start(start: EpisodeSeed, take: Take) -> str:
    assert start.recorded is not None
    if start.recorded.state is not None:
        return "the first recorded state"
    known = "as recorded" if take.init_state_index is not None else "a guess: the recording does not say"
    return f"the host's initial state, {known}"
