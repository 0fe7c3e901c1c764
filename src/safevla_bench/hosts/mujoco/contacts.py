"""Contact lists of MuJoCo: which geoms touch, with what force, copied substep by substep and decoded at once.

Copying is all that happens between two substeps; the arithmetic is done later, over many substeps at once, because a
small NumPy call in the middle of a simulation costs several times what it costs in a row.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import HostError
from safevla_bench.trajectory import ContactList

if TYPE_CHECKING:
    import mujoco

Floats = NDArray[np.float64]
Ints = NDArray[np.integer]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Touches:
    """Geom pairs that touch in some substeps, [C] each, in the simulator's order.

    `row` is the place of a contact's first constraint force in `efc`, newton; `friction` [C, 5] is there for
    pyramidal cones only.
    """

    substeps: int
    substep: Ints
    geom1: Ints
    geom2: Ints
    row: Ints
    dim: Ints
    friction: Floats | None
    efc: Floats

    def forces(self, which: Bools | Ints) -> Floats:
        """Norm of the 3-D force of the chosen contacts in newton, normal and both tangents, no torques, [K]."""
        if self.friction is None:
            return elliptic(self.efc, self.row[which], self.dim[which])
        return pyramidal(self.efc, self.row[which], self.dim[which], self.friction[which])


def elliptic(efc: Floats, row: Ints, dim: Ints) -> Floats:
    """Force norms under elliptic cones, [K]: the constraint forces are the contact force itself, normal first."""
    normal = efc[row]
    sliding = dim > 1
    tangent1 = efc.take(row + 1, mode="clip") * sliding
    tangent2 = efc.take(row + 2, mode="clip") * sliding
    norm: Floats = np.sqrt(normal * normal + tangent1 * tangent1 + tangent2 * tangent2)
    return norm


def pyramidal(efc: Floats, row: Ints, dim: Ints, friction: Floats) -> Floats:
    """Force norms under pyramidal cones, [K].

    A contact of dimension d > 1 has 2(d - 1) edge forces: the normal is their sum, the tangent i the difference of
    edges 2i and 2i + 1 times its friction coefficient; a frictionless one has its normal alone.
    """
    edges = np.where(dim > 1, 2 * (dim - 1), 1)
    column = np.arange(10)
    taken = efc.take(row[:, None] + column, mode="clip") * (column < edges[:, None])
    normal = taken.sum(axis=1)
    sliding = dim > 1
    tangent1 = (taken[:, 0] - taken[:, 1]) * friction[:, 0] * sliding
    tangent2 = (taken[:, 2] - taken[:, 3]) * friction[:, 1] * sliding
    norm: Floats = np.sqrt(normal * normal + tangent1 * tangent1 + tangent2 * tangent2)
    return norm


def peaks(touches: Touches, which: Ints, owner: Ints, place: Ints, substep_s: float | None) -> ContactList:
    """The chosen contacts, one a record and body pair.

    `owner` [substeps] is the record of each substep, `place` [G] the body of each geom. The peak is the largest
    single contact, the impulse the sum over substeps and contacts of force times `substep_s`; None = an instant, whose
    impulse is unknown: NaN. Ordered by record, then a < b.
    """
    one, other = place[touches.geom1[which]], place[touches.geom2[which]]
    bodies = int(place.max()) + 1
    key = (owner[touches.substep[which]] * bodies + np.minimum(one, other)) * bodies + np.maximum(one, other)
    found, member = np.unique(key.astype(np.int64), return_inverse=True)
    force = touches.forces(which)
    peak = np.zeros(len(found))
    np.maximum.at(peak, member, force)
    seconds = np.float64(np.nan if substep_s is None else substep_s)
    impulse: Floats = np.bincount(member, weights=force, minlength=len(found)) * seconds
    record, pair = np.divmod(found, bodies * bodies)
    return ContactList(record, *np.divmod(pair, bodies), peak, impulse)


def joined(lists: Sequence[ContactList]) -> ContactList:
    """Contact lists of successive records as one."""
    names = ("record", "a", "b", "force_n", "impulse_ns")
    return ContactList(*(np.concatenate([getattr(one, name) for one in lists]) for name in names))


_FIELDS = ("geom1", "geom2", "dim", "efc_address")


class _Window:
    """The four integers of each contact that the log needs, seen together in the simulator's own memory.

    MuJoCo's bindings give a strided view of one field at a time. The fields lie side by side in each contact, and the
    list begins where the arena does, so that one view serves a whole episode and one copy takes all four.
    """

    def __init__(self, data: mujoco.MjData) -> None:
        fields = [getattr(data.contact, name) for name in _FIELDS]
        self._data, stride = data, fields[0].strides[0]  # the data own the memory
        starts = [_address(field) for field in fields]
        base = min(starts)
        width = max(starts) - base + 4
        self.layout = np.dtype(
            {"names": _FIELDS, "formats": ["i4"] * 4, "offsets": [start - base for start in starts], "itemsize": width}
        )
        room = int(data.narena) // stride
        memory = (ctypes.c_char * ((room - 1) * stride + width)).from_address(base)
        self.contacts = np.ndarray((room,), dtype=f"V{width}", buffer=memory, strides=(stride,))
        self.check()

    def check(self) -> None:
        """Raise `HostError` where the view is not what the bindings say."""
        listed = self._data.contact
        copied = self.contacts[: len(listed.geom1)].copy().view(self.layout)
        if not all(np.array_equal(copied[name], getattr(listed, name)) for name in _FIELDS):
            remedy = "Use the version of MuJoCo that the project is tested with: see safevla doctor."
            raise HostError("MuJoCo's contact list is not where it was", remedy=remedy)


def _address(array: Ints) -> int:
    return int(array.__array_interface__["data"][0])


class ContactLog:
    """Copies of the contact lists since the last `take`, in arrays that are kept and used again."""

    def __init__(self, model: mujoco.MjModel) -> None:
        self._pyramidal = bool(model.opt.cone == 0)
        self._counts: list[int] = []
        self._rows: list[int] = []
        self._window: _Window | None = None
        self._contacts = np.empty(0, dtype="V4")
        self._friction = np.empty((0, 5))
        self._efc = np.empty(4096)
        self._contacts_used = self._rows_used = 0

    def __len__(self) -> int:
        return len(self._counts)

    def note(self, data: mujoco.MjData) -> None:
        """Copy the contact list as it stands; writes nothing to the simulator."""
        count, efc = data.ncon, data.efc_force
        start, row = self._contacts_used, self._rows_used
        end, last = start + count, row + len(efc)
        if end > len(self._contacts) or last > len(self._efc):
            self._grow(data, end, last)
        if count:
            assert self._window is not None
            self._contacts[start:end] = self._window.contacts[:count]
            if self._pyramidal:
                self._friction[start:end] = data.contact.friction
        self._efc[row:last] = efc
        self._counts.append(count)
        self._rows.append(row)
        self._contacts_used, self._rows_used = end, last

    def take(self) -> Touches:
        """The contacts noted, one substep a note, and an empty log after; good until the next `note`.

        A listed contact without constraint (`efc_address` below zero) does not touch and is left out.

        Raises:
            HostError: the simulator's memory is not laid out as it was when the log began.
        """
        counts, rows, used = self._counts, self._rows, self._contacts_used
        self._counts, self._rows, self._contacts_used, self._rows_used = [], [], 0, 0
        listed = self._listed(used)
        address = listed["efc_address"]
        whole = Touches(
            substeps=len(counts),
            substep=np.repeat(np.arange(len(counts)), counts),
            geom1=listed["geom1"],
            geom2=listed["geom2"],
            row=address + np.repeat(np.array(rows, dtype=np.int64), counts),
            dim=listed["dim"],
            friction=self._friction[:used] if self._pyramidal else None,
            efc=self._efc,
        )
        touching = address >= 0
        return whole if touching.all() else _only(whole, touching)

    def _listed(self, used: int) -> NDArray[np.void]:
        if self._window is None:  # no contact yet
            return np.empty(0, dtype=[(name, "i4") for name in _FIELDS])
        self._window.check()
        return self._contacts[:used].view(self._window.layout)

    def _grow(self, data: mujoco.MjData, contacts: int, rows: int) -> None:
        """Room for at least twice as much as asked for, what is there kept."""
        if contacts and self._window is None:
            self._window = _Window(data)
            self._contacts = np.empty(1024, dtype=self._window.contacts.dtype)
        self._contacts = _longer(self._contacts, contacts)
        self._friction = _longer(self._friction, len(self._contacts) if self._pyramidal else 0)
        self._efc = _longer(self._efc, rows)


def _longer(array: NDArray[Any], wanted: int) -> NDArray[Any]:
    if wanted <= len(array):
        return array
    longer = np.empty((2 * wanted, *array.shape[1:]), dtype=array.dtype)
    longer[: len(array)] = array
    return longer


def _only(touches: Touches, which: Bools) -> Touches:
    columns = ("substep", "geom1", "geom2", "row", "dim")
    friction = None if touches.friction is None else touches.friction[which]
    return replace(touches, friction=friction, **{name: getattr(touches, name)[which] for name in columns})
