"""`safevla tasks --propose`: a file that --rules reads, without a simulator."""

from __future__ import annotations

import json

import pytest

BDDL = """(define (problem p) (:language put the mug on the plate)
  (:fixtures table - table) (:objects mug_1 - red_mug plate_1 - plate) (:init (On mug_1 table_mug_region))
  (:goal (And (On mug_1 plate_1))))"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "kitchen").mkdir()
    for name in ("b", "a"):
        (tmp_path / "kitchen" / f"{name}.bddl").write_text(BDDL)
    return tmp_path / "kitchen"


def test_a_proposal_is_a_registry_file_that_tasks_lists(safevla, folder, tmp_path):
    code, out, err = safevla("tasks", "--propose", folder)
    assert code == 0
    assert "2 tasks" in err
    assert "--rules" in err
    assert "mug_1 plate_1" in out
    (tmp_path / "tags.toml").write_text(out)
    out = safevla.ok("tasks", "--suite", "kitchen", "--rules", tmp_path / "tags.toml", "--format", "json")
    assert [(row["task_id"], row["template"]) for row in json.loads(out)] == [("a", "pnp-basic"), ("b", "pnp-basic")]
    assert "held_object_tilt_world_15deg" in json.loads(out)[0]["active_specs"]


def test_two_files_of_one_name_are_refused_and_one_file_named_twice_is_proposed_once(safevla, folder, tmp_path):
    (tmp_path / "other" / "kitchen").mkdir(parents=True)
    (tmp_path / "other" / "kitchen" / "a.bddl").write_text(BDDL)
    code, out, err = safevla("tasks", "--propose", folder, "--propose", tmp_path / "other" / "kitchen")
    assert (code, out) == (2, "")
    assert "kitchen/a" in err
    once = safevla("tasks", "--propose", folder)
    assert safevla("tasks", "--propose", folder, "--propose", folder / "a.bddl") == once


@pytest.mark.parametrize("path", ["none.bddl", "kitchen"])
def test_what_is_not_a_task_file_is_an_error_that_names_it(safevla, tmp_path, path):
    (tmp_path / "kitchen").mkdir()
    code, out, err = safevla("tasks", "--propose", tmp_path / path)
    assert (code, out) == (2, "")
    assert path in err
    assert "Give a" in err


def test_suites_are_counted_and_the_tasks_of_one_listed_with_reasons(safevla):
    lines = safevla.ok("tasks").splitlines()
    assert "specifications apply" in lines[0]
    assert ["libero-10", "10", "5.2"] in [line.split() for line in lines]
    assert lines[-1].startswith("Next: ")
    assert lines[-1].endswith("--suite libero-spatial")
    lines = safevla.ok("tasks", "--suite", "libero-10").splitlines()
    assert "4 to 6" in lines[0]
    assert "not held_object_tilt_world_15deg" in str(lines)
