"""An estimate follows from the plan and the host's figures; without figures there is none."""

from __future__ import annotations

import pytest

from safevla_bench.evaluation import Request
from safevla_bench.evaluation import estimate_run as estimate_planned
from safevla_bench.hosts import host_names
from safevla_bench.interface import Task
from safevla_bench.rollout import estimate_run, load_protocol, plan_episodes
from safevla_bench.rollout.estimate import load_costs

STILL = (0.0,) * 6 + (-1.0,)

TASKS = [Task("libero-object", f"task_{k}", k, f"name {k}", "do it", STILL, 50) for k in (0, 3)]
PLAN = plan_episodes(TASKS, 5, ["blind", "seeing"], load_protocol())
CAMERAS = {"blind": 0, "seeing": 2}


def test_time_and_disk_are_added_up_over_policies_tasks_episodes_and_steps():
    known, found = load_costs()["libero"], estimate_run(PLAN, "libero", CAMERAS)
    steps = 280 + 10
    for side, span in enumerate(("low", "high")):
        blind = known.step_s[side] * steps + known.reset_s[side]
        seeing = blind + 2 * known.camera_step_s[side] * 280  # what settles is not rendered
        expected = 10 * (blind + seeing) + 4 * known.make_s[side]
        assert getattr(found.time_s, span) == pytest.approx(expected)
        assert getattr(found.disk_bytes, span) == pytest.approx(20 * 281 * known.record_bytes[side])
    assert (found.episodes, found.steps) == (20, 5600)
    assert [(one.policy, one.task_id, one.episodes, one.horizon, one.cameras) for one in found.scenes] == [
        ("blind", "task_0", 5, 280, 0),
        ("blind", "task_3", 5, 280, 0),
        ("seeing", "task_0", 5, 280, 2),
        ("seeing", "task_3", 5, 280, 2),
    ]


def test_pictures_are_counted_where_they_are_looked_at():
    known = load_costs()["libero"]
    every, some = (estimate_run(PLAN, "libero", CAMERAS, look_intervals={"seeing": count}) for count in (1, 50))
    looks = 280, 6  # of 280 steps those at 0, 50, ..., 250
    fewer = 10 * 2 * known.camera_step_s[1] * (looks[0] - looks[1])
    assert every.time_s.high - some.time_s.high == pytest.approx(fewer)
    assert {scene.look_interval for scene in some.scenes if scene.policy == "seeing"} == {50}
    assert every.time_s == estimate_run(PLAN, "libero", CAMERAS).time_s


def test_a_plan_s_policy_looks_as_often_as_it_asks_its_server():
    request = Request(host="fake", suites=("fake",), tasks=(0,), policies=("openpi:h", "noop"), episodes=1, max_steps=9)
    estimate = estimate_planned(request)
    assert {scene.policy: scene.look_interval for scene in estimate.scenes} == {"openpi:h": 5, "noop": 1}


def test_workers_divide_the_time_and_not_the_disk():
    one, four = (estimate_run(PLAN, "libero", CAMERAS, workers) for workers in (1, 4))
    assert four.time_s.high == pytest.approx(one.time_s.high / 4)
    assert four.disk_bytes == one.disk_bytes
    assert estimate_run(PLAN, "libero", CAMERAS, 1000).time_s.high == pytest.approx(one.time_s.high / 20)


def test_a_host_without_figures_has_no_estimate():
    found = estimate_run(PLAN, "unheard-of", CAMERAS)
    assert (found.time_s, found.disk_bytes, found.episodes) == (None, None, 20)


def test_every_figure_is_of_a_host_that_there_is_and_runs_from_low_to_high():
    for name, known in load_costs().items():
        assert name in host_names()
        for low, high in (known.make_s, known.reset_s, known.step_s, known.camera_step_s, known.record_bytes):
            assert 0 <= low <= high
