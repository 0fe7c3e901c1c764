"""Records robot episodes inside a simulator environment; its names are imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from safevla_recorder.version import __version__

if TYPE_CHECKING:
    from safevla_recorder.loop import record, record_until_closed
    from safevla_recorder.mujoco.speed import speed_up

__all__ = ["__version__", "record", "record_until_closed", "speed_up"]


def __getattr__(name: str) -> object:
    """Return one of the functions of `__all__`, imported on first use; raise `AttributeError` for another name."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from safevla_recorder import loop
    from safevla_recorder.mujoco import speed

    return getattr(speed if name == "speed_up" else loop, name)
