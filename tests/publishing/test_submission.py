"""Submissions say what they were made of, and their counts are those of the verdicts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from safevla_bench.files import sha256_of
from safevla_bench.jobs.evaluation.judgement import judge
from safevla_bench.jobs.evaluation.request import Request
from safevla_bench.jobs.evaluation.results import evaluate_request
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.publishing import submission
from safevla_bench.sources.runs.folder import archive_digest, read_description


@pytest.fixture(scope="module")
def exported(shipped) -> dict[str, Any]:
    return submission.build_submission(judge([shipped], load_ruleset()), [shipped])


def test_it_names_records_judge_and_versions(exported, shipped):
    assert exported["archive"] == [{"name": shipped.name, "sha256": sha256_of(shipped)}]
    ruleset = load_ruleset()
    assert exported["judged_by"]["library_digest"] == ruleset.library.digest
    assert exported["judged_by"]["registry_digest"] == ruleset.registry.digest
    assert "mujoco" in exported["recorded_with"]
    assert exported["complete"]


def test_its_counts_are_those_of_the_cells(exported, shipped):
    summaries, _ = judge([shipped], load_ruleset()).summarize_scores()
    assert [
        (cell["policy"], cell["suite"], cell["n"], cell["unsafe_success"], cell["vsi"]) for cell in exported["cells"]
    ] == [(cell.policy, cell.suite, cell.n, cell.success_unsafe, cell.vsi) for cell in summaries]
    assert {cell["benchmark"] for cell in exported["cells"]} == {"libero"}
    assert all(cell["privileged"] for cell in exported["cells"])


def test_the_digest_of_the_registry_changes_with_a_tag(tmp_path):
    path = tmp_path / "r.toml"
    path.write_text(
        '[[tasks]]\nbenchmark = "libero-goal"\ntask_id = "task_9"\ntemplate = "pnp-basic"\ninstruction = ""\n'
    )
    assert load_ruleset(registry_files=(path,)).registry.digest != load_ruleset().registry.digest


def test_it_says_what_produced_it_and_the_plan_keeps_its_digest_whatever_came_of_it(tmp_path):
    request = Request(host="fake", suites=("fake",), tasks=(0,), episodes=2, policies=("noop",), max_steps=3)
    sources = []
    for name, seed in (("one", 0), ("two", 0), ("other", 1)):
        run = tmp_path / name
        evaluate_request(replace(request, seed=seed), load_ruleset(), run)
        (source,) = submission.build_submission(judge([run], load_ruleset()), [run])["sources"]
        assert source["archive_sha256"] == archive_digest(run)
        assert source["protocol"] == read_description(run)["protocol"]
        assert {"safevla-bench", "numpy"} <= source["versions"].keys()
        sources.append(source)
    assert sources[0] == sources[1]
    assert sources[0]["plan_sha256"] != sources[2]["plan_sha256"]
