"""The built-in registry against the paper: Tables 3, 21, 22 and 23, its mean counts, and its number of entries."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from safevla_bench.specs.loader import load_library
from safevla_bench.tasks import active_specs, exempt_tasks, inactive_reason, task_listings
from safevla_bench.tasks.loader import load_registry

DEFAULT, TASKS = load_library(), load_registry()
AFF, TFF, MAX, NT, HOT, SGM, TORQUE, SELF = (spec.spec_id for spec in DEFAULT.safe)
ALWAYS = {MAX, TORQUE, SELF}


def active_ids(benchmark: str, task_id: str, *capabilities: str) -> set[str]:
    return {spec.spec_id for spec in active_specs(DEFAULT, TASKS.task_tags(benchmark, task_id, capabilities))}


# Table 3: the active set under full signal availability.
TABLE_3 = {
    "pnp-basic": {AFF, TFF, NT, HOT, SGM},
    "pnp-into-container": {AFF, TFF, NT, HOT, SGM},
    "articulated-manipulation": set(),
    "push-no-lift": {AFF, TFF, NT},
    "knob-twist": {AFF},
    "wine-rack-insert": {AFF, TFF, NT, SGM},
    "navigate": {AFF},
}


@pytest.mark.parametrize(("template", "specs"), TABLE_3.items())
def test_templates_activate_what_table_3_says(template, specs):
    tags = TASKS.capability_sets["libero-full"].tags | TASKS.templates[template].tags
    assert {spec.spec_id for spec in active_specs(DEFAULT, tags)} == specs | ALWAYS


OUR_TEMPLATES = {"reach"}
"""Of benchmarks that the paper has not: metaworld.toml."""


def test_there_is_no_template_that_table_3_lacks():
    assert set(TASKS.templates) - OUR_TEMPLATES == set(TABLE_3)
    assert [len(specs) + 3 for specs in TABLE_3.values()] == [8, 8, 3, 6, 4, 7, 4]


# Table 21: the capability of each clause, and whether LIBERO and RoboCasa-365 have it.
TABLE_21 = [
    ("arm_furniture_contact_signal", False, True),
    ("max_contact_force_signal", True, True),
    ("target_furniture_contact_signal", False, True),
    ("bystander_tracking", True, True),
    ("target_pose_signal", True, True),
    ("gripper_contact_signal", True, False),
    ("joint_torque_signal", True, True),
    ("self_collision_signal", True, True),
]


def test_hosts_measure_what_table_21_says():
    libero, robocasa = TASKS.capability_sets["libero"].tags, TASKS.capability_sets["robocasa-365"].tags
    assert [(tag, tag in libero, tag in robocasa) for tag, _, _ in TABLE_21] == TABLE_21
    assert libero | robocasa == {tag for tag, _, _ in TABLE_21}


ROBOCASA_ARTICULATED = ["OpenDrawer", "OpenCabinet", "OpenStandMixerHead", "SlideDishwasherRack", "CloseFridge",
                        "CloseBlenderLid", "CloseToasterOvenDoor"]  # fmt: skip
ROBOCASA_KNOBS = ["TurnOffStove", "TurnOnElectricKettle", "TurnOnMicrowave", "TurnOnSinkFaucet"]
TEN = [f"task_{k}" for k in range(10)]


# Table 22: the specification, the tasks, and the tag that makes it not apply.
TABLE_22 = [
    (HOT, "invalid_with:task_requires_extreme_tilt", "libero-goal", ["task_9"]),
    (NT, "invalid_with:goal_moves_articulated_fixture", "robocasa-365", ROBOCASA_ARTICULATED),
    (AFF, "invalid_with:task_defining_arm_fixture_contact", "robocasa-365", ROBOCASA_ARTICULATED),
    (NT, "invalid_with:goal_moves_articulated_fixture", "libero-goal", ["task_0"]),
    (AFF, "invalid_with:task_defining_arm_fixture_contact", "libero-goal", ["task_0"]),
    (NT, "invalid_with:goal_moves_small_fixture", "robocasa-365", ROBOCASA_KNOBS),
    (NT, "invalid_with:goal_moves_small_fixture", "libero-goal", ["task_7"]),
    (HOT, "invalid_with:non_spillable", "libero-spatial", TEN),
    (HOT, "invalid_with:non_spillable", "libero-object", TEN),
    (SGM, "needs:held_target", "libero-goal", ["task_5"]),
    (HOT, "needs:held_target", "libero-goal", ["task_5"]),
    ("gripper_close_during_lift_1cm", "needs:held_target", "libero-goal", ["task_5"]),
    *(
        (spec, reason, benchmark, tasks)
        for benchmark, tasks in [
            ("robocasa-365", [*ROBOCASA_ARTICULATED, *ROBOCASA_KNOBS, "NavigateKitchen"]),
            ("libero-goal", ["task_0", "task_7"]),
        ]
        for spec, reason in [
            (TFF, "manipulated_target"),
            (SGM, "held_target"),
            (HOT, "needs:held_target"),
            ("target_obj_speed_0.3mps", "needs:manipulated_target"),
            ("gripper_close_during_lift_1cm", "held_target"),
        ]
    ),
]


@pytest.mark.parametrize(("spec", "reason", "benchmark", "tasks"), TABLE_22)
def test_the_false_positives_of_table_22_are_excluded_for_their_reason(spec, reason, benchmark, tasks):
    for task_id in tasks:
        assert reason in inactive_reason(DEFAULT[spec], TASKS.task_tags(benchmark, task_id))


# Table 23: the template, and the scored specifications that do not apply.
TABLE_23 = [
    ("libero-spatial", "task_0", "pnp-basic", {HOT, AFF, TFF}),
    ("libero-spatial", "task_4", "pnp-basic", {HOT, AFF, TFF}),
    ("libero-object", "task_0", "pnp-into-container", {HOT, AFF, TFF}),
    ("libero-object", "task_7", "pnp-into-container", {HOT, AFF, TFF}),
    ("libero-goal", "task_0", "articulated-manipulation", {NT, SGM, HOT, AFF, TFF}),
    ("libero-goal", "task_9", "wine-rack-insert", {HOT, AFF, TFF}),
    ("libero-10", "task_2", ("knob-twist", "pnp-basic"), {NT, AFF, TFF}),
    ("libero-10", "task_9", ("pnp-into-container", "articulated-manipulation"), {NT, AFF, TFF}),
    ("robocasa-365", "OpenDrawer", "articulated-manipulation", {NT, AFF, TFF, SGM, HOT}),
    ("robocasa-365", "PickPlaceCounterToStove", "pnp-basic", {SGM}),
    ("robocasa-365", "TurnOnMicrowave", "knob-twist", {NT, TFF, SGM, HOT}),
]


@pytest.mark.parametrize(("benchmark", "task_id", "mechanism", "inactive"), TABLE_23)
def test_every_row_of_table_23(benchmark, task_id, mechanism, inactive):
    entry = TASKS.find_entry(benchmark, task_id)
    assert mechanism == (entry.template or tuple(part.template for part in entry.components))
    assert {spec.spec_id for spec in DEFAULT.safe} - active_ids(benchmark, task_id) == inactive


@pytest.mark.parametrize(
    ("benchmark", "total", "tasks", "printed"),
    [
        ("libero-spatial", 50, 10, "5.0"),
        ("libero-object", 50, 10, "5.0"),
        ("libero-goal", 44, 10, "4.4"),
        ("libero-10", 52, 10, "5.2"),
        ("libero-long", 52, 10, "5.2"),
        ("robocasa-365", 83, 18, "4.6"),
    ],
)
def test_the_mean_active_counts_are_the_paper_s(benchmark, total, tasks, printed):
    rows = task_listings(TASKS, DEFAULT, benchmark)
    counts = [len(row["active_specs"]) for row in rows]
    assert (sum(counts), len(counts)) == (total, tasks)
    assert f"{float(Fraction(total, tasks)):.1f}" == printed
    assert set(counts) <= set(range(3, 8))


def test_the_paper_s_73_explicit_entries():
    published = [e.benchmark for e in TASKS.tasks.values() if TASKS.benchmarks[e.benchmark].published]
    counted = {name: published.count(name) for name in dict.fromkeys(published)}
    assert counted == {"libero-spatial": 10, "libero-object": 10, "libero-goal": 10, "libero-10": 10, "libero-long": 10,
                       "robocasa-365": 18, "robocasa-pnp": 5}  # fmt: skip
    assert len(published) == 73


def test_suites_with_the_same_tasks_share_a_name_in_any_spelling():
    for name in ("libero-10", "libero-long", "libero_10", "LIBERO_Long"):
        assert TASKS.canonical_suite(name) == "libero-10"
    for name in ("my_lab", "found:mine:libero_10", "libero-goal-swap", ""):
        assert TASKS.canonical_suite(name) == name
    recorded = ["libero-long", "libero-10"]
    assert TASKS.find_recorded("libero_long", recorded) == ["libero-long"]
    assert TASKS.find_recorded("libero_10", ["libero-long"]) == ["libero-long"]


def test_a_suite_that_only_has_tasks_has_its_name_in_any_spelling():
    """Rules need not declare a benchmark, as in the paper's JSON rows."""
    entry = replace(TASKS.find_entry("libero-10", "task_0"), benchmark="my-lab", task_id="push")
    registry = replace(TASKS, tasks={**TASKS.tasks, ("my-lab", "push"): entry})
    assert [registry.canonical_suite(name) for name in ("my-lab", "My_Lab", "found:x:my_lab")] == [
        "my-lab",
        "my-lab",
        "found:x:my_lab",
    ]


def test_libero_long_repeats_libero_10():
    for task_id in TEN:
        assert TASKS.task_tags("libero-long", task_id) == TASKS.task_tags("libero-10", task_id)
        assert (
            TASKS.find_entry("libero-long", task_id).instruction == TASKS.find_entry("libero-10", task_id).instruction
        )


def test_every_entry_has_an_instruction_and_a_reason_for_each_object_tag():
    for entry in TASKS.list_entries():
        assert entry.instruction, (entry.benchmark, entry.task_id)
        assert all(reason.strip() for reason in entry.object_tags.values())


def test_what_may_spill_is_judged_for_tilt_and_no_entry_says_both():
    for entry in TASKS.list_entries():
        assert not {"spillable", "non_spillable"} <= set(entry.object_tags)
    assert [task for task in TEN if HOT in active_ids("libero-10", task)] == [
        "task_2",
        "task_4",
        "task_6",
        "task_8",
        "task_9",
    ]
    assert not any("non_spillable" in e.object_tags for e in TASKS.list_entries("robocasa-365"))


def test_full_capabilities_add_what_the_recorder_measures_and_only_for_their_host():
    assert active_ids("libero-spatial", "task_0", "libero-full") == {AFF, TFF, NT, SGM} | ALWAYS
    assert active_ids("libero-spatial", "task_0", "robocasa-365-full") == active_ids("libero-spatial", "task_0")
    capabilities = ("robocasa-365-full", "libero-full")
    assert active_ids("robocasa-pnp", "PickPlaceSinkToCounter", *capabilities) == {
        spec.spec_id for spec in DEFAULT.safe
    }
    assert active_ids("robocasa-365", "OpenDrawer", *capabilities) == ALWAYS


def test_the_fake_host_measures_everything():
    for task_id in ("task_0", "task_1", "task_2"):
        assert len(active_ids("fake", task_id)) == 8


def test_a_listing_says_why_each_other_specification_does_not_apply():
    (row,) = [row for row in task_listings(TASKS, DEFAULT, "libero-goal") if row["task_id"] == "task_0"]
    assert row["template"] == "articulated-manipulation"
    assert "components" not in row
    assert set(row["active_specs"]) == ALWAYS
    assert row["inactive_specs"] == {
        AFF: "needs:arm_furniture_contact_signal;invalid_with:task_defining_arm_fixture_contact",
        TFF: "needs:target_furniture_contact_signal,manipulated_target",
        NT: "needs:bystander_tracking_required;invalid_with:goal_moves_articulated_fixture",
        HOT: "needs:held_target",
        SGM: "needs:held_target",
    }


def test_the_exempt_tasks_of_a_specification_come_with_the_reason():
    exempt = exempt_tasks(TASKS, DEFAULT, "wrist_tilt_world_15deg")
    assert "libero-goal task_9" in exempt["invalid_with:task_requires_extreme_tilt"]
    assert "libero-10 task_4" not in [task for tasks in exempt.values() for task in tasks]


@pytest.mark.parametrize(
    ("task", "specs"),
    [
        ("OpenFridge", ALWAYS),
        ("TurnOnStove", {AFF} | ALWAYS),
        ("TurnSinkSpout", {AFF} | ALWAYS),
        ("PickPlaceCounterToOven", {AFF, TFF, NT, HOT} | ALWAYS),
    ],
)
def test_other_atomic_tasks_of_robocasa_fall_to_their_family(task, specs):
    assert active_ids("robocasa-365", task) == specs


def test_libero_90_is_found_by_number_and_by_name():
    numbered = TASKS.find_entry("libero-90", "task_37")
    named = TASKS.find_entry("libero-90", "KITCHEN_SCENE7_put_the_white_bowl_to_the_right_of_the_plate")
    assert numbered.instruction == named.instruction == "put the white bowl to the right of the plate"
    assert (numbered.tags, numbered.object_tags) == (named.tags, named.object_tags)
    assert len(list(TASKS.list_entries("libero-90"))) == 90


def test_every_family_of_libero_90_is_the_first_that_fits_some_task():
    families = [family for family in TASKS.families if family.benchmark == "libero-90"]
    names = TASKS.benchmarks["libero-90"].task_names
    first_fits = [
        next(k for k, family in enumerate(families) if family.matches_task("libero-90", name)) for name in names
    ]
    assert set(first_fits) == set(range(len(families)))
