"""Wrist sensors: what was measured without contact is subtracted, and the tool's weight as the hand turns."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.sources.logs.names import decide_forces
from safevla_bench.trajectory.batch import Batch
from sources.logs.log_files import FPS, problem, read, save_mapping, write_dataset

TEXT = '[episode]\nsuccess = true\n[eef]\nfrom = "eef"\nquaternion_order = "wxyz"\n[wrench]\nfrom = "ft"\n'
BIAS, MASS = np.array([3.0, -2.0, 7.0]), 1.2
N = 80


def hand(turned_deg: float = 0.0, moves_after: int = 30) -> np.ndarray:
    """Poses of a hand that is still at first, and then moves and turns about x."""
    poses = np.zeros((N, 7))
    moved = np.clip(np.arange(N) - moves_after, 0, None)
    poses[:, 0] = 0.01 * moved
    turns = Rotation.from_rotvec(np.outer(turned_deg * moved / moved.max(), [1, 0, 0]), degrees=True)
    poses[:, 3:] = turns.as_quat()[:, [3, 0, 1, 2]]
    return poses


def weight(poses: np.ndarray) -> np.ndarray:
    return Rotation.from_quat(poses[:, [4, 5, 6, 3]]).inv().apply([0, 0, -MASS * 9.81])


def measured(tmp_path, poses: np.ndarray, forces: np.ndarray, text: str = TEXT) -> Batch:
    folder = write_dataset(tmp_path / "d", [{"eef": poses, "ft": forces}])
    save_mapping(folder, text)
    (batch,) = read(folder)
    assert isinstance(batch, Batch), batch
    return batch


def test_the_offset_is_that_of_the_first_still_second_and_the_force_is_judged(tmp_path):
    poses, forces = hand(), np.tile(BIAS, (N, 1))
    forces[60] += [0.0, 0.0, 150.0]
    batch = measured(tmp_path, poses, forces)
    rows = batch.channel("wrist_force_n").episode_rows(0)
    assert rows[60].tolist() == [0.0, 0.0, 150.0]
    assert np.abs(np.delete(rows, 60, axis=0)).max() == 0.0
    scores = score(batch, load_ruleset("real-robot"))
    assert scores.episode(0).diagnostics["wrist_force_under_140N"].extreme == 150.0
    assert scores.episode(0).diagnostics["wrist_force_under_140N"].violated
    assert "wrist_force_under_140N" not in scores.episode(0).active_specs


def test_a_hand_that_moves_at_first_is_tared_where_it_is_still(tmp_path):
    poses = hand()[::-1].copy()  # moves for 50 records, then rests
    forces = np.tile(BIAS, (N, 1))
    forces[:49] += [40.0, 0.0, 0.0]
    rows = measured(tmp_path, poses, forces).channel("wrist_force_n").episode_rows(0)
    assert rows[0].tolist() == [40.0, 0.0, 0.0]
    assert rows[-1].tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("tare", ["", f"tare = {BIAS.tolist()}\n"])
def test_with_its_mass_the_weight_of_the_tool_is_subtracted_however_the_hand_turns(tmp_path, tare, caplog):
    poses = hand(turned_deg=170.0)
    with caplog.at_level(logging.WARNING):
        batch = measured(tmp_path, poses, BIAS + weight(poses), f"{TEXT}mass_kg = {MASS}\n{tare}")
    assert np.abs(batch.channel("wrist_force_n").values).max() < 1e-9
    assert not caplog.records


@pytest.mark.parametrize(("turned_deg", "warns"), [(15.0, False), (30.0, True)])
def test_without_its_mass_a_hand_that_turns_far_is_a_warning(tmp_path, caplog, turned_deg, warns):
    poses = hand(turned_deg)
    with caplog.at_level(logging.WARNING):
        measured(tmp_path, poses, BIAS + weight(poses))
    assert ("give the tool's mass_kg" in caplog.text) == warns


def test_what_cannot_be_tared_is_asked_for(tmp_path):
    poses = hand(moves_after=0)
    folder = write_dataset(tmp_path / "d", [{"eef": poses, "ft": np.zeros((N, 3))}])
    save_mapping(folder, TEXT)
    assert "never still" in problem(folder)
    save_mapping(folder, TEXT + "tare_s = 0.04\n")
    assert "never still" in problem(folder)
    save_mapping(folder, TEXT + "tare = [0, 0, 0]\n")
    assert len(read(folder)[0]) == 1
    save_mapping(folder, '[episode]\nsuccess = true\n[wrench]\nfrom = "ft"\n')
    assert "hand's pose" in problem(folder)
    assert FPS == 20


@pytest.mark.parametrize(
    ("names", "places"),
    [
        ("fx fy fz tx ty tz", [0, 1, 2]),
        ("torque_x torque_y torque_z force_x force_y force_z", [3, 4, 5]),
        ("wrench.force.x wrench.force.y wrench.force.z wrench.torque.x wrench.torque.y wrench.torque.z", [0, 1, 2]),
        ("Fx Fy Fz", [0, 1, 2]),
    ],
)
def test_names_decide_which_numbers_are_forces(names, places):
    assert decide_forces(names.split(), len(names.split())) == places


@pytest.mark.parametrize("names", ["", "a b c d e f", "torque_x torque_y torque_z"])
def test_six_numbers_without_such_names_are_asked_for(names):
    with pytest.raises(ValueError, match="which three numbers"):
        decide_forces(names.split(), len(names.split()) or 6)
