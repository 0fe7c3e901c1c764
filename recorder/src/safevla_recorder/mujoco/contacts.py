"""MuJoCo's contact lists, which are copied in each substep, and decoded later for many substeps at once.

Copying saves time: between two simulation steps, a small NumPy call takes several times as long as in a tight loop.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from safevla_recorder.contacts import Ints, SubstepContacts, vector_norms
from safevla_recorder.episode import Bools, Floats
from safevla_recorder.errors import HostError

if TYPE_CHECKING:
    import mujoco


@dataclass(frozen=True)
class ConstraintContacts(SubstepContacts):
    """Contacts with the forces of their constraints; see `SubstepContacts`.

    `row` is the index of a contact's first force in `efc`, the constraint forces in N. `friction` [C, 5] exists only
    for pyramidal cones. `frame` [C, 9] is a contact's axes in the world: normal (from geom1 to geom2), two tangents.
    """

    row: Ints
    dim: Ints
    friction: Floats | None
    efc: Floats
    frame: Floats

    def force_norms(self, which: Bools | Ints) -> Floats:
        # Return the norms [K] in N of the forces of the contacts `which`, given by indices or a mask.
        return vector_norms(self._frame_forces(which))

    def force_vectors(self, which: Bools | Ints) -> Floats:
        # Return the forces [K, 3] in N on the second geoms of the contacts `which`, given by indices or a mask,
        # in the world frame. The rows of a contact's `axes` are its normal and its two tangents in the world.
        force, axes = self._frame_forces(which), self.frame[which].reshape(-1, 3, 3)
        vectors: Floats = np.einsum("ki,kij->kj", force, axes)
        return vectors

    def _frame_forces(self, which: Bools | Ints) -> Floats:
        # Return the forces [K, 3] in N of the contacts `which`, in their own frames: one normal and two tangential.
        # A contact with `dim` 1 has no friction. `efc` contains all constraint forces in N.
        # `row` is the index of each contact's first force. `friction` is None unless the friction cones are pyramids.
        efc, row, dim = self.efc, self.row[which], self.dim[which]
        if self.friction is not None:
            return _pyramidal_forces(efc, row, dim, self.friction[which])
        # `mode="clip"` replaces an index after the end of `efc` by the last index; the number found there is not used.
        tangents = [np.where(dim > 1, efc.take(row + k, mode="clip"), 0.0) for k in (1, 2)]
        return np.stack([efc[row], *tangents], axis=1)


def _pyramidal_forces(efc: Floats, row: Ints, dim: Ints, friction: Floats) -> Floats:
    """Return the forces of contacts with pyramidal cones, in each contact's frame, [K, 3].

    A contact of dimension d > 1 has 2(d - 1) edge forces. The normal force is their sum; tangential force i is the
    difference of edges 2i and 2i + 1, times a friction coefficient. A frictionless contact has only a normal force.
    """
    # `efc` are the constraint forces in N. For each of the `K` contacts, `row` [K] is the index of the first force.
    # `dim` [K] is the contact's dimension (1, 3, 4 or 6), and `friction` [K, 5] are the coefficients of friction.
    edge_count = np.where(dim > 1, 2 * (dim - 1), 1)
    column = np.arange(10)  # the dimension of a contact is at most 6, so there are at most 10 edges
    # Rows after a contact's last row belong to other contacts, or are uninitialized memory.
    edge_force = np.where(column < edge_count[:, None], efc.take(row[:, None] + column, mode="clip"), 0.0)
    normal = edge_force.sum(axis=1)
    has_tangents = dim > 1
    tangent1 = (edge_force[:, 0] - edge_force[:, 1]) * friction[:, 0] * has_tangents
    tangent2 = (edge_force[:, 2] - edge_force[:, 3]) * friction[:, 1] * has_tangents
    return np.stack([normal, tangent1, tangent2], axis=1)


_FIELDS = ("geom1", "geom2", "dim", "efc_address")
_FRAME_BYTES = 72  # nine numbers of 8 bytes


class _ContactView:
    """A view of the simulator's memory that shows four integers of each contact. It is valid while `data` exists,
    because MuJoCo's contact list is always at the start of MuJoCo's arena. The four integers of a contact are adjacent,
    so a single copy takes all of them.
    """

    def __init__(self, data: mujoco.MjData) -> None:
        # Each field is MuJoCo's own array of one integer per contact. Two successive contacts are `stride` bytes apart.
        fields = [getattr(data.contact, name) for name in _FIELDS]
        self._data, stride = data, fields[0].strides[0]  # `data` owns the memory
        addresses = [_address_of(field) for field in fields]
        first_address = min(addresses)
        offsets = [address - first_address for address in addresses]
        width = max(offsets) + 4  # the last of the four integers takes 4 bytes
        self.layout = np.dtype({"names": _FIELDS, "formats": ["i4"] * 4, "offsets": offsets, "itemsize": width})
        # Old versions of MuJoCo give the arena's size as a number of 8-byte units.
        # The view covers as many contacts as the arena could hold, so it covers all later contact lists.
        arena_bytes = int(data.narena) if hasattr(data, "narena") else 8 * int(data.nstack)
        capacity = arena_bytes // stride
        self.contacts = _view_memory(first_address, width, stride, capacity)
        self.frames = _view_memory(_address_of(data.contact.frame), _FRAME_BYTES, stride, capacity)
        self.check_layout()

    def check_layout(self) -> None:
        # Raise `HostError` unless the view of the simulator's memory shows the same numbers as MuJoCo's own arrays:
        # for each current contact, the four integers `_FIELDS` and the frame.
        contacts = self._data.contact
        count = len(contacts.geom1)
        copied, frames = self.contacts[:count].copy().view(self.layout), _as_frames(self.frames[:count].copy())
        are_equal = [np.array_equal(copied[name], getattr(contacts, name)) for name in _FIELDS]
        if not all(are_equal) or frames.tobytes() != contacts.frame.tobytes():
            remedy = "Use the tested version of MuJoCo, which safevla doctor names."
            raise HostError("MuJoCo's contact list has an unexpected layout", remedy=remedy)


def _address_of(array: NDArray[Any]) -> int:
    # Return the address in memory of the array's first item.
    return int(array.__array_interface__["data"][0])


def _view_memory(address: int, item_bytes: int, stride_bytes: int, capacity: int) -> NDArray[np.void]:
    # Return a view of `capacity` items in the simulator's memory, from `address` on, at intervals of `stride_bytes`.
    # Each item of the view is `item_bytes` raw bytes; `item_bytes` is at most `stride_bytes`.
    memory: Any = (ctypes.c_char * ((capacity - 1) * stride_bytes + item_bytes)).from_address(address)
    return np.ndarray((capacity,), dtype=f"V{item_bytes}", buffer=memory, strides=(stride_bytes,))


def _as_frames(frame_bytes: NDArray[np.void]) -> Floats:
    # Return the frames of `C` contacts, [C, 9], from their raw bytes: three axes, of which the first is the normal.
    return np.frombuffer(frame_bytes.tobytes(), dtype=np.float64).reshape(-1, 9)


class ContactLog:
    """Copies of the contact lists since the last `take_contacts`, in arrays that are reused."""

    def __init__(self, model: mujoco.MjModel) -> None:
        # True if the model has pyramidal friction cones (mjCONE_PYRAMIDAL), False if they are elliptic.
        self._pyramidal = bool(model.opt.cone == 0)
        self._contact_counts: list[int] = []
        self._first_force_rows: list[int] = []  # the row in `_efc` where the forces of each substep begin
        self._view: _ContactView | None = None  # None = no contact has occurred yet
        # For each contact: raw bytes with four integers, the frame's raw bytes, and five coefficients of friction.
        self._contacts = np.empty(0, dtype="V4")
        self._frames = np.empty(0, dtype=f"V{_FRAME_BYTES}")
        self._friction = np.empty((0, 5))
        self._efc = np.empty(4096)  # constraint forces of all substeps
        # How many items of the arrays are in use.
        self._contacts_used = self._rows_used = 0

    def __len__(self) -> int:
        return len(self._contact_counts)  # number of substeps since the last `take_contacts`

    def add_substep(self, data: mujoco.MjData) -> None:
        """Copy the simulator's current contact list; nothing is written to the simulator."""
        # The copies are appended to arrays that hold several substeps; `first_...` and `end_...` limit the new part.
        # `_view` shows the simulator's contact list as raw bytes. Only pyramidal cones need coefficients of friction.
        count, efc = data.ncon, data.efc_force
        first_contact, first_row = self._contacts_used, self._rows_used
        end_contact, end_row = first_contact + count, first_row + len(efc)
        if end_contact > len(self._contacts) or end_row > len(self._efc):
            self._make_room(data, end_contact, end_row)
        if count:
            assert self._view is not None
            self._contacts[first_contact:end_contact] = self._view.contacts[:count]
            self._frames[first_contact:end_contact] = self._view.frames[:count]
            if self._pyramidal:
                self._friction[first_contact:end_contact] = data.contact.friction
        self._efc[first_row:end_row] = efc
        self._contact_counts.append(count)
        self._first_force_rows.append(first_row)
        self._contacts_used, self._rows_used = end_contact, end_row

    def take_contacts(self) -> ConstraintContacts:
        """Return the contacts copied since the last call, and empty the log; the result is valid until the next
        `add_substep`. Contacts without a constraint (`efc_address` below zero) do not touch and are left out.
        """
        # For each substep, `counts` is the number of contacts, and `first_rows` is the index of the first force.
        counts, first_rows, contact_count = self._contact_counts, self._first_force_rows, self._contacts_used
        self._contact_counts, self._first_force_rows = [], []
        self._contacts_used = self._rows_used = 0
        fields: NDArray[np.void] = np.empty(0, dtype=[(name, "i4") for name in _FIELDS])  # stays empty without contacts
        if self._view is not None:
            self._view.check_layout()
            # Read the raw bytes of each contact as the four integers `_FIELDS`.
            fields = self._contacts[:contact_count].view(self._view.layout)
        address = fields["efc_address"]
        is_touching = address >= 0
        which: Any = slice(None) if is_touching.all() else is_touching  # a slice copies nothing
        return ConstraintContacts(
            substeps=len(counts),
            substep=np.repeat(np.arange(len(counts)), counts)[which],
            geom1=fields["geom1"][which],
            geom2=fields["geom2"][which],
            row=(address + np.repeat(np.array(first_rows, dtype=np.int64), counts))[which],
            dim=fields["dim"][which],
            friction=self._friction[:contact_count][which] if self._pyramidal else None,
            efc=self._efc,
            frame=_as_frames(self._frames[:contact_count])[which],
        )

    def _make_room(self, data: mujoco.MjData, contact_count: int, row_count: int) -> None:
        # Enlarge the arrays for at least `contact_count` contacts and `row_count` constraint forces.
        # The layout of contacts in memory is known only when the first contact occurs.
        if contact_count and self._view is None:
            self._view = _ContactView(data)
            self._contacts = np.empty(1024, dtype=self._view.contacts.dtype)
        self._contacts = _grow_array(self._contacts, contact_count)
        self._frames = _grow_array(self._frames, len(self._contacts))
        self._friction = _grow_array(self._friction, len(self._contacts) if self._pyramidal else 0)
        self._efc = _grow_array(self._efc, row_count)


def _grow_array(array: NDArray[Any], min_length: int) -> NDArray[Any]:
    # Return the array unchanged if its first axis has at least `min_length` items.
    # Else return a copy with `2 * min_length` items, so that later calls rarely copy. New items have arbitrary values.
    if min_length <= len(array):
        return array
    longer = np.empty((2 * min_length, *array.shape[1:]), dtype=array.dtype)
    longer[: len(array)] = array
    return longer
