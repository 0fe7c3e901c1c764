"""Trackers of experiments behind one small protocol; each is imported only when it is asked for."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from safevla_bench.errors import RunError
from safevla_bench.plugins import install_command

PROJECT = "safevla-bench"


@runtime_checkable
class Tracker(Protocol):
    """A receiver of numbers. What a method raises is reported once; it is not asked again, and the run goes on."""

    def log(self, episode: int, numbers: Mapping[str, float]) -> None:
        """Take the numbers after an episode; `episode` counts from 1."""
        ...

    def finish(self, numbers: Mapping[str, float]) -> None:
        """Take the final numbers and close; there are none where the run was broken off."""
        ...


class WandbTracker:
    """A run of Weights & Biases; the environment says where to, such as WANDB_MODE=offline and WANDB_PROJECT."""

    def __init__(self, name: str, folder: Path, config: Mapping[str, object]) -> None:
        """Begin the run; `folder` is not used."""
        import wandb

        self._run: Any = wandb.init(project=_own_project("WANDB_PROJECT"), name=name, config=dict(config))

    def log(self, episode: int, numbers: Mapping[str, float]) -> None:
        """Log a step of the run."""
        self._run.log(dict(numbers), step=episode)

    def finish(self, numbers: Mapping[str, float]) -> None:
        """Write the summary and close."""
        self._run.summary.update(dict(numbers))
        self._run.finish()


class TrackioTracker:
    """A run of Trackio, which keeps it on this machine; TRACKIO_PROJECT names another project."""

    def __init__(self, name: str, folder: Path, config: Mapping[str, object]) -> None:
        """Begin the run; `folder` is not used."""
        import trackio

        project = _own_project("TRACKIO_PROJECT")
        self._run: Any = trackio.init(project=project, name=name, config=dict(config), embed=False)
        self._trackio: Any = trackio

    def log(self, episode: int, numbers: Mapping[str, float]) -> None:
        """Log a step of the run."""
        self._trackio.log(dict(numbers), step=episode)

    def finish(self, numbers: Mapping[str, float]) -> None:
        """Log the final numbers, which Trackio has no summary for, under `final/`, and close."""
        if numbers:
            self._trackio.log({f"final/{name}": value for name, value in numbers.items()})
        self._trackio.finish()


class TensorboardTracker:
    """Event files in the folder `tensorboard` of the run folder, begun with the first numbers."""

    def __init__(self, name: str, folder: Path, config: Mapping[str, object]) -> None:
        """Remember the folder; nothing is written before the first numbers, and `name` is not used."""
        self._folder, self._config = folder / "tensorboard", config
        self._writer: Any = None
        self._last = 0

    def log(self, episode: int, numbers: Mapping[str, float]) -> None:
        """Write a scalar for each number."""
        self._last = episode
        self._write(episode, numbers)

    def finish(self, numbers: Mapping[str, float]) -> None:
        """Write the final numbers under `final/`, if any, and close the file if numbers were ever written."""
        if numbers:
            self._write(self._last, {f"final/{name}": value for name, value in numbers.items()})
        if self._writer is not None:
            self._writer.close()

    def _write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Append a scalar for each number to the event file, which is begun at the first call, and flush it."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        if self._writer is None:
            self._writer = EventFileWriter(str(self._folder))
        values = [Summary.Value(tag=name, simple_value=value) for name, value in numbers.items()]
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))
        self._writer.flush()


def _own_project(variable: str) -> str:
    """Return the project that a variable of the tracker's own names, else this package's."""
    return os.environ.get(variable) or PROJECT


TRACKERS: Mapping[str, Callable[[str, Path, Mapping[str, object]], Tracker]] = {
    "wandb": WandbTracker,
    "trackio": TrackioTracker,
    "tensorboard": TensorboardTracker,
}
"""Every tracker by its name, which is that of its package and of the extra that installs it."""


def require_trackers(names: Sequence[str]) -> None:
    """Raise `RunError` for the first tracker whose package is not installed; import none."""
    for name in names:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:  # a folder `wandb` of former runs looks like a package without files
            raise RunError(f"--log {name} needs {name}, which is not installed", remedy=install_command(name))


def open_tracker(kind: str, folder: Path, config: Mapping[str, object]) -> Tracker:
    """Begin a run of a tracker, named after the run folder.

    Raises:
        RunError: the tracker cannot begin a run, for the reason that the tracker gives.
    """
    try:
        return TRACKERS[kind](folder.resolve().name, folder, config)
    except Exception as error:  # each has errors of its own: no login, no network, a folder that cannot be written
        remedy = f"Mend it, or leave --log {kind} out."
        raise RunError(f"{kind} cannot begin a run: {type(error).__name__}: {error}", remedy=remedy) from error
