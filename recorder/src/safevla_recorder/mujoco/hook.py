"""Hooks on methods of one instance, which pass every call on unchanged."""

from __future__ import annotations

from functools import wraps
from typing import Callable

Undo = Callable[[], None]
"""Takes a hook off."""


def hook_after(owner: object, method: str, after: Callable[[], None]) -> Undo:
    """Call `after` behind every call of `owner.method`, on this one instance; returns what undoes it.

    `owner` is whatever advances physics by one substep in that method, such as robosuite's `MjSim`. robosuite makes a
    new one at each reset, so the hook goes with the old one and is set again.
    """
    original = getattr(owner, method)

    def stepped(*args: object, **kwargs: object) -> object:
        result = original(*args, **kwargs)
        after()
        return result

    return _replace_method(owner, method, stepped)


def wrap_method(owner: object, method: str, wrapper: Callable[..., object]) -> Undo:
    """Call `wrapper(original, *args, **kwargs)` for each `owner.method(...)`, on this one instance.

    Returns what undoes it. If somebody has replaced the method since, theirs stays.
    """
    original = getattr(owner, method)

    @wraps(original)
    def wrapped(*args: object, **kwargs: object) -> object:
        return wrapper(original, *args, **kwargs)

    return _replace_method(owner, method, wrapped)


def _replace_method(owner: object, method: str, replacement: Callable[..., object]) -> Undo:
    def undo() -> None:
        if vars(owner).get(method) is replacement:
            delattr(owner, method)

    setattr(owner, method, replacement)
    return undo
