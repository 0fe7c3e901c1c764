"""Goals of RoboCasa's tasks (`goals.json`), and RoboCasa's own description of an episode.

A goal is what the task's success asks for: a verb, then names of the episode's objects (`obj`, `container`, `plate`,
the blender's `lid`) or attributes of RoboCasa's task that hold a fixture or name a part of it. What is put `in`, `on`
or `under` something is the target. With every other verb the goal moves the fixture itself, or (`at`) the robot:
nothing is the target, though objects may stand about.
"""

from __future__ import annotations

import json
import pkgutil
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Mapping, Tuple, cast

import numpy as np

if TYPE_CHECKING:
    from robocasa.environments.kitchen.kitchen import Kitchen

Goal = Tuple[str, ...]
AT = "at"
_PUTS = ("in", "on", "under")
_OBJECTS_FOLDER = "/objects/"


@lru_cache(maxsize=None)
def known_goals() -> dict[str, Goal]:
    """Return the goal of each task whose goal is known, by RoboCasa's name of the task."""
    content = cast(bytes, pkgutil.get_data(__name__, "goals.json"))
    return {name: tuple(words) for name, words in json.loads(content.decode()).items()}


def goal_target(goal: Goal) -> str | None:
    """Return the object that the goal puts somewhere; None if there is none."""
    return goal[1] if goal[0] in _PUTS else None


def moved_fixture(goal: Goal) -> str | None:
    """Return the attribute of RoboCasa's task with the fixture that the goal moves; None if there is none."""
    return goal[1] if goal[0] not in (*_PUTS, AT) else None


def episode_meta(kitchen: Kitchen) -> dict[str, Any]:
    """Return RoboCasa's own description of the episode, as plain values: `set_ep_meta` rebuilds the kitchen from it.

    Paths of objects are relative to the assets' folder `objects`, which is how RoboCasa takes them on any machine.
    """
    return {str(key): to_plain(value) for key, value in kitchen.get_ep_meta().items()}


def to_plain(value: object) -> Any:
    """Return a value in the types of JSON."""
    if isinstance(value, Mapping):
        return {str(key): to_plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_plain(inner) for inner in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return to_plain(value.tolist())
    if isinstance(value, str):
        return value.rpartition(_OBJECTS_FOLDER)[2]
    return value if value is None or isinstance(value, (bool, int, float)) else getattr(value, "name", str(value))
