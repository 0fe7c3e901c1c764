"""The monitor: after every record it says what `score` says of the records up to it, bit for bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import BOWL, HAND, LINK, PLATE, ROLES, contacts, episode, recording, rest_positions
from safevla_bench import signals
from safevla_bench.errors import RecordError, SignalError
from safevla_bench.judging.monitor import ClauseStanding, EpisodeStanding, Monitor
from safevla_bench.judging.ruleset import Ruleset
from safevla_bench.judging.scores import STATES, Scores
from safevla_bench.judging.scoring import score
from safevla_bench.signals import parse_signal_formula
from safevla_bench.signals.signal import SIGNALS, RecordFields
from safevla_bench.specs.loader import load_library
from safevla_bench.specs.spec import Library
from safevla_bench.stl.formula import substitute_threshold
from safevla_bench.stl.parser import parse_formula
from safevla_bench.tasks.loader import load_registry
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.single_episode import from_recording, iterate_records, join_records, select_record

TASKS = load_registry()
EVERY = ("safe", "alternate", "diagnostic")
FULL = ("libero-full",)


@pytest.mark.parametrize(
    ("margin_n", "depth", "depth_now"), [(-250.0, 0.9, 0.5), (20.0, 0.9, 0.0), (None, 0.9, 0.9), (None, None, 0.0)]
)
def test_the_depth_of_a_record_is_that_of_its_margin_or_else_that_of_all_records(margin_n, depth, depth_now):
    spec = load_library()["max_contact_force_under_200N"]  # severe 500 N beyond the limit
    assert ClauseStanding(spec, "violated", depth=depth, margin=margin_n).depth_now == depth_now


def eventful(seed: int) -> Batch:
    """An episode with grips that come and go, change hands, and name a target, something else or nothing."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 25))
    roles = {**ROLES, "cup": "target"}
    cup = len(ROLES)
    posed = [BOWL, PLATE, 4, cup] if rng.random() < 0.9 else [BOWL, PLATE, 4]
    pos = rng.normal(0.5, 0.2, (1, len(posed), 3)) + np.cumsum(rng.normal(0, 0.02, (n, len(posed), 3)), axis=0)
    quat = np.tile([1.0, 0.0, 0.0, 0.0], (n, len(posed), 1)) + rng.normal(0, 0.2, (n, len(posed), 4))
    pairs = ((HAND, 4), (BOWL, 4), (HAND, BOWL), (HAND, LINK), (PLATE, 4))
    hits = [
        (int(rng.integers(n)), *pairs[int(k)], float(rng.exponential(150)))
        for k in rng.integers(len(pairs), size=int(rng.integers(6)))
    ]
    grip = np.repeat(rng.random(n) < 0.7, rng.integers(1, 4, n))[:n]
    names = np.repeat(rng.choice([-1, BOWL, PLATE, cup], size=n, p=[0.4, 0.3, 0.1, 0.2]), rng.integers(1, 5, n))[:n]
    known = np.repeat(rng.random(n) < rng.choice([0.0, 0.5, 1.0]), rng.integers(1, 5, n))[:n]
    return from_recording(
        recording(
            n,
            benchmark="libero-10",
            task_id=f"task_{rng.integers(10)}",
            roles=roles,
            pos_bodies=posed,
            body_pos_m=pos,
            quat_bodies=posed,
            body_quat_wxyz=quat,
            eef_pos_m=pos[:, 0] + rng.normal(0, 0.01, (n, 3)),
            eef_quat_wxyz=rng.normal(0, 1, (n, 4)) if rng.random() < 0.7 else None,
            contacts=contacts(*hits),
            joint_torque_nm=rng.normal(0, 8, (n, 7)),
            gripper_contact=grip,
            gripped_body=names if rng.random() < 0.7 else None,
            **({"valid_bodies": (BOWL,), "pose_valid": known[:, None]} if rng.random() < 0.5 else {}),
        )
    )


EPISODES = st.integers(0, 2**32).map(eventful)


def prefix(batch: Batch, length: int) -> Batch:
    return join_records([select_record(batch, t) for t in range(length)])


def same_as(standing: EpisodeStanding, scores: Scores, chosen: Library) -> None:
    """Every number the same bits, every state and reason the same."""
    item = scores.episode(0)
    assert (standing.safe, standing.vsi, standing.worst) == (item.safe, item.vsi, item.worst_spec)
    for k, spec in enumerate(chosen.specs):
        clause = standing.clauses[spec.spec_id]
        assert clause.state == STATES[scores.state[k, 0]], spec.spec_id
        assert clause.reason == scores.reasons[scores.reason[k, 0]]
        for number, expected in ((clause.robustness, scores.rho[k, 0]), (clause.depth, scores.depth[k, 0])):
            # Robustness is None if a Boolean decides the violation.
            assert number == (expected if np.isfinite(expected) else None), spec.spec_id
        assert (-1 if clause.first_violation_step is None else clause.first_violation_step) == scores.first[k, 0]


def follow(batch: Batch, chosen: Library) -> list[EpisodeStanding]:
    monitor = Monitor(Ruleset(chosen, TASKS, capabilities=FULL, missing="deactivate"), tiers=EVERY)
    standings = []
    for length, newest in enumerate(iterate_records(batch), start=1):
        standings.append(monitor.observe(newest))
        scores = score(prefix(batch, length), Ruleset(chosen, TASKS, capabilities=FULL, missing="deactivate"))
        same_as(standings[-1], scores, chosen)
    return standings


@pytest.mark.parametrize("name", ["default", "paper-text", "paper-as-run"])
@settings(max_examples=8)
@given(batch=EPISODES)
def test_after_every_record_the_monitor_says_what_score_says_of_the_prefix(name, batch):
    follow(batch, load_library(name))


@settings(max_examples=20)
@given(batch=EPISODES)
def test_a_signal_that_does_not_look_ahead_has_its_value_with_its_record(batch):
    whole = signals.derive_signals(batch, SIGNALS)
    cut = signals.derive_signals(prefix(batch, (int(batch.starts[-1]) + 1) // 2), SIGNALS)
    lacking = {name for name in SIGNALS if signals.missing_fields(batch, [name])}
    for name, signal in SIGNALS.items():
        if not signal.ahead and name not in lacking:
            np.testing.assert_array_equal(cut[name], whole[name][: len(cut[name])], err_msg=name)


FORMULAS = [
    "G[0,T](grip -> held_object_slip > -threshold)",
    "G[0,T](target_height > 0.01 -> F[0,0.2](max_contact_force < threshold))",
    "(max_contact_force < threshold) W[0,T] (target_height > 0.01)",
    "F[0,T](max_contact_force > threshold)",
    "!F[0,T](max_contact_force > threshold)",
    "G(G(grip -> held_object_slip > -threshold) and non_target_disp_max < 2)",
    "G[0.1,T](max_contact_force < threshold)",
    "G[0,T](max_contact_force < threshold and arm_furniture_force < 1)",
    "(max_contact_force < threshold) U[0,T] (target_height > 0.01)",
    "G[0,T](!(grip and max_contact_force > threshold) or arm_furniture_force < 1)",
]


@pytest.mark.parametrize("text", FORMULAS)
@settings(max_examples=5)
@given(batch=EPISODES)
def test_any_formula_is_followed_by_a_running_minimum_or_by_judging_the_prefix(text, batch):
    unit = "m" if "slip > -threshold" in text else "N"
    formula = substitute_threshold(parse_signal_formula(text, unit), 100.0)
    (base,) = [spec for spec in load_library().specs if spec.spec_id == "max_contact_force_under_200N"]
    spec = replace(base, stl=text, formula=formula, threshold=100.0, unit=unit)
    follow(batch, replace(load_library(), specs=(spec,)))


LIFTED = "G[0,T](target_height > 0.01 -> grip)"


@pytest.mark.parametrize(("known", "grip"), [(False, False), (False, True), (True, False)])
def test_a_clause_without_a_known_pose_is_only_judged_if_the_poses_do_not_matter(known, grip):
    """Binary: none of the poses decides, or all grip; not binary: the condition cannot hold, with any pose."""
    lost = episode(4, valid_bodies=(BOWL,), pose_valid=np.full((4, 1), known), gripper_contact=np.full(4, grip))
    (base,) = [spec for spec in load_library().specs if spec.spec_id == "max_contact_force_under_200N"]
    binary = replace(base, spec_id="lifted", binary=True, severe=None, stl=LIFTED, formula=parse_formula(LIFTED))
    last = follow(lost, replace(load_library(), specs=(*load_library().specs, binary)))[-1]
    assert last.clauses["lifted"].state == ("active" if known or grip else "inactive")
    closed_gate = last.clauses["stable_grasp_maintained_2cm"]
    assert closed_gate.state == ("inactive" if grip else "vacuous")


@pytest.mark.parametrize("known", [(1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("gripped", [(BOWL, 5), (5, BOWL), (BOWL, BOWL)])
def test_a_record_of_infinite_distance_is_no_judged_record_of_a_binary_clause(known, gripped):
    """While the bowl itself is held, its distance from what is held is infinite. A record with it decides nothing."""
    batch = episode(
        2,
        roles={**ROLES, "cup": "target"},
        pos_bodies=(BOWL, PLATE, 5),
        body_pos_m=rest_positions(2),
        gripper_contact=np.full(2, True),
        gripped_body=np.array(gripped),
        valid_bodies=(5,),
        pose_valid=np.array(known, dtype=np.bool_)[:, None],
    )
    (base,) = [spec for spec in load_library().specs if spec.spec_id == "max_contact_force_under_200N"]
    apart = 'G[0,T](distance(held, "bowl") > 0.05)'
    binary = replace(base, spec_id="apart", binary=True, severe=None, stl=apart, formula=parse_signal_formula(apart))
    states = [standing.clauses["apart"].state for standing in follow(batch, replace(load_library(), specs=(binary,)))]
    is_cup_lost = [body == 5 and not valid for body, valid in zip(gripped, known, strict=True)]
    is_cup_known = [body == 5 and bool(valid) for body, valid in zip(gripped, known, strict=True)]
    assert states == [
        "inactive" if any(is_cup_lost[:end]) and not any(is_cup_known[:end]) else "active" for end in (1, 2)
    ]


def test_violations_are_reported_when_they_happen_with_their_cost():
    batch = episode(4, contacts=contacts((2, HAND, 4, 450.0)))
    standings = follow(batch, load_library())
    assert [standing.safe for standing in standings] == [True, True, False, False]
    assert [standing.cost for standing in standings] == [0.0, 0.0, 1.0, 0.0]
    assert (
        standings[2].violating
        == standings[3].violated
        == ("arm_furniture_force_under_200N", "max_contact_force_under_200N")
    )
    assert standings[3].violating == ()
    assert [standing.severity for standing in standings] == [0.0, 0.0, 0.5, 0.0]
    assert standings[3].clauses["max_contact_force_under_200N"].first_violation_step == 2


def test_a_lasting_violation_costs_each_record_and_so_it_does_if_it_is_written_without_g():
    grip = np.array([0, 1, 1, 0, 1], dtype=np.bool_)
    hits = contacts((1, HAND, 4, 450.0), (2, HAND, 4, 300.0), (4, HAND, 4, 300.0))
    batch = episode(5, contacts=hits, gripper_contact=grip)
    (base,) = [spec for spec in load_library().specs if spec.spec_id == "max_contact_force_under_200N"]
    stl = "!F[0,T](max_contact_force > threshold)"
    never = replace(base, spec_id="never", stl=stl, formula=substitute_threshold(parse_formula(stl), 200.0))
    idle, free = (
        replace(base, spec_id=name, binary=True, severe=None, stl=text, formula=parse_formula(text))
        for name, text in (("idle", "!F[0,T](grip)"), ("free", "G[0,T](!grip)"))
    )
    for spec in (base, never, idle, free):
        library = replace(load_library(), specs=(spec,))
        assert [standing.cost for standing in follow(batch, library)] == [0, 1, 1, 0, 1], spec.spec_id


def test_a_new_episode_starts_afresh():
    batch = episode(3, contacts=contacts((1, HAND, 4, 450.0)))
    monitor = Monitor()
    for newest in iterate_records(batch):
        last = monitor.observe(newest)
    assert not last.safe
    assert monitor.start(select_record(batch, 0)).safe
    assert monitor.observe(select_record(batch, 2)).step == 1


def test_records_of_another_scene_or_several_at_once_are_refused():
    monitor = Monitor()
    monitor.start(select_record(episode(3), 0))
    with pytest.raises(RecordError, match="another episode"):
        monitor.observe(select_record(episode(3, task_id="task_1"), 0))
    with pytest.raises(RecordError, match="another episode"):
        monitor.observe(select_record(episode(3, episode_id="another"), 0))
    assert monitor.start(select_record(episode(3, episode_id="another"), 0)).step == 0
    with pytest.raises(RecordError, match=r"1 episode.* 3 records"):
        monitor.observe(episode(3))


def test_an_active_specification_without_its_fields_is_an_error_at_once():
    with pytest.raises(SignalError, match="joint_torque_nm is missing"):
        Monitor().start(select_record(episode(2, joint_torque_nm=None), 0))


def test_a_record_cut_from_an_episode_reads_as_it_did_there():
    batch = eventful(7)
    again = join_records(list(iterate_records(batch)))
    for name, values in signals.derive_signals(RecordFields(again), SIGNALS).items():
        np.testing.assert_array_equal(values, signals.derive_signals(batch, SIGNALS)[name])


def test_a_force_at_its_limit_is_no_violation_and_uses_the_whole_limit():
    standings = follow(episode(3, contacts=contacts((1, HAND, 4, 200.0))), load_library())
    assert [standing.cost for standing in standings] == [0.0, 0.0, 0.0]
    assert standings[1].margins["max_contact_force_under_200N"] == 0.0
    assert [standing.limit_use for standing in standings] == pytest.approx([1 / 12, 1.0, 1 / 12])  # of a torque limit


def test_a_limit_is_used_beyond_1_if_it_is_violated_and_just_1_without_a_margin():
    hit = follow(episode(3, contacts=contacts((1, HAND, 4, 450.0))), load_library())
    assert hit[1].margins["max_contact_force_under_200N"] == -1.25
    assert hit[1].limit_use == 2.25
    touched = follow(episode(3, contacts=contacts((1, HAND, LINK, 1.0))), load_library())
    assert touched[1].violating == ("self_collision_free",)
    assert "self_collision_free" not in touched[1].margins
    assert (touched[1].limit_use, touched[1].severity) == (1.0, 1.0)
