"""Episodes are cut at success, horizon, reset and the end; each is kept at once with its outcome."""

from __future__ import annotations

import io
import json
import logging
import os
import signal

import numpy as np
import pytest

from recorder_builders import StillEnv, StillRecorder
from safevla_recorder.attachment import EpisodeCutter, LoopRules
from safevla_recorder.errors import FileError, HostError

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


def settle_and_move(cutter):
    for action in (STILL, STILL, MOVE):
        cutter.before_step(action)
        cutter.after_step(False)
    cutter.stop("enough")


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


def test_a_start_that_the_loop_changes_before_its_first_step_has_no_index_and_no_seed(monkeypatch):
    """Scripts that perturb a scene write into the simulation's positions."""
    cutter, episodes = cutter_of()
    for change_at in (0, 1, 2, 3, None):  # 0 and 1 are settling steps, 3 is the second step of the episode
        cutter.on_seed(7)
        cutter.on_reset()
        cutter.on_state_set(3)
        with monkeypatch.context() as patch:
            for number, action in enumerate((STILL, STILL, MOVE, MOVE)):
                if number == change_at:
                    patch.setattr(cutter._env, "positions", (0.0, 1.5), raising=False)
                cutter.before_step(action)
                cutter.after_step(False)
        cutter.stop("enough")
    starts = [(row.init_state_index, row.env_seed) for row, _ in episodes]
    assert starts == [(None, None)] * 3 + [(3, 7)] * 2


def test_a_loop_that_goes_on_after_the_horizon_is_warned_once(caplog):
    """A wrapper that repeats actions makes several of the simulator's steps for one of the loop's."""
    cutter, episodes = cutter_of(horizon=3)
    drive(cutter, [MOVE] * 3)
    drive(cutter, [MOVE] * 5, success_at=1)
    drive(cutter, [MOVE] * 3)
    cutter.on_reset()
    for action in (MOVE, MOVE):  # lost, because the loop does not settle
        cutter.before_step(action)
    assert "horizon=N" not in caplog.text
    for _ in range(2):
        drive(cutter, [MOVE] * 5, success_at=4)
    assert [outcome for outcome, *_ in outcomes(episodes)] == ["timeout", "success", *["timeout"] * 3]
    assert caplog.text.count("goes on after the horizon of 3 steps") == 1


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


def test_a_loop_that_moves_while_it_should_settle_loses_these_episodes_with_one_warning(caplog):
    cutter, episodes = cutter_of()
    for _ in range(2):
        cutter.on_reset()
        for action in (STILL, MOVE, MOVE, MOVE):
            cutter.before_step(action)
            cutter.after_step(False)
    assert (cutter.lost, episodes) == (2, [])
    (warning,) = caplog.messages
    assert "step 2 moves it" in warning
    assert "wait_steps=1" in warning


@pytest.mark.parametrize(
    ("fails", "kept"),
    [
        ("start_recorder", [("timeout", 3, True)]),
        ("fixture_poses", [("timeout", 3, True)]),
        ("build_header", [("timeout", 3, True)]),
        ("is_still", [("timeout", 3, True)]),
    ],
)
def test_what_recording_raises_costs_the_episode_and_reaches_no_loop(monkeypatch, caplog, fails, kept):
    """Any error, such as our own fault, is reported; the next episode is recorded."""
    cutter, episodes = cutter_of()

    def fail(*_, **__):
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr(StillEnv, fails, fail)
    drive(cutter, [MOVE] * 3)
    cutter.on_interruption()
    monkeypatch.undo()
    drive(cutter, [MOVE] * 3)
    cutter.on_interruption()
    assert [end for end in outcomes(episodes) if end[0] != "crashed"] == kept
    assert cutter.lost == 1
    assert "a fault" in caplog.text


@pytest.mark.parametrize("fails", ["fixture_poses", "take_number"])
def test_an_episode_that_cannot_begin_leaves_no_hook(monkeypatch, fails):
    cutter, episodes = cutter_of()

    def fail(*_):
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr(*{"fixture_poses": (StillEnv, fails), "take_number": (cutter, "_take_number")}[fails], fail)
    drive(cutter, [MOVE] * 3)
    assert (cutter._env.calls.detached, cutter.lost, episodes) == (1, 1, [])


def test_what_the_handler_of_a_signal_raises_while_recording_reaches_the_loop(monkeypatch):
    """A time limit by SIGALRM, say, may strike at any moment."""
    cutter, episodes = cutter_of()

    class TooLate(Exception):
        pass

    class Handler:
        def __call__(self, *_):
            raise TooLate

    def strike(*_):
        signal.raise_signal(signal.SIGINT) if hasattr(signal, "raise_signal") else os.kill(os.getpid(), signal.SIGINT)

    for handler in (Handler(), Handler().__call__):
        before = signal.signal(signal.SIGINT, handler)
        try:
            drive(cutter, [MOVE])
            monkeypatch.setattr(StillRecorder, "record_step", strike)
            cutter.before_step(MOVE)
            with pytest.raises(TooLate):
                cutter.after_step(False)
        finally:
            signal.signal(signal.SIGINT, before)
            monkeypatch.undo()
    drive(cutter, [MOVE])
    cutter.on_interruption()
    assert outcomes(episodes) == [("crashed", 1, False), ("crashed", 1, False), ("timeout", 1, True)]


def test_an_interrupt_while_recording_reaches_the_loop_and_costs_the_episode(monkeypatch):
    """The record may lack a step, so the loop must not go on with it."""
    cutter, episodes = cutter_of()

    def interrupt(*_):
        raise KeyboardInterrupt

    drive(cutter, [MOVE])
    cutter.before_step(MOVE)
    with monkeypatch.context() as patch:
        patch.setattr(StillRecorder, "record_step", interrupt)
        with pytest.raises(KeyboardInterrupt):
            cutter.after_step(False)
    cutter.before_step(MOVE)
    cutter.after_step(False)
    cutter.on_interruption()
    assert outcomes(episodes) == [("crashed", 1, False)]
    assert cutter.lost == 1


def test_an_action_that_is_drawn_as_it_is_read_is_left_to_the_simulator(caplog):
    """To read it would draw a number of its generator, which the loop then lacks."""

    class Drawn:
        def __array__(self, *_, **__):
            raise AssertionError("the recorder read it")

    cutter, episodes = cutter_of()
    drive(cutter, [MOVE, Drawn(), MOVE])
    assert outcomes(episodes) == [("crashed", 1, False)]
    assert "type Drawn" in caplog.text


def test_of_a_cycle_of_causes_the_line_with_the_error_is_shown(caplog):
    cutter, _ = cutter_of()
    error = RuntimeError("first")
    error.__cause__ = RuntimeError("second")
    error.__cause__.__cause__ = error
    drive(cutter, [MOVE])
    with pytest.raises(RuntimeError):
        raise error
    cutter.on_error(error)
    assert ["RuntimeError: first" in message for message in caplog.messages] == [True]


def test_a_log_that_raises_stops_no_loop(monkeypatch):
    class Strict(logging.Handler):
        def emit(self, record):
            raise RuntimeError("warnings are errors here")

    cutter, episodes = cutter_of()
    strict = Strict()
    logging.getLogger("safevla_recorder").addHandler(strict)
    try:
        drive(cutter, [STILL, MOVE])  # still for longer than announced, of which a warning says so
        drive(cutter, [MOVE, [np.nan, 0.0]])
        cutter.on_interruption()
    finally:
        logging.getLogger("safevla_recorder").removeHandler(strict)
    assert outcomes(episodes)[-1] == ("invalid_action", 1, True)


def test_a_full_disk_costs_the_episode_and_the_loop_goes_on(caplog):
    full, episodes = [True], []

    def keep(*episode):
        if full[0]:
            raise FileError("no space left on device", remedy="Make room there")
        episodes.append(episode)

    cutter = EpisodeCutter(StillEnv(), LoopRules(policy="mine", wait_steps=2), lambda: 0, keep)
    drive(cutter, [MOVE] * 3)
    cutter.on_interruption()
    full[0] = False
    drive(cutter, [MOVE] * 3)
    cutter.on_interruption()
    assert (cutter.lost, outcomes(episodes)) == (1, [("timeout", 3, True)])
    assert len(caplog.messages) == 1


def test_a_simulation_that_diverged_before_record_0_is_a_crashed_episode(monkeypatch):
    cutter, episodes = cutter_of()

    def refuse(self):
        raise HostError("the simulation became unstable before the first record")

    monkeypatch.setattr(StillEnv, "start_recorder", refuse)
    drive(cutter, [MOVE] * 3)
    assert [(row.outcome, "became unstable" in row.reason) for row, _ in episodes] == [("crashed", True)]


@pytest.mark.parametrize(
    ("seed", "known"), [(7, 7), (np.int64(7), 7), (np.uint32(7), 7), (None, None), (np.arange(3), None), ("x", None)]
)
def test_a_seed_that_is_not_an_integer_is_unknown_and_takes_the_place_of_an_earlier_one(seed, known):
    cutter, episodes = cutter_of()
    cutter.on_seed(3)
    cutter.on_seed(seed)
    drive(cutter, [MOVE])
    cutter.on_interruption()
    assert episodes[0][0].env_seed == known


def test_without_a_seed_or_initial_state_the_record_says_where_fixtures_stand_and_worker_names_go_into_ids():
    cutter, episodes = cutter_of(worker="3")
    cutter.on_seed(7)
    drive(cutter, [MOVE])
    cutter.on_seed(7)
    cutter.on_interruption()
    cutter.on_reset()
    cutter.on_state_set(4)
    settle_and_move(cutter)
    files = [np.load(io.BytesIO(content)) for _, content in episodes]
    headers = ["extra" in file and json.loads(file["extra"].tobytes())["header"] for file in files]
    assert list(headers[0]["fixtures"]) == ["shelf"]
    assert headers[1] is False  # there are both a seed and an initial state
    assert [row.episode_id for row, _ in episodes] == [f"mine/b/t/worker_3/ep_00{k}" for k in range(2)]


def test_no_fixtures_are_recorded_as_none_and_states_set_again_after_a_reset_are_counted(monkeypatch):
    monkeypatch.setattr(StillEnv, "fixture_poses", lambda env: {})
    cutter, episodes = cutter_of()
    for states in (1, 2):
        cutter.on_reset()
        for _ in range(states):
            cutter.on_state_set(4)
        settle_and_move(cutter)
    files = [np.load(io.BytesIO(content)) for _, content in episodes]
    headers = [json.loads(file["extra"].tobytes())["header"] for file in files]
    assert headers == [{"fixtures": {}}, {"fixtures": {}, "states_set": 2}]


def test_a_seed_holds_for_the_next_reset_alone():
    cutter, episodes = cutter_of()
    cutter.on_seed(7)
    drive(cutter, [MOVE])
    drive(cutter, [MOVE])
    cutter.on_seed(8)
    cutter.forget_seed()
    drive(cutter, [MOVE])
    cutter.stop("enough")
    assert [row.env_seed for row, _ in episodes] == [7, None, None]
    assert [row.episode_id for row, _ in episodes] == [f"mine/b/t/ep_00{k}" for k in range(3)]
    assert episodes[2][0].reason == "enough"
