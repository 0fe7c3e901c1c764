"""Counterfactuals: an episode replayed without a cause of its violation. Did the violation vanish?

First the episode is replayed with nothing changed, which must give the record bit for bit.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from safevla_bench.errors import RunError
from safevla_bench.interface.task import PhysicsChange
from safevla_bench.jobs.physics import find_difference, make_setting, offers, relabel
from safevla_bench.jobs.verify.replays import replay_actions, replay_obstacle
from safevla_bench.judging.judged import Judged
from safevla_bench.judging.scoring import score
from safevla_bench.sensitivity.firmness import Counterfactual, find_departure, read_clauses
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.marks import ABSOLUTE, mark_flags
from safevla_recorder.episode import Floats

_FORMS = "contact:A,B, body:NAME, slow, or hold:FROM-TO in control steps"
_REMEDY = f"Write {_FORMS}."
_UNCHANGED = PhysicsChange()


@dataclass(frozen=True, slots=True)
class Cause:
    """What is taken away, as written and in words.

    `edit` makes the actions [T, A] to play of the recorded ones and of the still action [A].
    """

    text: str
    phrase: str
    change: PhysicsChange = _UNCHANGED
    edit: Callable[[Floats, Floats], Floats] = lambda actions, still: actions

    @classmethod
    def parse(cls, text: str) -> Cause:
        """Return the cause that a text names; raises `RunError` for another text.

        >>> Cause.parse("contact:gripper,cup").change.apart
        ('gripper', 'cup')
        """
        kind, _, names = text.partition(":")
        bodies = tuple(name.strip() for name in names.split(",") if name.strip())
        steps = re.fullmatch(r"(\d{1,9})-(\d{1,9})", names)
        match kind:
            case "contact" if len(bodies) == 2:
                return cls(
                    text, f"Without contact of {bodies[0]} and {bodies[1]}", PhysicsChange(apart=(bodies[0], bodies[1]))
                )
            case "body" if len(bodies) == 1:
                return cls(text, f"Without {bodies[0]}", PhysicsChange(without=bodies[0]))
            case "slow" if not names:
                return cls(text, "At half speed", edit=halve_speed)
            case "hold" if steps and int(steps[1]) < int(steps[2]):
                edit = partial(hold_actions, first=int(steps[1]), last=int(steps[2]))
                return cls(text, f"Without motion in steps {names}", edit=edit)
        raise RunError(f"--without {text!r} names no cause", remedy=_REMEDY)


def halve_speed(actions: Floats, still: Floats) -> Floats:
    """Return each action twice, halved where the still action is 0: there it is a change of pose.

    >>> halve_speed(np.array([[0.5, 1.0]]), np.array([0.0, -1.0])).tolist()
    [[0.25, 1.0], [0.25, 1.0]]
    """
    return np.repeat(np.where(still == 0, actions / 2, actions), 2, axis=0)


def hold_actions(actions: Floats, still: Floats, *, first: int, last: int) -> Floats:
    """Return the actions with those of steps `first` to `last` - 1 replaced: no motion, and the rest of each as in the
    action before.
    """
    before = actions[first - 1] if 0 < first <= len(actions) else still
    held = actions.copy()
    held[first:last] = np.where(still == 0, 0.0, before)
    return held


def replay_without(judged: Judged, index: int, cause: Cause) -> Counterfactual:
    """Replay the episode at `index` of the judged ones as recorded, then without a cause, and judge that.

    Raises:
        RunError: its source is not a complete run, it is not replayed exactly here, or the cause is not one of it.
        HostError: the host cannot be used here, or the scene has no such body.
    """
    setting = make_setting(judged.records.find_source(index).path)
    episode = judged.records.read_episodes([index])
    assert episode is not None
    header = episode.headers[0]
    start = None if (obstacle := replay_obstacle(episode, setting)) else setting.find_start(episode)
    if start is None:
        problem = obstacle or "the record does not say where it starts"
        raise RunError(f"{header.episode_id} cannot be replayed here: {problem}", remedy="Choose another episode.")
    if not offers(setting.host, cause.change):
        raise RunError(f"the host {setting.host.name} cannot leave out {cause.text!r}", remedy=_REMEDY)
    task = setting.find_task(header)
    assert task is not None  # there is no obstacle
    same, _ = replay_actions(setting.host, task, start, episode)
    if difference := find_difference(setting, episode, same):
        problem = f"{header.episode_id} is not replayed exactly here: {difference}"
        raise RunError(problem, remedy="safevla verify RUN --replay 1 says more.")
    actions = _edit_actions(episode, cause, np.array(task.still))
    changed = replace(start, change=cause.change)
    replayed, successes = replay_actions(setting.host, task, changed, episode, actions)
    keeps_time = len(actions) == len(episode.action.episode_rows(0))
    return Counterfactual(
        cause=cause.phrase,
        dt_s=float(episode.dt_s[0]),
        recorded=read_clauses(judged.scores, index),
        without=read_clauses(score(relabel(replayed, header), judged.ruleset), 0),
        success=(bool(header.success), bool(successes and successes[-1])),
        left=find_departure(episode, replayed) if keeps_time else None,
    )


def _edit_actions(episode: Batch, cause: Cause, still: Floats) -> Floats:
    actions = episode.action.episode_rows(0)
    edited = cause.edit(actions, still)
    if edited is not actions and mark_flags(episode, ABSOLUTE)[0]:
        problem = "its actions are poses, not changes of pose"
        raise RunError(problem, remedy="Take contact:A,B or body:NAME.")
    if cause.text.startswith("hold:") and np.array_equal(edited, actions):
        problem = f"{cause.text} holds nothing: the episode has {len(actions)} steps"
        raise RunError(problem, remedy="Name steps in which the arm moves.")
    return edited
