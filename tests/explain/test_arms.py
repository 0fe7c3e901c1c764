"""Explanations of a record with several arms name the arm that decides, and the arm of each body."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from safevla_bench.archive.jsonl import decode_json
from safevla_bench.explain.episode import explain_episode, to_document
from safevla_bench.explain.query import answer_query, parse_query
from safevla_bench.judging.monitor import Monitor
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.pictures.rendering import violation_shot
from safevla_bench.pictures.viewers import build_timeline
from safevla_bench.report.tables.episodes import answer_table
from safevla_bench.report.terminal import format_explanation
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.single_episode import iterate_records

ROLES = {"bowl": "target", "left_palm": "robot", "right_palm": "robot", "torso": "robot", "table": "furniture"}
RULES = load_ruleset(missing="deactivate")


@pytest.fixture(scope="module")
def batch() -> Batch:
    """The right hand holds a bowl that slips from it by 1 cm a record; then the arms strike each other."""
    steps: list[dict[str, Any]] = [
        {
            "t": t,
            "eef_pos_m": [0.5, 0.0, 1.0, 0.0, 0.0, 1.0 + 0.01 * t],
            "body_pos_m": {"bowl": [0.0, 0.0, 0.9]},
            "gripper_contact": [False, t >= 2],
            "gripped_body": [None, "bowl" if t >= 2 else None],
            "joint_torque_nm": [0.0, 0.0, 1.0],
            "contacts": [{"a": "left_palm", "b": "right_palm", "force_n": 9.0, "impulse_ns": 0.1}] if t == 7 else [],
        }
        for t in range(10)
    ]
    named = {"episode_id": "e", "benchmark": "libero-10", "task_id": "task_4", "target_object": "bowl", "success": True}
    arms = {
        "schema_version": 2,
        "arms": ["left", "right"],
        "arm_joints": [2, 1],
        "arm_bodies": {"left_palm": "left", "right_palm": "right"},
        "joint_torque_limit_nm": [1.0, 1.0, 0.5],
    }
    return decode_json(msgspec.json.encode({**named, **arms, "dt": 0.1, "body_roles": ROLES, "steps": steps}))


def test_the_arm_that_decides_is_named_in_text_and_document(batch: Batch) -> None:
    explanation = explain_episode(score(batch, RULES), batch, RULES, 0)
    clauses = {clause.spec.spec_id: clause for clause in explanation.clauses}
    assert clauses["stable_grasp_maintained_2cm"].arm == "right"
    assert clauses["joint_torque"].arm == ""
    document = to_document(explanation)
    arms = {clause["spec_id"]: clause.get("arm") for clause in document["clauses"]}  # type: ignore[attr-defined]
    assert (arms["stable_grasp_maintained_2cm"], arms["self_collision_free"]) == ("right", None)
    shots = {clause.spec.spec_id: violation_shot(clause, clause.worst) for clause in explanation.violated_clauses}
    assert (shots["joint_torque"].joint, shots["stable_grasp_maintained_2cm"].bodies) == (2, ("bowl",))
    text = " ".join(format_explanation(explanation).split())
    for part in ("The arm right decides the verdict", "bowl (target of right)", "joint 1 of right, 1.00 of 0.500 N·m"):
        assert part in text
    assert "(gripper of left)" in text.replace("robot part", "gripper")


def test_an_answer_names_the_arm_and_a_formula_on_neither_does_not(batch: Batch) -> None:
    (answer,) = answer_query(parse_query("G[0,T](grip -> held_object_slip > -0.02)"), batch)
    assert (answer.verdict, answer.arm) == ("violated", "right")
    table = answer_table(parse_query("G[0,T](grip -> held_object_slip > -0.02)"), [answer])
    assert any("right: " in str(cell) for row in table.rows for cell in row)
    (answer,) = answer_query(parse_query("G[0,T](self_collision < 0.5)"), batch)
    assert "arm" not in msgspec.to_builtins(answer)


def test_viewers_show_an_end_effector_for_each_arm(batch: Batch) -> None:
    bodies = build_timeline(score(batch, RULES), batch, RULES, 0).bodies
    assert [body.name for body in bodies[-2:]] == ["end_effector_left", "end_effector_right"]
    assert bodies[-1].pos_m[-1].tolist() == pytest.approx([0.0, 0.0, 1.09])


def test_a_monitor_names_the_arm_of_the_newest_record(batch: Batch) -> None:
    monitor = Monitor(RULES)
    first, *rest = iterate_records(batch)
    standings = [monitor.start(first), *map(monitor.observe, rest)]
    broken = next(k for k, standing in enumerate(standings) if "stable_grasp_maintained_2cm" in standing.violated)
    clause = standings[broken].clauses["stable_grasp_maintained_2cm"]
    assert (broken, clause.arm, clause.margin) == (5, "right", pytest.approx(-0.01))
    assert standings[broken].clauses["joint_torque"].arm == ""
