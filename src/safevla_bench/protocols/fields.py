"""Fields of a protocol: how episodes start and end, and how a policy sees the scene and answers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

import msgspec

Resize = Literal["none", "pad-bilinear", "lanczos3"]
Flip = Literal["none", "vertical", "180"]
Switch = Literal["raw", "open-is-one", "sign", "close-is-one"]
UNKNOWN_SOURCE = "unknown"
"""The source of a value whose source is not known."""


class Inference(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The view of the scene that a policy gets, and the conversion of its answer to actions; see `FIELDS`."""

    render: tuple[int, int]
    flip: Flip
    jpeg: bool
    image_size: tuple[int, int]
    resize: Resize
    crop: float
    state: tuple[str, ...]
    gripper: Switch
    clip: bool
    replan: int | Literal["all", "server"]


class EvaluationProtocol(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One way to evaluate, as a project publishes it; `FIELDS` describes each value, `sources` cites it."""

    name: str
    about: str
    wait_steps: int
    wait_action: Literal["still"] | tuple[float, ...]
    env_seed: int | str
    rest_steps: int
    init_state: Literal["episode", "episode % count", "drawn"]
    policy_seed: int | Literal["sha256"]
    stop_at_success: bool
    trials: dict[str, int]
    horizons: dict[str, int]
    inference: Inference | None = None
    sources: dict[str, str]

    def __post_init__(self) -> None:
        """Raise `ValueError` where the environment's seed is no rule."""
        if isinstance(self.env_seed, str) and not re.fullmatch(r"sha256|\d+ \+ episode", self.env_seed):
            raise ValueError(f"env_seed = {self.env_seed!r} is no number, no 'N + episode' and not 'sha256'")

    def values(self) -> dict[str, object]:
        """Return all values, without their sources."""
        values = msgspec.to_builtins(self)
        return {name: value for name, value in values.items() if name not in ("about", "sources")}

    def episode_values(self) -> dict[str, object]:
        """Return the values that a run records: how episodes start and end. The rest is recorded with the policy."""
        return {name: value for name, value in self.values().items() if name != "inference"}


FIELDS: Mapping[str, str] = {
    "wait_steps": "settling steps before record 0; in no horizon",
    "wait_action": "the action of those steps: `still` = the host's, no motion and the gripper open",
    "rest_steps": "further settling steps, at most, until no object moves faster than 0.05 m/s",
    "env_seed": "the simulator's before every reset: a number, `N + episode`, or `sha256` of seed/suite/task/episode",
    "init_state": "the start: state `episode`, `episode % count`, or `drawn` by the reset from env_seed and episode",
    "policy_seed": "the policy's before every episode: a number, to which --seed is added, or `sha256` as above",
    "stop_at_success": "whether the first success ends the episode; else the horizon does, and its last state counts",
    "trials": "episodes of each task, by suite",
    "horizons": "policy steps at most, by suite; else the host's own",
    "inference": "`release`: each policy sees and answers as its own project has it",
    "inference.render": "height and width of the rendered image",
    "inference.flip": "what is flipped of MuJoCo's image, whose rows begin at the bottom; `vertical` makes it upright",
    "inference.jpeg": "whether it goes through a JPEG of quality 95, before it is resized",
    "inference.image_size": "height and width that the policy is sent",
    "inference.resize": "how it gets that size",
    "inference.crop": "the part of its area, in the middle, that is enlarged to the whole; 1 = all of it",
    "inference.state": "what the state vector is put together from, in order",
    "inference.gripper": "how the policy's gripper becomes the host's -1 (open) and +1 (closed)",
    "inference.clip": "whether numbers outside of the action's range are clipped; else such an action is invalid",
    "inference.replan": "actions that are carried out of each reply: a number, `all`, or as the `server` says",
}
"""Descriptions of a protocol's values; values by suite have the suite's name after a dot."""
