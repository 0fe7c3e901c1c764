"""Many worlds in one recorder: the law of one world for each, and errors that name the world."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batch_builders import HEADER, Recorders
from safevla_recorder import batch_recorder
from safevla_recorder.batch_recorder import BatchRecorder
from safevla_recorder.episode import check_recorded_numbers
from safevla_recorder.errors import HostError, RecordError
from safevla_recorder.geometry import ALL_MOTION, TRACKED, Part
from safevla_recorder.recorder import SceneMap

ROLES = {
    **{"block": "target", "can": "bystander", "door": "furniture", "frame": "furniture"},
    **{"left": "robot", "right": "robot", "link": "robot", "table": "furniture"},
}
PAIRS = [
    ("left", "block"), ("block", "right"), ("table", "block"), ("left", "right"), ("can", "left"), ("right", "can"),
    ("link", "left"), ("door", "frame"), ("can", "table"), ("link", "table"),
]  # fmt: skip
WORLDS = 3
BOX = np.array([[0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.1, 0.2, 0.3]])


def scene(**changes):
    fields = {
        "shapes": {name: name for name in ROLES},
        "roles": ROLES,
        "substep_s": 0.01,
        "fingers": (("left",), ("right",)),
        "fixtures": [("door", "frame")],
        "forces": ("net_force_n",),
    }
    return SceneMap(**{**fields, **changes})


def poses(rows=WORLDS):
    return {"block": (np.zeros((rows, 3)), np.ones((rows, 4)))}


def forces(value=0.0):
    return np.full((WORLDS, len(PAIRS)), value)


def start_recorder(**begin):
    recorder = BatchRecorder(scene(), PAIRS, num_envs=WORLDS)
    recorder.begin(forces(), **{"poses": poses(), **begin})
    return recorder


def step(recorder, done=(False,) * WORLDS, **changes):
    return recorder.step(np.zeros((WORLDS, 2)), **{"done": np.array(done), "poses": poses(), **changes})


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 3), st.booleans(), st.integers(1, 25))
def test_each_world_is_recorded_as_by_a_recorder_of_its_own(seed, apart, are_vectors, steps):
    """Forces that come and go, of whichever pairs; episodes that end and begin at any step; blocks of four rows."""
    rng = np.random.default_rng(seed)
    size = (WORLDS, len(PAIRS), 3) if are_vectors else (WORLDS, len(PAIRS))
    parts = [Part("table", boxes=BOX), Part("link", 0, ALL_MOTION, BOX), Part("block", TRACKED)]
    recorders = Recorders(scene(apart_substeps=apart, torque_source="other", parts=parts, hand=[1]), PAIRS, WORLDS)

    def draw():
        touching = rng.uniform(size=(WORLDS, len(PAIRS))) < rng.choice([0.3, 0.8])
        readings = [
            {
                "poses": {
                    name: (rng.normal(size=3), quat) for name, quat in (("can", None), ("block", rng.normal(size=4)))
                },
                "eef": (rng.normal(size=3), None),
                "state": rng.normal(size=2),
                "parts": tuple((rng.normal(size=3), rng.normal(size=4)) for _ in parts),
                "subgoals": {name: bool(rng.integers(2)) for name in ("on block can", "open drawer")},
            }
            for _ in range(WORLDS)
        ]
        force = rng.choice([0.5, 2.0, 3.0], size=size) * (touching[..., None] if are_vectors else touching)
        return force, rng.normal(size=(WORLDS, 2)), readings

    with patch.object(batch_recorder, "_BLOCK", 4):
        recorders.begin(range(WORLDS), *draw())
        for _ in range(steps):
            for _ in range(rng.integers(1, 4)):
                recorders.substep(*draw()[:2])
            done = rng.uniform(size=WORLDS) < 0.15
            recorders.step(rng.normal(size=(WORLDS, 4)), draw()[2], done)
            recorders.begin(np.flatnonzero(done), *draw())
        recorders.end()
    recorders.assert_same()


def test_what_is_not_given_is_not_recorded_and_what_is_declared_is_named():
    recorder = BatchRecorder(scene(fingers=None), (), num_envs=2)
    recorder.begin(None, poses={}, state=np.zeros((2, 1)))
    recorder.substep()
    recorder.step([[0.0], [0.0]], poses={}, state=np.ones((2, 1)), done=[False, False])
    (first, second) = (episode.build_recording(HEADER) for episode in recorder.end())
    assert (first.contacts, first.body_pos_m, first.gripped_body, first.extra) == (None, None, None, {})
    assert second.sim_state.tolist() == [[0.0], [1.0]]
    (recording, *_) = (episode.build_recording(HEADER) for episode in start_recorder().end())
    assert recording.records == 1
    assert len(recording.contacts.a) == 0
    assert ("link", "table") in recording.extra["header"]["declared_pairs"]


def test_an_episode_knows_how_long_its_own_control_steps_were():
    recorder = start_recorder()
    for substeps, done in ((3, [True, False, False]), (1, [True] * WORLDS)):
        for _ in range(substeps):
            recorder.substep(forces())
        ranges_s = [ended.step_range_s() for ended in step(recorder, done)]
        ranges = [[round(bound / scene().substep_s) for bound in range_s] for range_s in ranges_s]
        assert ranges == ([[3, 3]] if substeps == 3 else [[1, 1], [1, 3], [1, 3]])
        recorder.begin(forces(), poses=poses(), env_ids=[0])  # the world's next episode has only the later steps
    recorder.begin(forces(), poses=poses())
    assert recorder.end()[0].step_range_s() == (0.0, np.inf)


def test_rows_that_no_episode_needs_are_used_again():
    recorder = start_recorder()
    for number in range(1, 1000):
        recorder.substep(forces(1.0))
        done = np.arange(WORLDS) == number % 7
        assert len(step(recorder, done)) == done.sum()
        recorder.begin(forces(), poses=poses(), env_ids=done)
    assert len(recorder._timeline._blocks) <= 2


@pytest.mark.parametrize("wrong", [-1.0, np.nan, 1e101])
def test_an_episode_with_a_number_that_no_record_may_have_is_refused_alone(wrong):
    recorder, force = start_recorder(), forces(2.0)
    force[1, 4] = wrong
    recorder.substep(force)
    recorder.substep(forces(2.0))
    good, bad, _ = (episode.build_recording(HEADER) for episode in step(recorder, done=[True] * WORLDS))
    check_recorded_numbers(good)
    with pytest.raises(RecordError, match="negative, not finite"):
        check_recorded_numbers(bad)


def test_worlds_in_no_episode_are_left_out():
    recorder = BatchRecorder(scene(), PAIRS, num_envs=WORLDS)
    with pytest.raises(HostError, match="no episode has begun"):
        recorder.substep(forces())
    recorder.begin(forces(), poses=poses(), env_ids=[0, 2])
    recorder.substep(forces(1.0))
    assert [episode.world for episode in step(recorder, done=[True] * WORLDS)] == [0, 2]


def test_after_a_refused_substep_every_world_begins_again():
    recorder = start_recorder()
    with pytest.raises(HostError, match=r"\[3, 4\]\n.*\[3, 10\]"):
        recorder.substep(np.zeros((WORLDS, 4)))
    with pytest.raises(HostError, match="no episode has begun"):
        step(recorder)
    assert recorder.end() == []
    recorder.begin(forces(), poses=poses())
    recorder.substep(forces())
    assert step(recorder) == []


def test_a_step_that_was_refused_can_be_made_again():
    recorder = start_recorder()
    recorder.substep(forces(1.0))
    with pytest.raises(HostError, match=r"done: .*\[1\]"):
        step(recorder, done=[False])
    with pytest.raises(HostError, match="eef_pos_m: differs"):
        step(recorder, eef=(np.zeros((WORLDS, 3)), None))
    with pytest.raises(HostError, match="in the middle"):
        recorder.begin(forces(), poses=poses(), env_ids=[0])
    ended = step(recorder, done=[False, True, True])
    assert [episode.build_recording(HEADER).contacts.force_n.max() for episode in ended] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda recorder: step(recorder), "substep was recorded"),
        (lambda recorder: recorder.substep(forces(), np.zeros((WORLDS, 7))), "joint_torque_nm: differs from"),
        (lambda recorder: recorder.substep(), "10 declared pairs"),
        (lambda recorder: recorder.substep(forces() * 1j), "net forces: not"),
        (lambda recorder: recorder.substep([[1.0], [2.0, 3.0]]), "net forces: not"),
        (lambda recorder: recorder.begin(forces(), poses={"cup": (0, 0)}), "but no role"),
        (lambda recorder: recorder.begin(forces(), poses=poses(2)), r"\[2, 3\]"),
        (lambda recorder: recorder.begin(forces(), poses=poses(), env_ids=[3]), r"env_ids: \[3\]"),
        (
            lambda recorder: recorder.begin(forces(), poses=poses(), env_ids=[0, 1, 1]),
            r"env_ids: \[0, 1, 1\].*\n.*bool",
        ),
        (lambda recorder: recorder.begin(forces(), poses=poses(), env_ids=[0.0, 1.0]), r"env_ids: \[0.0, 1.0\]"),
        (lambda recorder: recorder.end([1, 0, 0]), r"env_ids: \[1, 0, 0\]"),
        (lambda recorder: recorder.end(np.array([1, 0], np.uint8)), r"env_ids: \[1, 0\] of type uint8"),
        (lambda recorder: recorder.end(np.array([0], np.int8)), r"env_ids: \[0\] of type int8"),
        (lambda recorder: recorder.begin(forces(), poses={"block": np.zeros((WORLDS, 7))}), "block is not a pair"),
        (
            lambda recorder: recorder.begin(forces(), poses=poses(), eef=np.zeros((WORLDS, 7))),
            "end effector is not a pair",
        ),
        (lambda recorder: recorder.begin(forces(), poses={}, env_ids=[1]), "block: differs from"),
        (
            lambda recorder: recorder.begin(forces(), poses=poses(), eef=dict.fromkeys("ab", (0, 0))),
            "but poses of several",
        ),
        (
            lambda recorder: recorder.begin(forces(), poses=poses(), state=np.zeros((3, 1)), env_ids=[1]),
            "sim_state: differs from",
        ),
    ],
)
def test_what_differs_from_record_0_is_an_error_that_names_it(call, problem):
    with pytest.raises(HostError, match=problem):
        call(start_recorder())


@pytest.mark.parametrize(
    ("changes", "pairs", "problem"),
    [
        ({"forces": ("force_n",)}, PAIRS, "forces are .*force_n"),
        ({}, [*PAIRS, ("block", "left")], r"pair \('block', 'left'\)"),
        ({}, [("left", "left")], "only one body"),
        ({}, [("left", "shelf")], "shape 'shelf'"),
        ({}, [("left", "block"), ("right", "can")], "two finger groups"),
    ],
)
def test_pairs_that_cannot_be_are_an_error(changes, pairs, problem):
    with pytest.raises(HostError, match=problem):
        BatchRecorder(scene(**changes), pairs, num_envs=2)
