"""An estimate follows from the plan and the host's figures; without figures there is none."""

from __future__ import annotations

import pytest

from safevla_bench.hosts import host_names, make_host
from safevla_bench.hosts.protocols import load_protocol
from safevla_bench.interface.task import Task
from safevla_bench.jobs.evaluation.preparation import estimate_run as estimate_planned
from safevla_bench.jobs.evaluation.request import Request
from safevla_bench.rollout import estimate
from safevla_bench.rollout.estimate import HostCosts, SuiteCosts, estimate_run, load_costs
from safevla_bench.rollout.plan import plan_episodes

STILL = (0.0,) * 6 + (-1.0,)

TASKS = [Task("libero-object", f"task_{k}", k, f"name {k}", "do it", STILL, 50) for k in (0, 3)]
PLAN = plan_episodes(TASKS, 5, ["blind", "seeing"], load_protocol())
CAMERAS = {"blind": 0, "seeing": 2}
HORIZON, WAIT = 280, 10
COSTS = HostCosts(
    source="made up",
    start_s=(3.0, 5.0),
    make_s=(1.0, 2.0),
    camera_make_s=(0.5, 1.0),
    reset_s=(0.2, 0.4),
    camera_reset_s=(0.1, 0.2),
    step_s=(9.0, 9.0),
    camera_step_s=(9.0, 9.0),
    record_bytes=(500, 1500),
    suites={"libero-object": SuiteCosts(step_s=(0.01, 0.02), camera_step_s=(0.03, 0.05))},
)


@pytest.fixture(autouse=True)
def fixed_costs(monkeypatch):
    monkeypatch.setattr(estimate, "load_costs", lambda: {"libero": COSTS, "fake": COSTS})


def test_time_and_disk_are_added_up_over_policies_tasks_episodes_and_steps():
    run_estimate = estimate_run(PLAN, "libero", CAMERAS)
    expected = {}
    for side, span in enumerate(("low", "high")):
        steps = (0.01, 0.02)[side] * (HORIZON + WAIT)
        pictures = 2 * (0.03, 0.05)[side] * HORIZON  # what settles is not rendered
        blind, seeing = (0.2, 0.4)[side] + steps, (0.3, 0.6)[side] + steps + pictures
        setup = 2 * (1.0, 2.0)[side] + 2 * (1.5, 3.0)[side]
        expected[span] = (3.0, 5.0)[side] + setup + 10 * (blind + seeing)
        assert getattr(run_estimate.disk_bytes, span) == pytest.approx(20 * 281 * (500, 1500)[side])
    assert run_estimate.time_s.low == pytest.approx(expected["low"])
    assert run_estimate.time_s.high == pytest.approx(expected["high"])
    assert (run_estimate.episodes, run_estimate.steps) == (20, 5600)
    assert [(row.policy, row.task_id, row.episodes, row.horizon, row.cameras) for row in run_estimate.scenes] == [
        ("blind", "task_0", 5, 280, 0),
        ("blind", "task_3", 5, 280, 0),
        ("seeing", "task_0", 5, 280, 2),
        ("seeing", "task_3", 5, 280, 2),
    ]


def test_pictures_are_counted_where_they_are_looked_at():
    often, seldom = (estimate_run(PLAN, "libero", CAMERAS, look_intervals={"seeing": count}) for count in (1, 50))
    looks = 280, 6  # of 280 steps those at 0, 50, ..., 250
    assert often.time_s.high - seldom.time_s.high == pytest.approx(10 * 2 * 0.05 * (looks[0] - looks[1]))
    assert {scene.look_interval for scene in seldom.scenes if scene.policy == "seeing"} == {50}
    assert often.time_s == estimate_run(PLAN, "libero", CAMERAS).time_s


def test_a_suite_without_figures_of_its_own_has_the_host_s():
    other = plan_episodes([Task("own", "task_0", 0, "name", "do it", 50)], 1, ["blind"], load_protocol(), max_steps=1)
    assert estimate_run(other, "libero", CAMERAS).time_s.low == pytest.approx(3.0 + 1.0 + 0.2 + 11 * 9.0)


def test_a_plan_s_policy_looks_as_often_as_it_asks_its_server():
    request = Request(host="fake", suites=("fake",), tasks=(0,), policies=("openpi:h", "noop"), episodes=1, max_steps=9)
    planned = estimate_planned(request)
    assert {scene.policy: scene.look_interval for scene in planned.scenes} == {"openpi:h": 5, "noop": 1}


def test_workers_divide_the_episodes_and_the_scenes_and_not_the_start_or_the_disk():
    alone, four, many = (estimate_run(PLAN, "libero", CAMERAS, workers) for workers in (1, 4, 1000))
    start, setup = 5.0, 2 * 2.0 + 2 * 3.0
    episodes = alone.time_s.high - start - setup
    assert four.time_s.high == pytest.approx(start + (setup + episodes) / 4)
    assert four.disk_bytes == alone.disk_bytes
    assert many.time_s.high == pytest.approx(start + setup / 4 + episodes / 20), "each worker makes one of four scenes"


def test_a_host_without_figures_has_no_estimate():
    run_estimate = estimate_run(PLAN, "unheard-of", CAMERAS)
    assert (run_estimate.time_s, run_estimate.disk_bytes, run_estimate.episodes) == (None, None, 20)


def test_every_figure_is_of_a_known_host_and_runs_from_low_to_high():
    for name, costs in load_costs().items():
        assert name in host_names()
        ranges = [costs.start_s, costs.make_s, costs.camera_make_s, costs.reset_s, costs.camera_reset_s]
        ranges += [costs.step_s, costs.camera_step_s, costs.record_bytes]
        for suite, figures in costs.suites.items():
            assert suite in make_host(name).suites()
            ranges += [figures.step_s, figures.camera_step_s]
        assert all(0 <= low <= high for low, high in ranges)
