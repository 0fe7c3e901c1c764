"""The channels of an episode. Arrays, files, validation and the JSON schema are derived from the table `CHANNELS`.

Shapes contain these counts: `n` records; `P` bodies with positions; `Q` with orientations; `V` whose tracking can fail;
`W` of known weight; `D` doors and drawers; `I` with a known interior; `J` joints; `A` numbers per action; `K` costs;
`S` numbers in a simulator state; `M` components of motion; `G` predicates of the goal; `C` contacts. An episode of `n`
records has `n - 1` actions. If a robot has several arms, each row of a channel with `per_arm` holds the values of all
arms, one arm after the other. The joints in a row have the same order.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Mapping

REAL, PLACE, TRUTH = "<f8", "<i8", "|b1"
LARGEST = 1e100
"""Largest magnitude of a valid number. Plausible numbers are far smaller, and squares of valid numbers are finite."""
NET_FORCE = "net_force_n"
NET_IMPULSE = "net_impulse_ns"
OF_CONTACTS = (NET_FORCE, NET_IMPULSE)  # columns of `contacts` that older records lack
LINK_MOTION = "link_motion"
"""Motion since record 0 of the movable parts in the header's `geometry`: `M` columns, one per component."""
POLICY_ACTION = "policy_action"  # the policy's own actions, if a filter changed some of them
CHUNK_STEP = "chunk_step"
"""For a policy that computes chunks of several actions: the index of each action's chunk in the episode, and the index
of the action in the chunk. −1 = the action is not from a chunk."""
LABEL_COST = "label_cost"
"""Costs that the simulator reports in each step, such as `info["cost"]`; the header field `LABELS` names the `K`
columns. −1 = the step has no such cost."""
LABELS = "labels"
SUBGOALS = "subgoals"
"""Whether each predicate of the goal holds, as evaluated by the simulator. `SUBGOAL_NAMES` names the `G` columns."""
SUBGOAL_NAMES = "subgoal_names"
HANDLING = ("supported", "opening", "entered")
"""Channels that older records lack. `supported`: whether contacts with bodies other than the robot carry at least half
of a body's weight. `opening`: how far a door or drawer is open, as a share of its travel. `entered`: whether the end
effector is inside a door or drawer."""
UNREPLAYED = (POLICY_ACTION, CHUNK_STEP, LABEL_COST)
"""Channels that the simulator's state does not determine. A replay lacks these channels, or gives other values."""


@dataclass(frozen=True)
class ChannelSpec:
    """One channel: its name, the shape of its array, dtype, unit, and the checks on its numbers.

    Every channel is optional. A channel that was not recorded has no array, and clauses that need it are not judged.
    """

    name: str
    shape: tuple[str | int, ...]
    """The first symbol is `n` (one row per record), `n-1` (one per action) or `C` (one per contact)."""
    dtype: str = REAL
    unit: str = ""
    bodies: str = ""
    """Name of the array that lists the channel's bodies, as indices in `roles`; empty = no values for bodies."""
    is_bounded: bool = False  # true if magnitudes above `LARGEST` are rejected
    is_rotation: bool = False  # true if the last axis holds quaternions wxyz; a norm of zero is rejected
    is_rare: bool = False  # true if tables of episodes omit the channel when no episode recorded the channel
    per_arm: bool = False  # true if each row has these numbers for each arm of a robot with several arms

    @property
    def is_numeric(self) -> bool:
        """True unless the channel describes contacts. Booleans and indices in `roles` (−1 = no body) are numeric."""
        return self.shape[0] != "C"  # the first symbol is "C" if each row belongs to a contact

    @property
    def is_pose(self) -> bool:
        """True if each row has values for several bodies. Values are poses or, as in `opening`, numbers."""
        # `bodies` is the name of the array that lists the channel's bodies; empty = rows do not list bodies.
        return bool(self.bodies)

    @property
    def is_truth(self) -> bool:
        """True if the values are Booleans."""
        return self.dtype == TRUTH

    @property
    def is_grip(self) -> bool:
        """True if each row says whether the gripper has contact, or which body it holds."""
        # A row of one Boolean or one index of a body occurs only in channels about the grip.
        return self.dtype != REAL and self.is_scalar

    @property
    def is_scalar(self) -> bool:
        """True if each row is a single value, not a list."""
        # `shape` contains one item for each axis; the first item is the number of rows.
        return len(self.shape) == 1

    @property
    def is_per_action(self) -> bool:
        """True if an episode of n records has n - 1 rows, one per action."""
        return self.shape[0] == "n-1"

    @property
    def row_size(self) -> int:
        """Length of the last axis; 0 if the length varies."""
        # In `shape`, a fixed length is a number; a length that varies is a symbol such as `J`.
        return self.shape[-1] if isinstance(self.shape[-1], int) else 0

    @property
    def pose_size(self) -> int:
        """Number of values for each body in a row: 3, 4 or 1."""
        # A position has 3 values, a quaternion 4. All other channels have a single value for each body.
        return self.row_size or 1


CHANNELS = (
    ChannelSpec("eef_pos_m", ("n", 3), unit="m", is_bounded=True, per_arm=True),
    ChannelSpec("eef_quat_wxyz", ("n", 4), is_rotation=True, per_arm=True),
    ChannelSpec("body_pos_m", ("n", "P", 3), unit="m", bodies="pos_bodies", is_bounded=True),
    ChannelSpec("body_quat_wxyz", ("n", "Q", 4), bodies="quat_bodies", is_rotation=True),
    ChannelSpec("contacts", ("C",), unit="N, N·s"),
    ChannelSpec(NET_FORCE, ("C",), unit="N", is_rare=True),
    ChannelSpec(NET_IMPULSE, ("C",), unit="N·s", is_rare=True),
    ChannelSpec("joint_torque_nm", ("n", "J"), unit="N·m", is_bounded=True),
    ChannelSpec("joint_torque_peak_nm", ("n", "J"), unit="N·m", is_bounded=True),
    ChannelSpec("gripper_contact", ("n",), dtype=TRUTH, per_arm=True),
    ChannelSpec("gripped_body", ("n",), dtype=PLACE, per_arm=True),
    ChannelSpec("action", ("n-1", "A")),
    ChannelSpec(POLICY_ACTION, ("n-1", "A"), is_rare=True),
    ChannelSpec(CHUNK_STEP, ("n-1", 2), is_bounded=True, is_rare=True),
    ChannelSpec(LABEL_COST, ("n-1", "K"), is_bounded=True, is_rare=True),
    ChannelSpec("sim_state", ("n", "S")),
    ChannelSpec("pose_valid", ("n", "V"), dtype=TRUTH, bodies="valid_bodies", is_rare=True),
    ChannelSpec("supported", ("n", "W"), dtype=TRUTH, bodies="supported_bodies", is_rare=True),
    ChannelSpec("opening", ("n", "D"), bodies="opening_bodies", is_bounded=True, is_rare=True),
    ChannelSpec("entered", ("n", "I"), dtype=TRUTH, bodies="entered_bodies", is_rare=True),
    ChannelSpec("time_s", ("n",), unit="s", is_bounded=True, is_rare=True),
    ChannelSpec("wrist_force_n", ("n", 3), unit="N", is_bounded=True, is_rare=True, per_arm=True),
    ChannelSpec(LINK_MOTION, ("n", "M"), unit="rad, m", is_bounded=True, is_rare=True),
    ChannelSpec(SUBGOALS, ("n", "G"), dtype=TRUTH, is_rare=True),
)
CONTACT_COLUMNS = {
    "step": PLACE,
    "a": PLACE,
    "b": PLACE,
    **dict.fromkeys(("force_n", "impulse_ns", *OF_CONTACTS), REAL),
}
"""Dtype of each column of `contacts`. `step` is the record's index. NaN = the force or impulse was not recorded."""
FORCES = ("force_n", NET_FORCE)
"""`force_n` is the largest force at one contact point, `net_force_n` is the net force between two bodies."""


NUMERIC = tuple(channel for channel in CHANNELS if channel.is_numeric)
ROWS = tuple(channel for channel in NUMERIC if not channel.is_pose)
POSES = tuple(channel for channel in NUMERIC if channel.is_pose)


def recorded_forces(forces: Any) -> tuple[str, ...]:
    """Return which of `FORCES` a record has, given its header's `forces`; None (in older records) means `force_n`."""
    return FORCES[:1] if forces is None else tuple(forces)


def as_fields(owner: type, channels: Mapping[str, Any]) -> dict[str, Any]:
    """Return channels as keyword arguments for the dataclass `owner`. Channels that are not fields of `owner` are
    collected in `further`, unless they are None.
    """
    # `channels` maps names to arrays or other values; None = not recorded.
    field_names = {field.name for field in fields(owner)}
    named = {name: values for name, values in channels.items() if name in field_names}
    further = {name: values for name, values in channels.items() if name not in field_names and values is not None}
    return {**named, "further": further}
