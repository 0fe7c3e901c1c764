"""The mapping of a log: a TOML file that says what the log does not say by itself. One form serves every kind of log.

It is `safevla-log.toml` in the log's folder, `NAME.toml` beside `NAME.mcap`, or a file anywhere whose key `log` names
the log; that file is then the SOURCE. `from` is a feature of a LeRobot dataset or a topic of an MCAP file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from safevla_bench.errors import Place, RecordError
from safevla_bench.files import read_input
from safevla_bench.trajectory.marks import LOG_BENCHMARK

NAME = "safevla-log.toml"

_LARGEST = 1 << 20
Positive = Annotated[float, Meta(gt=0)]
SCALES_M: Mapping[str, float] = {"m": 1.0, "cm": 0.01, "mm": 0.001}


class Columns(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Numbers of a feature or of a message: all of them, or those that are named or counted (from 0)."""

    source: str = msgspec.field(name="from")
    field: str | None = None
    """Where in a message they are, such as `pose.position`; None = as usual for the message."""
    names: tuple[str, ...] | None = None
    index: tuple[int, ...] | None = None
    scale: float = 1.0
    """What each number is multiplied with, to have it in the record's unit."""
    max_age_s: Positive | None = None
    """How long a message holds; None = twice the topic's median period."""


class PoseColumns(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A pose: position in the world and, where there is one, orientation."""

    source: str = msgspec.field(name="from")
    field: str | None = None
    frame: str | None = None
    """Of a topic of transforms, the child frame."""
    position: tuple[int, int, int] | None = None
    """Places of x, y and z in a feature; None = by name, else the first three."""
    quaternion: tuple[int, int, int, int] | None = None
    """Places of the quaternion in a feature; None = by name, else the four after the position; without any there is
    none."""
    quaternion_order: Literal["wxyz", "xyzw"] | None = None
    """Of a feature's numbers; the fields of a message have names. None = wxyz, with a warning where it looks wrong."""
    unit: Literal["m", "cm", "mm"] = "m"
    max_age_s: Positive | None = None
    """How long a message holds; None = until the next record for a body, else twice the topic's median period."""
    valid: str | None = None
    """A feature that is false where the tracker lost the body; numbers that are not finite say so too."""


class BodyColumns(PoseColumns, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A tracked body and its role."""

    role: Literal["robot", "target", "bystander", "furniture"]


class TorqueColumns(Columns, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Torques of the arm's joints in N·m, and their limits."""

    limits_nm: tuple[Positive, ...] | None = None


class GripColumns(Columns, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One number that tells whether the gripper holds something: it is between the two bounds, or true."""

    holds_above: float | None = None
    holds_below: float | None = None


class Episode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The facts of every episode of the log that it does not hold itself."""

    benchmark: str = LOG_BENCHMARK
    task: str | None = None
    """The task's id; None = made of the instruction, or of the file's name."""
    template: str | None = None
    """Kind of the task, such as `pnp-basic`, which decides what is judged of objects; of `real-robot` only."""
    policy: str | None = None
    success: bool | str | None = None
    """Whether the episodes succeeded, or the feature that says so in its last frame; None = `next.success`."""
    outcomes: Mapping[str, Literal["success", "failure", "timeout", "stopped"]] = {}
    """Episode -> how it ended, where they differ."""
    embodiment: str | None = None
    """The robot; the torque limits of a known one are used. None = as the dataset says."""
    target: str | None = None
    """The body that the task moves; None = the first of role target."""
    clock: str | None = None
    """The topic whose messages are the records; None = the end effector's, else the first that is mapped."""
    stamp: Literal["header", "log"] | None = None
    """Which of a message's times counts; None = the header's, where all of a topic are within a second of the log's."""


class LogMapping(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    log: str | None = None
    episode: Episode = Episode()
    eef: PoseColumns | None = None
    torque: TorqueColumns | None = None
    gripper: GripColumns | None = None
    action: Columns | None = None
    bodies: Mapping[str, BodyColumns] = {}

    @property
    def sources(self) -> dict[str, Columns | PoseColumns]:
        """Return what is read, by part of the record: `eef`, `torque`, `gripper`, `action`, then `bodies.NAME`.

        Parts that are not mapped are left out.
        """
        parts = {"eef": self.eef, "torque": self.torque, "gripper": self.gripper, "action": self.action}
        named = {name: part for name, part in parts.items() if part is not None}
        return {**named, **{f"bodies.{name}": body for name, body in self.bodies.items()}}


def read_mapping(path: Path) -> LogMapping:
    """Return the mapping in a file.

    Raises `RecordError` if the file cannot be read, is too large or no TOML, has a key or a value that the form does
    not know, or contradicts itself.
    """
    place = Place(file=str(path))
    remedy = "docs/real-robots.md shows the file's form."
    try:
        mapping = msgspec.convert(tomllib.loads(read_input(path, _LARGEST).decode("utf-8")), LogMapping)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RecordError(f"is no TOML: {error}", remedy=remedy, place=place) from None
    except msgspec.ValidationError as error:
        raise RecordError(f"is no mapping of a log: {error}", remedy=remedy, place=place) from None
    except OSError as error:
        raise RecordError(error.strerror or str(error), remedy="Name a file that can be read.", place=place) from None
    for problem in _find_problems(mapping):
        raise RecordError(problem, remedy=remedy, place=place)
    return mapping


def _find_problems(mapping: LogMapping) -> list[str]:
    targets = [name for name, body in mapping.bodies.items() if body.role == "target"]
    target, grip = mapping.episode.target, mapping.gripper
    problems = []
    if target is not None and target not in targets:
        problems.append(f"target {target!r} is no body of role target; those are: {', '.join(targets) or 'none'}")
    if grip is not None and len(grip.names or grip.index or ("the only one",)) != 1:
        problems.append("[gripper] is one number: give one name or one index")
    if mapping.episode.template is not None and mapping.episode.benchmark != LOG_BENCHMARK:
        problems.append(f"a template is for the benchmark {LOG_BENCHMARK}; tags of others are in a --rules file")
    return problems


def default_mapping(log: Path) -> tuple[LogMapping, Path | None]:
    """Return the mapping that lies with a log, and its file; an empty mapping and None if there is none.

    `NAME.toml` beside a log that is a file comes before `safevla-log.toml` in the folder. Raises `RecordError` as
    `read_mapping` does.
    """
    folder = log if log.is_dir() else log.parent
    beside = [] if log.is_dir() else [log.with_suffix(".toml")]
    for path in [*beside, folder / NAME]:
        if path.is_file():
            return read_mapping(path), path
    return LogMapping(), None
