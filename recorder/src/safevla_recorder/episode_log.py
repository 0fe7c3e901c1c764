"""The records of one episode as they come, of any simulator: rows, actions, and contacts that are decoded in blocks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Mapping, Protocol, Sequence

import numpy as np
from numpy.typing import NDArray

from safevla_recorder.contacts import (
    NOTHING,
    ContactFilter,
    GeomMap,
    SubstepContacts,
    contact_peaks,
    gripped_bodies,
    join_contacts,
)
from safevla_recorder.episode import Action, ContactList, Floats, Recording
from safevla_recorder.errors import HostError

BLOCK = 32
"""Control steps whose contacts are decoded together; bounds the copies to a few megabytes."""
Row = Mapping[str, Floats]
"""Arrays that were read at the end of one control step, by name."""


class ContactSource(Protocol):
    """Contacts copied since the last `take_contacts`; its length is the number of substeps."""

    def __len__(self) -> int: ...

    def take_contacts(self) -> SubstepContacts:
        """Return the contacts copied since the last call, and empty the source."""


def assemble_recording(
    geoms: GeomMap,
    header: Mapping[str, object],
    records: int,
    contacts: ContactList | None,
    gripped: NDArray[np.int64] | None,
    channels: Mapping[str, object],
) -> Recording:
    """Return an episode whose further fields are `channels`. Without finger groups grips are None."""
    gripped = gripped if geoms.fingers is not None else None
    forces = None if contacts is None else geoms.forces
    return Recording(
        header={"forces": forces, "torque_source": geoms.torque_source, **header},
        roles=geoms.roles,
        records=records,
        contacts=contacts,
        gripper_contact=None if gripped is None else np.not_equal(gripped, NOTHING),
        gripped_body=gripped,
        **channels,  # type: ignore[arg-type]  # each is a field of `Recording`
    )


class EpisodeLog(ABC):
    """The records of a recorder's episode: a row each, whose channels are made when they are asked for.

    What reads them raises `HostError` if no episode has begun.
    """

    def __init__(self) -> None:
        """Hold no episode."""
        self._rows: list[Row] = []

    @abstractmethod
    def _build_channels(self, rows: Sequence[Row]) -> Mapping[str, object]:
        """Return the fields of a `Recording` that hold what was read, one row each."""

    def _begin_log(self, geoms: GeomMap, source: ContactSource | None, first: Row) -> None:
        """Begin an episode with record 0, whose row is `first`, and decode its contacts, which empties `source`.

        That holds the contacts of each control step when it ends, too; None = the simulator tells none.
        """
        self._geoms, self._source = geoms, source
        self._rows = [first]
        self._actions: list[Action] = []
        self._ends: list[int] = []  # substeps copied until the end of each record that is not decoded yet
        self._decoded: list[ContactList] = []
        self._gripped: list[NDArray[np.int64]] = []
        self._filter: ContactFilter | None = None
        self._torn: int | None = None  # the record whose substeps were decoded, and left out, before its end
        if source is not None:
            contacts = source.take_contacts()
            self._filter = ContactFilter(geoms, contacts)
            self._decode_contacts(contacts, np.array([1]), substep_s=None)

    def _require_begun(self) -> None:
        if not self._rows:
            raise HostError("no episode has begun", remedy="Call begin first, after settling.")

    def _add_step(self, action: Action, row: Row) -> None:
        """Add the record of the control step that `action` [A] drove; decode contacts every `BLOCK` steps.

        Raises `HostError` if the action is of complex numbers, records were read in the middle of this control step, so
        that some of its contacts are lost, or the source cannot tell its contacts.
        """
        if np.iscomplexobj(action):
            raise HostError("an action of complex numbers", remedy="Mend the policy's output.")
        if self._torn == len(self._rows):
            problem = f"the records were read in the middle of control step {len(self._rows)}, whose contacts are lost"
            raise HostError(problem, remedy="Read records between control steps, or begin the episode again.")
        self._rows.append(row)
        self._actions.append(np.array(action, dtype=np.float64))
        if self._source is not None:
            self._ends.append(len(self._source))
            if len(self._ends) == BLOCK:
                self.decode_pending()

    def dropped_pairs(self) -> tuple[tuple[str, str], ...]:
        """Return the body pairs whose resting or mechanical contacts were left out; sorted, each pair too."""
        self._require_begun()
        names = tuple(self._geoms.roles)
        dropped = self._filter.dropped if self._filter else ()
        return tuple(sorted({(min(names[a], names[b]), max(names[a], names[b])) for a, b in dropped}))

    def build_recording(self, header: Mapping[str, object]) -> Recording:
        """Return the records so far as one episode under that header, whose fields are `HEADER_FIELDS`.

        Recording can go on if this is called between control steps; one in the middle of which it was called may be
        lost, so that its record is refused.
        """
        self.decode_pending()
        contacts = join_contacts(self._decoded) if self._decoded else None
        gripped = np.concatenate(self._gripped) if self._gripped else None
        action = np.stack(self._actions) if self._actions else np.empty((0, 0))
        channels = {**self._build_channels(self._rows), "action": action}
        return assemble_recording(self._geoms, header, len(self._rows), contacts, gripped, channels)

    def latest_record(self, header: Mapping[str, object]) -> Recording:
        """Return the newest record alone, as an episode of one record without action; all records are kept.

        To be called between control steps.
        """
        self.decode_pending()
        newest = gripped = None
        if self._decoded:
            contacts, gripped = self._decoded[-1], self._gripped[-1][-1:]
            is_newest = contacts.record == len(self._rows) - 1
            newest = ContactList(*(column[is_newest] for column in contacts.columns().values()))
            newest = replace(newest, record=np.zeros_like(newest.record))
        return assemble_recording(self._geoms, header, 1, newest, gripped, self._build_channels(self._rows[-1:]))

    def decode_pending(self) -> None:
        """Decode the contacts of all records added since the last decoding; does nothing if there are none."""
        self._require_begun()
        if self._ends:
            assert self._source is not None
            ends, self._ends = np.array(self._ends), []
            self._decode_contacts(self._source.take_contacts(), ends, substep_s=self._geoms.substep_s)

    def _decode_contacts(self, contacts: SubstepContacts, ends: NDArray[np.int64], substep_s: float | None) -> None:
        """Append the counted contacts and gripped bodies of some records to those decoded so far.

        `ends` [R] is the number of substeps up to the end of each record; later ones are left out. `substep_s` None =
        an instant.
        """
        assert self._filter is not None
        geoms, decoded = self._geoms, sum(len(block) for block in self._gripped)
        owner = decoded + np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))
        if contacts.substeps > ends[-1] and substep_s is not None:
            self._torn = len(self._rows)
        # Substeps after the last end belong to a control step that broke off: there is no record of it.
        which = np.flatnonzero(self._filter.mark_counted(contacts) & (contacts.substep < ends[-1]))
        self._decoded.append(contact_peaks(contacts, which, owner, geoms.place, substep_s))
        self._gripped.append(gripped_bodies(contacts, ends - 1, geoms))


class RecordedEpisode(Protocol):
    """An episode that a `RunWriter` writes: what a recorder holds, or one of many worlds that has ended."""

    def dropped_pairs(self) -> tuple[tuple[str, str], ...]:
        """Return the body pairs whose resting or mechanical contacts were left out; sorted, each pair too."""

    def build_recording(self, header: Mapping[str, object]) -> Recording:
        """Return the records so far as one episode under that header, whose fields are `HEADER_FIELDS`."""
