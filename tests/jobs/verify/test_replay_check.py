"""Replays: whatever a clause reads is compared, and every forged channel is found, on the fake host and on LIBERO."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from folders import rewrite_archive
from jobs.verify.forgeries import FORGERIES, scaled_net_forces, scaled_net_impulses, without
from safevla_bench.jobs.evaluation.request import Request
from safevla_bench.jobs.evaluation.results import evaluate_request
from safevla_bench.jobs.verify import replays
from safevla_bench.jobs.verify.files import read_records
from safevla_bench.jobs.verify.replays import compare_records, outcome_differences
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.sources.runs.episode_index import read_sources
from safevla_bench.sources.runs.folder import RUN
from safevla_bench.trajectory.batch import select_episodes
from safevla_bench.trajectory.single_episode import from_recording, to_recording
from safevla_recorder.channels import CHANNELS, HANDLING
from safevla_recorder.episode import add_header_field


def replay(run, *indices):
    """The findings of replays of a run's episodes."""
    return replays.check_replays(run, read_records(run)[0], indices, lambda done, what: None)


def alone(run, index=0):
    return select_episodes(read_sources([run])[0], [index])


@pytest.mark.parametrize("name", FORGERIES)
def test_each_forgery_is_found_and_the_first_difference_named(hasty, name):
    rewrite_archive(hasty, lambda batch: FORGERIES[name](select_episodes(batch, [1])))
    (finding,) = replay(hasty, 0)
    assert finding.verdict == "differs"
    assert "the record has " in finding.said


def test_each_channel_that_the_fake_host_records_has_a_forgery(hasty):
    messages = []
    for forgery in FORGERIES.values():
        differences, _ = compare_records(forgery(alone(hasty)), alone(hasty))
        messages += [difference.channel for difference in differences]
    unforged = {spec.name for spec in CHANNELS} - set(messages)
    assert unforged == {
        "action",
        "policy_action",
        "chunk_step",
        "label_cost",
        "link_motion",
        "net_force_n",
        "net_impulse_ns",
        "subgoals",
        "time_s",
        "wrist_force_n",
        *HANDLING,
    }  # other actions lead elsewhere or nowhere


def test_channels_that_older_recorders_did_not_write_are_compared_where_both_have_them(hasty):
    def changed(channel, value):
        numbers = {"supported": True, "opening": 0.5, "entered": False} | {channel: value}
        recording = to_recording(alone(hasty), 0)
        rows = {name: np.full((recording.records, 1), number) for name, number in numbers.items()}
        return from_recording(replace(recording, **rows, **{f"{name}_bodies": [0] for name in rows}))

    here = changed("supported", True)
    assert compare_records(alone(hasty), here) == ([], list(HANDLING))
    for channel, value in (("supported", False), ("opening", 0.75), ("entered", True)):
        (difference,) = compare_records(changed(channel, value), here)[0]
        assert (difference.channel, difference.step) == (channel, 0)


def test_sub_goals_are_compared_unless_an_older_recorder_did_not_write_them(hasty):
    def holding(*values):
        record = to_recording(alone(hasty), 0)
        rows = np.zeros((record.records, 2), dtype=bool)
        rows[3] = values
        extra = add_header_field(record.extra, "subgoal_names", ["on cup plate", "close drawer"])
        return from_recording(replace(record, further={**record.further, "subgoals": rows}, extra=extra))

    assert compare_records(alone(hasty), holding(True, False)) == ([], ["subgoals"])
    (difference,) = compare_records(holding(True, True), holding(True, False))[0]
    assert (difference.channel, difference.step) == ("subgoals", 3)


def test_the_first_difference_has_step_place_and_both_values_and_the_other_channels_are_named(hasty):
    def frozen(batch):
        return FORGERIES["zeroed torques"](FORGERIES["frozen bodies"](select_episodes(batch, [1])))

    rewrite_archive(hasty, frozen)
    (finding,) = replay(hasty, 0)
    assert finding.said.startswith("step 0, joint_torque_nm[0]:") or "step 1" in finding.said
    assert "also different: body_pos_m." in finding.said
    assert "states agree" in finding.said


def test_an_episode_that_goes_on_after_its_success_is_found(hasty):
    header = alone(hasty).headers[0]
    planned = replays.ReplaySetting.read(hasty).plan(header)
    successes = [False, True, *[False] * (planned.horizon - 3), True]
    differences = outcome_differences(header, successes, planned)
    assert [(difference.channel, difference.step) for difference in differences] == [("success", 2)]


def describe_as_own_loop(run):
    described = json.loads((run / RUN).read_text())
    described["protocol"] = {"name": "own loop", "wait_steps": [described["protocol"]["wait_steps"]]}
    (run / RUN).write_text(json.dumps(described))


def slowed(batch, dt, *, times):
    """The episode with other torques, control steps of `dt` in its header and, with `times`, in its states."""
    recording = to_recording(with_torques(batch, lambda torques: 2 * torques), 0)
    states = recording.sim_state.copy()
    if times:
        states[:, 0] = dt * np.arange(len(states))
    return from_recording(replace(recording, sim_state=states, header={**recording.header, "dt": dt}))


def test_a_loop_with_slower_steps_is_unchecked_with_the_cause_and_a_rollout_differs(hasty):
    rewrite_archive(hasty, lambda batch: slowed(alone(hasty), 0.1, times=True))
    assert replay(hasty, 0)[0].verdict == "differs"
    describe_as_own_loop(hasty)
    (finding,) = replay(hasty, 0)
    assert finding.verdict == "unchecked"
    assert "control step was 0.1 s, but the host's is" in finding.said


@pytest.mark.parametrize("dt_s", [0.1, 0.05 * (1 + 5e-7)])
def test_a_control_step_that_contradicts_the_times_of_the_states_excuses_nothing(hasty, dt_s):
    rewrite_archive(hasty, lambda batch: slowed(alone(hasty), dt_s, times=False))
    describe_as_own_loop(hasty)
    (finding,) = replay(hasty, 0)
    assert finding.verdict == "differs"
    assert "control step was" not in finding.said


def test_states_that_a_loop_says_it_set_are_named_and_excuse_nothing(hasty):
    recording = to_recording(with_torques(alone(hasty), lambda torques: 2 * torques), 0)
    changed = replace(recording, extra=add_header_field(recording.extra, "states_set", 2))
    rewrite_archive(hasty, lambda batch: from_recording(changed))
    describe_as_own_loop(hasty)
    (finding,) = replay(hasty, 0)
    assert finding.verdict == "differs"
    assert "set 2 states after one reset. A replay cannot repeat such a loop" in finding.said


def test_a_loop_of_ones_own_may_lack_channels_which_are_named_and_a_rollout_may_not(hasty):
    rewrite_archive(hasty, lambda batch: without("eef_quat_wxyz")(select_episodes(batch, [1])))
    (finding,) = replay(hasty, 0)
    assert "eef_quat_wxyz: the record has nothing" in finding.said
    describe_as_own_loop(hasty)
    (finding,) = replay(hasty, 0)
    assert finding.verdict == "agrees"
    assert finding.uncompared == ("eef_quat_wxyz", "horizon", "planned start")


def differing(record, other, **options):
    return [difference.channel for difference in compare_records(record, other, **options)[0]]


def with_torques(record, change):
    values = record.joint_torque_nm.values.copy()
    return replace(record, joint_torque_nm=replace(record.joint_torque_nm, values=change(values)))


def test_a_replay_from_a_state_has_a_tolerance_and_another_none_of_a_bit(hasty):
    record = alone(hasty)
    moved = FORGERIES["shifted eef"](record)
    assert differing(moved, record) == ["eef_pos_m"]
    assert differing(moved, record, from_state=True) == []
    zeroed = with_torques(record, np.zeros_like)
    assert differing(zeroed, with_torques(record, lambda values: 0 * np.abs(values))) == []
    assert differing(zeroed, with_torques(record, lambda values: -0.0 * np.abs(values))) == ["joint_torque_nm"]


def test_fixture_poses_are_compared_where_both_records_have_them(hasty):
    def with_fixture(x_m):
        pose = {"stove_1_main": [x_m, 0.0, 0.9, 1.0, 0.0, 0.0, 0.0]}
        return replace(alone(hasty), extra=(add_header_field(alone(hasty).extra[0], "fixtures", pose),))

    for lenient in (True, False):
        assert compare_records(with_fixture(0.1), with_fixture(0.1), lenient=lenient) == ([], [])
        (difference,) = compare_records(with_fixture(0.1), with_fixture(0.2), lenient=lenient)[0]
        assert difference.channel == "fixtures"
        assert compare_records(alone(hasty), with_fixture(0.2), lenient=lenient) == ([], [])


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        ("SkylakeX", "Record and replay used OpenBLAS's kernels SkylakeX"),
        ("Zen", "kernels Zen; the replay used SkylakeX"),
    ],
)
def test_the_kernels_of_openblas_are_named(kernel, words, monkeypatch):
    monkeypatch.setattr(replays, "openblas_kernel", lambda: "SkylakeX")
    assert words in replays._describe_processor(kernel)


def test_lists_that_older_records_have_in_hash_order_are_compared_without_order(hasty):
    def with_groups(*groups):
        meta = {"object_cfgs": [{"info": {"groups_containing_sampled_obj": groups}}]}
        batch = alone(hasty)
        return replace(batch, extra=(add_header_field(batch.extra[0], "robocasa", {"ep_meta": meta}),))

    assert compare_records(with_groups("mug", "cup"), with_groups("cup", "mug")) == ([], [])
    differences, _ = compare_records(with_groups("mug", "cup"), with_groups("cup", "bowl"))
    assert [difference.channel for difference in differences] == ["robocasa"]


def test_of_a_first_state_forces_and_grip_of_record_0_are_left_out(hasty):
    def change(values):
        values[:7] += 1
        return values

    record = alone(hasty)
    other = with_torques(record, change)
    assert differing(record, other, from_state=True) == []
    assert compare_records(record, other)[0][0].step == 0


@pytest.mark.libero
def test_each_forgery_of_a_libero_episode_is_found(tmp_path, monkeypatch):
    """One rollout, replayed once: the replay is the same for every forgery of the record."""
    place = {"host": "libero", "suites": ("libero-object",), "tasks": (0,), "episodes": 1, "max_steps": 90}
    asked = Request(**place, policies=("scripted:hasty",))
    run = tmp_path / "run"
    evaluate_request(asked, load_ruleset(), run)
    (untouched,) = replay(run, 0)
    assert untouched.verdict == "agrees"
    assert untouched.said.endswith("bit for bit")
    once = []

    def replay_once(*arguments):
        if not once:
            once.append(play(*arguments))
        return once[0]

    play = replays.replay_actions
    monkeypatch.setattr(replays, "replay_actions", replay_once)
    record = alone(run)
    net = {"scaled net forces": scaled_net_forces, "scaled net impulses": scaled_net_impulses}
    for name, forgery in {**FORGERIES, **net}.items():
        rewrite_archive(run, lambda batch, forgery=forgery: forgery(record))
        (finding,) = replay(run, 0)
        assert finding.verdict == "differs", name
