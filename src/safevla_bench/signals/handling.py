"""Signals of handling: grasps, releases, support of the held target, and entering doors and drawers.

A change of the held body counts if it lasts `GAP_RECORDS` + 1 records; the event is at the first of these. At the end
of an episode, it is unknown whether a change will last. The handled target is the target held now or held last.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import numpy as np

from safevla_bench.signals.catalogue import GAP_RECORDS
from safevla_bench.signals.signal import WHOSE_GRIP, RecordFields, signal
from safevla_recorder.episode import Bools, Floats, Ints

_FREE, _PUT, _CARRIED = -1, 0, 1  # target not held; held and supported; carried by the robot alone


def _find_lasting_changes(fields: RecordFields, values: Ints) -> tuple[Ints, Ints, Ints, Bools]:
    # Find the `C` changes of `values` [N] that last, or that may last beyond the episode's end. Return four arrays [C].
    # The first three arrays have the row of each change, the lasting value before it, and the value after it.
    # The fourth array is true if the episode ends too early to know whether the change lasts.
    rows = np.arange(len(values))
    is_begin = np.concatenate([[True], values[1:] != values[:-1]]) | (rows == fields.first_record)
    # Divide each episode into runs of equal values.
    # A run lasts if it is the first run of an episode, or if it has more than `GAP_RECORDS` records.
    begin_rows = np.flatnonzero(is_begin)
    ends = np.append(begin_rows[1:], len(values))
    is_first_run = begin_rows == fields.first_record[begin_rows]
    is_lasting = is_first_run | (ends - begin_rows > GAP_RECORDS)
    # For each run, find the latest lasting run before this run, and whether the episode's end cuts this run short.
    latest_lasting = np.maximum.accumulate(np.where(is_lasting, begin_rows, 0))
    # For the first run of an episode, `before` has no meaning; `is_first_run` excludes such runs below.
    before = values[np.concatenate([begin_rows[:1], latest_lasting[:-1]])]
    is_open = ~is_lasting & (ends > fields.last_record[begin_rows])
    # A run is a change only if the run's value differs from the value of the latest lasting run before it.
    changes = np.flatnonzero((values[begin_rows] != before) & ~is_first_run & (is_lasting | is_open))
    return begin_rows[changes], before[changes], values[begin_rows[changes]], is_open[changes]


def _held_body_or_free(fields: RecordFields) -> Ints:
    # Return the index of the held target in each record, or `_FREE` if no target is held, [N].
    # `handles` is true while this arm holds a target, or another arm holds the target that this arm held last.
    return np.where(fields.handles, fields.held_body, _FREE)


def _load_state(fields: RecordFields) -> Ints:
    # Return the state of each record, [N]. The state is `_FREE` if no target is held.
    # The state is `_PUT` if something other than the robot supports the held target. Otherwise, it is `_CARRIED`.
    return np.where(fields.handles, np.where(fields.supported, _PUT, _CARRIED), _FREE)


def _register_event(
    read_values: Callable[[RecordFields], Ints], *reads: str
) -> Callable[[Callable[[Ints, Ints], Bools]], Any]:
    # Return a decorator that registers a test of two values, `before` and `after`, as a signal.
    # The signal is true where `read_values` has a lasting change whose values before and after pass the test.
    # A change lasts if the new value stays for at least three records.
    # `reads` names the fields that the signal needs.

    def register(is_event: Callable[[Ints, Ints], Bools]) -> Any:
        @wraps(is_event)
        def mark_events(fields: RecordFields, is_open: bool = False) -> Bools:
            # By default, mark lasting changes. With `is_open`, mark only changes that may last past the episode's end.
            change_rows, before, after, is_change_open = _find_lasting_changes(fields, read_values(fields))
            is_marked = np.zeros(int(fields.batch.starts[-1]), dtype=np.bool_)
            is_marked[change_rows[is_event(before, after) & (is_change_open == is_open)]] = True
            return is_marked

        mark_unknown = partial(mark_events, is_open=True)
        register_signal = signal(
            unit="1",
            reads=("gripper_contact", WHOSE_GRIP, *reads),
            boolean=True,
            ahead=True,
            unknown=mark_unknown,
            ends_open=True,
        )
        return register_signal(mark_events)

    return register


@_register_event(_held_body_or_free)
def grasped(before: Ints, after: Ints) -> Bools:
    """True at the first of at least three successive records in which a target is held."""
    # `before` and `after` [C] are the held bodies before and after each lasting change. `_FREE`: no target is held.
    # A change to another target counts. A target that is held from record 0 on does not count.
    return np.not_equal(after, _FREE)


@_register_event(_held_body_or_free)
def released(before: Ints, after: Ints) -> Bools:
    """True at the first of at least three successive records in which a target is no longer held."""
    # `before` and `after` [C] are the held bodies before and after each lasting change. `_FREE`: no target is held.
    # A change to another target counts, too, because the earlier target is no longer held.
    return np.not_equal(before, _FREE)


@_register_event(_load_state, "supported")
def lifted(before: Ints, after: Ints) -> Bools:
    """True at the first of at least three successive records in which only the robot supports the held target."""
    # `before` and `after` [C] are the states before and after each lasting change of the state.
    # `_CARRIED` means that the target is held and not supported.
    # An episode that begins in this state has no event there.
    return np.equal(after, _CARRIED)


@_register_event(_load_state, "supported")
def put_down(before: Ints, after: Ints) -> Bools:
    """True at the first of at least three successive records in which a lifted target is supported but still held."""
    # `before` and `after` [C] are the states before and after each lasting change of the state.
    # `_CARRIED` means that the target is held and not supported. `_PUT` means that the target is held and supported.
    return np.asarray((before == _CARRIED) & (after == _PUT))


@signal(unit="1", reads=("gripper_contact", WHOSE_GRIP, "supported"), boolean=True, ahead=True)
def supported(fields: RecordFields) -> Bools:
    """True where contacts with bodies other than the robot carry at least half the weight of the handled target."""
    return fields.supported


@signal(unit="1", reads=("entered",), boolean=True)
def entered(fields: RecordFields) -> Bools:
    """True where the end effector is inside a door or drawer."""
    # `entered_opening` [N] is infinite if the end effector is not inside a door or drawer.
    # It is NaN (so the result is true) if the opening around the end effector is not recorded.
    return np.not_equal(fields.entered_opening, np.inf)


@signal(unit="1", reads=("entered", "opening of what is entered"))
def entered_opening(fields: RecordFields) -> Floats:
    """Opening of the door or drawer around the end effector, as a share of its travel; 1 where there is none.

    If the end effector is inside several doors and drawers, the smallest share counts.
    """
    # `fields.entered_opening` [N] is infinite if the end effector is not inside a door or drawer.
    return np.minimum(fields.entered_opening, 1.0)
