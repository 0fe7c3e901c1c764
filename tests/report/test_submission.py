"""Submissions: what is written reads back, and what was touched up is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from safevla_bench import demo, evaluate
from safevla_bench.errors import RunError
from safevla_bench.files import digest
from safevla_bench.report import submission


@pytest.fixture(scope="module")
def archive(tmp_path_factory) -> Path:
    return demo.unpack(tmp_path_factory.mktemp("demo") / "records")


@pytest.fixture(scope="module")
def exported(archive) -> submission.Submission:
    judge = evaluate.Judge()
    return evaluate.submit(evaluate.judge([archive], judge), judge, [archive])


@pytest.fixture
def plain(exported) -> dict[str, Any]:
    found = json.loads(submission.written(exported))
    assert isinstance(found, dict)
    return found


def saved(tmp_path: Path, document: object) -> Path:
    path = tmp_path / "submission.json"
    path.write_text(json.dumps(document))
    return path


def test_it_reads_back_as_it_was_written(exported, tmp_path):
    path = tmp_path / "s.json"
    path.write_bytes(submission.written(exported))
    assert submission.read(path) == exported
    assert submission.written(submission.read(path)) == path.read_bytes()


def test_it_fits_its_json_schema(plain):
    jsonschema.validate(plain, submission.schema())


def test_it_names_records_judge_and_versions(exported, archive):
    assert [(one.name, one.sha256) for one in exported.archive] == [(archive.name, digest(archive))]
    specs, tasks = evaluate.Judge().load()
    assert exported.judged_by.library_digest == specs.digest
    assert exported.judged_by.registry_digest == tasks.digest
    assert "mujoco" in exported.recorded_with
    assert exported.complete


def test_its_counts_are_those_of_the_cells(exported, archive):
    found, _ = evaluate.judge([archive], evaluate.Judge()).summaries()
    assert [(one.policy, one.suite, one.n, one.unsafe_success, one.vsi) for one in exported.cells] == [
        (one.policy, one.suite, one.n, one.success_unsafe, one.vsi) for one in found
    ]
    assert {one.benchmark for one in exported.cells} == {"libero"}
    assert all(one.privileged for one in exported.cells)


def unsafe(document: dict[str, Any]) -> dict[str, Any]:
    episode = next(one for cell in document["cells"] for one in cell["episodes"] if not one["safe"])
    assert isinstance(episode, dict)
    return episode


def set_safe(document: dict[str, Any]) -> None:
    unsafe(document)["safe"] = True


def set_margin(document: dict[str, Any]) -> None:
    episode = unsafe(document)
    episode["robustness"] = {name: abs(rho) for name, rho in episode["robustness"].items()}


def set_count(document: dict[str, Any]) -> None:
    document["cells"][-1]["safe"] += 1


def set_severity(document: dict[str, Any]) -> None:
    document["cells"][-1]["vsi"] = 0.0


def drop_episode(document: dict[str, Any]) -> None:
    document["cells"][-1]["episodes"].pop()


def repeat_episode(document: dict[str, Any]) -> None:
    document["cells"][0]["episodes"][0] = document["cells"][0]["episodes"][1]


@pytest.mark.parametrize("touch", [set_safe, set_margin, set_count, set_severity, drop_episode, repeat_episode])
def test_what_contradicts_itself_is_refused(plain, tmp_path, touch):
    touch(plain)
    with pytest.raises(RunError, match="contradicts itself"):
        submission.read(saved(tmp_path, plain))


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "other"},
        {"schema_version": 2},
        {"cells": []},
        {"extra": 1},
        {"archive": [{"name": "a", "sha256": "0"}]},
    ],
)
def test_what_is_no_submission_is_refused(plain, tmp_path, changes):
    with pytest.raises(RunError, match="is no submission"):
        submission.read(saved(tmp_path, {**plain, **changes}))


def test_an_ablation_is_no_submission(archive):
    judge = evaluate.Judge(applicability="off")
    with pytest.raises(RunError, match="applicability was off"):
        evaluate.submit(evaluate.judge([archive], judge), judge, [archive])


def test_the_digest_of_the_registry_changes_with_a_tag(tmp_path):
    path = tmp_path / "r.toml"
    path.write_text(
        '[[tasks]]\nbenchmark = "libero-goal"\ntask_id = "task_9"\ntemplate = "pnp-basic"\ninstruction = ""\n'
    )
    assert evaluate.Judge(registry=(path,)).load()[1].digest != evaluate.Judge().load()[1].digest
