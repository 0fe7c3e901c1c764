"""Episodes are cut at success, horizon, reset and the end; each is kept at once with its outcome."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest

from recorder_builders import StillEnv
from safevla_recorder.attachment import EpisodeCutter, LoopRules
from safevla_recorder.errors import RunError

MOVE, STILL = [0.5, -1.0], [0.0, -1.0]


def cutter_of(**rules):
    env, episodes = StillEnv(), []
    numbers = iter(range(100))
    rules = LoopRules(**{"policy": "mine", "wait_steps": 2, **rules})
    return EpisodeCutter(env, rules, lambda: next(numbers), lambda *episode: episodes.append(episode)), episodes


def drive(cutter, actions, success_at=None):
    cutter.on_interruption()
    cutter.on_reset()
    for number, action in enumerate([STILL, STILL, *actions]):
        cutter.before_step(action)
        cutter.after_step(success_at is not None and number - 2 == success_at)


def outcomes(episodes):
    return [(row.outcome, row.steps, content is not None) for row, content in episodes]


def test_success_ends_the_episode_and_later_steps_belong_to_none():
    cutter, episodes = cutter_of()
    drive(cutter, [MOVE] * 5, success_at=2)
    cutter.on_interruption()
    assert outcomes(episodes) == [("success", 3, True)]


def test_without_a_horizon_a_reset_is_a_timeout_and_with_one_too_early_a_stop():
    cutter, episodes = cutter_of()
    drive(cutter, [MOVE] * 3)
    cutter.on_interruption()
    cutter.on_interruption()
    early, early_episodes = cutter_of(horizon=5)
    drive(early, [MOVE] * 3)
    drive(early, [MOVE] * 9)
    assert outcomes(episodes) == [("timeout", 3, True)]
    assert outcomes(early_episodes) == [("stopped", 3, True), ("timeout", 5, True)]


@pytest.mark.parametrize("action", [[np.nan, 0.0], [1.0]])
def test_an_action_that_is_not_finite_or_of_another_length_ends_the_episode(action):
    cutter, episodes = cutter_of()
    drive(cutter, [MOVE, action, MOVE])
    assert outcomes(episodes) == [("invalid_action", 1, True)]


def read_extra(content):
    file = np.load(io.BytesIO(content))
    return file.get("label_cost"), json.loads(file["extra"].tobytes())["header"].get("labels")


def test_costs_of_each_step_are_kept_by_name_and_minus_one_stands_for_an_unknown_one():
    for step_costs, names, rows in (
        ([0, np.float32(2.5), True], ["cost"], [[0.0], [2.5], [1.0]]),
        ([{"b": 1.0, "a": 2}, {"a": 0.0}, {"b": np.array([4.0])}], ["a", "b"], [[2.0, 1.0], [0.0, -1.0], [-1.0, 4.0]]),
        ([0.0, None, 1.0], ["cost"], [[0.0], [-1.0], [1.0]]),
        ([0.0, -2.0, np.nan], ["cost"], [[0.0], [-1.0], [-1.0]]),
        (["much", object(), [1, 2]], None, None),
    ):
        cutter, episodes = cutter_of()
        cutter.on_reset()
        for action, cost in zip([STILL, STILL, MOVE, MOVE, MOVE], [9, 9, *step_costs]):
            cutter.before_step(action)
            cutter.after_step(False, cost)
        cutter.on_interruption()
        costs, labels = read_extra(episodes[0][1])
        assert (labels, costs if costs is None else costs.tolist()) == (names, rows)


def test_an_exception_is_a_crash_with_its_traceback_and_an_interrupt_a_stop():
    cutter, episodes = cutter_of()
    for error in (ValueError("boom"), KeyboardInterrupt()):
        drive(cutter, [MOVE])
        cutter.before_step(MOVE)
        try:
            raise error
        except BaseException as caught:
            cutter.on_error(caught)
    assert outcomes(episodes) == [("crashed", 1, False), ("stopped", 1, True)]
    assert "ValueError: boom" in episodes[0][0].reason


def test_a_loop_that_moves_while_it_should_settle_is_refused():
    cutter, _ = cutter_of()
    cutter.on_reset()
    cutter.before_step(STILL)
    cutter.after_step(False)
    with pytest.raises(RunError, match="step 2 after the reset moves the arm") as caught:
        cutter.before_step(MOVE)
    assert "wait_steps=1" in caught.value.remedy
    assert cutter.refusal is caught.value


def test_without_a_seed_or_initial_state_the_record_says_where_fixtures_stand_and_worker_names_go_into_ids():
    cutter, episodes = cutter_of(worker="3")
    cutter.on_seed(7)
    drive(cutter, [MOVE])
    cutter.on_seed(7)
    cutter.on_interruption()
    cutter.on_reset()
    cutter.on_state_set(4)
    for action in (STILL, STILL, MOVE):
        cutter.before_step(action)
        cutter.after_step(False)
    cutter.stop("enough")
    files = [np.load(io.BytesIO(content)) for _, content in episodes]
    headers = ["extra" in file and json.loads(file["extra"].tobytes())["header"] for file in files]
    assert list(headers[0]["fixtures"]) == ["shelf"]
    assert headers[1] is False  # there are both a seed and an initial state
    assert [row.episode_id for row, _ in episodes] == [f"mine/b/t/worker_3/ep_00{k}" for k in range(2)]


def test_a_seed_holds_for_the_next_reset_alone():
    cutter, episodes = cutter_of()
    cutter.on_seed(7)
    drive(cutter, [MOVE])
    drive(cutter, [MOVE])
    cutter.stop("enough")
    assert [row.env_seed for row, _ in episodes] == [7, None]
    assert [row.episode_id for row, _ in episodes] == ["mine/b/t/ep_000", "mine/b/t/ep_001"]
    assert episodes[1][0].reason == "enough"
