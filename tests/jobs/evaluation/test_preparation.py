"""A run that the host cannot serve is refused before its first episode, and in a dry run; no simulator is needed."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from safevla_bench.errors import HostError, PolicyError
from safevla_bench.hosts.fake.host import FakeHost
from safevla_bench.hosts.robosuite.host import RobosuiteHost
from safevla_bench.interface.environment import HostSupport
from safevla_bench.interface.policy import Wants
from safevla_bench.jobs.evaluation.preparation import prepare_run
from safevla_bench.jobs.evaluation.request import Request, RequestedPolicy
from safevla_bench.policies import make_policy
from safevla_bench.policies.coupling import Coupling
from safevla_bench.rollout.found import read_suite

HOSTS = {"metaworld": "mt10", "maniskill": "maniskill"}


def request(host, suite, policy, *, coupling=None, **options):
    made = policy if not isinstance(policy, str) else None
    name = policy if isinstance(policy, str) else "mine"
    asked = RequestedPolicy(name, made=made, coupling=Coupling(filter=coupling))
    return Request(host=host, suites=(suite,), tasks=(0,), policies=(asked,), **options)


class Reading:
    """A user's policy that wants something of the host."""

    def __init__(self, **wants):
        self.wants = Wants(**wants)

    def reset(self, task, seed): ...

    def act(self, observation): ...

    def close(self): ...


@pytest.mark.parametrize("is_dry", [True, False])
@pytest.mark.parametrize(("host", "suite"), HOSTS.items())
@pytest.mark.parametrize(
    ("policy", "coupling", "problem"),
    [
        ("scripted:careful", None, "needs privileged state"),
        ("random", "distance-barrier", "distance-barrier needs"),
        (Reading(privileged=True), None, "needs privileged state"),
        (Reading(absolute=True), None, "policy gives poses"),
        (Reading(cameras=("no-such-camera",)), None, "cannot render camera images|has no camera"),
        (Reading(extra=("no-such-reading",)), None, "has no extra observation"),
    ],
)
def test_what_a_host_does_not_declare_is_refused_before_the_run(host, suite, policy, coupling, problem, is_dry):
    with pytest.raises((HostError, PolicyError), match=problem) as caught:
        prepare_run(request(host, suite, policy, coupling=coupling), is_dry=is_dry)
    assert caught.value.remedy


def test_a_policy_of_another_control_mode_is_refused_with_its_own_remedy():
    from safevla_bench.policies.maniskill import ManiskillPlanner

    planner = ManiskillPlanner({"PickCube-v1": lambda env, seed: None})
    with pytest.raises(PolicyError, match="planners move joints") as caught:
        prepare_run(request("maniskill", "maniskill", planner))
    assert "--host-arg control=pd_joint_delta_pos" in caught.value.remedy


def test_a_placement_is_refused_by_a_host_that_cannot_place(tmp_path):
    start = {"init_state_index": 0, "env_seed": 7, "wait_steps": 10, "placed": [["cube.x", 0.123]]}
    fields = {"trial": 1, "value": -1.0, "violated": [], "distance_m": None, "merged": 0, "instruction": None}
    found = {"task_id": "PickCube-v1", "start": start, "policy_seed": 0, **fields}
    plan = {"name": "chosen", "host": "maniskill", "host_arguments": {}, "suite": "maniskill", "protocol": "p"}
    document = {
        **plan,
        "policy": "noop",
        "objective": "o",
        "method": "random",
        "seed": 0,
        "tasks": [],
        "starts": [found],
    }
    path = tmp_path / "chosen.json"
    path.write_bytes(msgspec.json.encode(document))
    assert read_suite(path).max_steps is None
    with pytest.raises(HostError, match=r"with cube\.x"):
        prepare_run(request("maniskill", "maniskill", "noop", found=path, max_steps=5), is_dry=True)


def test_a_host_without_a_declaration_supports_nothing_optional(monkeypatch):
    monkeypatch.setattr(FakeHost, "supports", HostSupport())
    with pytest.raises(PolicyError, match="needs privileged state"):
        prepare_run(request("fake", "fake", "scripted:careful"))
    prepare_run(request("fake", "fake", "noop")).resources.close()


def test_a_filter_for_motions_of_another_size_is_refused():
    with pytest.raises(PolicyError, match=r"0\.1 m .*0\.05"):
        prepare_run(request("fake", "fake", "random", coupling="distance-barrier:unit_m=0.1"))
    prepare_run(request("fake", "fake", "random", coupling="distance-barrier")).resources.close()


def test_a_script_for_arms_is_refused_where_actions_have_another_length():
    task = FakeHost().tasks("fake")[0]
    with pytest.raises(PolicyError, match="have 4"):
        make_policy("scripted:careful").require_task(replace(task, still=(0.0,) * 4))


@pytest.mark.parametrize(
    "task", [12, 14]
)  # TwoArmLift; TwoArmPegInHole, whose actions have as many numbers as RoboCasa's
@pytest.mark.parametrize(
    ("policy", "coupling"),
    [
        ("scripted:careful", None),
        ("random", "distance-barrier"),
        ("openpi:ws://localhost:1", None),
        (Reading(privileged=True), None),
    ],
)
def test_policies_and_filters_of_one_arm_are_refused_where_there_are_two(task, policy, coupling):
    asked = replace(request("robosuite", "robosuite", policy, coupling=coupling), tasks=(task,))
    with pytest.raises(PolicyError, match=r"one arm|7 or 12"):
        prepare_run(asked, is_dry=True)


@pytest.mark.parametrize("policy", ["noop", "random", Reading()])
def test_policies_without_a_notion_of_arms_run_with_two(policy, monkeypatch):
    monkeypatch.setattr(RobosuiteHost, "versions", lambda self: {"robosuite": "1.5.2"})
    run = prepare_run(replace(request("robosuite", "robosuite", policy), tasks=(12,)), is_dry=True)
    assert run.episodes[0].task.arms == ("robot0", "robot1")
