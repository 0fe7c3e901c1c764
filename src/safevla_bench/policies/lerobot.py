"""`lerobot:PATH`: a LeRobot policy in this process, through its own pre- and post-processors and `select_action`.

LeRobot wants an environment of its own: install this package there without a simulator, `safevla serve` it, and ask it
from the simulator's environment as `openpi:` (docs/servers.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import PolicyError
from safevla_bench.interface import Observation, Task
from safevla_bench.policies.chunking import ChunkedPolicy
from safevla_bench.policies.servers.dialect import Dialect
from safevla_bench.policies.servers.dialects import choose_dialect, read_reply

Tensors = dict[str, Any]


class LerobotModel:
    """An object with LeRobot's interface as a model of one action at a time; it keeps its own queue of a chunk.

    `tensor` makes LeRobot's tensors from arrays, `seeded` seeds its random numbers.
    """

    def __init__(
        self,
        policy: Any,
        before: Callable[[Tensors], Tensors],
        after: Callable[[Any], Any],
        dialect: Dialect,
        tensor: Callable[[NDArray[Any]], Any],
        seeded: Callable[[int], object],
    ) -> None:
        self.wants = dialect.wants
        self._policy, self._before, self._after = policy, before, after
        self._dialect, self._tensor, self._seeded = dialect, tensor, seeded

    def begin(self, task: Task, seed: int) -> None:
        """Forget the last episode's queue."""
        self._seeded(seed)
        self._policy.reset()

    def infer(self, observation: Observation) -> NDArray[np.float64]:
        """Return one action, [1, A]."""
        batch = {key: self._to_tensor(value) for key, value in self._dialect.build_request(observation).items()}
        action = self._after(self._policy.select_action(self._before(batch)))
        return read_reply(self._dialect, {"action": np.asarray(action, dtype=np.float64)})

    def close(self) -> None:
        """Nothing to free."""

    def _to_tensor(self, value: object) -> object:
        """Convert a value as LeRobot's environments do: images float32 [1, 3, H, W] in [0, 1], states [1, S]."""
        if not isinstance(value, np.ndarray):
            return [value]
        if value.dtype == np.uint8:
            value = np.moveaxis(value, 2, 0).astype(np.float32) / 255
        return self._tensor(np.ascontiguousarray(value[np.newaxis]))


def make(
    arg: str | None, device: str = "cpu", dialect: str = "lerobot-libero", cameras: str | None = None
) -> ChunkedPolicy:
    """Load the policy saved in a folder, or under a name that LeRobot itself can load.

    Raises:
        PolicyError: no policy is named, or LeRobot is not installed here.
    """
    if not arg:
        raise PolicyError("policy 'lerobot' needs a saved policy", remedy="Write lerobot:FOLDER.")
    spoken = choose_dialect(dialect, "lerobot", cameras)
    return ChunkedPolicy(_load_policy(arg, device, spoken), None, spoken)


def _load_policy(path: str, device: str, dialect: Dialect) -> LerobotModel:
    try:
        import torch
        from lerobot.configs.policies import PreTrainedConfig
        from lerobot.policies.factory import get_policy_class, make_pre_post_processors
    except ImportError as error:
        remedy = "Use an environment with lerobot and safevla-bench, and serve it from there: docs/servers.md."
        raise PolicyError(f"LeRobot cannot be imported: {error}", remedy=remedy) from error
    config = PreTrainedConfig.from_pretrained(path)
    config.device = device
    policy = get_policy_class(config.type).from_pretrained(path, config=config).to(device).eval()
    on_device = {"device_processor": {"device": device}}
    before, after = make_pre_post_processors(policy.config, path, preprocessor_overrides=on_device)
    return LerobotModel(policy, before, _to_numpy(after), dialect, torch.from_numpy, torch.manual_seed)


def _to_numpy(after: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda action: after(action).detach().cpu().numpy()
