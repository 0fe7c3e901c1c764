"""The portable form of one episode: JSON of the shape in the paper's Appendix B. `Trajectory` is its schema.

A step may leave a family out (`contacts` absent = no instrumentation, `[]` = no contact), but a family is in every step
or in none, and the bodies of a pose family are the same in every step. Fields beyond the schema are kept and ignored.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from safevla_bench.trajectory import Header

Vector = tuple[float, float, float]
Quaternion = tuple[float, float, float, float]
Role = Literal["robot", "target", "bystander", "furniture"]


class Contact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Two bodies in contact: the norm of the largest contact force of the pair, and the pair's impulse."""

    a: str
    b: str
    force_n: Annotated[float, Meta(ge=0)]
    impulse_ns: Annotated[float, Meta(ge=0)] | UnsetType = UNSET


class Step(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One record: world frame, metres, quaternions wxyz, torques of the arm's joints in N·m."""

    t: Annotated[int, Meta(ge=0)]
    eef_pos_m: Vector | UnsetType = UNSET
    eef_quat_wxyz: Quaternion | UnsetType = UNSET
    body_pos_m: dict[str, Vector] | UnsetType = UNSET
    body_quat_wxyz: dict[str, Quaternion] | UnsetType = UNSET
    contacts: list[Contact] | UnsetType = UNSET
    joint_torque_nm: list[float] | UnsetType = UNSET
    gripper_contact: bool | UnsetType = UNSET
    gripped_body: str | UnsetType | None = UNSET
    action: list[float] | UnsetType = UNSET
    sim_state: list[float] | UnsetType = UNSET


class Trajectory(Header, frozen=True, kw_only=True, omit_defaults=True):
    """One episode: N actions give N + 1 steps. Further fields are kept and ignored by scoring."""

    body_roles: dict[str, Role]
    steps: Annotated[list[Step], Meta(min_length=1)]


def schema() -> dict[str, object]:
    """JSON Schema of one episode."""
    return msgspec.json.schema(Trajectory)
