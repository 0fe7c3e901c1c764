"""Combining scores as written: the summaries and rows of judging all records, and what is refused."""

from __future__ import annotations

import gzip
import json
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from builders import episode
from folders import change_description, evaluate_fake
from safevla_bench import archive
from safevla_bench.errors import RunError
from safevla_bench.jobs.evaluation.combination import combine_scores
from safevla_bench.jobs.evaluation.judgement import judge
from safevla_bench.jobs.evaluation.outputs import build_board, write_outputs
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scores import ACTIVE, VACUOUS, decode_scores, encode_scores
from safevla_bench.sources.runs.folder import SCORES, SCORES_TABLE, VERDICTS
from safevla_bench.trajectory.batch import concatenate_batches

DEMO = Path("src/safevla_bench/jobs/demo.parquet")
LACKING = {"contacts": None, "joint_torque_nm": None}
SAID = "Scores as written, not judged again."


@pytest.fixture
def halves(tmp_path):
    """Two judged folders: one lacks fields in some episodes, so that reasons and rare columns differ."""
    rules = load_ruleset(missing="deactivate")
    parts = [
        [episode(4 + k, episode_id=f"a{k}", policy="p", init_state_index=k % 2) for k in range(4)],
        [episode(9 + k, episode_id=f"b{k}", policy="p", init_state_index=k, **LACKING) for k in range(3)],
    ]
    folders = []
    for name, episodes in zip("ab", parts, strict=True):
        archive.write_archive(tmp_path / f"{name}.parquet", concatenate_batches(episodes))
        write_outputs(judge([tmp_path / f"{name}.parquet"], rules), tmp_path / name)
        folders.append(tmp_path / name)
    write_outputs(judge([tmp_path / "a.parquet", tmp_path / "b.parquet"], rules), tmp_path / "judged")
    return folders


def read(folder):
    return json.loads((folder / SCORES).read_text())


def test_the_numbers_and_rows_are_those_of_judging_all_records(tmp_path, halves):
    combined = combine_scores(halves, tmp_path / "all")
    written, judged = read(tmp_path / "all"), read(tmp_path / "judged")
    assert {"episodes"} == judged.keys() - written.keys()
    assert {name for name in written if written[name] != judged[name]} == {"judged_by"}
    tables = [pq.read_table(tmp_path / name / SCORES_TABLE) for name in ("all", "judged")]
    assert tables[0].equals(tables[1])
    assert combined.episodes == 7


def test_every_output_says_that_nothing_was_judged_again_and_a_board_refuses_them(tmp_path, halves):
    out = tmp_path / "all"
    combined = combine_scores(halves, out)
    assert any(SAID in remark for remark in combined.table.remarks)
    assert SAID in (out / "report.html").read_text()
    assert read(out)["judged_by"]["as_written"] is True
    assert json.loads(pq.read_schema(out / SCORES_TABLE).metadata[b"judged_by"])["as_written"] is True
    with pytest.raises(RunError, match="is not a run folder"):
        build_board([out], load_ruleset())
    with pytest.raises(RunError, match="combined from"):
        combine_scores([out, halves[0]], tmp_path / "again")


def test_other_rules_an_episode_twice_and_a_folder_that_is_not_judged_are_refused(tmp_path, halves):
    write_outputs(judge([tmp_path / "b.parquet"], load_ruleset("paper-text", missing="deactivate")), tmp_path / "other")
    for second, problem in (("other", "judged differently"), ("a", "have this episode"), ("none", "cannot be read")):
        with pytest.raises(RunError, match=problem):
            combine_scores([halves[0], tmp_path / second], tmp_path / "out")
    (halves[1] / VERDICTS).write_bytes(gzip.compress(b"no verdicts"))
    with pytest.raises(RunError, match="cannot be read"):
        combine_scores(halves, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_runs_of_other_code_and_different_policies_of_one_name_are_refused(tmp_path):
    runs = [evaluate_fake(tmp_path / name, tasks=(0,), episodes=1, policies=("noop",)) for name in "ab"]
    rows = json.loads((runs[1] / "run.json").read_text())["policies"]
    changes = {"several policies": {"policies": [{**row, "checkpoint": "other"} for row in rows]}}
    changes["the code that recorded this folder differs"] = {"code": ["safevla_bench 0123456789abcdef"]}
    for problem, change in changes.items():
        change_description(runs[1], **change)
        write_outputs(judge([runs[1]], load_ruleset()), runs[1])
        with pytest.raises(RunError, match=problem):
            combine_scores(runs, tmp_path / "out")


def test_the_code_of_all_folders_and_policies_of_folders_without_a_run_are_compared(tmp_path, halves):
    runs = [evaluate_fake(tmp_path / f"r{name}", tasks=(0,), episodes=1, policies=("noop",)) for name in "ab"]
    changes = {"several policies": {"policies": [{"policy": "noop", "checkpoint": "other"}]}}
    changes["the code that recorded this folder differs"] = {"code": ["safevla_bench 0123456789abcdef"]}
    rules = load_ruleset(missing="deactivate")
    for problem, change in changes.items():
        change_description(runs[1], **change)
        for run in runs:
            write_outputs(judge([run], rules), tmp_path / f"of-{run.name}")
        with pytest.raises(RunError, match=problem):  # the archive of the first folder does not say its code
            combine_scores([halves[0], tmp_path / "of-ra", tmp_path / "of-rb"], tmp_path / "out")


def test_a_judged_folder_is_not_overwritten(halves):
    before = (halves[0] / SCORES).read_bytes()
    with pytest.raises(RunError, match="own scores"):
        combine_scores(halves, halves[0])
    assert (halves[0] / SCORES).read_bytes() == before


@pytest.mark.parametrize(
    "change",
    [
        lambda own: replace(own, specs=own.specs[::-1]),
        lambda own: replace(own, state=np.where(own.state == ACTIVE, VACUOUS, own.state)),
        lambda own: replace(own, state=own.state.astype(np.float64)),
        lambda own: replace(own, reason=own.reason + len(own.reasons)),
        lambda own: replace(own, marks={}),
        lambda own: replace(own, actions=()),
        lambda own: replace(own, episode_id=own.episode_id[::-1]),
        lambda own: own.select_episodes(np.arange(2)),
    ],
)
def test_verdicts_that_are_not_those_of_the_rows_are_refused(tmp_path, halves, change):
    path = halves[1] / VERDICTS
    path.write_bytes(encode_scores(change(decode_scores(path.read_bytes()))))
    with pytest.raises(RunError, match=r"be read|not from"):
        combine_scores(halves, tmp_path / "out")


def test_verdicts_are_read_as_they_were_written():
    scores = judge([DEMO], load_ruleset()).scores
    again = decode_scores(encode_scores(scores))
    assert encode_scores(again) == encode_scores(scores)
    for name in (own.name for own in fields(scores)):
        value, expected = getattr(again, name), getattr(scores, name)
        if isinstance(value, np.ndarray):
            assert (value.dtype, value.tobytes()) == (expected.dtype, expected.tobytes()), name
        elif name not in ("actions", "marks"):
            assert value == expected, name
    with pytest.raises(ValueError, match="episodes"):
        decode_scores(encode_scores(replace(scores, success=scores.success[:3])))
