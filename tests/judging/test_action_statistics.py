"""Policies that are wrong and look right: what is said of their actions, and nothing of sane ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import safevla_bench as sb
from builders import episode, numbers_in
from report.scenes import verdicts
from safevla_bench.judging.action_statistics import (
    ActionChanges,
    ActionStatistics,
    find_oddities,
    join_changes,
    measure_actions,
    measure_changes,
)
from safevla_bench.judging.provenance_marks import warn_of_actions, warn_of_scores
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.trajectory.batch import select_episodes
from safevla_bench.trajectory.marks import CLIPPED_NUMBERS, clipped_numbers

DEMO = Path(sb.__file__).parent / "jobs/demo.parquet"
METERS = np.array([0.05] * 3 + [0.5] * 3 + [1.0])
DEGREES = np.array([1.0] * 3 + [np.degrees(0.5)] * 3 + [1.0])


def demo_actions(policy: str, task: str = "task_0") -> np.ndarray:
    """The actions of one episode of the demo, [N, 7], the gripper open where a script leaves it."""
    batch = sb.open_archive(DEMO)
    chosen = (k for k, h in enumerate(batch.headers) if (h.policy, h.task_id) == (policy, task))
    actions = batch.action.episode_rows(next(chosen)).copy()
    actions[:, 6] = np.where(actions[:, 6] > 0, 1.0, -1.0)
    return actions


ACTIONS = demo_actions("scripted:careful")
OTHER = demo_actions("scripted:hasty")


class Wrong:
    """A policy that answers rows of actions, clipped as a client of LIBERO clips."""

    clip = True

    def __init__(self, rows: np.ndarray) -> None:
        self.rows, self.step = rows, 0

    def reset(self, task: object, seed: int) -> None:
        self.step = 0

    def act(self, observation: object) -> np.ndarray:
        self.step += 1
        return self.rows[(self.step - 1) % len(self.rows)]


WRONG = {
    "zeros": (np.zeros((1, 7)), ["nearly no motion", "repeats one action", "from 0 to 0"]),
    "a constant": (np.array([[0.3, 0, 0, 0, 0, 0, -1.0]]), ["repeats one action", "number is always -1"]),
    "meters": (ACTIONS * METERS, ["nearly no motion: x, y and z stay within 0.04, and a value of 1 means 0.05 m"]),
    "meters of a fast policy": (OTHER * METERS, ["nearly no motion"]),
    "three times": (ACTIONS * 3, ["is 2.4; share of actions beyond ±1: "]),
    "twice": (ACTIONS * 2, ["is 1.6; share of actions beyond ±1: "]),
    "degrees": (ACTIONS * DEGREES, ["the largest pitch is 2.67; share of actions beyond ±1: "]),
    "saturated": (np.sign(ACTIONS), ["saturated at ±1"]),
    "one chunk again and again": (ACTIONS[42:58], ["repeats the same 16 actions"]),
    "a gripper from 0 to 1": (
        np.c_[ACTIONS[:, :6], np.linspace(0, 1, len(ACTIONS))],
        ["-1 opens the gripper and 1 closes it"],
    ),
    "a gripper that stays": (np.c_[ACTIONS[:, :6], np.ones(len(ACTIONS))], ["number is always 1"]),
}


def describe_oddities(rows: np.ndarray, steps: int = 80) -> list[str]:
    """What is odd in the rows, over and over, as they are recorded: clipped, with how often and how far."""
    actions = np.resize(rows, (steps, 7))
    beyond = np.where(np.abs(actions) > 1, np.abs(actions), 0.0)
    clipped = np.c_[(beyond > 0).sum(axis=0), beyond.max(axis=0)]
    statistics = measure_actions(np.clip(actions, -1, 1), clipped=clipped)
    return [f"{odd.found} {odd.cause}" for odd in find_oddities(statistics)]


@pytest.mark.parametrize("name", WRONG)
def test_what_is_odd_in_actions_is_described_once_with_a_likely_cause(name):
    rows, words = WRONG[name]
    lines = describe_oddities(rows)
    assert all(word in line for line, word in zip(lines, words, strict=True))
    assert all("?" in line for line in lines)


@pytest.mark.parametrize("name", ["zeros", "three times"])
def test_an_evaluation_says_what_is_odd_in_a_policy_s_actions(name):
    rows, words = WRONG[name]
    run = sb.evaluate(Wrong(rows), "fake", tasks=[0], episodes=2, max_steps=80, name=name)
    (line,) = warn_of_scores(run.scores)
    assert line.startswith(f"Odd actions of {name} on fake: ")
    assert all(word in line for word in words)
    assert warn_of_scores(sb.evaluate(Wrong(rows), "fake", tasks=[0], max_steps=9).scores) == ()  # too few


@pytest.mark.parametrize("policy", ["scripted:careful", "scripted:hasty", "random", "noop"])
def test_sane_policies_have_no_warning(policy):
    run = sb.evaluate(policy, "fake", tasks=[0, 1], episodes=1, max_steps=40)
    assert [warn_of_scores(run.scores[k : k + 1]) for k in range(len(run))] == [()] * len(run)


def test_no_episode_of_the_demo_has_a_warning():
    batch = sb.open_archive(DEMO)
    warnings = [warn_of_scores(sb.score(select_episodes(batch, [k]), sb.load_ruleset())) for k in range(len(batch))]
    assert warnings == [()] * len(batch)


def test_a_replay_of_a_script_that_leaves_the_gripper_is_sane(tmp_path):
    run = sb.evaluate("scripted:careful", "fake", tasks=[0], out=tmp_path / "run")
    replayed = sb.evaluate(f"replay:{tmp_path / 'run'}", "fake", tasks=[0], episodes=None)
    assert warn_of_scores(run.scores) == warn_of_scores(replayed.scores) == ()


@pytest.mark.parametrize("mode", [-1, 0, 1])
def test_an_arm_may_rest_while_its_base_drives(mode):
    actions = np.zeros((20, 12))
    actions[:, 11] = mode
    actions[:, 7] = np.linspace(0, 1, 20)
    assert [odd.about for odd in find_oddities(measure_actions(actions, grips=False))] == []
    actions[:, 7] = 0
    assert "range" in [odd.about for odd in find_oddities(measure_actions(actions, grips=False))]


@pytest.mark.parametrize("stated", ["many", [[1, 2]], [[np.inf] * 2] * 7, {"x": 1}, [["a", "b"]] * 7, None])
def test_a_record_s_own_word_on_clipping_is_believed_only_in_its_shape(stated):
    run = sb.evaluate(Wrong(ACTIONS * 3), "fake", tasks=[0], max_steps=80)
    batch = run[0].record
    (extra,) = batch.extra
    assert clipped_numbers(batch, 0).max(axis=0) == pytest.approx([80, 3])  # the gripper's, in every step
    batch = replace(batch, extra=({**extra, "header": {CLIPPED_NUMBERS: stated}},))
    assert clipped_numbers(batch, 0) is None


def test_joined_statistics_are_those_of_all_actions():
    saturated = np.concatenate([ACTIONS, np.ones((5, 7))])
    joined, whole = (
        (measure_actions(part) for part in (saturated, OTHER)),
        measure_actions(np.vstack([saturated, OTHER])),
    )
    first, second = joined
    together = first.join(second)
    assert (together.count, together.saturated, together.gripper) == (whole.count, whole.saturated, whole.gripper)
    assert first.saturated > 0
    assert second.saturated > 0
    np.testing.assert_array_equal(together.largest, whole.largest)
    np.testing.assert_array_equal(together.beyond, whole.beyond)


def test_values_at_one_are_saturated_and_only_those_above_are_beyond():
    statistics = measure_actions(np.array([[0.999, 1.0, -1.5, 0.5, 0.0, 0.0, 0.3]] * 10))
    assert (statistics.saturated, statistics.beyond.tolist()) == (30, [0, 0, 10, 0, 0, 0, 0])


@pytest.mark.parametrize(
    ("letters", "period"),
    [
        ("a" * 10, 1), ("a" * 9, None), ("abcdeabcde", 5), ("abcdefabcd", 0), ("abcdefgabc", 0),
        ("abcabcabcab", 3), ("aabaabaabaab", 3), ("abcdefghij", 0),
    ],
)  # fmt: skip
def test_actions_have_the_period_that_occurs_at_least_twice(letters, period):
    actions = np.array([[float(ord(letter)), 0, 0, 0, 0, 0, 1.0] for letter in letters])
    assert measure_actions(actions).period == period


def statistics_of(largest=(0.5,) * 7, beyond=0, saturated=0, gripper=(-1.0, 1.0), period=0):
    """Of a hundred actions."""
    return ActionStatistics(100, np.array(largest), np.array([0, beyond, 0, 0, 0, 0, 0]), saturated, gripper, period)


@pytest.mark.parametrize(
    ("changes", "about"),
    [
        ({}, []),
        ({"largest": (2.0, *(0.5,) * 6)}, []),
        ({"largest": (2.1, *(0.5,) * 6)}, ["range"]),
        ({"beyond": 10}, []),
        ({"beyond": 12}, ["range"]),
        ({"saturated": 300}, []),
        ({"saturated": 360}, ["range"]),
        ({"largest": (0.05, 0.05, 0.05, 0.5, 0.5, 0.5, 1.0)}, ["range"]),
        ({"largest": (0.06, 0.05, 0.05, 0.5, 0.5, 0.5, 1.0)}, []),
        ({"largest": (0.05, 0.05, 0.05, 0.5, 0.5, 0.5, 1.0, 0.0, 0.019)}, ["range"]),
        ({"largest": (0.05, 0.05, 0.05, 0.5, 0.5, 0.5, 1.0, 0.0, 0.02)}, []),
        ({"gripper": (0.0, 0.97)}, ["gripper"]),
        ({"gripper": (0.975, 1.0)}, ["gripper"]),
        ({"gripper": (1 - 0.02, 1.0)}, []),
        ({"gripper": (-0.1, 1.0)}, []),
        ({"gripper": (-1.0, -1.0)}, ["still gripper"]),
        ({"gripper": (-1.0, -1.0), "period": None}, []),
        ({"period": 1}, ["repeats"]),
    ],
)
def test_actions_are_odd_beyond_each_limit_and_not_at_it(changes, about):
    assert [odd.about for odd in find_oddities(statistics_of(**changes))] == about


@pytest.mark.parametrize(("first", "second", "both"), [(None, None, None), (None, 3, 3), (0, 3, 0), (2, 3, 3)])
def test_joined_actions_repeat_only_if_every_episode_that_is_long_enough_does(first, second, both):
    open_hand = statistics_of(gripper=(-1.0, -0.5), period=first)
    closed_hand = statistics_of(gripper=(0.2, 1.0), period=second)
    for one, other in ((open_hand, closed_hand), (closed_hand, open_hand)):
        assert (one.join(other).period, one.join(other).gripper) == (both, (-1.0, 1.0))
    assert statistics_of(beyond=2).join(statistics_of(beyond=3)).beyond[1] == 5


def test_ten_actions_are_enough_for_a_warning_and_episodes_without_statistics_have_none():
    scores = replace(verdicts(*[(True, 1, 1)] * 3), actions=(None, measure_actions(np.zeros((10, 7))), None))
    assert len(warn_of_actions(scores)) == 1
    assert warn_of_actions(replace(scores, actions=(None,) * 3)) == ()


def test_a_filter_s_changes_are_counted_with_the_sum_of_their_norms():
    own = np.ones((3, 2))
    changed = measure_changes(own + [[0.0, 0.0], [0.5, 0.0], [3.0, 4.0]], own, 3)
    assert changed == (3, 2, 5.5)
    assert measure_changes(own, np.empty((0, 2)), 3) == measure_changes(own, np.zeros((3, 3)), 3) == (3, 0, 0.0)
    assert join_changes([changed, changed, ActionChanges(4)]) == (10, 4, 11.0)
    assert join_changes([]) == (0, 0, 0.0)
    assert numbers_in(str(changed).replace("\N{NO-BREAK SPACE}", " "))[:2] == [2, 3]


@pytest.mark.parametrize(
    ("suite", "task", "width"),
    [("libero-goal", "task_8", 7), ("robosuite", "Lift", 7), ("robocasa-365", "OpenDrawer", 12), ("fake", "task_0", 7)],
)
def test_actions_of_a_host_s_own_width_are_measured_and_of_another_are_not(suite, task, width):
    rules = load_ruleset(missing="deactivate")
    for columns in (width, width + 1):
        batch = episode(4, benchmark=suite, task_id=task, action=np.zeros((3, columns)))
        scores = sb.score(batch, rules)
        assert (scores.actions[0] is not None) == (columns == width)
        assert scores.changes == ((3, 0, 0.0),)


def test_a_gripper_is_measured_only_for_a_target_and_no_action_of_noop_or_of_poses_is():
    rules = load_ruleset(missing="deactivate")
    (gripping,), (free,) = (sb.score(episode(4, target_object=body), rules).actions for body in ("bowl", None))
    assert (gripping.gripper, np.isnan(free.gripper).all()) == ((0.0, 0.0), True)
    absolute = {"extra": {"header": {"absolute_actions": True}}}
    for changes in ({"policy": "noop"}, absolute, {"action": None}):
        assert sb.score(episode(4, **changes), rules).actions == (None,)
