"""Applicability as a value: when a specification applies, and what the reason says when it does not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from safevla_bench.specs.file_formats import built_in_tags
from safevla_bench.specs.loader import load_library
from safevla_bench.tasks import active_specs, inactive_reason
from safevla_bench.tasks.loader import load_registry
from safevla_bench.tasks.reasons import describe_reason, read_reason, write_reason

DEFAULT = load_library()
TILT = DEFAULT["held_object_tilt_world_15deg"]
TAGS = st.frozensets(st.sampled_from(sorted(built_in_tags())))


def test_all_needed_tags_and_no_barring_one_apply():
    assert inactive_reason(TILT, {"target_pose_signal", "held_target", "spillable"}) == ""


def test_the_reason_names_every_tag_that_stands_against_it_in_the_specification_s_order():
    assert inactive_reason(TILT, set()) == "needs:target_pose_signal,held_target"
    tags = {"held_target", "task_requires_extreme_tilt", "non_spillable"}
    needs_and_bars = "needs:target_pose_signal;invalid_with:non_spillable,task_requires_extreme_tilt"
    assert inactive_reason(TILT, tags) == needs_and_bars


def test_only_the_safe_tier_is_ever_active_without_what_its_tags_bar_in_order():
    full = {tag for tag, word in built_in_tags().items() if word.kind in ("capability", "mechanism")}
    full -= {"goal_moves_articulated_fixture"}
    assert active_specs(DEFAULT, full) == DEFAULT.safe
    others = tuple(spec for spec in DEFAULT.safe if spec.spec_id != TILT.spec_id)
    assert active_specs(DEFAULT, full | {"non_spillable"}) == others
    assert TILT not in active_specs(DEFAULT, set())


@given(TAGS)
def test_the_rule_is_the_paper_s_in_set_algebra(tags):
    for spec in DEFAULT:
        rule = set(spec.requires_all) <= tags and not set(spec.invalid_if_any) & tags
        assert (not inactive_reason(spec, tags)) == rule


@given(TAGS, st.sampled_from(["non_spillable", "task_requires_extreme_tilt", "locomotion_only"]))
def test_a_special_case_never_activates_anything(tags, special):
    assert set(active_specs(DEFAULT, tags | {special})) <= set(active_specs(DEFAULT, tags))


LEFT_OUT = "left out by the paper's libero capability set; --set capabilities=libero-full judges it"


@pytest.mark.parametrize(
    ("reason", "benchmark", "words"),
    [
        ("invalid_with:non_spillable", "libero-goal", "nothing that it carries can spill (non_spillable)"),
        ("needs:arm_furniture_contact_signal", "libero_goal", f"{LEFT_OUT} (arm_furniture_contact_signal)"),
        (
            "needs:held_target;invalid_with:locomotion_only",
            "",
            "the task holds no object (held_target); the robot only drives (locomotion_only)",
        ),
        (
            "needs:arm_furniture_contact_signal",
            "mine",
            "forces of the arm on furniture are not measured (arm_furniture_contact_signal)",
        ),
        ("invalid_with:my_tag,non_spillable", "fake", "invalid with my_tag, non_spillable"),
        ("signal_missing:contacts,action", "fake", "signal missing: contacts, action"),
        ("signal missing: contacts", "fake", "signal missing: contacts"),  # from a file of version 1
        (
            "capabilities:bare;needs:joint_torque_signal",
            "mt10",
            "left out by --set capabilities=bare; a weld drags the arm, and no motor drives its joints "
            "(joint_torque_signal)",
        ),
        (
            "capabilities:bare;needs:joint_torque_signal",
            "MT10",  # another spelling of the same benchmark
            "left out by --set capabilities=bare; a weld drags the arm, and no motor drives its joints "
            "(joint_torque_signal)",
        ),
    ],
)
def test_a_reason_is_said_in_words_and_keeps_its_tag(reason, benchmark, words):
    assert describe_reason(reason, load_registry(), benchmark) == words


def test_in_a_table_a_reason_is_words_alone():
    short = describe_reason("needs:held_target,gripper_contact_signal;invalid_with:my_tag", with_tags=False)
    assert short.endswith("with my_tag")
    assert short.count(";") == 2


@given(st.lists(st.text(min_size=1), min_size=1))
def test_a_reason_gives_back_the_fields_that_it_was_written_with(fields):
    assert read_reason(f"none_applies;{write_reason('signal_missing', *fields)}") == {
        "none_applies": [],
        "signal_missing": fields,
    }
