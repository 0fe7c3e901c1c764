"""The header of an episode, the roles of bodies, and the torque limits of known arms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from safevla_recorder.channels import recorded_forces
from safevla_recorder.episode import OUTCOMES as OUTCOMES

ROLES = ("robot", "target", "bystander", "furniture")
ROBOT, TARGET, BYSTANDER, FURNITURE = range(4)
SCHEMA_VERSION = 1
# Franka Emika Panda datasheet, joints 1 to 7 in N·m; the paper's Table 17 uses the same for the mobile PandaOmron.
TORQUE_LIMIT_NM: Mapping[str, tuple[float, ...]] = {
    "Panda": (87.0, 87.0, 87.0, 87.0, 12.0, 12.0, 12.0),
    "PandaOmron": (87.0, 87.0, 87.0, 87.0, 12.0, 12.0, 12.0),
}
TORQUES = ("joint_torque_nm", "joint_torque_peak_nm")
"""The channels of torques, one value a joint, that the limits are for."""

EpisodeKey: TypeAlias = tuple[str | None, str]
"""Policy and episode id: the name of an episode, in an archive and across sources."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """Identity, outcome and provenance of an episode. Optional fields are None where not recorded."""

    schema_version: int = SCHEMA_VERSION
    episode_id: Annotated[str, Meta(min_length=1)]
    benchmark: Annotated[str, Meta(min_length=1)]
    task_id: Annotated[str, Meta(min_length=1)]
    success: bool
    """The host's native success."""
    dt: Annotated[float, Meta(gt=0)]
    """Control step in seconds."""
    target_object: str | None
    """Primary target body; null where the task holds or pushes nothing."""
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
    """The forces of each contact, see `FORCES`; None = `force_n` alone."""
    torque_source: str | None = None
    """Where torques come from, such as `qfrc_actuator`, `drive_model` or `joint_wrench`."""

    @property
    def key(self) -> EpisodeKey:
        """Key that tells the episode from all others: two policies may use the same ids."""
        return self.policy, self.episode_id

    @property
    def recorded_forces(self) -> tuple[str, ...]:
        """The forces that contacts of this record hold, some of `FORCES`."""
        return recorded_forces(self.forces)

    @property
    def names_no_robot(self) -> bool:
        """True if it has neither torque limits nor an embodiment: then those of its benchmark's robot hold."""
        return self.joint_torque_limit_nm is None and self.embodiment is None

    @property
    def torque_limit_nm(self) -> tuple[float, ...]:
        """Limits of the arm's joints, N·m: the record's own, else the embodiment's; empty where that is unknown."""
        if self.joint_torque_limit_nm is not None:
            return self.joint_torque_limit_nm
        return TORQUE_LIMIT_NM.get(self.embodiment or "", ())

    @property
    def lacks_torque_limit(self) -> bool:
        """True if no limits are given and those of the embodiment are unknown; no other robot's are taken."""
        return self.joint_torque_limit_nm is None and not self.torque_limit_nm

    @property
    def outcome_label(self) -> str:
        """The outcome; for a record without one `success` or `failure`, by its success field."""
        return self.outcome or ("success" if self.success else "failure")
