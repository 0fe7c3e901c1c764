"""What every environment of robosuite 1.5 is made with here, and its log without chatter."""

from __future__ import annotations

import logging

from safevla_bench.hosts.mujoco.robosuite_env import wanted_depths
from safevla_bench.interface import Wants

_CHATTER = (
    "No private macro file found",
    "It is recommended to use a private macro",
    "To setup, run: python",
    "Could not import robosuite_models",
    "Could not load the mink-based whole-body IK",
    "Loading controller configuration from",
)
"""Log records about what no part of this package needs."""


def env_options(robot: str, wants: Wants) -> dict[str, object]:
    """Return the keyword arguments of an environment of one robot under its own controller; imports robosuite.

    Nothing is rendered where no camera is wanted.
    """
    from robosuite.controllers import load_composite_controller_config

    height, width = wants.image_size
    rendered = bool(wants.cameras)
    return {
        "robots": robot,
        "controller_configs": load_composite_controller_config(controller=None, robot=robot),
        "has_renderer": False,
        "has_offscreen_renderer": rendered,
        "use_camera_obs": rendered,
        "camera_names": list(wants.cameras),
        "camera_heights": height,
        "camera_widths": width,
        "camera_depths": wanted_depths(wants),
        # The rollout decides when an episode ends.
        "ignore_done": True,
    }


def quieten_log() -> None:
    """Keep from robosuite's log, from now on, what no part of this package needs."""
    logging.getLogger("robosuite_logs").addFilter(_is_no_chatter)


def _is_no_chatter(record: logging.LogRecord) -> bool:
    """Return whether a log record does not begin with one of the texts of `_CHATTER`."""
    return not record.getMessage().startswith(_CHATTER)
