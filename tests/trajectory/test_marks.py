"""Marks of episodes are read from the host's header fields; a damaged field says nothing, and is not an error."""

from __future__ import annotations

from typing import Any

import pytest

from builders import episode
from safevla_bench.trajectory.batch import Batch, concatenate_batches
from safevla_bench.trajectory.marks import (
    CHOSEN,
    CLIPPED_NUMBERS,
    DIVERGED,
    DRAWN,
    FOREIGN_LOG,
    MARKS,
    MOST_RESETS,
    PRIVILEGED,
    REPLAY,
    SINGLE,
    STANDIN,
    STOPPED_ON_VIOLATION,
    WAIT_STEPS,
    base_suite,
    chosen_start,
    clipped_numbers,
    earlier_resets,
    kitchens,
    mark_flags,
    read_count,
    single_channels,
    standin_benchmarks,
    start_marks,
)


def marked(fields: object, **changes: Any) -> Batch:
    return episode(2, extra={"header": fields}, **changes)


def test_a_summary_counts_the_episodes_that_were_stopped_or_diverged():
    assert {mark.field for mark in MARKS if mark.is_counted} == {STOPPED_ON_VIOLATION, DIVERGED}


@pytest.mark.parametrize("mark", [STANDIN, STOPPED_ON_VIOLATION, DIVERGED, FOREIGN_LOG, PRIVILEGED])
def test_only_the_value_true_marks_an_episode(mark):
    values = [True, False, 1, "true", None, {}]
    batch = concatenate_batches([*(marked({mark: value}) for value in values), marked("no fields")])
    assert mark_flags(batch, mark) == (True, *[False] * len(values))


def test_a_replay_and_its_start_are_marked_by_what_its_field_holds():
    held = [{REPLAY: {"wait_steps": 3}}, {REPLAY: {}}, {REPLAY: "yes"}, {DRAWN: True}, {REPLAY: {"a": 1}, DRAWN: True}]
    batch = concatenate_batches([marked(fields) for fields in held])
    assert mark_flags(batch, REPLAY) == (True, False, False, False, True)
    assert start_marks(batch) == ((REPLAY,), (), (REPLAY,), (DRAWN,), (REPLAY, DRAWN))


def test_benchmarks_on_stand_ins_are_named_once_in_their_order():
    marks = [("b", True), ("a", True), ("c", False), ("b", True)]
    batch = concatenate_batches([marked({STANDIN: mark}, benchmark=name) for name, mark in marks])
    assert standin_benchmarks(batch) == ("b", "a")


@pytest.mark.parametrize(
    ("value", "count"),
    [(0, 0), (1, 1), (MOST_RESETS, 1000), (MOST_RESETS + 1, None), (-1, None), (True, None), (1.0, None), (None, None)],
)
def test_a_count_of_resets_or_settling_steps_is_an_integer_up_to_the_limit(value, count):
    assert read_count({WAIT_STEPS: value}, WAIT_STEPS) == count
    own, replay = {"earlier_resets": value}, {"earlier_resets": 7, REPLAY: {"earlier_resets": value}}
    assert (
        earlier_resets(concatenate_batches([marked(own), marked(replay), marked({**own, REPLAY: 1})])) == (count,) * 3
    )


@pytest.mark.parametrize(
    ("numbers", "is_read"),
    [
        ([[0, 1.5]] * 7, True),
        ([[0, 1.5]] * 6, False),
        ([[0, 1.5, 2]] * 7, False),
        ([[0, float("nan")]] * 7, False),
        ([[0, "x"]] * 7, False),
        ([[0, 1.5], [0]], False),
        (None, False),
    ],
)
def test_clipped_numbers_have_one_pair_for_each_dimension_of_the_action(numbers, is_read):
    read = clipped_numbers(concatenate_batches([marked({}), marked({CLIPPED_NUMBERS: numbers})]), 1)
    assert (read is not None and read.tolist() == numbers) == is_read


@pytest.mark.parametrize(
    ("suite", "base"),
    [
        ("found:edge:libero-goal", "libero-goal"),
        ("search:edge:my:suite", "my:suite"),
        ("found:edge", "found:edge"),
        ("mine:edge:libero-goal", "mine:edge:libero-goal"),
    ],
)
def test_a_search_names_its_suites_by_kind_name_and_suite(suite, base):
    assert base_suite(suite) == base


@pytest.mark.parametrize(
    ("chosen", "start"),
    [
        (None, (4, ())),
        ("x", (4, ())),
        ({}, (None, ())),
        ({"init_state_index": 2, "placed_m": {"cup.x": 1, "cup.y": "far"}}, (2, (("cup.x", 1.0),))),
        ({"init_state_index": "2", "placed_m": [1]}, (None, ())),
    ],
)
def test_a_chosen_start_replaces_the_index_of_the_header(chosen, start):
    assert chosen_start(marked({CHOSEN: chosen}, init_state_index=4)) == start


KITCHEN = {"split": "target", "layout": 1, "style": 2, "seed": 3}


@pytest.mark.parametrize(
    ("field", "kitchen"),
    [
        (KITCHEN, ("target", 1, 2, 3)),
        ({**KITCHEN, "options": {"obj_instance_split": "pretrain"}}, ("pretrain", 1, 2, 9)),
        *(({**KITCHEN, name: "x"}, None) for name in ("layout", "style", "seed")),
        *(({**KITCHEN, name: None}, None) for name in ("layout", "style", "seed")),
        ("target", None),
    ],
)
def test_a_kitchen_is_known_if_layout_style_and_seed_are_integers(field, kitchen):
    assert kitchens(marked({"robocasa": field}, env_seed=9)) == (kitchen,)


@pytest.mark.parametrize(
    ("names", "channels"), [(["action", "time_s"], {"action", "time_s"}), ("action", set()), (["action", 1], set())]
)
def test_single_precision_is_a_list_of_names(names, channels):
    assert single_channels(marked({SINGLE: names}), 0) == channels
