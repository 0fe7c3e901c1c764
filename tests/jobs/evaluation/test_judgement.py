"""What judging adds for gates and comparisons: costs of episodes, and the episodes that a policy's results lack."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from builders import contacts, crash, episode
from safevla_bench.archive import write_archive
from safevla_bench.errors import RunError
from safevla_bench.jobs.evaluation.judgement import describe_uncounted, judge, measure_costs
from safevla_bench.judging.gates import Gate, check_gates
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.trajectory.batch import concatenate_batches


def judged_with(folder, *absent):
    write_archive(folder / "one.jsonl", episode(12, horizon=20))
    judged = judge([folder / "one.jsonl"], load_ruleset())
    return replace(judged, scores=replace(judged.scores, absent=absent))


def test_an_episode_without_a_record_may_cost_its_own_horizon(tmp_path):
    judged = judged_with(tmp_path, crash(benchmark="libero-10", horizon=520))
    assert measure_costs(judged, allow_crashed=False).most == 520
    assert measure_costs(judged, allow_crashed=True).most == 20


@pytest.mark.parametrize("outcome", ["timeout", "invalid_action", "stopped"])
def test_the_cost_of_an_episode_that_was_cut_short_is_unknown_also_after_a_violation(outcome, tmp_path):
    unsafe = episode(12, horizon=20, success=False, outcome=outcome, contacts=contacts((1, 0, 3, 300.0)))
    write_archive(tmp_path / "one.jsonl", unsafe)
    judged = judge([tmp_path / "one.jsonl"], load_ruleset())
    costs = measure_costs(judged, allow_crashed=False)
    assert judged.scores.unsafe.all()
    assert np.isnan(costs.totals).all() == (outcome != "timeout")
    (row,) = check_gates(judged.scores, [Gate("cost", "max", 10)], costs=costs).outcomes
    assert (outcome == "invalid_action") == ("invalid action" in row.reason)


def test_a_missing_episode_has_the_horizon_of_its_task_or_is_refused(tmp_path):
    header = judged_with(tmp_path).headers[0]
    known = crash(benchmark=header.benchmark, task_id=header.task_id, outcome="missing")
    assert measure_costs(judged_with(tmp_path, known), allow_crashed=False).most == 20
    judged = judged_with(tmp_path, crash(task_id="another", outcome="missing"))
    with pytest.raises(RunError, match="no horizon is known"):
        measure_costs(judged, allow_crashed=False)
    assert measure_costs(judged, allow_crashed=True).most == 20


def spoil_json(path):
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:-1], lines[-1].replace('"dt":0.05', '"dt":-1')]))


def spoil_parquet(path):
    table = pq.read_table(path)
    dts = pa.array([*table["dt"].to_pylist()[:-1], -1.0])
    pq.write_table(table.set_column(table.schema.get_field_index("dt"), "dt", dts), path)


@pytest.mark.parametrize(("suffix", "spoil"), [(".jsonl", spoil_json), (".parquet", spoil_parquet)])
@pytest.mark.parametrize("last_policy", ["c", None])
def test_an_invalid_episode_counts_for_its_policy_alone_or_for_all_if_it_names_none(
    tmp_path, suffix, spoil, last_policy
):
    path = tmp_path / f"all{suffix}"
    valid = [episode(4, policy=policy, episode_id=policy) for policy in "abc"]
    write_archive(path, concatenate_batches([*valid, episode(4, policy=last_policy, episode_id="bad")]))
    spoil(path)
    judged = judge([path], load_ruleset(), skip_invalid=True)
    phrase = ["1 invalid episode left out"]
    expected = {"a": [], "b": [], "c": phrase} if last_policy else dict.fromkeys("abc", phrase)
    assert describe_uncounted(judged) == expected
