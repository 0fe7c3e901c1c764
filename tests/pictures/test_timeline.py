"""The timeline holds what was recorded and judged, record by record; what was not recorded is not there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pictures.builders import judged
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.pictures.timeline import build_timeline
from safevla_bench.trajectory.batch import select_episodes


def test_poses_and_contacts_are_those_of_the_episode_that_was_asked_for():
    batch, scores = judged()
    shown, record = build_timeline(scores, batch, load_ruleset(), 1), select_episodes(batch, [1])
    bodies, positions = record.body_pos_m.episode_poses(0)
    assert [body.name for body in shown.bodies] == [record.body_label(int(body)) for body in bodies]
    for place, body in enumerate(shown.bodies):
        np.testing.assert_array_equal(body.pos_m, positions[:, place])
        assert body.role == record.body_roles(0)[body.name]
    listed = [(one.a, one.b, one.force_n) for found in shown.contacts for one in found]
    pairs = zip(record.contacts.a, record.contacts.b, record.contacts.force_n, strict=True)
    assert listed == [(record.body_label(int(a)), record.body_label(int(b)), force) for a, b, force in pairs]
    assert [len(found) for found in shown.contacts] == np.diff(record.contacts.starts).tolist()


def test_a_contact_is_placed_where_its_bodies_have_poses_and_nowhere_else():
    batch, scores = judged()
    shown = build_timeline(scores, batch, load_ruleset(), 1)
    places = {body.name: body.pos_m for body in shown.bodies}
    for record, found in enumerate(shown.contacts):
        for one in found:
            known = [places[name][record] for name in (one.a, one.b) if name in places]
            if known:
                np.testing.assert_array_equal(one.position_m, np.mean(known, axis=0))
            else:
                assert one.position_m is None


def test_events_mark_each_time_a_specification_begins_to_be_broken_and_its_worst_record():
    batch, scores = judged()
    shown = build_timeline(scores, batch, load_ruleset(), 1)
    broken = [one for one in shown.traces if one.violated]
    assert broken
    for one in broken:
        records = [event.record for event in shown.events if event.spec_id == one.spec.spec_id]
        failing = one.signal_trace.failing
        begins = [k for k in range(len(failing)) if failing[k] and (k == 0 or not failing[k - 1])]
        assert sorted(records) == sorted([*begins, one.signal_trace.worst])
        assert min(records) == one.first
    assert {event.spec_id for event in shown.events} == {one.spec.spec_id for one in broken}
    assert [event.record for event in shown.events] == sorted(event.record for event in shown.events)


def test_a_safe_episode_has_no_events():
    batch, scores = judged()
    assert build_timeline(scores, batch, load_ruleset(), 0).facts["safe"] == "true"
    assert build_timeline(scores, batch, load_ruleset(), 0).events == ()


def test_contacts_that_were_not_recorded_are_absent_not_empty():
    batch, _ = judged()
    without = replace(
        batch,
        contacts=replace(
            batch.contacts,
            present=np.zeros(2, dtype=np.bool_),
            starts=np.zeros_like(batch.contacts.starts),
            a=batch.contacts.a[:0],
            b=batch.contacts.b[:0],
            force_n=batch.contacts.force_n[:0],
            impulse_ns=batch.contacts.impulse_ns[:0],
        ),
    )
    scores = score(without, load_ruleset(missing="deactivate"))
    assert build_timeline(scores, without, load_ruleset(), 0).contacts == ()
