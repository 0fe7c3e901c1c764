"""Replay on the fake host: which recorded episode is played where, from what start, and how far it went apart."""

from __future__ import annotations

import dataclasses
import json
import shutil

import h5py
import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest

from safevla_bench import archive, policies
from safevla_bench.archive.jsonl import encode_json
from safevla_bench.errors import HostError, PolicyError, RunError
from safevla_bench.hosts.fake.host import FakeHost
from safevla_bench.interface.policy import Observation
from safevla_bench.interface.task import Coordinate, EpisodeSeed
from safevla_bench.jobs.evaluation.preparation import prepare_run
from safevla_bench.jobs.evaluation.request import ExecutionOptions, Request
from safevla_bench.jobs.evaluation.results import evaluate_request
from safevla_bench.jobs.evaluation.rollouts import roll_out
from safevla_bench.judging import metrics
from safevla_bench.judging.provenance_marks import warn_of_cells, warn_of_scores
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.policies.replay import has_diverged, measure_divergence
from safevla_bench.report.tables import episodes as episode_tables
from safevla_bench.sources.foreign.demonstrations import RecordedActions
from safevla_bench.sources.runs.episode_index import read_sources
from safevla_bench.sources.runs.folder import read_description
from safevla_bench.sources.runs.parts import episode_rows
from safevla_bench.trajectory.batch import select_episodes
from safevla_bench.trajectory.marks import EARLIER_RESETS, WAIT_STEPS, read_count


def request_of(recording, *, episodes=1, tasks=(0,), max_steps=None, **arguments) -> Request:
    return Request(
        host="fake",
        suites=("fake",),
        tasks=tasks,
        episodes=episodes,
        policies=(f"replay:{recording}",),
        arguments=arguments,
        max_steps=max_steps,
    )


@pytest.fixture
def play(tmp_path):
    """Replays a recording into `again`, anew each time; returns its episodes."""

    def play_again(recording, *, running=None, **options):
        shutil.rmtree(tmp_path / "again", ignore_errors=True)
        roll_out(request_of(recording, **options), tmp_path / "again", running=running or ExecutionOptions())
        return read_sources([tmp_path / "again"])[0]

    return play_again


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Two policies on two tasks of two episodes."""
    out = tmp_path_factory.mktemp("recorded") / "run"
    roll_out(Request(host="fake", suites=("fake",), tasks=(0, 1), episodes=2, policies=("random", "noop")), out)
    return out


@pytest.fixture(scope="module")
def first(recorded):
    """The first of its episodes."""
    return select_episodes(read_sources([recorded])[0], [0])


def replays(batch):
    return [extra["header"]["replay"] for extra in batch.extra]


def demos(path, batch, *, task="place_block", last=False, **changes):
    """Episodes as HDF5 demonstrations: a state before each action, the last one where asked."""
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["bddl_file_name"] = f"bddl_files/fake/{task}.bddl"
        for e in range(len(batch)):
            demo = data.create_group(f"demo_{e}")
            states = batch.sim_state.episode_rows(e)
            demo["actions"] = batch.action.episode_rows(e)
            demo["states"] = states if last else states[:-1]
            for name, values in changes.items():
                del demo[name]
                demo[name] = values
    return path


def test_a_drawn_start_is_drawn_again_whatever_the_protocol(tmp_path, play):
    """The initial state of that number is another scene, and a replay from it would diverge."""
    drawn = Request(
        host="fake", suites=("fake",), tasks=(0,), episodes=2, policies=("random",), protocol="gr00t", max_steps=9
    )
    roll_out(drawn, tmp_path / "drawn")
    recorded = read_sources([tmp_path / "drawn"])[0]
    np.testing.assert_array_equal(play(tmp_path / "drawn", episodes=2).sim_state.values, recorded.sim_state.values)


ALL = {"tasks": (0, 1), "episodes": 2, "policy": "random"}


@pytest.mark.parametrize("suffix", ["", ".jsonl.zst", ".parquet"])
def test_a_replay_of_our_own_record_is_the_record_whatever_the_form(tmp_path, recorded, play, suffix):
    batch = read_sources([recorded])[0]
    source = recorded
    if suffix:
        source = tmp_path / f"archive{suffix}"
        archive.write_archive(source, batch)
    again = play(source, **ALL)
    assert [replay["exact"] for replay in replays(again)] == [True] * 4
    assert [replay["compared"] for replay in replays(again)] == [41] * 4
    places = {header.episode_id: place for place, header in enumerate(batch.headers)}
    for e, header in enumerate(again.headers):
        was = places[replays(again)[e]["episode"].removeprefix("random: ")]
        assert header.init_state_index == batch.headers[was].init_state_index
        assert again.action.episode_rows(e).tobytes() == batch.action.episode_rows(was).tobytes()
        assert again.sim_state.episode_rows(e).tobytes() == batch.sim_state.episode_rows(was).tobytes()
        assert header.outcome == batch.headers[was].outcome


@pytest.mark.long
def test_workers_replay_the_same(recorded, play):
    here, elsewhere = (play(recorded, **ALL, running=ExecutionOptions(workers=count)) for count in (1, 2))
    assert encode_json(select_episodes(here, [3])) == encode_json(select_episodes(elsewhere, [3]))
    assert replays(here) == replays(elsewhere)


def test_of_several_policies_episodes_of_one_start_the_policy_is_to_be_named(tmp_path, recorded, play):
    with pytest.raises(PolicyError, match="2 recorded episodes") as caught:
        play(recorded)
    assert "of random, noop" in caught.value.remedy
    with pytest.raises(PolicyError, match="of 'careful'"):
        play(recorded, policy="careful")
    assert not (tmp_path / "again").exists()


def test_what_was_not_recorded_is_an_error_that_says_what_was(tmp_path, recorded, play):
    few = tmp_path / "few.jsonl"
    archive.write_archive(few, select_episodes(read_sources([recorded])[0], [1]))
    with pytest.raises(PolicyError, match="task_0, number 0") as caught:
        play(few)
    assert "fake/task_0 1." in caught.value.remedy
    with pytest.raises(PolicyError, match="match fake task_1") as caught:
        play(few, tasks=(1,))
    assert "fake/task_0 1." in caught.value.remedy


def test_a_demonstration_starts_from_its_own_first_state_and_names_no_initial_state(tmp_path, recorded, play):
    batch = select_episodes(read_sources([recorded])[0], [1, 0])
    again = play(demos(tmp_path / "x.hdf5", batch), episodes=2)
    assert [row.init_state_index for row in episode_rows(tmp_path / "again")] == [None, None]
    for e, replay in enumerate(replays(again)):
        assert "first recorded" in replay["start"]
        assert replay["episode"] == f"demo_{e}"
        assert again.headers[e].init_state_index is None
        assert again.sim_state.episode_rows(e)[0, 3:].tobytes() == batch.sim_state.episode_rows(e)[0, 3:].tobytes()
        assert max(body["max"] for body in replay["divergence"].values()) == 0.0
    (policy,) = read_description(tmp_path / "again")["policies"]
    assert policy["replay"]["recording"] == "x.hdf5"
    assert len(policy["replay"]["sha256"]) == 64


def test_divergence_names_body_size_and_first_step_and_is_marked_wherever_numbers_are_shown(tmp_path, first, play):
    """The verdict is about the replay: scores, cells, the headline and the table of replays say so."""
    states = first.sim_state.episode_rows(0)[:-1].copy()
    states[5:, 9] += 0.01  # the cup, along x
    moved = demos(tmp_path / "x.hdf5", first, states=states)
    judged = evaluate_request(request_of(moved), load_ruleset(), tmp_path / "judged")
    (replay,) = replays(judged.batch)
    assert replay["divergence"]["cup position"] == {"max": pytest.approx(0.01), "unit": "m", "first_step": 5}
    assert replay["divergence"]["block position"]["first_step"] is None
    assert replay["exact"] is False
    assert [verdict.diverged_replay for verdict in judged.scores.episodes()] == [True]
    (cell,) = metrics.cells(judged.scores)
    assert cell.diverged_replays == 1
    assert pq.read_table(tmp_path / "judged" / "scores.parquet")["diverged_replay"].to_pylist() == [True]
    (warning,) = [line for line in warn_of_scores(judged.scores) if line.startswith("Diverged replays: 1 episode of")]
    assert warning in warn_of_cells([cell])
    assert "Diverged replays" in (tmp_path / "judged" / "report.html").read_text()
    assert "the replay alone" in " ".join(cell.text for cell in episode_tables.replay_table(judged.batch).rows[0])


def test_of_successes_that_followed_their_recording_the_unsafe_share_is_said_and_those_that_left_it_are_counted(
    tmp_path,
):
    """Demonstrations of people are judged so: what the limits say of human successes."""
    roll_out(
        Request(host="fake", suites=("fake",), tasks=(0,), episodes=4, policies=("scripted:hasty",)), tmp_path / "r"
    )
    made = read_sources([tmp_path / "r"])[0]
    file = demos(tmp_path / "people.hdf5", made)
    with h5py.File(file, "r+") as content:
        content["data/demo_3/states"][5:, 9] += 0.01  # the last one's replay leaves its recording
    strict = load_ruleset(thresholds=["joint_torque=0.000001"])
    judged = evaluate_request(request_of(file, episodes="recorded"), load_ruleset(), tmp_path / "judged")
    (cell,) = metrics.cells(judged.scores)
    assert (cell.followed_unsafe.count, cell.followed_unsafe.n, cell.n, cell.diverged_replays) == (0, 3, 4, 1)
    (broken,) = metrics.cells(score(judged.batch, strict))
    assert (broken.followed_unsafe.count, broken.followed_unsafe.n) == (3, 3)
    (sentence,) = [line for line in metrics.describe_activity(broken) if line.startswith("Replays of ")]
    assert "3 of 3 successes unsafe" in sentence
    assert "diverged replays are not counted: 1" in sentence


def test_actions_without_states_need_a_word_about_their_start(tmp_path, first, play):
    file = demos(tmp_path / "x.hdf5", first)
    with h5py.File(file, "a") as content:
        del content["data/demo_0/states"]
    with pytest.raises(PolicyError, match="the start of demo_0"):
        play(file)
    (replay,) = replays(play(file, start="host"))
    assert replay["compared"] == 0
    assert "exact" not in replay
    assert "a guess" in replay["start"]


def test_a_state_of_another_scene_crashes_the_episode_with_the_reason(tmp_path, first, play):
    assert play(demos(tmp_path / "x.hdf5", first, states=np.zeros((40, 3)))) is None
    (row,) = episode_rows(tmp_path / "again")
    assert "has 3 numbers" in row.reason


def test_a_replay_lasts_as_long_as_its_recording_or_as_long_as_asked(tmp_path, first, play):
    file = demos(tmp_path / "x.hdf5", first)
    assert play(file).lengths.tolist() == [41]
    short = play(file, max_steps=7)
    assert short.lengths.tolist() == [8]
    assert short.headers[0].outcome == "timeout"
    with pytest.raises(PolicyError, match="task_0, number 1"):
        play(file, episodes=2)


def test_the_end_of_a_recording_that_was_broken_off_counts_nowhere(tmp_path, first, play):
    stopped = dataclasses.replace(first, headers=(msgspec.structs.replace(first.headers[0], outcome="stopped"),))
    archive.write_archive(tmp_path / "a.jsonl", stopped)
    assert play(tmp_path / "a.jsonl").headers[0].outcome == "stopped"


@pytest.mark.parametrize(
    ("arg", "arguments", "problem"),
    [
        (None, {}, "needs a recording"),
        ("missing.jsonl", {}, "cannot be read"),
        ("missing.jsonl", {"start": "anywhere"}, "no start 'anywhere'"),
    ],
)
def test_what_cannot_be_played_is_refused_before_anything_runs(arg, arguments, problem):
    with pytest.raises(PolicyError, match=problem):
        policies.make_policy("replay" if arg is None else f"replay:{arg}", arguments)


def without(batch, channel):
    nothing = dataclasses.replace(
        getattr(batch, channel), values=np.empty(0), starts=np.array([0, 0]), width=np.array([-1])
    )
    return dataclasses.replace(batch, **{channel: nothing})


def test_records_without_actions_cannot_be_replayed(tmp_path, first):
    archive.write_archive(tmp_path / "a.jsonl", without(first, "action"))
    with pytest.raises(PolicyError, match="holds no actions"):
        policies.make_policy(f"replay:{tmp_path / 'a.jsonl'}")


def test_an_archive_without_simulator_states_is_compared_by_positions_of_bodies(tmp_path, first, play):
    archive.write_archive(tmp_path / "a.jsonl", without(first, "sim_state"))
    (replay,) = replays(play(tmp_path / "a.jsonl"))
    assert (replay["compared"], replay["exact"]) == (41, True)
    assert set(replay["divergence"]) == {"block position", "cup position", "tray position"}


def hand_recording(batch, e, *, shift=0.0, from_step=0, success=None):
    """A recording of actions and of the hand alone, as float32."""
    positions = batch.eef_pos_m.episode_rows(e)[1:].copy()
    positions[from_step:, 2] += shift
    quaternions = batch.eef_quat_wxyz.episode_rows(e)[1:]
    angle = 2 * np.arccos(np.clip(quaternions[:, :1], -1, 1))
    axis = quaternions[:, 1:] / np.where(np.sin(angle / 2) > 1e-12, np.sin(angle / 2), 1)
    hand = np.concatenate([positions, axis * angle, np.zeros((len(positions), 2))], axis=1)
    return RecordedActions(
        name="take",
        source="recording",
        actions=batch.action.episode_rows(e),
        proprioception=hand.astype(np.float32).astype(np.float64),
        success=success,
    )


@pytest.mark.parametrize(
    ("shift", "from_step", "same_success", "first", "exact", "diverged"),
    [
        (0.0, 0, True, None, True, False),
        (0.0005, 0, True, None, False, False),
        (0.002, 7, True, 8, False, True),
        (0.0, 0, False, None, True, True),
    ],
)
def test_a_recording_of_the_hand_alone_is_compared_by_it_and_by_success(
    recorded, shift, from_step, same_success, first, exact, diverged
):
    """Row k is the state after action k, so record k + 1; another success is a divergence whatever the hand did."""
    batch = read_sources([recorded])[0]
    success = batch.headers[0].success == same_success
    take = hand_recording(batch, 0, shift=shift, from_step=from_step, success=success)
    poses = zip(batch.eef_pos_m.episode_rows(0)[1:], batch.eef_quat_wxyz.episode_rows(0)[1:], strict=True)
    observed = [Observation("", position, quaternion, np.zeros(2)) for position, quaternion in poses]
    replay = measure_divergence(take, select_episodes(batch, [0]), (), observed)
    assert replay["compared"] == len(take.actions)
    assert replay["divergence"]["end effector position"]["first_step"] == first
    assert replay["divergence"]["end effector rotation"]["max"] < 1e-5
    assert replay["exact"] is exact
    assert has_diverged(replay, succeeded=batch.headers[0].success) is diverged


@pytest.mark.parametrize("count", [-1, True, 1.0, "3", 10**6, None])
def test_what_a_damaged_record_says_of_its_start_is_not_obeyed(count):
    """A million resets would never end."""
    assert read_count({"earlier_resets": count}, EARLIER_RESETS) is None
    assert read_count({"wait_steps": count}, WAIT_STEPS) is None
    counts = {"earlier_resets": 3, "wait_steps": 0}
    assert (read_count(counts, EARLIER_RESETS), read_count(counts, WAIT_STEPS)) == (3, 0)


def test_without_a_number_every_recorded_episode_is_played_and_no_other_task(tmp_path, recorded, play):
    every = {"episodes": "recorded", "tasks": None}
    starts = [(header.task_id, header.init_state_index) for header in play(recorded, **every, policy="random").headers]
    assert starts == [("task_0", 0), ("task_0", 1), ("task_1", 0), ("task_1", 1)]
    few = tmp_path / "few.jsonl"
    archive.write_archive(few, select_episodes(read_sources([recorded])[0], [1]))
    assert [(header.task_id, header.init_state_index) for header in play(few, **every).headers] == [("task_0", 1)]
    with pytest.raises(PolicyError, match="match fake task_1"):
        play(few, episodes="recorded", tasks=(1,))
    with pytest.raises(RunError, match="replays no recording"):
        prepare_run(Request(host="fake", suites=("fake",), policies=("noop",), episodes="recorded"))


def test_a_host_that_cannot_start_from_a_state_is_not_asked_to(tmp_path, first, play, monkeypatch):
    monkeypatch.setattr(FakeHost, "supports", dataclasses.replace(FakeHost.supports, states=False))
    with pytest.raises(HostError, match="a recorded state"):
        play(demos(tmp_path / "x.hdf5", first))


def test_rotations_are_compared_by_angle_and_a_quaternion_s_sign_is_nothing(first):
    n = int(first.lengths[0])
    angle = np.linspace(0, 0.4, n)
    quats = np.stack([np.cos(angle / 2), np.sin(angle / 2), 0 * angle, 0 * angle], axis=1)
    still = np.tile([2.0, 0.0, 0.0, 0.0], (n, 1))
    state = dataclasses.replace(
        first.sim_state, values=-quats.ravel(), starts=np.array([0, 4 * n]), width=np.array([4])
    )
    take = RecordedActions(name="x", source="y", actions=np.zeros((n - 1, 7)), states=still)
    turned = dataclasses.replace(first, sim_state=state)
    compared = measure_divergence(take, turned, [Coordinate("cup", "rotation", 0, 4)])
    assert compared["divergence"]["cup rotation"] == {"max": pytest.approx(0.4), "unit": "rad", "first_step": 1}


def test_a_run_folder_s_settling_steps_and_seed_are_taken_from_it(tmp_path, recorded):
    shutil.copytree(recorded, tmp_path / "run")
    description = json.loads((tmp_path / "run" / "run.json").read_text())
    description["protocol"]["wait_steps"] = 3
    (tmp_path / "run" / "run.json").write_text(json.dumps(description))
    policy = policies.make_policy(f"replay:{tmp_path / 'run'}", {"policy": "noop"})
    start = policy.match(FakeHost().tasks("fake")[0], EpisodeSeed(1, env_seed=99, wait_steps=10))
    assert (start.wait_steps, start.env_seed, start.init_state_index) == (3, 7, 1)
