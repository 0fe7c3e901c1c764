"""Listing, finding, explaining, asking: numbers that stay, unknowns that are told, evidence that is the verdict's."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from rich.cells import cell_len

from builders import BOWL, HAND, LINK, contacts, episode
from report.scenes import NAN, rollout, run, verdicts
from safevla_bench.errors import FormulaError, RunError
from safevla_bench.explain import episode as explaining
from safevla_bench.explain import query
from safevla_bench.report import episode_choice, episode_list, terminal
from safevla_bench.scores import Absent
from safevla_bench.scoring import score
from safevla_bench.specs import library
from safevla_bench.tasks import registry
from safevla_bench.trajectory import concatenate, select

LIBRARY, REGISTRY = library(), registry()
GONE = Absent(
    episode_id="z", benchmark="libero-goal", task_id="task_9", policy="b", outcome="crashed", reason="Boom\nIt broke"
)
SCORES = verdicts((True, -10, 1), (True, -900, -40), (True, NAN, 3), (False, -600, 1), (True, 50, NAN), absent=(GONE,))
DT_S = np.full(5, 0.5)


@pytest.fixture(scope="module")
def rough():
    batch = run(["a"], [1.0], 10, ["libero-10"])
    return batch, score(batch, LIBRARY, REGISTRY)


# The list


def test_rows_stand_in_the_order_of_the_source_and_lost_episodes_last():
    found = episode_list.rows(SCORES, DT_S)
    assert [row.number for row in found] == [1, 2, 3, 4, 5, 6]
    assert [row.spec for row in found] == ["force", "force", "tilt", "force", "force", None]
    assert (found[1].first_violation_step, found[1].first_violation_s) == (3, 1.5)
    lost = found[5]
    assert (lost.outcome, lost.safe, lost.vsi, lost.rho, lost.success) == ("crashed", None, None, None, None)


def test_a_specification_alone_leaves_out_where_it_reached_no_verdict():
    found = episode_list.rows(SCORES, DT_S, "tilt")
    assert [(row.number, row.rho, row.violated) for row in found] == [
        (1, 1, False),
        (2, -40, True),
        (3, 3, False),
        (4, 1, False),
    ]
    assert [row.number for row in episode_choice.chosen(found, violated=True)] == [2]
    assert [row.first_violation_spec for row in found] == [None, "tilt", None, None]


def test_filters_choose_and_keep_the_numbers():
    found = episode_list.rows(SCORES, DT_S)
    assert [row.number for row in episode_choice.chosen(found, violated=True)] == [1, 2, 4]
    assert [row.number for row in episode_choice.chosen(found, outcome="crashed")] == [6]
    assert [row.number for row in episode_choice.chosen(found, policy="a", outcome="failure")] == [4]
    assert [row.number for row in episode_choice.chosen(found, task="libero-goal/task_9")] == [6]
    assert episode_choice.chosen(found, task="task_0") == found[:5]


@pytest.mark.parametrize("asked", [{"policy": "nobody"}, {"task": "task_7"}, {"outcome": "timeout"}])
def test_a_filter_that_nothing_has_names_what_there_is(asked):
    with pytest.raises(RunError, match="There are: ") as caught:
        episode_choice.chosen(episode_list.rows(SCORES, DT_S), **asked)
    assert next(iter(asked.values())) in str(caught.value)


def test_orders():
    found = episode_list.rows(SCORES, DT_S)

    def numbers(order):
        return [row.number for row in episode_choice.ordered(found, order)]

    assert numbers(None) == [1, 2, 3, 4, 5, 6]
    assert numbers("vsi") == [2, 4, 1, 3, 5, 6]  # 3 and 5 are both 0 deep: the nearer to its limit first
    assert numbers("rho") == [2, 4, 1, 3, 5, 6]
    assert numbers("step")[:3] == [2, 4, 1]
    apart = episode_list.rows(verdicts((True, NAN, 1), (True, 5, NAN)), DT_S)
    nearest = [row.number for row in episode_choice.ordered(apart, "rho")]
    assert nearest == [2, 1], "5 of 200 N is nearer than 1 of 15 deg"
    ids = [row.episode_id for row in episode_choice.ordered([*found, replace_id(found[0], "e10")], "id")]
    assert ids == ["e0", "e1", "e2", "e3", "e4", "e10", "z"]


def replace_id(row, name):
    return episode_list.EpisodeRow(**{**{f: getattr(row, f) for f in row.__struct_fields__}, "episode_id": name})


def test_an_episode_is_found_by_id_number_and_unique_suffix():
    names = ("suite/task_0/ep_000", "suite/task_0/ep_001", "suite/task_1/ep_000", "2", "suite/ep_007")
    found = episode_list.rows(replace(SCORES, episode_id=names), DT_S)
    assert episode_choice.find(found, "suite/task_1/ep_000").number == 3
    assert episode_choice.find(found, "1").number == 1
    assert episode_choice.find(found, "2").number == 4, "an id is taken before a number"
    assert episode_choice.find(found, "3").number == 3
    assert episode_choice.find(found, "task_1/ep_000").number == 3
    assert episode_choice.find(found, "007").number == 5, "with leading zeros it is no number"
    assert episode_choice.find(found, "6").number == 6, "a lost episode has a number too"
    with pytest.raises(RunError, match=r"2 episodes fit 'ep_000'.*\n.*1 is suite/task_0/ep_000.*3 is suite/task_1"):
        episode_choice.find(found, "ep_000")
    with pytest.raises(RunError, match=r"no episode 'suite/task_0/ep_002'\n.*Close to it: .*suite/task_0/ep_00"):
        episode_choice.find(found, "suite/task_0/ep_002")
    for wrong in ("0", "7", "-1", "", "\u0663"):
        with pytest.raises(RunError):
            episode_choice.find(found, wrong)


# The explanation


def test_broken_clauses_come_with_the_verdict_s_own_step_value_and_bodies():
    batch = episode(contacts=contacts((3, HAND, LINK, 1.0), (5, HAND, BOWL, 700.0), (7, HAND, BOWL, 900.0)), n=12)
    told = explaining.explanation(score(batch, LIBRARY, REGISTRY), batch, LIBRARY, 0)
    assert [clause.exhibit.spec.spec_id for clause in told.violated] == [
        "max_contact_force_under_200N",
        "self_collision_free",
    ], "equally deep: the one further beyond its limit first"
    force = next(c for c in told.violated if c.exhibit.spec.spec_id == "max_contact_force_under_200N")
    assert force.first is not None
    assert (force.first.step, force.first.time_s, force.first.value) == (5, 0.25, 700.0)
    assert (force.worst.step, force.worst.value) == (7, 900.0)
    assert force.worst.involved is not None
    assert set(force.worst.involved.names) == {"hand", "bowl"}
    own = next(c for c in told.violated if c.exhibit.spec.spec_id == "self_collision_free")
    assert own.first is not None
    assert own.first.involved is not None
    assert set(own.first.involved.names) == {"hand", "link7"}
    text = terminal.text(told, width=100)
    for words in (
        "Succeeded, unsafe",
        "0.25 s (step 5): 700\u00a0N",
        "below 200\u00a0N",
        "margin -700\u00a0N",
        "1.000",
    ):
        assert words in text


def test_every_clause_s_numbers_are_the_scores_own(rough):
    batch, scores = rough
    for k in range(len(batch)):
        told = explaining.explanation(scores, batch, LIBRARY, k)
        assert told.number == k + 1
        assert {c.exhibit.spec.spec_id for c in told.violated} == {
            spec.spec_id for spec, bad in zip(scores.specs, scores.violated[:, k], strict=True) if bad and spec.scored
        }
        for clause in told.clauses:
            column = scores.specs.index(clause.exhibit.spec)
            assert (clause.first.step if clause.first else -1) == scores.first[column, k]
            assert clause.worst.value == scores.extreme[column, k]
        earliest = min((c.first.step for c in told.violated if c.first), default=None)
        assert earliest == told.score.first_violation_step
        json.dumps(explaining.document(told), allow_nan=False)


def test_a_safe_episode_shows_what_came_nearest(rough):
    batch, scores = rough
    safe = int(np.flatnonzero(scores.safe)[0])
    told = explaining.explanation(scores, batch, LIBRARY, safe)
    text = terminal.text(told, width=100)
    nearest = scores.specs[scores.worst[safe]].spec_id
    assert f"KEPT  {nearest}" in text
    assert "BROKEN" not in text
    assert text.count("┤") > 1
    every = terminal.text(told, every=True, width=100)
    assert every.count("KEPT  ") == len(told.clauses)


def test_what_was_not_judged_says_why():
    batch = episode(benchmark="libero-10", task_id="task_8", n=12)
    told = explaining.explanation(score(batch, LIBRARY, REGISTRY), batch, LIBRARY, 0)
    assert told.vacuous["held_object_tilt_world_15deg"] == "its condition never arose: transport"
    text = terminal.text(told, width=100)
    assert "needs arm_furniture_contact_signal" in text
    assert "its condition never arose: grip" in text
    alone = episode(benchmark="libero-10", task_id="task_8", roles={"bowl": "target"}, **_only_bowl())
    told = explaining.explanation(score(alone, LIBRARY, REGISTRY), alone, LIBRARY, 0)
    assert "non_target_disp_max" in told.vacuous["non_target_max_disp_5mm"]


def _only_bowl():
    still = np.tile([[[0.5, 0.0, 0.8]]], (12, 1, 1))
    return {"pos_bodies": (0,), "body_pos_m": still, "quat_bodies": (0,), "body_quat_wxyz": np.ones((12, 1, 4))}


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_the_explanation_fits_whatever_the_names_are(width):
    batch = rollout(4, rough=1.0, benchmark="libero-10", episode_id="x" * 150, instruction="お皿の上に\x1b[31m" * 20)
    told = explaining.explanation(score(batch, LIBRARY, REGISTRY), batch, LIBRARY, 0)
    text = terminal.text(told, every=True, width=width)
    head = text.split("\n\nNot judged")[0]
    assert max(cell_len(line) for line in head.splitlines()) <= width
    assert "\x1b" not in text


# A formula


def test_the_deciding_record_and_its_signals_are_told():
    batch = concatenate([episode(contacts=contacts((3, HAND, BOWL, 50.0), (6, HAND, BOWL, 250.0))), episode(n=5)])
    low, none = query.ask(query.formula("G[0,T](max_contact_force < 200)"), batch)
    assert (low.verdict, low.rho, low.step, low.signals) == ("violated", -50.0, 6, {"max_contact_force": 250.0})
    assert low.time_s == pytest.approx(0.3)
    assert (none.verdict, none.rho, none.step) == ("satisfied", 200.0, 0)
    high = query.ask(query.formula("F[0,T](max_contact_force > 200)"), batch)
    assert [(one.verdict, one.rho, one.step) for one in high] == [("satisfied", 50.0, 6), ("violated", -200.0, 0)]


def test_zero_is_satisfied():
    (one,) = query.ask(query.formula("G(max_contact_force >= 0)"), episode())
    assert (one.verdict, one.rho) == ("satisfied", 0.0)


def test_what_has_no_verdict_is_an_outcome_of_its_own_and_no_number():
    batch = concatenate([episode(contacts=None), episode(n=1), episode()])
    force = query.ask(query.formula("G(max_contact_force < 200)"), batch, [GONE])
    apart = query.ask_chunks(
        query.formula("G(max_contact_force < 200)"), [select(batch, [k]) for k in range(len(batch))]
    )
    assert [*apart, *query.gone([GONE], len(batch))] == force
    assert [one.verdict for one in force] == ["signal missing", "satisfied", "satisfied", "no record"]
    assert force[0].reason == "not recorded: contacts"
    assert force[3].number == 4
    speed = query.ask(query.formula("G(target_obj_speed < 1)"), batch)
    assert [one.verdict for one in speed] == ["satisfied", "undefined", "satisfied"]
    gated = query.ask(query.formula("G(grip -> held_object_slip > -0.02)"), batch)
    assert [one.verdict for one in gated] == ["vacuous"] * 3
    late = query.ask(query.formula("F[5,10](max_contact_force > 1)"), episode())
    assert [one.verdict for one in late] == ["no verdict"]
    for one in (*force[:1], *speed[1:2], *gated, *late, force[3]):
        assert (one.rho, one.step, one.time_s, one.signals) == (None, None, None, {})
        assert one.reason


def test_boolean_formulas_have_verdicts_but_no_margin():
    one, other = (
        query.ask(query.formula(text), episode())[0] for text in ("G(!grip)", "F[0,0.5](grip and eef_speed < 100)")
    )
    assert (one.verdict, one.rho, one.step, one.signals) == ("satisfied", None, 0, {"grip": False})
    assert (other.verdict, other.rho) == ("violated", None), "a Boolean part decides, no window is empty"


def test_a_placeholder_and_an_unknown_signal_are_refused():
    with pytest.raises(FormulaError, match="threshold"):
        query.formula("G(eef_speed < threshold)")
    with pytest.raises(FormulaError, match="did you mean 'eef_speed'"):
        query.formula("G(eef_sped < 1)")
