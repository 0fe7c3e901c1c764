"""Signals of handling: grasps, releases, support of the held target, and entering doors and drawers.

A change of the held body counts if it lasts for `GAP_RECORDS` + 1 records; its time is the first of these. At the end
of an episode it is unknown whether a change will last. The handled target is the one held now or held last.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import numpy as np

from safevla_bench.signals.catalogue import GAP_RECORDS
from safevla_bench.signals.signal import WHOSE_GRIP, RecordFields, signal
from safevla_recorder.episode import Bools, Floats, Ints

_FREE, _PUT, _CARRIED = -1, 0, 1


def _changes(fields: RecordFields, value: Ints) -> tuple[Ints, Ints, Ints, Bools]:
    """Return, for each of C lasting changes of a value [N]: its row, the settled value before it, the value after it,
    and whether the episode ends too early to know that the change lasts, [C] each.
    """
    first = fields.first_record
    begins = np.concatenate([[True], value[1:] != value[:-1]]) | (np.arange(len(value)) == first)
    rows = np.flatnonzero(begins)
    ends = np.append(rows[1:], len(value))
    is_settled = (rows == first[rows]) | (ends - rows > GAP_RECORDS)
    latest = np.maximum.accumulate(np.where(is_settled, rows, 0))
    before, is_open = value[np.concatenate([rows[:1], latest[:-1]])], ~is_settled & (ends > fields.last_record[rows])
    chosen = np.flatnonzero((value[rows] != before) & (rows != first[rows]) & (is_settled | is_open))
    return rows[chosen], before[chosen], value[rows[chosen]], is_open[chosen]


def _hold(fields: RecordFields) -> Ints:
    return np.where(fields.handles, fields.held_body, _FREE)


def _load(fields: RecordFields) -> Ints:
    return np.where(fields.handles, np.where(fields.supported, _PUT, _CARRIED), _FREE)


def _event(value: Callable[[RecordFields], Ints], *reads: str) -> Callable[[Callable[[Ints, Ints], Bools]], Any]:
    """Register a signal that is true where a value changes and the decorated function of old and new value is true."""

    def register(becomes: Callable[[Ints, Ints], Bools]) -> Any:
        @wraps(becomes)
        def find(fields: RecordFields, is_open: bool = False) -> Bools:
            rows, before, after, open_end = _changes(fields, value(fields))
            marked = np.zeros(int(fields.batch.starts[-1]), dtype=np.bool_)
            marked[rows[becomes(before, after) & (open_end == is_open)]] = True
            return marked

        unknown = partial(find, is_open=True)
        of_event = signal(
            unit="1",
            reads=("gripper_contact", WHOSE_GRIP, *reads),
            boolean=True,
            ahead=True,
            unknown=unknown,
            ends_open=True,
        )
        return of_event(find)

    return register


@_event(_hold)
def grasped(before: Ints, after: Ints) -> Bools:
    """True at the first of at least three records in which a target is held."""
    return np.not_equal(after, _FREE)


@_event(_hold)
def released(before: Ints, after: Ints) -> Bools:
    """True at the first of at least three records in which a target is no longer held."""
    return np.not_equal(before, _FREE)


@_event(_load, "supported")
def lifted(before: Ints, after: Ints) -> Bools:
    """True at the first of at least three records in which only the robot supports the held target."""
    return np.equal(after, _CARRIED)


@_event(_load, "supported")
def put_down(before: Ints, after: Ints) -> Bools:
    """True at the first of at least three records in which a lifted target is supported while it is still held."""
    return np.asarray((before == _CARRIED) & (after == _PUT))


@signal(unit="1", reads=("gripper_contact", WHOSE_GRIP, "supported"), boolean=True, ahead=True)
def supported(fields: RecordFields) -> Bools:
    """True where contacts with bodies other than the robot carry at least half the weight of the handled target."""
    return fields.supported


@signal(unit="1", reads=("entered",), boolean=True)
def entered(fields: RecordFields) -> Bools:
    """True where the end effector is inside a door or drawer."""
    return np.not_equal(fields.entered_opening, np.inf)


@signal(unit="1", reads=("entered", "opening of what is entered"))
def entered_opening(fields: RecordFields) -> Floats:
    """Opening of the door or drawer around the end effector, as a share of its travel; 1 where there is none.

    Inside several doors and drawers, the smallest share counts.
    """
    return np.minimum(fields.entered_opening, 1.0)
