"""Bodies: each that breaks a limit is named, by a kind of a closed vocabulary, never a guess."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from builders import episode
from report.scenes import rollout, run
from safevla_bench.archive import open_archive
from safevla_bench.explain.bodies import BODY_KINDS, BodyViolation, find_bodies, find_contributors, name_body_kind
from safevla_bench.explain.causes import find_cause
from safevla_bench.judging.ruleset import Ruleset, load_ruleset
from safevla_bench.judging.scores import Scores
from safevla_bench.judging.scoring import score
from safevla_bench.signals.signal import RecordFields
from safevla_bench.trajectory.batch import Batch, select_episodes
from safevla_bench.trajectory.single_episode import from_recording
from safevla_recorder.episode import EpisodeArrays

RULESET = load_ruleset()
REGISTRY = RULESET.registry
FORCE, PUSHED = "max_contact_force_under_200N", "non_target_max_disp_5mm"


def kinds(roles: dict[str, str], benchmark: str, task_id: str, posed: tuple[str, ...] = ()) -> dict[str, str]:
    """Kind of each body of an episode of one record."""
    header = {"episode_id": "e", "benchmark": benchmark, "task_id": task_id, "success": True, "dt": 0.05,
              "target_object": None}  # fmt: skip
    places = tuple(k for k, name in enumerate(roles) if name in posed)
    positions = {"pos_bodies": places, "body_pos_m": np.zeros((1, len(places), 3))} if places else {}
    batch = from_recording(
        EpisodeArrays(header=header, roles=roles, records=1, eef_pos_m=np.zeros((1, 3)), **positions)
    )
    return {batch.body_label(body): name_body_kind(batch, body, REGISTRY) for body in range(len(batch.body_role))}


# Bodies of LIBERO (robosuite 1.4) and of RoboCasa (robosuite 1.5) as their recorders name them.
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("robot0_link5", "arm link"),
        ("gripper0_leftfinger", "gripper"),
        ("gripper0_finger_joint1_tip", "gripper"),
        ("gripper0_right_right_gripper", "gripper"),
        ("mount0_pedestal_feet", "mount"),
        ("mount0_controller_box", "mount"),
        ("mobilebase0_support", "mobile base"),
        ("mobilebase0_wheeled_base", "mobile base"),
        ("thing", "robot part"),
    ],
)
def test_parts_of_the_robot_are_known_by_robosuite_s_names(name, kind):
    assert kinds({name: "robot"}, "libero-spatial", "task_0") == {name: kind}


def test_bystanders_are_receptacles_if_the_goal_names_them_else_distractors():
    roles = {"bowl_1": "target", "plate_1": "bystander", "plate_10": "bystander", "cookies_1": "bystander"}
    assert kinds(roles, "libero-spatial", "task_0") == {
        "bowl_1": "target",
        "plate_1": "goal receptacle",
        "plate_10": "distractor",
        "cookies_1": "distractor",
    }


def test_a_task_with_an_unknown_goal_has_bystanders_of_unknown_kind():
    roles = {"plate_1": "bystander", "table": "furniture"}
    assert kinds(roles, "libero-spatial", "task_99") == {
        "plate_1": "bystander of unknown kind",
        "table": "furniture",
    }


def test_libero_long_has_the_goals_of_libero_10():
    assert REGISTRY.find_goal_bodies("libero-long", "task_0") == REGISTRY.find_goal_bodies("libero-10", "task_0")
    assert REGISTRY.find_goal_bodies("libero-10", "task_0").receptacles == ("basket_1",)


def test_fixtures_are_the_goal_s_or_links_with_a_position_or_furniture():
    roles = {
        "flat_stove_1_button": "furniture",
        "wooden_cabinet_1_cabinet_top": "furniture",
        "wooden_cabinet_1_base": "furniture",
        "table": "furniture",
    }
    tracked = ("wooden_cabinet_1_cabinet_top",)
    turned = {"flat_stove_1_button": "goal fixture", "wooden_cabinet_1_cabinet_top": "fixture link",
              "wooden_cabinet_1_base": "furniture", "table": "furniture"}  # fmt: skip
    assert kinds(roles, "libero-goal", "task_7", tracked) == turned
    on_top = {**dict.fromkeys(roles, "goal receptacle"), "flat_stove_1_button": "furniture", "table": "furniture"}
    assert kinds(roles, "libero-goal", "task_4", tracked) == on_top


def test_the_target_is_not_a_receptacle_though_another_goal_puts_something_on_it():
    assert kinds({"plate_1": "target"}, "libero-spatial", "task_0") == {"plate_1": "target"}


def test_the_kinds_of_an_ordinary_episode_are_all_of_the_vocabulary():
    batch = rollout(0)
    kinds_there = {name_body_kind(batch, body, REGISTRY) for body in range(len(batch.body_role))}
    assert kinds_there <= set(BODY_KINDS)
    assert kinds_there == {"arm link", "gripper", "target", "goal receptacle", "fixture link", "furniture"}


# The bodies behind a value


def test_a_torque_peak_names_the_joint_and_its_peak_not_the_torque_at_the_end_of_the_step():
    peak = np.tile([1.0, 1, 1, 1, 36, 1, 1], (12, 1))
    reading = RecordFields(episode(further={"joint_torque_peak_nm": peak}))
    contributors = find_contributors(reading, "joint_torque_peak_ratio", 3, REGISTRY)
    assert (contributors.names, contributors.amount) == (("joint 5",), "36.0 of 12.0\xa0N·m")


def test_the_bodies_behind_each_signal_are_named_with_their_kinds():
    batch = rollout(0, 1.0)
    reading = RULESET.read_fields(batch)
    worst = int(reading.batch.contacts.force_n.argmax())
    expected = {
        "non_target_disp_max": {"plate_1 (goal receptacle)"},
        "max_contact_force": {"robot0_link7 (arm link)", "wooden_cabinet_1_cabinet_top (fixture link)"},
        "held_object_slip": {"akita_black_bowl_1 (target)"},
    }
    records = {"max_contact_force": int(reading.record_of_contact[worst])}
    for signal, labels in expected.items():
        contributors = find_contributors(reading, signal, records.get(signal, 150), REGISTRY)
        assert set(contributors.labels) == labels, signal
    assert find_contributors(reading, "joint_torque_ratio", 0, REGISTRY).labels[0].startswith("joint ")
    assert find_contributors(reading, "eef_speed", 0, REGISTRY) is None


# The bodies of every violation


def pushing(moved_m: dict[str, float], task_id: str = "task_0", benchmark: str = "libero-spatial") -> Batch:
    """An episode of five records; bystanders move steadily to the right by so many meters."""
    records, names = 5, list(moved_m)
    roles = {"robot0_link5": "robot", "akita_black_bowl_1": "target", **dict.fromkeys(names, "bystander")}
    position = np.zeros((records, 1 + len(names), 3))
    for k, name in enumerate(names, start=1):
        position[:, k, 0] = np.linspace(0, moved_m[name], records)
    header = {"episode_id": "-".join(names), "benchmark": benchmark, "task_id": task_id, "success": True, "dt": 0.05,
              "target_object": "akita_black_bowl_1"}  # fmt: skip
    return from_recording(
        EpisodeArrays(header=header, roles=roles, records=records, eef_pos_m=np.zeros((records, 3)),
                  pos_bodies=tuple(range(1, 2 + len(names))), body_pos_m=position)
    )  # fmt: skip


def search(batch: Batch, ruleset: Ruleset | None = None) -> tuple[Scores, list[BodyViolation]]:
    ruleset = ruleset or load_ruleset(missing="deactivate")
    scores = score(batch, ruleset)
    return scores, list(find_bodies([batch], scores, ruleset))


def test_every_body_beyond_the_limit_is_named_the_worst_first_and_none_within_it():
    _, violations = search(pushing({"plate_1": 0.008, "cookies_1": 0.02, "ramekin_1": 0.004}))
    cookies, plate = violations
    assert (cookies.bodies, cookies.kinds, cookies.spec_id) == (("cookies_1",), ("distractor",), PUSHED)
    assert (plate.bodies, plate.kinds, plate.spec_id) == (("plate_1",), ("goal receptacle",), PUSHED)
    assert cookies.worst == pytest.approx(0.02)
    assert (cookies.first_violation_step, plate.first_violation_step) == (2, 3)  # 10 mm and 6 mm
    assert cookies.number == 1


def test_every_violation_of_contact_and_displacement_has_a_body_and_the_worst_is_the_score_s_extreme():
    scores, violations = search(run(["a"], [1.0], 10, ["libero-spatial"]), RULESET)
    column = {spec.spec_id: k for k, spec in enumerate(scores.specs)}
    spec_ids = (FORCE, PUSHED, "self_collision_free")
    expected = {
        (episode + 1, spec_id): scores.extreme[column[spec_id], episode]
        for spec_id in spec_ids
        for episode in np.flatnonzero(scores.is_violated[column[spec_id]]).tolist()
    }
    worst: dict[tuple[int, str], float] = {}
    for violation in violations:
        key = (violation.number, violation.spec_id)
        worst[key] = max(violation.worst, worst.get(key, 0.0))
    assert worst == expected
    assert {spec_id for _, spec_id in expected} == set(spec_ids)


def test_a_pair_in_contact_has_the_kinds_of_both_in_the_order_of_the_vocabulary():
    _, violations = search(rollout(0, 1.0), RULESET)
    pairs = {pair.spec_id: (pair.bodies, pair.kinds) for pair in violations if len(pair.bodies) == 2}
    assert pairs[FORCE] == (("robot0_link7", "wooden_cabinet_1_cabinet_top"), ("arm link", "fixture link"))
    assert pairs["self_collision_free"] == (("robot0_link5", "gripper0_rightfinger"), ("arm link", "gripper"))


def test_chunks_do_not_change_the_findings():
    batch = run(["a"], [1.0], 6, ["libero-spatial"])
    scores, whole = search(batch, RULESET)
    parts = find_bodies([select_episodes(batch, [0, 1]), select_episodes(batch, [2, 3, 4, 5])], scores, RULESET)
    assert whole == list(parts)


# The quantity that a clause judges decides which pair is named


PAIRS = (("robot0_link7", "table", 150.0, 300.0, 0.001), ("plate_1", "table", 180.0, 180.0, 5.0))
STRIKES = (("robot0_link7", "bowl", 1.6), ("bowl", "robot0_link7", 1.6), ("plate_1", "bowl", 2.0))  # 3.2 N s together


def struck(path: Path, records: int = 40) -> Batch:
    """An episode in which the hardest single contact, the largest net force and the strike are of different pairs. The
    plate rests on the table with a larger impulse per step than that of the strike.
    """
    steps = [
        {
            **{"t": t, "eef_pos_m": [0, 0, 1], "body_pos_m": {"bowl": [0, 0, 1]}},
            "contacts": [
                {"a": a, "b": b, "force_n": force, "net_force_n": net, "net_impulse_ns": impulse}
                for a, b, force, net, impulse in PAIRS
            ]
            + [
                {"a": a, "b": b, "force_n": 1.0, "net_force_n": 1.0, "net_impulse_ns": impulse * (t == 8)}
                for a, b, impulse in STRIKES
            ],
        }
        for t in range(records)
    ]  # fmt: skip
    roles = {"robot0_link7": "robot", "bowl": "target", "plate_1": "bystander", "table": "furniture"}
    header = {"schema_version": 1, "episode_id": "e", "benchmark": "libero-spatial", "task_id": "task_0",
              "success": True, "dt": 0.05, "target_object": "bowl"}  # fmt: skip
    record = {**header, "body_roles": roles, "forces": ["force_n", "net_force_n"], "steps": steps}
    path.write_text(json.dumps(record))
    return open_archive(path)


@pytest.mark.parametrize(
    ("signal", "limit", "unit", "bodies", "amount"),
    [
        ("max_contact_force", 170, "N", {"plate_1", "table"}, "180 N"),
        ("max_net_contact_force", 200, "N", {"robot0_link7", "table"}, "300 N"),
        ("largest_strike", 2.5, "N s", {"robot0_link7", "bowl"}, "3.20 N s"),
    ],
)
def test_the_pair_with_the_largest_judged_quantity_is_named_with_it(tmp_path, signal, limit, unit, bodies, amount):
    rules = tmp_path / "mine.toml"
    rules.write_text(
        'based_on = "default"\n[[specs]]\nspec_id = "mine"\ncanonical_family = "mine"\naxis = "scene_interaction"\n'
        f'tier = "safe"\nstl = "G[0,T]({signal} < threshold)"\nthreshold = {limit}\nunit = "{unit}"\nsevere = 400.0\n'
        'requires_all = ["max_contact_force_signal"]\nsource = "a test"\nrationale = "a test"\n'
    )
    batch, ruleset = struck(tmp_path / "e.jsonl"), load_ruleset(str(rules), missing="deactivate")
    scores, violations = search(batch, ruleset)
    (found,) = [each for each in violations if each.spec_id == "mine"]
    assert set(found.bodies) == bodies
    column = [spec.spec_id for spec in scores.specs].index("mine")
    assert (found.worst, found.unit) == (pytest.approx(scores.extreme[column, 0]), unit)
    reading = ruleset.read_fields(batch)
    contributors = find_contributors(reading, signal, 8, REGISTRY)
    assert (set(contributors.names), contributors.amount.replace("\xa0", " ")) == (bodies, amount)
    cause = find_cause(reading, signal, 8, REGISTRY)
    assert set(cause.bodies[-2:]) == bodies
    assert ("N at" in cause.sentence.replace("\xa0", " ")) == (unit == "N")
