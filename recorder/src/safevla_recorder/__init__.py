"""Record robot episodes in a simulator. Public names are imported when they are first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from safevla_recorder.version import __version__

if TYPE_CHECKING:
    from safevla_recorder.batch_recorder import BatchRecorder
    from safevla_recorder.folder import RunWriter
    from safevla_recorder.loop import record, record_until_closed
    from safevla_recorder.mujoco.speed import speed_up
    from safevla_recorder.recorder import Arm, EpisodeRecorder, SceneMap

__all__ = [
    "Arm",
    "BatchRecorder",
    "EpisodeRecorder",
    "RunWriter",
    "SceneMap",
    "__version__",
    "record",
    "record_until_closed",
    "speed_up",
]
# Maps public names to their modules; a public name that is missing here is in the module `loop`.
_MODULES = {
    "Arm": "recorder",
    "BatchRecorder": "batch_recorder",
    "EpisodeRecorder": "recorder",
    "SceneMap": "recorder",
    "RunWriter": "folder",
    "speed_up": "mujoco.speed",
}


def __getattr__(name: str) -> object:
    """Import a name of `__all__` on first use; raise `AttributeError` for any other name."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'loop')}"), name)
