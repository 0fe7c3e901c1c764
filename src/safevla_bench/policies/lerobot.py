"""`lerobot:PATH`: a LeRobot policy in this process, through its own pre- and post-processors and `select_action`.

LeRobot wants an environment of its own: install this package there without a simulator, `safevla serve` it, and ask it
from the simulator's environment as `openpi:` (docs/servers.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from safevla_bench.errors import PolicyError
from safevla_bench.interface.policy import Observation
from safevla_bench.interface.task import Task
from safevla_bench.policies.python import blame_foreign
from safevla_bench.policies.servers import ChunkedPolicy, ChunkModel
from safevla_bench.policies.servers.dialects import Dialect, Reply, choose_dialect
from safevla_bench.policies.servers.transforms import LEAST_SINE

Tensors = dict[str, Any]
_IMAGES, _STATE, _ROTATION = "observation.images.", "observation.state", "eef_axis_angle_float32"


class LerobotModel(ChunkModel):
    """An object with LeRobot's interface as a model of one action at a time; it keeps its own queue of a chunk.

    `tensor` makes LeRobot's tensors from arrays, `seeded` seeds its random numbers. `rotate` makes the rotation of
    LIBERO's state, an axis-angle [3], from a quaternion xyzw as LeRobot's own processor does; None = the dialect's.
    """

    def __init__(
        self,
        policy: Any,
        before: Callable[[Tensors], Tensors],
        after: Callable[[Any], Any],
        dialect: Dialect,
        tensor: Callable[[NDArray[Any]], Any],
        seeded: Callable[[int], object],
        rotate: Callable[[NDArray[np.float64]], NDArray[np.float32]] | None = None,
    ) -> None:
        super().__init__(dialect)
        self._policy, self._before, self._after = policy, before, after
        self._tensor, self._seeded, self._rotate = tensor, seeded, rotate

    def connect(self, task: Task) -> None:
        """There is no server to reach."""

    def begin(self, task: Task, seed: int) -> None:
        self._seeded(seed)
        self._policy.reset()

    def query(self, observation: Observation) -> Reply:
        """Return one action under `action`; raises what LeRobot raises."""
        request = self.dialect.build_request(observation)
        if self._rotate is not None and any(_ROTATION in field.state for field in self.dialect.fields):
            cast("NDArray[np.float32]", request[_STATE])[3:6] = self._rotate(observation.eef_quat_wxyz[[1, 2, 3, 0]])
        batch = {key: self._to_tensor(value) for key, value in request.items()}
        return {"action": np.asarray(self._after(self._policy.select_action(self._before(batch))))}

    def _to_tensor(self, value: object) -> object:
        if not isinstance(value, np.ndarray):
            return [value]
        if value.dtype == np.uint8:
            value = np.moveaxis(value, 2, 0).astype(np.float32) / 255
        return self._tensor(np.ascontiguousarray(value[np.newaxis]))


def make(
    arg: str | None,
    device: str = "cpu",
    dialect: str = "lerobot-libero",
    cameras: str | None = None,
    n_action_steps: str | None = None,
    rename: str | None = None,
) -> ChunkedPolicy:
    """Load the policy saved in a folder, or under a name that LeRobot itself can load.

    Args:
        arg: the folder or name.
        device: where it computes.
        dialect: what its observations hold.
        cameras: put in the places of the dialect's own, in their order.
        n_action_steps: how many actions of a chunk it carries out, in the place of what was saved with it.
        rename: OLD:NEW with commas between, names of images: `image:front` shows `observation.images.image` as
            `observation.images.front`.

    Raises `PolicyError` if an argument is wrong, or LeRobot is not installed here or cannot load the policy.
    """
    if not arg:
        raise PolicyError("policy 'lerobot' needs a saved policy", remedy="Write lerobot:FOLDER.")
    spoken = _rename_images(choose_dialect(dialect, "lerobot", cameras), rename)
    steps = None if n_action_steps is None else int(n_action_steps) if n_action_steps.isdecimal() else 0
    return ChunkedPolicy(_load_policy(arg, device, spoken, steps), None)


def _rename_images(dialect: Dialect, text: str | None) -> Dialect:
    """Return the dialect with the image keys that `OLD:NEW,...` names renamed; the dialect as it is for None."""
    names = dict(pair.partition(":")[::2] for pair in text.split(",")) if text else {}
    own = {str(field.path[0]).removeprefix(_IMAGES): field for field in dialect.fields if field.camera}
    unknown = sorted(set(names) - set(own))
    if unknown or "" in names.values():
        problem = f"rename={text} does not fit the dialect {dialect.name!r}"
        raise PolicyError(problem, remedy=f"Write OLD:NEW of its images: {', '.join(own)}.")
    renamed = {id(own[old]): (f"{_IMAGES}{new}",) for old, new in names.items()}
    fields = tuple(structs.replace(field, path=renamed.get(id(field), field.path)) for field in dialect.fields)
    return replace(dialect, fields=fields)


def _load_policy(path: str, device: str, dialect: Dialect, n_action_steps: int | None) -> LerobotModel:
    try:
        import torch
        from lerobot.configs.policies import PreTrainedConfig
        from lerobot.policies.factory import get_policy_class, make_pre_post_processors
    except ImportError as error:
        remedy = "Use an environment with lerobot and safevla-bench, and serve it from there: docs/servers.md."
        raise PolicyError(f"LeRobot cannot be imported: {error}", remedy=remedy) from error
    remedy = "Is it a folder that this version of LeRobot saved, with its processors and the libraries it needs?"
    with blame_foreign(f"LeRobot cannot load {path}", remedy):
        config = PreTrainedConfig.from_pretrained(path)
        config.device = device
        if n_action_steps is not None:
            most = getattr(config, "chunk_size", 0)
            if not 0 < n_action_steps <= most:
                problem = f"the saved policy cannot carry out {n_action_steps} actions of a chunk"
                raise PolicyError(problem, remedy=f"Pass n_action_steps={most} or fewer, or leave it out.")
            config.n_action_steps = n_action_steps
        policy = get_policy_class(config.type).from_pretrained(path, config=config).to(device).eval()
        on_device = {"device_processor": {"device": device}}
        before, after = make_pre_post_processors(policy.config, path, preprocessor_overrides=on_device)

    def to_numpy(action: Any) -> Any:
        return after(action).detach().cpu().numpy()

    rotate = partial(rotate_by_torch, torch)
    return LerobotModel(policy, before, to_numpy, dialect, torch.from_numpy, torch.manual_seed, rotate)


def rotate_by_torch(torch: Any, quat_xyzw: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the axis-angle [3] rad as LeRobot's own processor does: torch's root and arc cosine round unlike NumPy's.

    `LiberoProcessorStep._quat2axisangle` of lerobot 7427f31 src/lerobot/processor/env_processor.py.
    """
    quat = torch.from_numpy(quat_xyzw).to(dtype=torch.float32)
    w = quat[3:].clamp(-1.0, 1.0)
    sine = torch.sqrt(torch.clamp(1.0 - w * w, min=0.0))
    turn = quat[:3] / sine * (2.0 * torch.acos(w)) if sine > LEAST_SINE else torch.zeros(3)
    return np.asarray(turn.numpy(), dtype=np.float32)
