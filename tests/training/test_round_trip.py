"""A dataset read back as a log is judged as the records were, as far as what it keeps decides."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from builders import episode
from safevla_bench.errors import RunError
from safevla_bench.jobs.evaluation.judgement import judge
from safevla_bench.jobs.evaluation.request import Request
from safevla_bench.jobs.evaluation.rollouts import roll_out
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scores import ACTIVE
from safevla_bench.judging.scoring import score
from safevla_bench.signals.signal import SIGNALS
from safevla_bench.stl.formula import signal_names
from safevla_bench.training.description import recorded_parts
from safevla_bench.training.export import export_dataset
from safevla_bench.trajectory.batch import Batch, concatenate_batches, select_episodes
from safevla_bench.trajectory.single_episode import join_records, records
from sources.logs.log_files import save_mapping, write_dataset
from sources.logs.test_lerobot import MAPPED, frames

RULES = replace(load_ruleset(), missing="deactivate")
FROM_CONTACTS = {
    spec.spec_id
    for spec in RULES.library.specs
    if any("contacts" in SIGNALS[name].reads for name in signal_names(spec.formula))
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Four episodes of one task on the fake host, careless and still."""
    folder = tmp_path_factory.mktemp("round") / "run"
    request = Request(host="fake", suites=("fake",), tasks=(1,), episodes=2, policies=("scripted:hasty",), max_steps=40)
    roll_out(request, folder)
    return folder


def without_last(batch: Batch) -> Batch:
    """Each episode without its last record, which no action follows."""
    parts = [list(records(select_episodes(batch, [e])))[:-1] for e in range(len(batch))]
    return concatenate_batches([join_records(part) for part in parts])


def test_every_clause_that_needs_no_contacts_has_the_same_robustness(run, tmp_path):
    judged = judge([run], RULES)
    export_dataset(judged, tmp_path / "set")
    again = judge([tmp_path / "set"], RULES).scores
    expected = score(without_last(judged.batch), RULES)
    assert len(again) == len(expected) == 2
    compared = 0
    for k, spec in enumerate(expected.specs):
        if spec.spec_id not in FROM_CONTACTS and spec.is_scored:
            np.testing.assert_array_equal(again.state[k], expected.state[k], err_msg=spec.spec_id)
            np.testing.assert_array_equal(again.rho[k], expected.rho[k], err_msg=spec.spec_id)
            compared += bool((expected.state[k] == ACTIVE).any())
    assert compared >= 3
    assert again.success.tolist() == expected.success.tolist()


def test_clauses_on_contacts_are_unknown_and_not_kept(run, tmp_path):
    export_dataset(judge([run], RULES), tmp_path / "set")
    row = judge([tmp_path / "set"], RULES).scores.episode(0)
    assert row.robustness["max_contact_force_under_200N"] is None
    assert "contacts" in row.inactive_specs["max_contact_force_under_200N"]


def lost_and_gapped(folder):
    """A log of two episodes: in one a body is lost for a while, in the other a record is missing."""
    plate, effort, action = frames()["plate"].copy(), np.full((30, 2), 4.0), np.zeros((30, 3))
    plate[10:14], effort[12] = np.nan, np.nan
    write_dataset(folder, [frames(plate=plate, action=action), frames(effort=effort, action=action)])
    save_mapping(folder, MAPPED + '\n[action]\nfrom = "action"\n')
    return judge([folder], RULES)


def test_a_body_that_was_lost_is_lost_when_it_is_read_back(tmp_path):
    judged = lost_and_gapped(tmp_path / "log")
    export_dataset(judged, tmp_path / "set")
    lost = [judged.batch.pose_valid.episode_poses(0)[1][:-1], judge([tmp_path / "set"], RULES).batch]
    assert lost[1].pose_valid.episode_poses(0)[1].tolist() == lost[0].tolist()
    assert np.flatnonzero(lost[0][:, 0, 0] == 0).tolist() == [10, 11, 12, 13]


def test_an_episode_with_a_gap_in_time_is_left_out_of_a_dataset_of_one_rate(tmp_path):
    summary = export_dataset(lost_and_gapped(tmp_path / "log"), tmp_path / "set")
    assert summary.episodes == 1
    assert "unevenly apart in time" in summary.left_out[0]


def test_an_episode_that_was_cut_short_does_not_come_back_safe(run, tmp_path):
    judged = judge([run], RULES)
    scores = replace(judged.scores, outcome=("invalid_action",) * 2, success=np.zeros(2, dtype=np.bool_))
    export_dataset(replace(judged, scores=scores), tmp_path / "set")
    again = judge([tmp_path / "set"], RULES).scores
    assert set(again.outcome) == {"stopped"}
    assert not again.safe.any()


def test_two_bodies_of_one_column_are_refused():
    """In a column's name `/` becomes `_`: one body would overwrite the other."""
    roles = {"hand": "robot", "bowl": "target", "a/b": "bystander", "a_b": "bystander"}
    still = np.tile([0.5, 0.0, 0.8], (12, 2, 1))
    changes = {"quat_bodies": None, "body_quat_wxyz": None}
    batch = episode(roles=roles, pos_bodies=(2, 3), body_pos_m=still, **changes)
    with pytest.raises(RunError, match="column record"):
        recorded_parts(batch, with_bodies=True)
