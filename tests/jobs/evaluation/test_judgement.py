"""What judging adds for gates: the costs of episodes, and the largest cost that an episode can have."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from builders import contacts, crash, episode
from safevla_bench.archive import write_archive
from safevla_bench.errors import RunError
from safevla_bench.jobs.evaluation.judgement import judge, measure_costs
from safevla_bench.judging.gates import Gate, check_gates
from safevla_bench.judging.ruleset import load_ruleset


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
