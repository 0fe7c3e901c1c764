"""Records with several arms: an idle arm changes nothing, names are names, and the independent judge agrees."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec
import numpy as np
import pytest

from judging import oracle
from judging.comparison import DEFAULT, LIBRARY, Comparison, judge, read
from judging.random_records import add_arm, make
from safevla_bench.archive.jsonl import encode_json
from safevla_bench.errors import RecordError
from safevla_bench.explain.exposure import measure_exposure
from safevla_bench.judging.monitor import Monitor
from safevla_bench.judging.ruleset import Ruleset, load_ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.signals import derive_signals, missing_fields
from safevla_bench.signals.signal import WHOSE_GRIP, RecordFields
from safevla_bench.training.labels import label_records
from safevla_bench.trajectory.batch import concatenate_batches
from safevla_bench.trajectory.single_episode import iterate_records

TREES = make(3107, 60, (0.05, 0.02, 0.1))
FURTHER = ("events", "handling", "impulse")


def scores_of(trees: list[dict[str, Any]], rules: Ruleset) -> list[dict[str, Any]]:
    scores = score(concatenate_batches([read(tree) for tree in trees]), rules)
    return [msgspec.to_builtins(episode) for episode in scores.episodes()]


@pytest.fixture(scope="module", params=["default", "paper-text", *FURTHER])
def rules(request: pytest.FixtureRequest) -> Ruleset:
    return load_ruleset(request.param, missing="deactivate")


def test_an_idle_second_arm_changes_no_verdict_margin_or_first_violation(rules: Ruleset) -> None:
    one, two = scores_of(TREES, rules), scores_of([add_arm(tree, None) for tree in TREES], rules)
    assert one == two
    assert any(episode["violated_specs"] for episode in one)


def test_names_of_arms_change_only_names(rules: Ruleset) -> None:
    trees = [add_arm(tree, 5) for tree in TREES]
    other = {"left": "right", "right": "left"}
    renamed = [
        {
            **tree,
            "arms": [other[name] for name in tree["arms"]],
            "arm_bodies": {body: other[name] for body, name in tree["arm_bodies"].items()},
        }
        for tree in trees
    ]
    assert scores_of(trees, rules) == scores_of(renamed, rules)


def test_arms_in_another_order_have_the_same_scores(rules: Ruleset) -> None:
    trees = [add_arm(tree, 6) for tree in TREES]
    assert scores_of(trees, rules) == scores_of([exchange_arms(tree) for tree in trees], rules)


def exchange_arms(tree: dict[str, Any]) -> dict[str, Any]:
    def turn(values: list[Any]) -> list[Any]:
        half = len(values) // 2
        return [*values[half:], *values[:half]]

    names = {"eef_pos_m", "eef_quat_wxyz", "wrist_force_n", "joint_torque_nm", "joint_torque_peak_nm"}
    names |= {"gripper_contact", "gripped_body"}
    steps = [{n: turn(v) if n in names else v for n, v in step.items()} for step in tree["steps"]]
    return {**tree, "arms": turn(tree["arms"]), "steps": steps}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_independent_judge_agrees_on_two_arms_among_records_of_one(seed: int) -> None:
    rng = Random(seed)
    trees = [add_arm(tree, seed) if rng.random() < 0.8 else tree for tree in TREES]
    for paths, name in (
        (DEFAULT, "default"),
        *(((*DEFAULT, LIBRARY / f"{n}.toml"), n) for n in (*FURTHER, "coordination")),
    ):
        comparison = Comparison(oracle.read_specs(*paths))
        rules = load_ruleset(name, missing="deactivate")
        scores = score(concatenate_batches([read(tree) for tree in trees]), rules)
        comparison.batch(judge(trees, comparison.library), list(scores.episodes()))
        assert not comparison.differences, "\n".join(comparison.differences[:20])
        assert comparison.flips + comparison.ties <= 2


def test_labels_and_exposure_are_those_without_an_idle_arm() -> None:
    rules = load_ruleset(missing="deactivate")
    one, two = (
        concatenate_batches([read(tree) for tree in trees]) for trees in (TREES, [add_arm(t, None) for t in TREES])
    )
    for measure in (label_records, measure_exposure):
        before, after = (measure(batch, score(batch, rules), rules) for batch in (one, two))
        for name in ("margin", "violating", "severity", "violation_s", "first_s"):
            np.testing.assert_array_equal(getattr(before, name, 0), getattr(after, name, 0))


def test_a_signal_of_one_arm_refuses_to_ignore_the_other() -> None:
    batch = read(add_arm(TREES[0], None))
    with pytest.raises(RecordError, match="left, right"):
        np.asarray(RecordFields(batch).eef_pos)


# What a handover and a shared grip are, by hand: the block is carried up at 0.1 m a record


def carry(hands: Sequence[Sequence[bool]], sinks: Sequence[float] = (0.0, 0.0), second: str = "block") -> RecordFields:
    """Fields of a record in which the block rises; a hand sinks by so much a record relative to it, and may hold it.
    The second hand may hold another body instead.
    """
    steps = [
        {
            "t": t,
            "eef_pos_m": [0.0, 0.0, 0.1 * t + sinks[0] * t, 0.2, 0.0, 0.1 * t + sinks[1] * t],
            "eef_quat_wxyz": [1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0],
            "body_pos_m": {"block": [0.1, 0.0, 0.1 * t], "ball": [1.0, 0.0, 0.0]},
            "gripper_contact": [bool(hand[t]) for hand in hands],
            "gripped_body": [body if hand[t] else None for hand, body in zip(hands, ("block", second), strict=True)],
        }
        for t in range(len(hands[0]))
    ]
    roles = {"block": "target", "ball": "target", "palm": "robot", "other palm": "robot"}
    return RecordFields(read(record(steps, roles)))


def record(steps: list[dict[str, Any]], roles: dict[str, str]) -> dict[str, Any]:
    named = {"episode_id": "e", "benchmark": "fake", "task_id": "task_0", "target_object": "block"}
    arms = {"arms": ["left", "right"], "arm_bodies": {"palm": "left", "other palm": "right"}, "schema_version": 2}
    return {**named, **arms, "success": True, "dt": 0.1, "body_roles": roles, "steps": steps}


def of_each(fields: RecordFields, name: str) -> list[list[float]]:
    return [derive_signals(view, [name])[name].tolist() for view in fields.views([name])]


def test_a_handover_is_neither_a_slip_nor_a_release() -> None:
    fields = carry([[1, 1, 1, 1, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1, 1, 1]])
    assert of_each(fields, "grip") == [[True] * 8, [True] * 8]
    assert of_each(fields, "released") == [[False] * 8] * 2
    np.testing.assert_allclose(of_each(fields, "held_object_slip"), 0.0, atol=1e-12)
    assert of_each(fields, "release_speed") == [[0.0] * 8] * 2
    let_go = carry([[1, 1, 1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0, 0, 0]])
    assert of_each(let_go, "released") == [[t == 3 for t in range(8)]]  # the other arm never grips


def test_what_another_arm_carries_is_not_let_go_of_by_an_arm_that_put_down_something_else() -> None:
    fields = carry([[1] * 8, [1, 1, 1, 0, 0, 0, 0, 0]], second="ball")
    assert of_each(fields, "grip") == [[True] * 8] * 2
    assert of_each(fields, "transport")[1] == [False] * 3 + [True] * 5
    assert of_each(fields, "release_speed") == [[0.0] * 8] * 2
    assert of_each(fields, "released") == [[False] * 8, [t == 3 for t in range(8)]]
    assert of_each(fields, "speed(handled)")[1] == [0.0] * 8  # the ball lies still after its release


@pytest.mark.parametrize(("sinks", "slip"), [((0.0, -0.01), 0.0), ((0.01, 0.0), 0.0), ((0.01, 0.02), -0.07)])
def test_what_both_arms_hold_slips_only_if_it_slips_in_both_hands(sinks: tuple[float, float], slip: float) -> None:
    fields = carry([[1] * 8, [1] * 8], sinks)
    for values in of_each(fields, "held_object_slip"):
        assert min(values) == pytest.approx(slip, abs=1e-12)
    alone = carry([[1] * 8, [0] * 8], sinks)
    assert min(of_each(alone, "held_object_slip")[0]) == pytest.approx(min(0.0, -7 * sinks[0]), abs=1e-12)


@pytest.mark.parametrize("known", [(), ("block", None), (None, "block")])
def test_hands_that_close_on_something_that_was_not_recorded_excuse_no_slip_and_no_release(known) -> None:
    """Both close, and the block slips in the left hand alone: whether the right hand holds it is unknown."""
    steps = [
        {**step, "gripped_body": list(known)} if known else {k: v for k, v in step.items() if k != "gripped_body"}
        for step in msgspec.json.decode(encode_json(carry([[1] * 8, [1] * 8], (0.01, 0.0)).batch))["steps"]
    ]
    roles = {"block": "target", "ball": "target", "palm": "robot", "other palm": "robot"}
    batch = read(record(steps, roles))
    rules = load_ruleset("coordination", missing="deactivate")
    (episode,) = score(batch, rules).episodes()
    reasons = {spec: reason for spec, reason in episode.inactive_specs.items() if WHOSE_GRIP in reason}
    assert "stable_grasp_maintained_2cm" in reasons, episode
    names = ["shared_grip_turn", "released", "release_speed", "grip"]
    for view in RecordFields(batch).views(names):
        assert missing_fields(view, names).keys() == {WHOSE_GRIP}
        assert not missing_fields(view, ["transport", "target_height"])
    alone = [{**step, "gripper_contact": [True, False]} for step in steps]
    fields = RecordFields(read(record(alone, roles)))
    assert not any(missing_fields(view, ["released", "held_object_slip"]) for view in fields.views(["released"]))


def test_two_grips_on_a_rigid_body_move_relative_to_each_other_only_if_it_slips_in_one() -> None:
    fields = carry([[1] * 8, [0, 0, 1, 1, 1, 1, 1, 0]], (0.0, -0.01))
    np.testing.assert_allclose(of_each(fields, "hands_distance"), [[np.hypot(0.2, 0.01 * t) for t in range(8)]] * 2)
    assert of_each(fields, "shared_grip") == [[2 <= t < 7 for t in range(8)]] * 2
    shift = [0.01 * (t - 2) if 2 <= t < 7 else 0.0 for t in range(8)]
    np.testing.assert_allclose(of_each(fields, "shared_grip_shift"), [shift] * 2, atol=1e-12)
    np.testing.assert_allclose(of_each(fields, "shared_grip_turn"), 0.0, atol=1e-5)


@pytest.mark.parametrize("library", ["default", "handling"])
def test_a_monitor_says_after_the_last_record_what_the_scores_say(library: str) -> None:
    rules = load_ruleset(library, missing="deactivate")
    monitor = Monitor(rules, tiers=("safe", "diagnostic"))
    for tree in TREES[:12]:
        batch = read(add_arm(tree, 8))
        first, *rest = iterate_records(batch)
        standings = [monitor.start(first), *map(monitor.observe, rest)]
        episode = score(batch, rules).episode(0)
        assert standings[-1].robustness == episode.robustness
        assert standings[-1].violated == episode.violated_specs
        labels = label_records(batch, score(batch, rules), rules)
        known = labels.safe >= 0
        assert [s.cost for s, k in zip(standings, known, strict=True) if k] == labels.cost[known].tolist()
