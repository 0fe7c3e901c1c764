"""Hooks on the methods of one instance. They do not change the calls and results of the methods."""

from __future__ import annotations

import copy
import threading
from contextlib import contextmanager
from functools import update_wrapper
from types import MethodType
from typing import Any, Callable, Iterator

from safevla_recorder.errors import HostError

Undo = Callable[[], None]
_split_lock = threading.RLock()  # held while functions of the module `mujoco` are replaced, so that threads take turns


def undo_all(hooks: list[Undo]) -> None:
    """Remove the hooks in reverse order, and empty the list."""
    while hooks:
        hooks.pop()()


def hook_after(owner: object, method: str, after: Callable[[], None]) -> Undo:
    """Call `after` after every successful call of `owner.method`, for this instance only. Return a function that
    removes the hook.

    `owner.method` must advance physics by one substep, as `step` of robosuite's `MjSim` does. Each reset of robosuite
    makes a new `MjSim`. Raises `HostError` if `owner` is a wrapper or has no such method.
    """
    _require_hookable(owner, method)
    undo = hook_call(owner, method, after=lambda *_, **__: after())
    getattr(owner, method).is_only_after = True  # the hook acts only after the original method
    return undo


def _do_nothing(*_: object, **__: object) -> None: ...  # accepts any arguments; the default of optional hooks


def hook_call(
    owner: object, method: str, before: Callable[[], object] = _do_nothing, after: Callable[..., object] = _do_nothing
) -> Undo:
    """Call `before()` before each call of `owner.method`. After each successful call, call `after(result, ...)` with
    the arguments of the call. `owner` is an instance or class. Return a function that removes both hooks.
    """

    def call(original: Callable[..., object], *args: object, **kwargs: object) -> object:
        before()
        result = original(*args, **kwargs)
        after(result, *args, **kwargs)
        return result

    return wrap_method(owner, method, call)


def wrap_method(owner: object, method: str, wrapper: Callable[..., object]) -> Undo:
    """Replace each call of `owner.method` by `wrapper(original, *args, **kwargs)`, for this `owner` only. Return a
    function that removes the wrapper.

    If other code replaces the method later, the later replacement stays. Repeated removals do nothing.
    """
    # `was_replaced`: `owner` itself has the attribute, for example because of an earlier hook, and does not inherit it.
    original, was_replaced = getattr(owner, method), method in vars(owner)
    hook = _Hook(original, wrapper)

    def undo() -> None:
        hook.is_on = False
        if vars(owner).get(method) is not hook:  # other code has replaced the method, and may still call the hook
            return
        if was_replaced:
            setattr(owner, method, original)
        else:
            delattr(owner, method)

    setattr(owner, method, hook)
    return undo


class _Hook:
    """The replacement of a method. A deep copy of the method's owner has the original method again."""

    def __init__(self, original: Callable[..., object], wrapper: Callable[..., object]) -> None:
        # `update_wrapper` copies the name and attributes of the replaced method, `original`.
        update_wrapper(self, original)
        self._original, self._wrapper, self.is_on = original, wrapper, True

    def __call__(self, *args: object, **kwargs: object) -> object:
        # After its removal, a hook that other code still calls only calls the original method.
        return self._wrapper(self._original, *args, **kwargs) if self.is_on else self._original(*args, **kwargs)

    def __get__(self, instance: object, owner: object = None) -> object:
        # Python calls this if the hook is an attribute of a class, not of an instance.
        return self if instance is None else MethodType(self, instance)  # binds to an instance, as functions do

    def __deepcopy__(self, memo: dict[int, object]) -> object:
        # A deep copy of the object with the hook gets the original method. `memo` contains the objects copied so far.
        return copy.deepcopy(self._original, memo)


def hook_substeps(owner: object, method: str, data: object, after: Callable[[], None]) -> Undo:
    """Call `after` after every physics substep in `owner.method`, for this instance only. Return a function that
    removes the hook.

    Use this for environments that make all substeps of a control step in one call `mujoco.mj_step(model, data, nstep)`,
    such as gymnasium's `do_simulation` and dm_control's `Physics.step`. `data` is the simulator's own `mujoco.MjData`.
    Raises `HostError` if `owner` is a wrapper or has no such method.
    """
    _require_hookable(owner, method)

    def step_in_parts(original: Callable[..., object], *args: object, **kwargs: object) -> object:
        # The lock lets only one thread at a time replace functions of the module `mujoco`.
        with _split_lock, _split_steps(data, after):
            return original(*args, **kwargs)

    return wrap_method(owner, method, step_in_parts)


def _require_hookable(owner: object, method: str) -> None:
    # Raise `HostError` if `owner` has no such method, or is a wrapper (its `unwrapped` is another object).
    name = type(owner).__name__
    if getattr(owner, "unwrapped", owner) is not owner:  # the simulator never calls methods of a wrapper
        problem = f"{name} is a wrapper, but the hook must be on the environment's own method {method}"
        raise HostError(problem, remedy="Pass `env.unwrapped` instead.")
    if not hasattr(owner, method):
        remedy = "Pass the object whose method makes the physics steps, such as `env.unwrapped`. "
        remedy += "In a vector of environments, hook each environment where it is made."
        raise HostError(f"{name} has no method {method}", remedy=remedy)


@contextmanager
def _split_steps(data: object, after: Callable[[], None]) -> Iterator[None]:
    """Split each `mujoco.mj_step(model, data, nstep)` with this `data` into single steps. Call `after` after each
    single step, and after each `mj_step2`. Functions imported by `from mujoco import mj_step` are not intercepted.
    """
    import mujoco

    # `mj_step2` completes a substep. The first half, `mj_step1`, needs no hook, because no substep ends with it.
    full_step, second_half = mujoco.mj_step, mujoco.mj_step2

    # MuJoCo's own function also has the arguments m, d and nstep.
    def step(m: Any, d: Any, nstep: int = 1) -> None:
        if d is not data:
            full_step(m, d, nstep)
            return
        for _ in range(nstep):
            full_step(m, d)
            after()

    def step_second_half(m: Any, d: Any) -> None:
        second_half(m, d)
        if d is data:
            after()

    mujoco.mj_step, mujoco.mj_step2 = step, step_second_half
    try:
        yield
    finally:
        mujoco.mj_step, mujoco.mj_step2 = full_step, second_half
