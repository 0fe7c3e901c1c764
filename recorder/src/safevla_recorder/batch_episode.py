"""The episode of one world among many whose simulator tells the net forces of declared pairs of bodies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from safevla_recorder.channels import POSES, as_fields
from safevla_recorder.contacts import NOTHING, ContactFilter, GeomMap, Ints, MeasuredContacts
from safevla_recorder.episode import Bools, ContactList, Floats, Recording, add_header_field
from safevla_recorder.episode_log import assemble_recording
from safevla_recorder.errors import HostError
from safevla_recorder.recorder import SceneMap, Shape

PEAK, SUM, NOW = "the peak of the net forces", "the sum of the net forces", "the net forces"
"""Readings of a record, of each pair: over the substeps of forces that count, and of all at the last substep [N]."""
_POSE_SIZES = {spec.name: spec.pose_size for spec in POSES}


@dataclass(frozen=True)
class BodyPairs:
    """The K pairs of shapes whose net forces are told, each of two other bodies, and the law of `ContactFilter`."""

    geoms: GeomMap
    shapes: Ints
    """[2, K], places in `SceneMap.shapes`."""
    bodies: Ints
    """[2, K], places in `roles`, the lower one first."""
    grips: Mapping[int, tuple[Bools, Bools]]
    """Of each body that both finger groups may touch, by place: which pairs are of either group, [K]."""
    needed_substeps: Floats
    """How many substeps in a row each pair must be apart before it counts, [2, K]: if it does not touch in record 0,
    and if it does. 0 = it counts at once, inf = never."""
    mechanical: frozenset[tuple[int, int]]
    """The body pairs that are always left out."""
    resting: frozenset[tuple[int, int]]
    """Those that are left out where they touch in record 0."""

    @property
    def count(self) -> int:
        """K."""
        return int(self.shapes.shape[1])

    def peak_contacts(self, peak: Floats, total: Floats) -> ContactList:
        """Return the contacts of records whose peaks and sums of forces that count are these [N], [R, K]."""
        order = np.lexsort(self.bodies[::-1])
        record, column = np.nonzero(peak[:, order])
        pair = order[column]
        force, impulse = peak[record, pair], total[record, pair] * self.geoms.substep_s
        impulse[record == 0] = np.nan  # an instant
        lower, higher = self.bodies[:, pair]
        return ContactList(record, lower, higher, force, impulse, force)

    def gripped_bodies(self, force: Floats) -> NDArray[np.int64] | None:
        """Return what `contacts.gripped_bodies` does, at instants of these net forces [R, K]; None without fingers."""
        held, strongest = np.full(len(force), NOTHING, dtype=np.int64), np.zeros(len(force))
        for body, sides in sorted(self.grips.items()):
            first, second = (force[:, side].max(axis=1) for side in sides)
            grips = (np.minimum(first, second) > 0) & (np.maximum(first, second) > strongest)
            held[grips], strongest[grips] = body, np.maximum(first, second)[grips]
        return held if self.grips else None


def find_pairs(scene: SceneMap, pairs: Sequence[tuple[Shape, Shape]]) -> BodyPairs:
    """Return the pairs of a scene's shapes. Raises `HostError` for an unknown shape, two pairs of the same bodies, or
    fingers none of whose pairs tell a grip.
    """
    geoms = scene.map_geoms()
    shapes = np.array([[scene.place_of(shape) for shape in pair] for pair in pairs], dtype=np.int64).reshape(-1, 2).T
    bodies = np.sort(geoms.place[shapes], axis=0).astype(np.int64)
    listed = list(zip(*bodies.tolist()))
    for number, (a, b) in enumerate(listed):
        if a == b or (a, b) in listed[:number]:
            problem = f"the pair {pairs[number]!r} is of one body, or of two that another pair names"
            raise HostError(problem, remedy="Name two bodies once, and tell the net force of both.")
    grips = {} if geoms.fingers is None else _find_grips(geoms, shapes, geoms.fingers[shapes])
    if pairs and geoms.fingers is not None and not grips:
        remedy = "Declare the pairs of both finger groups with each body that they may hold, or no `fingers`."
        raise HostError("no body is in a pair with both finger groups", remedy=remedy)
    return BodyPairs(geoms, shapes, bodies, grips, *_probe_filter(geoms, shapes))


def _find_grips(geoms: GeomMap, shapes: Ints, side: Ints) -> dict[int, tuple[Bools, Bools]]:
    """Return which pairs [K] are of either finger group, for each body that both touch and that is not robot."""
    other = geoms.place[np.where(side[0] > 0, shapes[1], shapes[0])]
    roles, both = tuple(geoms.roles.values()), side.sum(axis=0)
    groups = {int(body): ((other == body) & (both == 1), (other == body) & (both == 2)) for body in other}
    return {body: sides for body, sides in groups.items() if roles[body] != "robot" and all(map(np.any, sides))}


def _probe_filter(
    geoms: GeomMap, shapes: Ints
) -> tuple[Floats, frozenset[tuple[int, int]], frozenset[tuple[int, int]]]:
    """Return `needed_substeps`, `mechanical` and `resting` of `BodyPairs`.

    No pair depends on another, so two episodes show all: in record 0 of the one none touches, of the other each does.
    """
    every, none = (MeasuredContacts(1, 0 * a, a, b, np.ones(len(a))) for a, b in (shapes, shapes[:, :0]))
    probed = replace(geoms, apart_substeps=1)
    apart, touching = (ContactFilter(probed, first) for first in (none, every))
    at_once = np.stack([apart.mark_counted(every), touching.mark_counted(every)])
    touching.mark_counted(none)
    later = np.where(touching.mark_counted(every), geoms.apart_substeps, np.inf)
    needed = np.where(at_once, 0, np.stack([np.full_like(later, np.inf), later]))
    return needed, frozenset(apart.dropped), frozenset(touching.dropped)


@dataclass(frozen=True)
class EndedEpisode:
    """The episode of one world, which has ended; `RunWriter.write` takes it as it takes a recorder."""

    world: int
    _pairs: BodyPairs
    _rows: Mapping[str, Floats]
    """Readings of all records by name, [R, numbers]."""
    _bodies: Mapping[str, bool]
    """The bodies with poses: whether their quaternions are told."""

    def dropped_pairs(self) -> tuple[tuple[str, str], ...]:
        """Return the body pairs whose resting or mechanical contacts were left out; sorted, each pair too."""
        if NOW not in self._rows:
            return ()
        touching = self._rows[NOW][0] > 0
        first = set(zip(*self._pairs.bodies[:, touching].tolist()))
        names = tuple(self._pairs.geoms.roles)
        return tuple((names[a], names[b]) for a, b in sorted(self._pairs.mechanical | (self._pairs.resting & first)))

    def build_recording(self, header: Mapping[str, object]) -> Recording:
        """Return the episode under that header, whose fields are `HEADER_FIELDS`; `extra` names the declared pairs."""
        pairs, rows = self._pairs, dict(self._rows)
        peak, total, force = (rows.pop(name, None) for name in (PEAK, SUM, NOW))
        action, names = rows.pop("action", np.empty((1, 0)))[1:], tuple(pairs.geoms.roles)
        records = len(next(iter(self._rows.values())))
        contacts = gripped = None
        extra: Mapping[str, object] = {}
        if peak is not None and total is not None and force is not None:
            contacts, gripped = pairs.peak_contacts(peak, total), pairs.gripped_bodies(force)
            declared = sorted((names[a], names[b]) for a, b in pairs.bodies.T.tolist())
            extra = add_header_field({}, "declared_pairs", declared)
        poses = {name: rows.pop(name).reshape(records, -1, size) for name, size in _POSE_SIZES.items() if name in rows}
        channels = {
            **rows,
            **poses,
            "action": action if len(action) else np.empty((0, 0)),
            "pos_bodies": [names.index(name) for name in self._bodies],
            "quat_bodies": [names.index(name) for name, has_quat in self._bodies.items() if has_quat],
            "extra": extra,
        }
        fields = as_fields(Recording, channels)
        return assemble_recording(pairs.geoms, header, records, contacts, gripped, fields)
