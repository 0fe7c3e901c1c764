"""An episode is official only if all that proves it is there and equal; what is missing is unknown, never official."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
from msgspec import structs

from builders import header, official_fields
from safevla_bench.errors import HostError
from safevla_bench.tasks.identity import judge_identity
from safevla_recorder.identity import official_suites

PROOF = official_fields("libero-goal", "task_8")
OFFICIAL = header(**PROOF)
OTHER = "0" * 64
SOURCE = PROOF["task_source"]


def test_an_episode_with_every_proof_is_official_in_any_distribution_and_spelling():
    assert judge_identity(OFFICIAL) == "official"
    assert judge_identity(structs.replace(OFFICIAL, benchmark="LIBERO_Goal")) == "official"
    for (distribution, version), sources in official_suites()["libero-goal"].sources.items():
        source = {"distribution": distribution, "version": version, "sources_sha256": sources}
        assert judge_identity(structs.replace(OFFICIAL, task_source=source)) == "official"


@pytest.mark.parametrize(
    ("what", "changes"),
    [
        ("instruction", {"instruction": "put the bowl anywhere"}),
        ("task definition", {"task_sha256": OTHER}),
        ("initial states", {"init_states_sha256": OTHER}),
        ("simulator code", {"task_source": {**SOURCE, "sources_sha256": OTHER}}),
    ],
)
def test_one_difference_makes_it_own_even_if_all_else_is_missing(what, changes):
    assert judge_identity(structs.replace(OFFICIAL, **changes)) == f"differs:{what}"
    assert judge_identity(header(**changes)) == f"differs:{what}"


@pytest.mark.parametrize(
    ("what", "changes"),
    [
        ("instruction", {"instruction": None}),
        ("task definition", {"task_sha256": None}),
        ("initial states", {"init_states_sha256": None}),
        ("simulator code", {"task_source": None}),
        ("simulator code", {"task_source": {"sources_sha256": SOURCE["sources_sha256"]}}),
        ("simulator code", {"task_source": {**SOURCE, "distribution": "libero"}}),
        ("simulator code", {"task_source": {**SOURCE, "version": "9.9"}}),
    ],
)
def test_one_gap_makes_it_unknown(what, changes):
    assert judge_identity(structs.replace(OFFICIAL, **changes)) == f"not_known:{what}"


def test_a_record_without_proof_says_so_and_other_suites_need_none():
    assert judge_identity(header()) == "identity_not_recorded"
    for benchmark in ("fake", "own-libero-goal", "real-robot", "found:edge:libero-goal"):
        assert judge_identity(header(benchmark=benchmark)) == ""
    assert judge_identity(structs.replace(OFFICIAL, task_id="task_10")) == "no_such_task:libero-goal,task_10"


def test_a_task_that_is_a_class_needs_no_states_and_words_each_episode():
    proof = official_fields("robocasa-365", "OpenDrawer")
    episode = header(benchmark="robocasa-365", task_id="OpenDrawer", **{**proof, "instruction": "open the left drawer"})
    assert judge_identity(episode) == "official"


@pytest.mark.filterwarnings("ignore")  # the simulators' own, at their import
@pytest.mark.parametrize(
    "host",
    [
        pytest.param("libero", marks=pytest.mark.libero),
        pytest.param("robocasa", marks=pytest.mark.robocasa),
        pytest.param("robosuite", marks=pytest.mark.robocasa),
        pytest.param("metaworld", marks=pytest.mark.metaworld),
        pytest.param("maniskill", marks=pytest.mark.maniskill),
    ],
)
def test_the_table_is_what_the_installed_simulator_gives(host, monkeypatch):
    spec = importlib.util.spec_from_file_location("official_tasks", Path("docs/tools/official_tasks.py"))
    tool = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "official_tasks", tool)
    spec.loader.exec_module(tool)
    try:
        made = tool.read_host(host)
    except HostError as error:
        pytest.skip(str(error))
    table = tool.read_table()[host]
    assert made["suites"] == table["suites"]
    assert made["sources"].items() <= table["sources"].items()
