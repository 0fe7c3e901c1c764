"""Records robot episodes inside a simulator environment; its names are imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from safevla_recorder.version import __version__

if TYPE_CHECKING:
    from safevla_recorder.loop import record, record_until_closed

__all__ = ["__version__", "record", "record_until_closed"]


def __getattr__(name: str) -> object:
    """Return `record` or `record_until_closed`, imported on first use; raise `AttributeError` for another name."""
    if name not in ("record", "record_until_closed"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from safevla_recorder import loop

    return getattr(loop, name)
