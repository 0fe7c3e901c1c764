"""`python:module:factory`: a policy of one's own in this process, without installing anything.

The factory is a class or a function that is given the `--policy-arg` values as text, or a finished object. What it
makes needs `act(observation)`, which returns an action [A] or a chunk [H, A]; `wants`, `reset(task, seed)`, `close()`,
`clip`, `replan` and `orientation` are optional: docs/policy-contract.md. Modules are looked for in the current folder
first.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from operator import attrgetter
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import InvalidActionError, PolicyError
from safevla_bench.interface.policy import (
    Action,
    Observation,
    Policy,
    RemotePolicy,
    ReplayPolicy,
    SelectivePolicy,
    UnrenderedImages,
    Wants,
)
from safevla_bench.interface.task import Task
from safevla_bench.policies.servers import ChunkQueue
from safevla_bench.policies.servers.endpoint import Greeting
from safevla_bench.policies.servers.transforms import flip_image, to_axis_angle

ORIENTATIONS: Mapping[str, str] = {"upright": "vertical", "libero-vla": "180", "simulator": "none"}
"""How a policy is shown images -> how MuJoCo's own rendering, which begins at the bottom row, is flipped for it.

`libero-vla`, upright and mirrored left to right, is what LIBERO's VLAs are trained on: the raw image turned by 180
degrees (openpi 15a9616 examples/libero/main.py; openvla c8f03f4 experiments/robot/libero/libero_utils.py).
"""
UPRIGHT = "upright"
_LOG = logging.getLogger(__name__)
_FORM = "Write python:module:factory, where the factory makes an object with act(observation)."


class InProcessPolicy(ChunkQueue):
    """A user's object as a policy; methods that it lacks do nothing."""

    def __init__(self, owner: str, policy: Any) -> None:
        """Wrap the user's object, which `owner` names in errors; `PolicyError` for wrong `wants` or `orientation`."""
        super().__init__()
        self.made, self._owner = policy, owner
        self.clip = bool(getattr(policy, "clip", False))
        self.wants = getattr(policy, "wants", Wants())
        if not isinstance(self.wants, Wants):
            problem = f"wants of the policy of {owner} is a {type(self.wants).__name__}"
            raise PolicyError(problem, remedy="Make it a safevla_bench.Wants(cameras=..., image_size=...).")
        self.orientation: str = getattr(policy, "orientation", UPRIGHT)
        if self.orientation not in ORIENTATIONS:
            problem = f"{owner} wants images with orientation {self.orientation!r}"
            raise PolicyError(problem, remedy=f"Choose one of {', '.join(ORIENTATIONS)}.")

    @property
    def calls_s(self) -> Sequence[float] | None:
        """Seconds of each inference, if the object counts them as `ChunkedPolicy` does."""
        return cast("Sequence[float] | None", getattr(self.made, "calls_s", None))

    @property
    def greeting(self) -> Greeting | None:
        """The description that the object gives of itself, such as its checkpoint; None unless it is a mapping."""
        greeting = getattr(self.made, "greeting", None)
        return greeting if isinstance(greeting, Mapping) else None

    @property
    def looks_next(self) -> bool:
        """True if the next action asks the object, and the object, if it says so, looks at the observation."""
        return not self.left and bool(getattr(self.made, "looks_next", True))

    def reset(self, task: Task, seed: int) -> None:
        self.left.clear()
        if hasattr(self.made, "reset"):
            self.made.reset(task, seed)

    def act(self, observation: Observation) -> Action:
        """Return the object's action as it gave it; the rollout checks it before it reaches a simulator.

        The images are shown as `orientation` says. A chunk [H, A] is carried out action by action, the first `replan`
        of it if the object has that. Raises `InvalidActionError` for a chunk without an action.
        """
        if self.left:
            return self.left.popleft()
        action: Action = self.made.act(orient_images(observation, self.orientation))
        try:
            is_chunk = np.ndim(action) == 2
        except ValueError:  # rows of different lengths
            is_chunk = False
        if not is_chunk:
            return action
        self.left.extend(list(action)[: getattr(self.made, "replan", None)])
        if not self.left:
            raise InvalidActionError("a chunk without an action", remedy="Give [H, A], H actions of A numbers.")
        return self.left.popleft()

    def close(self) -> None:
        """Close the object, if it has a `close`; an error in that is logged, since no episode depends on it."""
        if not hasattr(self.made, "close"):
            return
        try:
            self.made.close()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a user's object may raise anything
            cause = _describe_foreign(error)
            _LOG.warning("close() of the policy of %s fails: %s; what it did is kept", self._owner, cause)


def orient_images(observation: Observation, orientation: str) -> Observation:
    """Return an observation with its upright images turned as one of `ORIENTATIONS` shows them.

    Nothing changes for `upright`, or if nothing was rendered.
    """
    if orientation == UPRIGHT or isinstance(observation.images, UnrenderedImages):
        return observation
    how = ORIENTATIONS[orientation]
    turned = {camera: flip_image(image, how) for camera, image in observation.images.items()}
    return replace(observation, images=turned)


def libero_state(observation: Observation) -> NDArray[np.float64]:
    """Return the state that LIBERO's VLAs are trained on, [8]: position [m], axis-angle [rad], two finger joints [m].

    Equals openpi's: examples/libero/main.py at 15a9616, with robosuite's `quat2axisangle`.
    """
    rotation = to_axis_angle(observation.eef_quat_wxyz)
    return np.concatenate([observation.eef_pos_m, rotation, observation.gripper_qpos])


def make(arg: str | None, **arguments: str) -> Policy:
    """Make the policy of `module:factory`.

    Raises `PolicyError`, with the module and the line where its code raised, if there is none or it fails.
    """
    return InProcessPolicy(f"python:{arg}", make_object(arg, arguments))


def make_object(arg: str | None, arguments: Mapping[str, str], method: str = "act", form: str = _FORM) -> Any:
    """Return the object that `module:factory` makes of the arguments; it has the `method`.

    Raises as `make`; `form` says how to write it.
    """
    module_name, _, name = (arg or "").partition(":")
    if not module_name or not name:
        raise PolicyError(f"'python' got {arg!r}, not module:factory", remedy=form)
    owner, folder = f"python:{arg}", os.getcwd()
    sys.path[:0] = [folder] if folder not in sys.path else []
    searched = f"Modules are looked for in {folder} and where this Python looks: {sys.executable}."
    with blame_foreign(f"the module {module_name!r} cannot be imported", searched):
        module = importlib.import_module(module_name)
    public = ", ".join(key for key, item in vars(module).items() if callable(item) and key[0] != "_")
    with blame_foreign(f"{owner} cannot be found", f"It has {public or 'nothing to call'}."):
        factory = attrgetter(name)(module)
    made = factory
    if isinstance(factory, type) or not hasattr(factory, method) or arguments:
        with blame_foreign(f"{owner} fails", "Mend it there; a factory is called, with each --policy-arg as text."):
            made = factory(**arguments)
    if not callable(getattr(made, method, None)):
        raise PolicyError(f"{owner} gives a {type(made).__name__} without {method}(observation)", remedy=form)
    return made


def adopt_object(name: str, policy: object) -> Policy:
    """Return a finished object as a policy: itself if it keeps one of the further protocols, else wrapped.

    Raises `PolicyError` for a class, or an object without `act`, or with wrong `wants` or `orientation`.
    """
    if isinstance(policy, type):
        raise PolicyError(f"{policy.__name__} is a class, not a policy yet", remedy=f"Pass {policy.__name__}(...).")
    if not callable(getattr(policy, "act", None)):
        problem = f"the policy {name!r} is a {type(policy).__name__} without act(observation)"
        raise PolicyError(problem, remedy="Pass an object with act(observation), or a text such as 'random'.")
    knows_more = isinstance(policy, SelectivePolicy | RemotePolicy | ReplayPolicy)
    return policy if knows_more and isinstance(policy, Policy) else InProcessPolicy(name, policy)


@contextmanager
def blame_foreign(what: str, remedy: str) -> Iterator[None]:
    """Raise `PolicyError`, with the place of the cause, for whatever foreign code raises."""
    try:
        yield
    except (KeyboardInterrupt, PolicyError):
        raise
    except BaseException as error:  # a module or a factory may raise anything
        raise PolicyError(f"{what}: {_describe_foreign(error)}", remedy=remedy) from error


def _describe_foreign(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    file, line = (frames[-1].filename, frames[-1].lineno) if frames else (None, None)
    text = str(error)
    if isinstance(error, SyntaxError) and error.filename is not None:
        file, line, text = error.filename, error.lineno, error.msg
    return f"{type(error).__name__}: {text}" + (f" ({file}, line {line})" if file else "")
