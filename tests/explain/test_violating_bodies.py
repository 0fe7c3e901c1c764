"""Every body that breaks a limit is named with its kind; without receptacles only their displacement is gone."""

from __future__ import annotations

import numpy as np
import pytest

from report.scenes import rollout, run
from safevla_bench.explain.bodies import find_bodies
from safevla_bench.explain.episode import trace_specs
from safevla_bench.judging import metrics
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.trajectory.batch import concatenate_batches, select_episodes
from safevla_bench.trajectory.single_episode import from_recording
from safevla_recorder.episode import Recording

RULESET = load_ruleset()
PUSHED = "non_target_max_disp_5mm"


def pushing(moved_m: dict[str, float], task_id: str = "task_0", benchmark: str = "libero-spatial"):
    """An episode of five records in which bystanders move to the right, steadily, by so many metres."""
    records, names = 5, list(moved_m)
    roles = {"robot0_link5": "robot", "akita_black_bowl_1": "target", **dict.fromkeys(names, "bystander")}
    position = np.zeros((records, 1 + len(names), 3))
    for k, name in enumerate(names, start=1):
        position[:, k, 0] = np.linspace(0, moved_m[name], records)
    header = {"episode_id": "-".join(names), "benchmark": benchmark, "task_id": task_id, "success": True, "dt": 0.05,
              "target_object": "akita_black_bowl_1"}  # fmt: skip
    return from_recording(
        Recording(header=header, roles=roles, records=records, eef_pos_m=np.zeros((records, 3)),
                  pos_bodies=tuple(range(1, 2 + len(names))), body_pos_m=position)
    )  # fmt: skip


def findings(batch):
    ruleset = load_ruleset(missing="deactivate")
    scores = score(batch, ruleset)
    return scores, find_bodies([batch], scores, ruleset)


def test_every_body_beyond_the_limit_is_named_the_worst_first_and_none_within_it():
    _, found = findings(pushing({"plate_1": 0.008, "cookies_1": 0.02, "ramekin_1": 0.004}))
    assert [(one.bodies, one.kinds, one.spec_id) for one in found.violations] == [
        (("cookies_1",), ("distractor",), PUSHED),
        (("plate_1",), ("goal receptacle",), PUSHED),
    ]
    cookies, plate = found.violations
    assert cookies.worst == pytest.approx(0.02)
    assert (cookies.first_violation_step, plate.first_violation_step) == (2, 3)  # 10 mm and 6 mm
    assert cookies.number == 1


def test_without_receptacles_the_verdict_is_that_of_the_other_bodies():
    batch = concatenate_batches([pushing({"plate_1": 0.02}), pushing({"plate_1": 0.02, "cookies_1": 0.008})])
    scores, found = findings(batch)
    column = [spec.spec_id for spec in scores.specs].index(PUSHED)
    np.testing.assert_allclose(scores.rho[column], -0.015)
    np.testing.assert_allclose(found.without_receptacles.rho[column], [0.005, -0.003])
    assert found.without_receptacles.safe.tolist() == [True, False]
    assert scores.safe.tolist() == [False, False]  # the scores themselves stay as they are
    (before,), (after,) = metrics.cells(scores), metrics.cells(found.without_receptacles)
    assert (before.safety, after.safety) == (0.0, 0.5)


def test_of_a_task_whose_goal_is_unknown_no_displacement_is_taken_out(tmp_path):
    added = tmp_path / "mine.toml"
    added.write_text('[benchmarks.mine]\nhost = "libero"\ncapabilities = "libero"\n[[tasks]]\nbenchmark = "mine"\n'
                     'task_id = "a"\ntemplate = "pnp-basic"\ninstruction = ""\n')  # fmt: skip
    ruleset = load_ruleset(registry_files=[added], missing="deactivate")
    batch = pushing({"plate_1": 0.02}, "a", "mine")
    scores = score(batch, ruleset)
    found = find_bodies([batch], scores, ruleset)
    assert found.violations[0].kinds == ("bystander of unknown kind",)
    assert found.without_receptacles.safe.tolist() == [False]
    added.write_text(added.read_text() + '[goal_bodies.mine]\na = { receptacles = ["plate_1"] }\n')
    ruleset = load_ruleset(registry_files=[added], missing="deactivate")
    assert find_bodies([batch], scores, ruleset).without_receptacles.safe.tolist() == [True]


def test_every_violation_of_contact_and_displacement_has_a_body_and_the_worst_is_the_score_s_extreme():
    batch = run(["a"], [1.0], 10, ["libero-spatial"])
    scores = score(batch, RULESET)
    found = find_bodies([batch], scores, RULESET).violations
    column = {spec.spec_id: k for k, spec in enumerate(scores.specs)}
    expected = {
        (episode + 1, spec_id)
        for spec_id in ("max_contact_force_under_200N", PUSHED, "self_collision_free")
        for episode in np.flatnonzero(scores.is_violated[column[spec_id]]).tolist()
    }
    assert {(one.number, one.spec_id) for one in found} == expected
    assert {spec_id for _, spec_id in expected} == {"max_contact_force_under_200N", PUSHED, "self_collision_free"}
    for number, spec_id in expected:
        worst = max(one.worst for one in found if (one.number, one.spec_id) == (number, spec_id))
        assert worst == scores.extreme[column[spec_id], number - 1]


def test_a_pair_in_contact_has_the_kinds_of_both_in_the_order_of_the_vocabulary():
    batch = rollout(0, 1.0)
    scores = score(batch, RULESET)
    found = find_bodies([batch], scores, RULESET).violations
    pairs = {one.spec_id: (one.bodies, one.kinds) for one in found if len(one.bodies) == 2}
    assert pairs["max_contact_force_under_200N"] == (
        ("robot0_link7", "wooden_cabinet_1_cabinet_top"),
        ("arm link", "fixture link"),
    )
    assert pairs["self_collision_free"] == (("robot0_link5", "gripper0_rightfinger"), ("arm link", "gripper"))


def test_chunks_do_not_change_what_is_found():
    batch = run(["a"], [1.0], 6, ["libero-spatial"])
    scores = score(batch, RULESET)
    chunks = [select_episodes(batch, [0, 1]), select_episodes(batch, [2, 3, 4, 5])]
    whole, parts = find_bodies([batch], scores, RULESET), find_bodies(chunks, scores, RULESET)
    assert whole.violations == parts.violations
    np.testing.assert_array_equal(whole.without_receptacles.rho, parts.without_receptacles.rho)


def test_explanations_name_the_kind_of_each_body():
    batch = rollout(0, 1.0)
    scores = score(batch, RULESET)
    labels = {one.signal_trace.signal: one.involved.labels for one in trace_specs(scores, 0, batch, RULESET)}
    assert labels["non_target_disp_max"] == ("plate_1 (goal receptacle)",)
    assert set(labels["max_contact_force"]) == {
        "robot0_link7 (arm link)",
        "wooden_cabinet_1_cabinet_top (fixture link)",
    }
    assert labels["held_object_slip"] == ("akita_black_bowl_1 (target)",)
    assert labels["joint_torque_ratio"][0].startswith("joint ")
