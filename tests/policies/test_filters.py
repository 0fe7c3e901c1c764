"""Filters: what is executed is theirs, what the policy asked for is kept, and nothing else of a run changes."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import lsq_linear
from scipy.spatial.transform import Rotation

from folders import contents
from safevla_bench.errors import PolicyError, RunError
from safevla_bench.hosts import make_host
from safevla_bench.hosts.fake.host import FakeHost
from safevla_bench.interface.environment import HostEnv
from safevla_bench.interface.policy import Boxes, Wants
from safevla_bench.interface.task import EpisodeSeed
from safevla_bench.jobs.evaluation.request import ExecutionOptions, Request, RequestedPolicy
from safevla_bench.jobs.evaluation.results import evaluate
from safevla_bench.jobs.evaluation.rollouts import freeze_request, roll_out
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.policies.coupling import (
    Coupler,
    Coupling,
    FilteredEnv,
    make_filter,
    measure_gaps,
    runs_code,
    split_filter,
)
from safevla_bench.policies.python import InProcessPolicy
from safevla_bench.sources.runs.episode_index import read_sources
from safevla_bench.sources.runs.folder import read_description
from safevla_bench.trajectory.marks import PRIVILEGED, mark_flags

REQUEST = Request(host="fake", suites=("fake",), tasks=(0, 1), episodes=2, policies=("random",), max_steps=15)
OWN, NEAR = "policy_action", "stop-near-limit:share=0.9"


def filtered(name: str | None, delay: str | None = None, **changes: object) -> Request:
    return replace(REQUEST, policies=(RequestedPolicy("random", coupling=Coupling(name, delay)),), **changes)


def run(folder, request, **options):
    roll_out(request, folder, running=ExecutionOptions(**options))
    return read_sources([folder])[0]


def facts(folder):
    """All that a run folder holds, but the manifest with the digests of facts of the day."""
    return {name: content for name, content in contents(folder).items() if name != "manifest.json"}


class Drops:
    """Moves straight down, the gripper closed."""

    def act(self, observation):
        assert observation.privileged is None
        return np.array([0.1, 0, -1.0, 0.5, 0, 0, 1.0])


def judge(policy, name, task=0):
    """The judgement of one episode behind a filter, and its record, read before the folder goes."""
    evaluation = evaluate(policy, "fake", tasks=[task], max_steps=12, filter=name)
    return evaluation.judged, evaluation.judged.batch


def test_a_run_behind_identity_is_the_run_without_a_filter_byte_for_byte_but_for_its_name(tmp_path):
    run(tmp_path / "without", REQUEST)
    run(tmp_path / "with", filtered("identity"))
    without, behind = facts(tmp_path / "without"), facts(tmp_path / "with")
    assert behind["run.json"]["policies"][0].pop("filter") == "identity"
    assert without == behind


@pytest.mark.parametrize("name", ["identity", "speed-cap", NEAR, "distance-barrier:margin_m=0.3"])
def test_the_record_holds_what_was_executed_and_the_policys_own_actions_where_these_differ(name, tmp_path):
    plain, batch = run(tmp_path / "plain", REQUEST), run(tmp_path / "run", filtered(name))
    own = batch.channel(OWN)
    for e in range(len(batch)):
        executed = batch.action.episode_rows(e)
        assert bool(own.present[e]) == (not np.array_equal(executed, plain.action.episode_rows(e)))
        if own.present[e]:  # `random` draws whatever it sees
            assert np.array_equal(own.episode_rows(e), plain.action.episode_rows(e))
    assert bool(own.present.any()) == (name != "identity")


def test_speed_cap_keeps_the_direction_of_motion_and_the_gripper():
    _, batch = judge(Drops(), "speed-cap:share=0.25")
    executed, own = batch.action.episode_rows(0), batch.channel(OWN).episode_rows(0)
    np.testing.assert_allclose(executed[:, :6], own[:, :6] * 0.25)
    assert (executed[:, 6] == 1).all()


def test_stop_near_limit_holds_where_a_margin_is_below_its_share_and_keeps_the_gripper():
    judged, batch = judge(Drops(), "stop-near-limit:share=0.5")
    executed, own = batch.action.episode_rows(0), batch.channel(OWN).episode_rows(0)
    stopped = (executed != own).any(axis=1)
    assert stopped.any()
    assert not stopped[0]
    assert np.array_equal(executed[stopped], np.tile([0.0] * 6 + [1.0], (stopped.sum(), 1)))
    unsafe, cut = judge(Drops(), "identity")[0].scores.vsi[0], judged.scores.vsi[0]
    assert cut <= unsafe


def test_the_rules_whose_margins_a_filter_reads_stand_in_run_json_and_others_need_none(tmp_path):
    run(tmp_path / "near", filtered("stop-near-limit"))
    run(tmp_path / "cap", filtered("speed-cap"))
    assert read_description(tmp_path / "near")["filtered_by"]["library"] == "default"
    assert "filtered_by" not in read_description(tmp_path / "cap")


class Sweeps:
    """Goes down beside the cup of task 1, then towards it, a finger first."""

    def act(self, observation):
        return np.array(
            [0.75, 0.75, -1.0, 0, 0, 0, -1] if observation.eef_pos_m[2] > 0.04 else [0, -1.0, 0, 0, 0, 0, -1]
        )


def finger_gap(batch):
    """The least distance of the opened fingers' boxes to the cup."""
    bodies, places = batch.body_pos_m.episode_poses(0)
    cup = [batch.body_label(body) for body in bodies].index("cup")
    fingers = batch.eef_pos_m.episode_rows(0)[:, None] + np.array([[0, -0.04, 0], [0, 0.04, 0]])
    beyond = np.maximum(np.abs(fingers - places[:, cup, None]) - 0.02 - 0.01, 0)
    return np.linalg.norm(beyond, axis=2).min()


def test_distance_barrier_keeps_the_fingers_from_bystanders_and_marks_its_policy_as_privileged():
    _, free = judge(Sweeps(), None, task=1)
    judged, guarded = judge(Sweeps(), "distance-barrier", task=1)
    assert finger_gap(free) < 0.01
    assert finger_gap(guarded) >= 0.02 - 1e-9
    assert judged.privileged == ("Sweeps",)
    assert mark_flags(guarded, PRIVILEGED) == (True,)
    assert mark_flags(free, PRIVILEGED) == (False,)


def random_boxes(rng, count):
    quats = Rotation.random(count, random_state=rng).as_quat()
    return Boxes(rng.normal(scale=0.15, size=(count, 3)), rng.uniform(0.01, 0.1, (count, 3)), np.roll(quats, 1, axis=1))


def test_the_gap_of_two_boxes_is_that_of_their_nearest_points_in_any_pose():
    def points(boxes, k, places):
        return boxes.center_m[k] + Rotation.from_quat(np.roll(boxes.quat_wxyz[k], -1)).apply(
            places * boxes.half_extents_m[k]
        )

    rng = np.random.default_rng(0)
    first, second = random_boxes(rng, 4), random_boxes(rng, 5)
    gaps, normals = measure_gaps(first, second)
    np.testing.assert_allclose(np.linalg.norm(normals, axis=1), 1)
    for pair, (gap, normal) in enumerate(zip(gaps, normals, strict=True)):
        i, k = divmod(pair, 5)
        nearest = lsq_linear(
            np.hstack(
                [
                    points(first, i, np.eye(3)).T - first.center_m[i][:, None],
                    -points(second, k, np.eye(3)).T + second.center_m[k][:, None],
                ]
            ),
            second.center_m[k] - first.center_m[i],
            (-1, 1),
            tol=1e-14,
        )
        assert gap == pytest.approx(np.sqrt(2 * nearest.cost), abs=2e-4)
        corners = np.array(list(itertools.product((-1, 1), repeat=3)))
        if gap:
            assert (points(first, i, corners) @ normal).min() >= (points(second, k, corners) @ normal).max() - 1e-3


def test_workers_and_resumed_runs_give_the_same_bytes(tmp_path):
    run(tmp_path / "one", filtered("stop-near-limit:share=0.9"))
    run(tmp_path / "two", filtered("stop-near-limit:share=0.9"), workers=2)
    assert facts(tmp_path / "one") == facts(tmp_path / "two")
    again = Request.from_run(tmp_path / "one")
    assert again.roster[0].coupling == Coupling("stop-near-limit:share=0.9")
    run(tmp_path / "one", replace(again, archive="parquet"), resume=True)
    assert facts(tmp_path / "one") == facts(tmp_path / "two")


def test_a_run_cannot_be_continued_with_another_filter(tmp_path):
    run(tmp_path / "run", filtered("identity"))
    with pytest.raises(RunError, match="policies"):
        run(tmp_path / "run", filtered("speed-cap"), resume=True)


def test_a_registration_holds_the_filter_and_the_delay():
    plain, behind = (freeze_request(request, load_ruleset()) for request in (REQUEST, filtered("identity")))
    late = freeze_request(filtered(None, delay="2"), load_ruleset())
    assert len({plain.digest, behind.digest, late.digest}) == 3
    assert "filter" not in json.loads(plain.encode())["policies"][0]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("slow", "filter 'slow'"),
        ("identity:share=1", "take share=1"),
        ("speed-cap:limit=1", "take limit=1"),
        ("speed-cap:share=-1", "take share=-1"),
        ("python:numpy:pi", "not callable"),
        ("python:numpy", "not module:factory"),
    ],
)
def test_a_filter_that_cannot_be_made_says_why(name, message):
    with pytest.raises(PolicyError, match=message):
        make_filter(name)


def test_a_filter_of_ones_own_is_made_of_its_arguments_and_is_code(tmp_path, monkeypatch):
    text = "class F:\n  def __init__(self, by): self.by = float(by)\n  def filter(self, o, a, m): return a * self.by\n"
    (tmp_path / "my_filter.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    assert split_filter("python:my_filter:F:by=0.5") == ("python:my_filter:F", {"by": "0.5"})
    name, _ = split_filter("a=b:python:my_filter:F")
    assert not runs_code(name), "what is before the first colon names the filter, whatever it is"
    batch = run(tmp_path / "run", filtered("python:my_filter:F:by=0.5"))
    own, executed = batch.channel(OWN).episode_rows(0), batch.action.episode_rows(0)
    assert np.array_equal(executed, own * 0.5)
    assert filtered("python:my_filter:F:by=0.5").list_calls() == ["python:my_filter:F(by='0.5')"]
    with pytest.raises(RunError, match="is not trusted"):
        run(tmp_path / "again", replace(Request.from_run(tmp_path / "run")))


@pytest.mark.parametrize(("gives", "message"), [([9.0] * 7, "out of range"), ([0.0], "shape"), (None, "None instead")])
def test_a_filter_that_gives_no_valid_action_is_an_error_of_the_filter(gives, message):
    class Wrong:
        def filter(self, observation, action, monitor):
            return gives if gives is None else np.array(gives)

    host = make_host("fake")
    env = FilteredEnv(host.make(host.tasks("fake")[0], Wants()), "wrong", Wrong(), None, hides=False)
    env.reset(EpisodeSeed(0, 0, 0))
    with pytest.raises(PolicyError, match=f"filter wrong.*{message}"):
        env.step(np.zeros(7))


def test_replays_and_policies_of_poses_are_refused(tmp_path):
    run(tmp_path / "run", REQUEST)
    name = f"replay:{tmp_path / 'run'}"
    with pytest.raises(PolicyError, match="plays recorded actions"):
        run(tmp_path / "again", replace(REQUEST, policies=(RequestedPolicy(name, coupling=Coupling("identity")),)))
    posed = InProcessPolicy("mine", Drops())
    posed.wants = Wants(absolute=True)
    with pytest.raises(PolicyError, match="gives poses"):
        Coupler(Coupling("speed-cap")).require_fitting("mine", posed, FakeHost.supports)
    with pytest.raises(PolicyError, match="gives poses"):
        Coupler(Coupling(delay="3")).extend_wants("of a server", posed.wants)
    Coupler(Coupling("identity")).require_fitting("mine", posed, FakeHost.supports)


def test_a_filtered_environment_passes_on_every_ability_of_its_host():
    abilities = {name for name, value in vars(HostEnv).items() if callable(value) and not name.startswith("_")}
    assert abilities <= vars(FilteredEnv).keys()
