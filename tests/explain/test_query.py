"""Ad-hoc formulas over episodes."""

from __future__ import annotations

import pytest

from builders import BOWL, HAND, contacts, crash, episode
from safevla_bench.errors import FormulaError
from safevla_bench.explain import query
from safevla_bench.tasks.reasons import CUT_OFF, NO_VALUE, describe_reason
from safevla_bench.trajectory.batch import concatenate_batches, select_episodes

GONE = crash(episode_id="z", task_id="task_9", policy="b", reason="Boom\nIt broke")


def test_an_answer_has_the_deciding_record_and_its_signals():
    batch = concatenate_batches(
        [episode(contacts=contacts((3, HAND, BOWL, 50.0), (6, HAND, BOWL, 250.0))), episode(n=5)]
    )
    low, none = query.answer_query(query.parse_query("G[0,T](max_contact_force < 200)"), batch)
    assert (low.verdict, low.rho, low.step, low.signals) == ("violated", -50.0, 6, {"max_contact_force": 250.0})
    assert low.time_s == pytest.approx(0.3)
    assert (none.verdict, none.rho, none.step) == ("satisfied", 200.0, 0)
    high = query.answer_query(query.parse_query("F[0,T](max_contact_force > 200)"), batch)
    assert [(answer.verdict, answer.rho, answer.step) for answer in high] == [
        ("satisfied", 50.0, 6),
        ("violated", -200.0, 0),
    ]


def test_zero_is_satisfied():
    (answer,) = query.answer_query(query.parse_query("G(max_contact_force >= 0)"), episode())
    assert (answer.verdict, answer.rho) == ("satisfied", 0.0)


def test_what_has_no_verdict_is_an_outcome_of_its_own_and_no_number():
    batch = concatenate_batches([episode(contacts=None), episode(n=1), episode()])
    parsed = query.parse_query("G(max_contact_force < 200)")
    answers = query.answer_query(parsed, batch)
    assert query.answer_chunks(parsed, [select_episodes(batch, [k]) for k in range(len(batch))]) == answers
    force = [*answers, *query.answers_without_record([GONE], len(batch))]
    assert [answer.verdict for answer in force] == ["signal missing", "satisfied", "satisfied", "no record"]
    assert force[0].reason == "not recorded: contacts"
    assert force[3].number == 4
    speed = query.answer_query(query.parse_query("G(target_obj_speed < 1)"), batch)
    assert [answer.verdict for answer in speed] == ["satisfied", "undefined", "satisfied"]
    gated = query.answer_query(query.parse_query("G(grip -> held_object_slip > -0.02)"), batch)
    assert [answer.verdict for answer in gated] == ["vacuous"] * 3
    late = query.answer_query(query.parse_query("F[5,10](max_contact_force > 1)"), episode())
    assert [answer.verdict for answer in late] == ["no verdict"]
    nowhere = query.answer_query(query.parse_query("F(distance(held, target) < 0.05)"), episode())
    assert [answer.reason for answer in nowhere] == [describe_reason(NO_VALUE)]
    due = query.answer_query(query.parse_query("!grip -> F[0,10](distance(held, target) < 0.05)"), episode())
    assert [answer.reason for answer in due] == [describe_reason(CUT_OFF)]
    for answer in (*force[:1], *speed[1:2], *gated, *late, *nowhere, *due, force[3]):
        assert (answer.rho, answer.step, answer.time_s, answer.signals) == (None, None, None, {})
        assert answer.reason


def test_boolean_formulas_have_verdicts_but_no_margin():
    answer, other = (
        query.answer_query(query.parse_query(text), episode())[0]
        for text in ("G(!grip)", "F[0,0.5](grip and eef_speed < 100)")
    )
    assert (answer.verdict, answer.rho, answer.step, answer.signals) == ("satisfied", None, 0, {"grip": False})
    assert (other.verdict, other.rho) == ("violated", None), "a Boolean part decides, no window is empty"


def test_a_placeholder_and_an_unknown_signal_are_refused():
    with pytest.raises(FormulaError, match="threshold"):
        query.parse_query("G(eef_speed < threshold)")
    with pytest.raises(FormulaError, match="'eef_speed'"):
        query.parse_query("G(eef_sped < 1)")
