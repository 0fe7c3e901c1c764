"""A cluster to work on: what is asked of it, what is said if it is missing."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from safevla_bench.errors import RunError
from safevla_bench.rollout import ray as ray_cluster
from safevla_bench.rollout.ray import RayCluster


def test_an_address_goes_before_ray_address_and_without_both_ray_is_started_here(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    assert RayCluster(address="auto").place == "auto"
    assert RayCluster().place == "head:6379"
    monkeypatch.delenv("RAY_ADDRESS")
    assert RayCluster().place == ray_cluster.HERE


@pytest.mark.parametrize("share", [-1, 1.5, float("nan"), float("inf")])
@pytest.mark.parametrize("of", ["cpus", "gpus"])
def test_a_share_that_is_none_is_refused_before_ray_is_started(of, share):
    with pytest.raises(RunError, match=rf"--actor .*{of}={share:g}"):
        RayCluster(**{of: share})


def test_ray_is_imported_only_if_it_is_asked_for():
    modules = "safevla_bench.cli.rollout, safevla_bench.rollout.ray"
    subprocess.run([sys.executable, "-c", f"import sys, {modules}; sys.exit('ray' in sys.modules)"], check=True)


def nodes(*resources: dict[str, float]):
    rows = [{"Alive": bool(node), "Resources": node, "NodeID": str(k)} for k, node in enumerate(resources)]
    return SimpleNamespace(nodes=lambda: rows)


def test_one_node_must_have_room_for_an_actor_by_itself():
    several = nodes({"CPU": 4}, {"CPU": 1, "GPU": 1}, {})
    ray_cluster.require_room(several, RayCluster(cpus=4), {})
    ray_cluster.require_room(several, RayCluster(cpus=0.5, gpus=0.25), {})
    with pytest.raises(RunError, match="has 2 CPUs"):
        ray_cluster.require_room(several, RayCluster(cpus=2, gpus=1), {})
    with pytest.raises(RunError, match="no node of"):
        ray_cluster.require_room(nodes({}), RayCluster(), {})


def test_the_token_of_an_own_cluster_is_written_nowhere(monkeypatch):
    plain = {name: value for name, value in os.environ.items() if "RAY" not in name}
    monkeypatch.setattr(ray_cluster.os, "environ", plain)
    assert ray_cluster._local_options(3)["num_cpus"] >= 3
    assert len(plain["RAY_AUTH_TOKEN"]) == 64
    plain["RAY_AUTH_TOKEN"] = "mine"
    ray_cluster._local_options(1)
    assert plain["RAY_AUTH_TOKEN"] == "mine"


def test_without_ray_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(RunError, match="not installed") as raised, ray_cluster.connect_ray(RayCluster(), 1):
        pass
    assert "pip install" in raised.value.remedy
    assert "[ray]" in raised.value.remedy


def test_while_ray_is_used_sigterm_is_an_interrupt_as_ctrl_c_is(monkeypatch):
    former = signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Ray's handler remains after tests that start Ray
    monkeypatch.setattr(ray_cluster, "_start_ray", lambda *_: SimpleNamespace(shutdown=lambda: None))
    monkeypatch.setitem(sys.modules, "ray", None)
    try:
        with pytest.raises(KeyboardInterrupt), ray_cluster.connect_ray(RayCluster(), 1):
            signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, former)


def test_while_ray_starts_sigterm_reaches_the_handler_of_the_command_and_not_that_of_ray(monkeypatch):
    received = []

    def start(*_):
        sys.exit(signal.SIGTERM)  # as Ray's own handler does

    former = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    monkeypatch.setattr(ray_cluster, "_start_ray", start)
    monkeypatch.setitem(sys.modules, "ray", None)
    try:
        with pytest.raises(SystemExit), ray_cluster.connect_ray(RayCluster(), 1):
            pass
    finally:
        signal.signal(signal.SIGTERM, former)
    assert received == [signal.SIGTERM]
