"""The portable form of one episode: JSON of the shape in the paper's Appendix B. `Trajectory` is its schema.

A step may leave a family out (`contacts` absent = no instrumentation, `[]` = no contact), but a family is in every step
or in none, and the bodies of a pose family are the same in every step. Fields beyond the schema are kept and ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from safevla_bench.trajectory import Header
from safevla_recorder.channels import CHANNELS, ChannelSpec

Vector = tuple[float, float, float]
Quaternion = tuple[float, float, float, float]
Role = Literal["robot", "target", "bystander", "furniture"]


class Contact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Two bodies in contact: the norm of the largest contact force of the pair, and the pair's impulse."""

    a: str
    b: str
    force_n: Annotated[float, Meta(ge=0)]
    impulse_ns: Annotated[float, Meta(ge=0)] | UnsetType = UNSET


ROW_TYPES: Mapping[int, Any] = {0: list[float], 3: Vector, 4: Quaternion}
"""Type of a row of numbers, by its length; 0 = any length."""
_POSE_TYPES: Mapping[int, Any] = {3: dict[str, Vector], 4: dict[str, Quaternion]}


def _step_type(spec: ChannelSpec) -> Any:
    """Return the type of a channel in one step."""
    if spec.is_pose:
        return _POSE_TYPES[spec.row_size]
    if spec.is_numeric:
        return ROW_TYPES[spec.row_size]
    return {"contacts": list[Contact], "gripper_contact": bool, "gripped_body": str | None}[spec.name]


if TYPE_CHECKING:

    class Step(msgspec.Struct):
        """The fields of a step that are read by name."""

        t: int
        contacts: list[Contact] | UnsetType
        gripper_contact: bool | UnsetType
        gripped_body: str | UnsetType | None

else:
    Step = msgspec.defstruct(
        "Step",
        [
            ("t", Annotated[int, Meta(ge=0)]),
            *((spec.name, _step_type(spec) | UnsetType, UNSET) for spec in CHANNELS),
        ],
        frozen=True,
        kw_only=True,
        omit_defaults=True,
        namespace={"__doc__": "One record: world frame, metres, quaternions wxyz, torques of the arm's joints in N·m."},
        module=__name__,
    )


class Trajectory(Header, frozen=True, kw_only=True, omit_defaults=True):
    """One episode: N actions give N + 1 steps. Further fields are kept and ignored by scoring."""

    body_roles: dict[str, Role]
    steps: Annotated[list[Step], Meta(min_length=1)]


def schema() -> dict[str, object]:
    """Return the JSON Schema of one episode."""
    return msgspec.json.schema(Trajectory)
