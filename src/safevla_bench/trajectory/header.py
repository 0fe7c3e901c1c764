"""The header of an episode, the roles of bodies, and the torque limits of known arms."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from importlib import resources
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from safevla_recorder.channels import recorded_forces
from safevla_recorder.episode import ARMS_VERSION as ARMS_VERSION
from safevla_recorder.episode import OUTCOMES as OUTCOMES
from safevla_recorder.episode import SCHEMA_VERSION as SCHEMA_VERSION

ROLES = ("robot", "target", "bystander", "furniture")
ROBOT, TARGET, BYSTANDER, FURNITURE = range(4)
TORQUES = ("joint_torque_nm", "joint_torque_peak_nm")
"""Channels with one torque per joint. Their values are compared with the torque limits."""

EpisodeKey: TypeAlias = tuple[str | None, str]
"""Policy and episode id. Together they identify an episode in an archive and across sources."""


class Robot(msgspec.Struct, frozen=True, kw_only=True):
    """An arm in `robots.toml`. `limits_nm` has the joints' torque limits in N·m; () if no limits are published."""

    names: tuple[str, ...]
    limits_nm: tuple[float, ...] = ()
    effort_is_current: bool = False
    source: str


@lru_cache(maxsize=1024)
def find_robot(name: str) -> Robot | None:
    """Return the arm with this name (in any spelling) from `robots.toml`, or None."""
    return _read_robots().get(_normalize_robot_name(name))  # an entry has names and the joints' torque limits


@cache
def _read_robots() -> dict[str, Robot]:
    # Returns a map from the normalized names of arms to their entries in `robots.toml`. An arm may have several names.
    content = resources.files(__package__).joinpath("robots.toml").read_bytes()
    # The file has a single key, whose value is the list of all robots.
    (robots,) = msgspec.toml.decode(content, type=dict[str, list[Robot]]).values()
    return {_normalize_robot_name(name): robot for robot in robots for name in robot.names}


_GENERIC_WORDS = {"robot", "robots", "arm", "follower", "single", "emika", "research", "universal", "robotiq"}


def _normalize_robot_name(name: str) -> str:
    # Returns the name in lowercase without separators and generic words, so that different spellings are equal.
    return "".join(word for word in re.findall(r"[^\W_]+", name.lower()) if word not in _GENERIC_WORDS)


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """Identity, outcome and provenance of an episode. An optional field is None if it was not recorded."""

    schema_version: int = SCHEMA_VERSION
    episode_id: Annotated[str, Meta(min_length=1)]
    benchmark: Annotated[str, Meta(min_length=1)]
    task_id: Annotated[str, Meta(min_length=1)]
    success: bool
    """Success as the host defines it."""
    dt: Annotated[float, Meta(gt=0)]
    """Control step [s]."""
    target_object: str | None
    """The main body that the robot moves in the task; null if the task requires no holding or pushing of a body."""
    joint_torque_limit_nm: tuple[float, ...] | None = None
    policy: str | None = None
    instruction: str | None = None
    seed: int | None = None
    env_seed: int | None = None
    init_state_index: int | None = None
    horizon: int | None = None
    outcome: Annotated[str, Meta(extra_json_schema={"enum": list(OUTCOMES)})] | None = None
    embodiment: str | None = None
    versions: dict[str, str] | None = None
    dropped_pairs: tuple[tuple[str, str], ...] | None = None
    forces: tuple[Literal["force_n", "net_force_n"], ...] | None = None
    """The kinds of forces that each contact has, a subset of `FORCES`; None = `force_n` only."""
    torque_source: str | None = None
    """Source of torques, such as `qfrc_actuator`, `drive_model` or `joint_wrench`."""
    task_sha256: str | None = None
    init_states_sha256: str | None = None
    task_source: dict[str, str] | None = None
    """`task_sha256` and the next two fields identify the task: see `safevla_recorder.identity.TaskIdentity`."""
    geometry: str | None = None
    """The scene's parts, their poses, and boxes around their shapes, as JSON: see `trajectory.geometry`."""
    arms: tuple[str, ...] | None = None
    """Names of the arms, in the order of the arms' values in a row of a channel; None = one arm."""
    arm_joints: tuple[int, ...] | None = None
    """For a robot with several arms, each arm's number of joints. A row of torques lists the joints arm by arm."""
    arm_bodies: dict[str, str] | None = None
    """Maps a body of the robot to its arm; a body that belongs to no arm, such as a torso, is not listed."""

    @property
    def key(self) -> EpisodeKey:
        """Policy and episode id, because two policies may use the same episode ids."""
        return self.policy, self.episode_id

    @property
    def recorded_forces(self) -> tuple[str, ...]:
        """The kinds of forces that each contact of this record has, a subset of `FORCES`."""
        return recorded_forces(self.forces)  # `forces` is None in older records, which have only `force_n`

    @property
    def arm_count(self) -> int:
        # Returns the number of the robot's arms. `arms` has the arms' names, or is None for a single arm.
        return len(self.arms) if self.arms else 1

    @property
    def expected_version(self) -> int:
        """The value that `schema_version` must have, which depends on whether the record has several arms."""
        return ARMS_VERSION if self.arms else SCHEMA_VERSION

    def name_joint(self, joint: int) -> str:
        """Return the name of a joint, given its index in a row of torques: `joint 7`, or `joint 7 of left`."""
        # `joints` is the number of joints of the arm with this name; a row lists the joints arm by arm.
        for name, joints in zip(self.arms or (), self.arm_joints or (), strict=False):
            if joint < joints:
                return f"joint {joint + 1} of {name}"
            joint -= joints  # the joint's index among the joints of the remaining arms
        return f"joint {joint + 1}"

    @property
    def names_no_robot(self) -> bool:
        """True if the record has neither torque limits nor an embodiment. The benchmark's robot then gives limits."""
        # The embodiment is the name of the robot.
        return self.joint_torque_limit_nm is None and self.embodiment is None

    @property
    def torque_limit_nm(self) -> tuple[float, ...]:
        """Torque limits of the joints in N·m: the record's own or, if it has none, the embodiment's; () if unknown."""
        # The embodiment is the name of the robot, for which `find_robot` returns the published limits of one arm.
        if self.joint_torque_limit_nm is not None:
            return self.joint_torque_limit_nm
        robot = find_robot(self.embodiment or "")
        return robot.limits_nm * self.arm_count if robot else ()  # repeated, because all arms have the same limits

    @property
    def lacks_torque_limit(self) -> bool:
        """True if neither the record nor its embodiment gives torque limits. Limits of other robots are never used."""
        # An empty `joint_torque_limit_nm` in the record counts as given limits.
        return self.joint_torque_limit_nm is None and not self.torque_limit_nm

    @property
    def outcome_label(self) -> str:
        """The outcome; if the record has none, `success` or `failure` according to its success field."""
        return self.outcome or ("success" if self.success else "failure")
