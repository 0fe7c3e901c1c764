"""Judging row groups in several processes: the same scores, bytes and errors as in one."""

from __future__ import annotations

import pickle
import signal
from functools import partial
from pathlib import Path

import pytest

from builders import episode
from safevla_bench import archive
from safevla_bench.archive import parquet
from safevla_bench.errors import RunError, SafevlaError
from safevla_bench.jobs.evaluation.judgement import judge
from safevla_bench.jobs.evaluation.outputs import write_outputs
from safevla_bench.jobs.evaluation.parallel import FilePart, ParallelJudge, _call_on_node, open_judge
from safevla_bench.judging.ruleset import load_ruleset

DEMO = Path("src/safevla_bench/jobs/demo.parquet")


def run_elsewhere(function, items):
    """A map whose function, items and results are sent as to another process."""
    for item in items:
        function, item = pickle.loads(pickle.dumps((function, item)))
        yield pickle.loads(pickle.dumps(function(item)))


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Write episodes as an archive with row groups of two; ids may be repeated."""
    monkeypatch.setattr(parquet, "_GROUP_EPISODES", 2)

    def write(name, *episodes):
        with (tmp_path / name).open("w+b") as stream:
            parquet.write_parquet(stream, episodes)
        return tmp_path / name

    return write


def files(judged, out):
    write_outputs(judged, out)
    return {path.name: path.read_bytes() for path in out.iterdir()}


def test_results_have_the_same_bytes_for_any_number_of_processes(tmp_path, written):
    path = written("demo.parquet", archive.open_archive(DEMO))
    assert parquet.count_rows(path) == [2] * 10
    alone = files(judge([path], load_ruleset()), tmp_path / "alone")
    with open_judge(2) as elsewhere:
        judged = judge([path], load_ruleset(), elsewhere=elsewhere)
        assert files(judged, tmp_path / "two") == alone
    with open_judge(1) as elsewhere:
        assert elsewhere is None


def test_named_sources_and_several_files_are_judged_as_in_one_process(tmp_path, written):
    first = written("a.parquet", *(episode(4 + k, episode_id=f"e{k}", policy="p") for k in range(5)))
    second = written("b.parquet", *(episode(9 + k, episode_id=f"e{k}", policy="p") for k in range(3)))
    sources = [f"mine={first}", f"other={second}"]
    alone = judge(sources, load_ruleset())
    assert set(alone.scores.policy) == {"mine", "other"}
    judged = judge(sources, load_ruleset(), elsewhere=ParallelJudge(run_elsewhere))
    assert files(judged, tmp_path / "two") == files(alone, tmp_path / "alone")


@pytest.mark.parametrize("name", ["repeated", "damaged", "lacking", "unknown", "empty", "gone"])
def test_errors_and_what_is_left_out_are_those_of_one_process(tmp_path, written, name):
    episodes = [episode(4 + k, episode_id=f"e{k}") for k in range(6)]
    lacking = episode(4, episode_id="e9", contacts=None, joint_torque_nm=None)
    unknown = episode(4, episode_id="e9", benchmark="nowhere", task_id="nothing")
    path = written("a.parquet", *episodes, *{"lacking": [lacking], "unknown": [unknown]}.get(name, []))
    if name == "repeated":
        path = written("a.parquet", *episodes, episodes[1], *(episode(4, episode_id=f"f{k}") for k in range(2)))
    elif name == "damaged":
        content = bytearray(path.read_bytes())
        content[len(content) // 3] ^= 255
        path.write_bytes(content)
    elif name == "empty":
        path = written("a.parquet")
    elif name == "gone":
        path.unlink()
    for skip in (False, True):
        outcomes = []
        for elsewhere in (None, ParallelJudge(run_elsewhere)):
            try:
                judged = judge([path], load_ruleset(), skip_invalid=skip, elsewhere=elsewhere)
                outcomes.append(files(judged, tmp_path / f"{skip}-{elsewhere is None}"))
            except SafevlaError as error:
                outcomes.append((type(error), str(error)))
        assert outcomes[0] == outcomes[1]


def test_a_node_with_other_code_is_an_error_with_both_codes(tmp_path):
    part = FilePart(tmp_path / "a.parquet", None, {})
    reply = _call_on_node("safevla_bench 0123456789abcdef", tmp_path, lambda part: [], part)
    assert isinstance(reply, RunError)
    assert "differs from this machine's" in str(reply)
    assert "0123456789abcdef" in str(reply)


def test_processes_ignore_ctrl_c_from_their_first_instruction_on():
    """Python's own handler would print a stack for each process that is still importing."""
    with open_judge(2) as judge:
        masks = list(judge.run(partial(signal.pthread_sigmask, signal.SIG_BLOCK), [set(), set()]))
    assert all(signal.SIGINT in mask for mask in masks)
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_sources_without_row_groups_are_judged_in_this_process(tmp_path):
    archive.write_archive(tmp_path / "a.jsonl", episode(4))
    judged = judge([tmp_path / "a.jsonl"], load_ruleset(), elsewhere=ParallelJudge(None))
    assert len(judged.scores) == 1
