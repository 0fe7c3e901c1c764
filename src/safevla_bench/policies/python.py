"""Policies that run in this process: the user's Python code, which needs no installation, and LeRobot's policies.

In `python:module:factory`, `factory` names a policy object, or a class or function that makes a policy object. A class
or function gets the values of `--policy-arg` as text. The policy needs `act(observation)`, which returns an action [A]
or a chunk [H, A]. It may have `wants`, `reset(task, seed)`, `close()`, `clip`, `replan` and `orientation`
(docs/reference/policy-contract.md). Python searches for the module in the current folder first.

`lerobot:PATH` is a policy that LeRobot saved, used with its saved pre- and post-processors. LeRobot needs a separate
environment: install this package there without a simulator, run `safevla serve`, and connect from the simulator's
environment with `openpi:` (docs/howto/servers.md).
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any, cast

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from safevla_bench.errors import InvalidActionError, PolicyError
from safevla_bench.interface import policy as interface
from safevla_bench.interface.task import Task
from safevla_bench.policies.servers import ChunkedPolicy, ChunkModel, ChunkQueue, endpoint, transforms
from safevla_bench.policies.servers.dialects import Dialect, Reply, choose_dialect
from safevla_bench.text import get_logger

ORIENTATIONS: Mapping[str, str] = {"upright": "vertical", "libero-vla": "180", "simulator": "none"}
"""Maps the orientation of a policy's images to a flip of MuJoCo's raw rendering, which is upside down.

LIBERO's VLAs are trained with `libero-vla`: MuJoCo's images rotated by 180 degrees, so upright but mirrored left to
right (openpi 15a9616 examples/libero/main.py; openvla c8f03f4 experiments/robot/libero/libero_utils.py).
"""
UPRIGHT = "upright"
_LOG = get_logger(__name__)
_SYNTAX = "Write `python:module:factory`, where the factory makes an object with `act(observation)`."


class InProcessPolicy(ChunkQueue):
    """A wrapper that makes a policy of a user's object. Methods that the object does not have do nothing."""

    def __init__(self, owner: str, policy: Any) -> None:
        """Wrap the user's object, named `owner` in errors; raise `PolicyError` for invalid `wants` or `orientation`."""
        super().__init__()
        self.made, self._owner = policy, owner
        self.clip = bool(getattr(policy, "clip", False))  # whether actions are clipped to the host's range
        # `Wants` lists the cameras and other observations that a policy requests; by default none.
        self.wants = getattr(policy, "wants", interface.Wants())
        if not isinstance(self.wants, interface.Wants):
            type_name = type(self.wants).__name__
            problem = f"the attribute `wants` of {owner} must be a Wants object, but has the type {type_name}"
            raise PolicyError(problem, remedy="Set `wants` to safevla_bench.Wants(cameras=..., image_size=...).")
        self.orientation: str = getattr(policy, "orientation", UPRIGHT)
        if self.orientation not in ORIENTATIONS:
            problem = f"{owner} wants images with the unknown orientation {self.orientation!r}"
            raise PolicyError(problem, remedy=f"Set `orientation` to one of {', '.join(ORIENTATIONS)}.")

    @property
    def calls_s(self) -> Sequence[float] | None:
        """The duration of each inference [s], if the object has the attribute `calls_s`; else None."""
        return cast("Sequence[float] | None", getattr(self.made, "calls_s", None))

    @property
    def greeting(self) -> endpoint.Greeting | None:
        """The object's attribute `greeting`, a mapping that describes the policy; None if it is not a mapping."""
        greeting = getattr(self.made, "greeting", None)
        return greeting if isinstance(greeting, Mapping) else None

    @property
    def looks_next(self) -> bool:
        """Whether the next `act` queries the object, and the object's `looks_next` is true or missing."""
        # While actions of a chunk remain, `act` returns one of them without a query.
        return not self.remaining and bool(getattr(self.made, "looks_next", True))

    def reset(self, task: Task, seed: int) -> None:
        # Discard the last chunk, and call the object's `reset`, if it has one.
        self.begin_chunks()
        if hasattr(self.made, "reset"):
            self.made.reset(task, seed)

    def act(self, observation: interface.Observation) -> interface.Action:
        """Return the object's next action, which the rollout checks before executing it. The object gets images in its
        `orientation`. The object may return a chunk [H, A]. Then its first `replan` actions, or all actions without
        `replan`, are executed one by one. Raises `InvalidActionError` for an empty chunk.
        """
        if self.remaining:
            return self.take_next()
        answer: interface.Action = self.made.act(orient_images(observation, self.orientation))
        try:
            is_chunk = np.ndim(answer) == 2
        except ValueError:  # the rows have different lengths
            is_chunk = False
        if not is_chunk:
            self.chunk_step = None  # a single action belongs to no chunk
            return answer
        executed_count = getattr(self.made, "replan", None)  # None = all
        self.add_chunk(list(answer)[:executed_count])
        if not self.remaining:
            raise InvalidActionError("a chunk without an action", remedy="Return an array [H, A] of H actions.")
        return self.take_next()

    def close(self) -> None:
        """Call the object's `close`, if it has one. Errors are only logged, because no episode depends on them."""
        if not hasattr(self.made, "close"):
            return
        try:
            self.made.close()
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a user's object may raise any exception
            cause = _describe_exception(error)
            _LOG.warning("the method close() of %s fails: %s; the policy's episodes are kept", self._owner, cause)


def orient_images(observation: interface.Observation, orientation: str) -> interface.Observation:
    """Turn an observation's upright images to `orientation`, one of `ORIENTATIONS`. Return the observation unchanged if
    the orientation is `upright`, or if there are no images.
    """
    # The orientation is that of the model's training images. MuJoCo's raw images, for example, are upside down.
    # Images that were not rendered cannot be read.
    if orientation == UPRIGHT or isinstance(observation.images, interface.UnrenderedImages):
        return observation
    flip = ORIENTATIONS[orientation]
    turned = {camera: transforms.flip_image(image, flip) for camera, image in observation.images.items()}
    return replace(observation, images=turned)


def libero_state(observation: interface.Observation) -> NDArray[np.float64]:
    """Return the state on which LIBERO's VLAs are trained, [8]: position [m], axis-angle [rad], two finger joints [m].
    The state equals that in openpi 15a9616 examples/libero/main.py, which uses robosuite's `quat2axisangle`.
    """
    if observation.arms:  # empty for a single arm
        names = ", ".join(observation.arms)
        raise PolicyError(f"libero_state needs a single arm, but the arms are {names}", remedy="Read observation.arms.")
    rotation = transforms.to_axis_angle(observation.eef_quat_wxyz)
    return np.concatenate([observation.eef_pos_m, rotation, observation.gripper_qpos])


def make(arg: str | None, **arguments: str) -> interface.Policy:
    """Make the policy from `module:factory`. Raises `PolicyError`, if possible with the cause's file and line."""
    # `arg` is `module:factory`, the text after `python:`, or None; `arguments` are passed to the factory as text.
    return InProcessPolicy(f"python:{arg}", make_object(arg, arguments))


def make_object(arg: str | None, arguments: Mapping[str, str], method: str = "act", form: str = _SYNTAX) -> Any:
    """Return the object that `module:factory` makes from the arguments. The object must have a method with the name
    `method`. `form` describes the expected syntax for error messages. Raises the errors of `make`.
    """
    # Policies need the method `act`; filters, which change a policy's actions, need `filter`.
    module_name, _, name = (arg or "").partition(":")
    if not module_name or not name:
        raise PolicyError(f"the text after 'python:' is {arg!r}, not module:factory", remedy=form)
    owner, folder = f"python:{arg}", os.getcwd()
    # The user's module may be a file in the current folder, which is not always on the module path.
    if folder not in sys.path:
        sys.path.insert(0, folder)
    search_places = f"Python searches for modules in {folder} and on the module path of {sys.executable}."
    with blame_foreign(f"the module {module_name!r} cannot be imported", search_places):
        module = importlib.import_module(module_name)
    callables = ", ".join(key for key, value in vars(module).items() if callable(value) and key[0] != "_")
    remedy = f"Callables of the module: {callables or 'no public callable exists'}."
    with blame_foreign(f"{owner} cannot be found", remedy):
        result = factory = attrgetter(name)(module)  # `name` may be a path such as `Class.method`
    # Call `factory`, unless it is an object that already has the method, and there are no arguments.
    if isinstance(factory, type) or not hasattr(factory, method) or arguments:
        with blame_foreign(f"{owner} fails", "Fix the code. The factory receives each --policy-arg as text."):
            result = factory(**arguments)
    if not callable(getattr(result, method, None)):
        problem = f"{owner} gives an object without {method}(observation): {type(result).__name__}"
        raise PolicyError(problem, remedy=form)
    return result


def adopt_object(name: str, policy: object) -> interface.Policy:
    """Return an object as a policy. An object with an extended policy protocol is returned unchanged; others are
    wrapped. Raises `PolicyError` for a class, an object without `act`, or an invalid `wants` or `orientation`.
    """
    # The extended protocols are those with `looks_next`, with a server, or with a recording.
    # Errors call the object `name`.
    if isinstance(policy, type):
        raise PolicyError(f"{policy.__name__} is a class instead of an object", remedy=f"Pass {policy.__name__}(...).")
    if not callable(getattr(policy, "act", None)):
        problem = f"the policy {name!r} is an object without act(observation): {type(policy).__name__}"
        raise PolicyError(problem, remedy="Pass an object with `act(observation)`, or a text such as 'random'.")
    is_extended = isinstance(policy, interface.SelectivePolicy | interface.RemotePolicy | interface.ReplayPolicy)
    return policy if is_extended and isinstance(policy, interface.Policy) else InProcessPolicy(name, policy)


@contextmanager
def blame_foreign(failure: str, remedy: str) -> Iterator[None]:
    """Convert any exception but Ctrl-C to a `PolicyError`: the text `failure`, the cause and, if known, its place."""
    try:
        yield
    except (KeyboardInterrupt, PolicyError):  # a `PolicyError` already has a clear message
        raise
    except BaseException as error:  # a module or a factory may raise any exception
        raise PolicyError(f"{failure}: {_describe_exception(error)}", remedy=remedy) from error


def _describe_exception(error: BaseException) -> str:
    # Return the exception's type and message, and its place: the innermost frame outside of importlib and this file.
    file, line, message = None, None, str(error)  # without such a frame, no place is named
    for frame in traceback.extract_tb(error.__traceback__):  # from the outermost frame on, so the innermost match stays
        if "importlib" not in frame.filename and frame.filename != __file__:
            file, line = frame.filename, frame.lineno
    if isinstance(error, SyntaxError) and error.filename is not None:  # the file never ran, so no frame refers to it
        file, line, message = error.filename, error.lineno, error.msg
    return f"{type(error).__name__}: {message}" + (f" ({file}, line {line})" if file else "")


# LeRobot


Tensors = dict[str, Any]
_IMAGE_PREFIX, _STATE, _ROTATION_PART = "observation.images.", "observation.state", "eef_axis_angle_float32"
_XVLA, _EE6D, _XVLA_RELEASE = "xvla", "ee6d", "lerobot-xvla"


class LerobotModel(ChunkModel):
    """A LeRobot policy as a model that returns one action at a time; LeRobot stores the rest of a chunk. `before` and
    `after` are the saved pre- and post-processor. `make_tensor` converts an array to a PyTorch tensor. `seed_torch`
    seeds PyTorch. `to_axis_angle` converts a quaternion xyzw to the axis-angle [3] in LIBERO's state, as LeRobot's
    processor does; without it, the dialect converts the quaternion.
    """

    def __init__(
        self,
        policy: Any,
        before: Callable[[Tensors], Tensors],
        after: Callable[[Any], Any],
        dialect: Dialect,
        make_tensor: Callable[[NDArray[Any]], Any],
        seed_torch: Callable[[int], object],
        to_axis_angle: Callable[[NDArray[np.float64]], NDArray[np.float32]] | None = None,
    ) -> None:
        # `before` prepares a batch for the policy, and `after` converts the policy's action to an array.
        # `make_tensor` converts an array to a PyTorch tensor, and `seed_torch` seeds PyTorch.
        # `to_axis_angle` converts a quaternion xyzw to an axis-angle [3]; None = keep the axis-angle of the dialect.
        super().__init__(dialect)
        self._policy, self._before, self._after = policy, before, after
        self._make_tensor, self._seed_torch, self._to_axis_angle = make_tensor, seed_torch, to_axis_angle

    def connect(self, task: Task) -> None:
        """Do nothing: there is no server."""

    def begin(self, task: Task, seed: int) -> None:
        # Begin an episode: seed the policy's sampling, and discard remaining actions of the last episode.
        self._seed_torch(seed)
        self._policy.reset()

    def query(self, observation: interface.Observation) -> Reply:
        # Return the next action [1, A] in a map with the key `action`, in the format of servers' replies.
        request = self.dialect.build_request(observation)
        # Replace the axis-angle in the state by the one that PyTorch computes, as in LeRobot. NumPy rounds differently.
        if self._to_axis_angle is not None and any(_ROTATION_PART in field.state for field in self.dialect.fields):
            quat_xyzw = observation.eef_quat_wxyz[[1, 2, 3, 0]]
            cast("NDArray[np.float32]", request[_STATE])[3:6] = self._to_axis_angle(quat_xyzw)  # [0:3] is a position
        batch = {key: self._to_tensor(value) for key, value in request.items()}
        # `_before` and `_after` are the policy's saved pre- and post-processor.
        return {"action": np.asarray(self._after(self._policy.select_action(self._before(batch))))}

    def _to_tensor(self, value: object) -> object:
        # Return one value of a request as a batch of size 1, as LeRobot's policies expect.
        if not isinstance(value, np.ndarray):  # only the instruction is not an array
            return [value]
        if value.dtype == np.uint8:  # an image [H, W, 3]; it becomes [3, H, W] with values from 0 to 1
            value = np.moveaxis(value, 2, 0).astype(np.float32) / 255
        return self._make_tensor(np.ascontiguousarray(value[np.newaxis]))


def make_lerobot(
    arg: str | None,
    device: str = "cpu",
    dialect: str = "lerobot-libero",
    cameras: str | None = None,
    n_action_steps: str | None = None,
    rename: str | None = None,
) -> ChunkedPolicy:
    """Load a saved policy on a `device`; `arg` is a folder or a name that LeRobot can load. `cameras` replace the
    dialect's cameras; `n_action_steps` is the number of actions executed per chunk. `rename` is a list OLD:NEW,... of
    new names for images. For example, `image:front` sends `observation.images.image` as `observation.images.front`.
    Raises `PolicyError` for an invalid argument, or if LeRobot cannot load the policy.
    """
    if not arg:
        raise PolicyError("policy 'lerobot' needs a saved policy", remedy="Write lerobot:FOLDER.")
    # The dialect determines the names and formats of the model's inputs.
    chosen = _rename_images(choose_dialect(dialect, "lerobot", cameras), rename)
    action_count = None
    if n_action_steps is not None:  # other texts become 0, which `_load_policy` refuses
        action_count = int(n_action_steps) if n_action_steps.isdecimal() else 0
    # The model returns single actions, so each chunk of this policy has one action, and no `replan` (None) is needed.
    return ChunkedPolicy(_load_policy(arg, device, chosen, action_count), None)


def _rename_images(dialect: Dialect, text: str | None) -> Dialect:
    # Return the dialect with new names for images. `text` is the user's argument `rename`: OLD:NEW,... or None.
    # Raise `PolicyError` for an image that the dialect does not have, and for an empty new name.
    new_names: dict[str, str] = {}
    for pair in text.split(",") if text else ():
        old, _, new = pair.partition(":")  # without a colon, `new` is "", which is refused below
        new_names[old] = new
    # Maps the short name of each image, such as `image`, to its path in the request.
    paths = {str(field.path[0]).removeprefix(_IMAGE_PREFIX): field.path for field in dialect.fields if field.camera}
    if not new_names.keys() <= paths.keys() or "" in new_names.values():
        problem = f"rename={text} does not fit the dialect {dialect.name!r}"
        raise PolicyError(problem, remedy=f"Write OLD:NEW, where OLD is an image of the dialect: {', '.join(paths)}.")
    new_paths = {paths[old]: (f"{_IMAGE_PREFIX}{new}",) for old, new in new_names.items()}
    fields = (structs.replace(field, path=new_paths.get(field.path, field.path)) for field in dialect.fields)
    return replace(dialect, fields=tuple(fields))


def _load_policy(path: str, device: str, dialect: Dialect, n_action_steps: int | None) -> LerobotModel:
    # Load the policy at `path` with its processors. `n_action_steps`: executed actions per chunk; None = as saved.
    try:
        import torch
        from lerobot.configs.policies import PreTrainedConfig
        from lerobot.policies.factory import get_policy_class, make_pre_post_processors
    except ImportError as error:
        hint = "Load the policy in an environment with lerobot and safevla-bench, and serve it: docs/howto/servers.md."
        raise PolicyError(f"LeRobot cannot be imported: {error}", remedy=hint) from error
    hint = "Check that this LeRobot version saved the policy and its processors, and that all libraries are installed."
    with blame_foreign(f"LeRobot cannot load {path}", hint):
        config = PreTrainedConfig.from_pretrained(path)
        _require_fitting_dialect(config, dialect)
        config.device = device
        if n_action_steps is not None:
            chunk_size = getattr(config, "chunk_size", 0)  # policies without chunks have no `chunk_size`
            if not 0 < n_action_steps <= chunk_size:
                problem = f"the saved policy cannot execute {n_action_steps} actions of a chunk"
                raise PolicyError(problem, remedy=f"Omit `n_action_steps`, or pass at most {chunk_size}.")
            config.n_action_steps = n_action_steps
        policy = get_policy_class(config.type).from_pretrained(path, config=config).to(device).eval()
        device_override = {"device_processor": {"device": device}}
        preprocess, postprocess = make_pre_post_processors(policy.config, path, preprocessor_overrides=device_override)
        # LeRobot's evaluation adds steps for X-VLA that saved processors may lack.
        preprocess = _add_xvla_steps(preprocess) if config.type == _XVLA else preprocess

    def to_numpy(action: Any) -> Any:
        # Convert the model's action, a tensor, to an array in the units of the simulator.
        return postprocess(action).detach().cpu().numpy()

    # The model gets PyTorch's functions as arguments, so that its class works without PyTorch, as in tests.
    to_axis_angle = partial(rotate_by_torch, torch)
    return LerobotModel(policy, preprocess, to_numpy, dialect, torch.from_numpy, torch.manual_seed, to_axis_angle)


def _require_fitting_dialect(config: Any, dialect: Dialect) -> None:
    # Raise `PolicyError` if the saved policy's type needs another dialect, or the policy's action mode is not LIBERO's.
    # X-VLA's only supported action mode is `_EE6D`: poses with six numbers for the rotation.
    # `_EE6D` is also the default.
    is_xvla, mode = config.type == _XVLA, str(getattr(config, "action_mode", _EE6D))
    if is_xvla and mode != _EE6D:
        problem = f"this policy has the action_mode {mode}, but LeRobot's X-VLA policies for LIBERO have {_EE6D}"
        remedy = "LeRobot cannot evaluate this mode on LIBERO. Call this policy from a python: policy."
        raise PolicyError(problem, remedy=remedy)
    is_xvla_dialect = dialect.file.release == _XVLA_RELEASE
    if is_xvla != is_xvla_dialect:  # only X-VLA policies fit X-VLA's dialect, and no other dialect fits them
        fitting = "lerobot-xvla-libero" if is_xvla else "lerobot-libero"
        problem = f"the dialect {dialect.name!r} does not fit LeRobot's policies of the type {config.type!r}"
        raise PolicyError(problem, remedy=f"Pass --policy-arg dialect={fitting}.")


def _add_xvla_steps(preprocess: Any) -> Callable[[Tensors], Tensors]:
    """Add steps before a saved policy's preprocessor, as LeRobot's evaluation of X-VLA does in
    `make_xvla_libero_pre_post_processors` (lerobot 7427f31 src/lerobot/policies/xvla/processor_xvla.py). Unlike
    LeRobot, skip steps that the preprocessor already has: a second normalization of images, for example, would fail.
    """
    from lerobot.policies.xvla import processor_xvla as xvla
    from lerobot.processor import PolicyProcessorPipeline

    steps = [xvla.XVLAImageNetNormalizeProcessorStep(), xvla.XVLAAddDomainIdProcessorStep()]
    present = {type(step) for step in preprocess.steps}
    added = PolicyProcessorPipeline(steps=[step for step in steps if type(step) not in present])
    return lambda batch: cast("Tensors", preprocess(added(batch)))  # the added steps run first


def rotate_by_torch(torch: Any, quat_xyzw: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return a quaternion's axis-angle, [3] rad. PyTorch computes the result, because NumPy rounds differently. It
    equals `LiberoProcessorStep._quat2axisangle` (lerobot 7427f31 src/lerobot/processor/env_processor.py).
    """
    # `torch` is the module PyTorch, which is not a dependency of this package. `quat_xyzw` is [4], with w last.
    quat = torch.from_numpy(quat_xyzw).to(dtype=torch.float32)
    w = quat[3:].clamp(-1.0, 1.0)  # a tensor of the shape [1], as in LeRobot
    sine = torch.sqrt(torch.clamp(1.0 - w * w, min=0.0))
    # For tiny rotations, the axis is not defined, and the result is zero.
    axis_angle = quat[:3] / sine * (2.0 * torch.acos(w)) if sine > transforms.LEAST_SINE else torch.zeros(3)
    return np.asarray(axis_angle.numpy(), dtype=np.float32)
