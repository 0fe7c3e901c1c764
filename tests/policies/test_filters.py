"""Filters: what is executed is theirs, what the policy asked for is kept, and nothing else of a run changes."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from folders import contents
from safevla_bench import archive
from safevla_bench.errors import PolicyError, RunError
from safevla_bench.hosts import make_host
from safevla_bench.interface.policy import Privileged, Wants
from safevla_bench.interface.task import EpisodeSeed
from safevla_bench.jobs.evaluation.request import ExecutionOptions, Request
from safevla_bench.jobs.evaluation.results import evaluate
from safevla_bench.jobs.evaluation.rollouts import freeze_request, roll_out
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.policies.coupling import Coupler, Coupling
from safevla_bench.policies.filters import FILTERS, FilteredEnv, box_distance, make_filter, split_filter
from safevla_bench.policies.python import InProcessPolicy
from safevla_bench.sources.runs.episode_index import read_sources
from safevla_bench.sources.runs.folder import read_description
from safevla_bench.trajectory.marks import PRIVILEGED, mark_flags

REQUEST = Request(host="fake", suites=("fake",), tasks=(0, 1), episodes=2, policies=("random",), max_steps=15)
OWN = "policy_action"


def filtered(name: str, **changes: object) -> Request:
    return replace(REQUEST, filters={"random": name}, **changes)


def run(folder, request, **options):
    roll_out(request, folder, running=ExecutionOptions(**options))
    return read_sources([folder])[0]


def facts(folder):
    """All that a run folder holds, but the manifest with the digests of facts of the day."""
    return {name: held for name, held in contents(folder).items() if name != "manifest.json"}


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


@pytest.mark.parametrize("name", [*FILTERS, "stop-near-limit:share=0.9", "distance-barrier:margin_m=0.3"])
def test_the_record_holds_what_was_executed_and_the_policys_own_actions_where_these_differ(name, tmp_path):
    plain, batch = run(tmp_path / "plain", REQUEST), run(tmp_path / "run", filtered(name))
    own = batch.channel(OWN)
    for e in range(len(batch)):
        executed = batch.action.episode_rows(e)
        assert bool(own.present[e]) == (not np.array_equal(executed, plain.action.episode_rows(e)))
        if own.present[e]:  # `random` draws whatever it sees
            assert np.array_equal(own.episode_rows(e), plain.action.episode_rows(e))
    assert bool(own.present.any()) == (name not in ("identity", "stop-near-limit", "distance-barrier"))


@pytest.mark.parametrize("form", [".jsonl", ".parquet", ".npz"])
def test_the_policys_own_actions_survive_each_form_of_an_archive(form, tmp_path):
    batch = run(tmp_path / "run", filtered("speed-cap", episodes=1, tasks=(0,)))
    archive.write_archive(tmp_path / f"a{form}", batch)
    again = archive.open_archive(tmp_path / f"a{form}").channel(OWN).episode_rows(0)
    assert again.tobytes() == batch.channel(OWN).episode_rows(0).tobytes()


def test_speed_cap_keeps_the_direction_of_motion_and_the_gripper():
    _, batch = judge(Drops(), "speed-cap:share=0.25")
    executed, own = batch.action.episode_rows(0), batch.channel(OWN).episode_rows(0)
    np.testing.assert_allclose(executed[:, :6], own[:, :6] * 0.25)
    assert (executed[:, 6] == 1).all()


def test_stop_near_limit_holds_where_a_margin_is_below_its_share_and_keeps_the_gripper():
    judged, batch = judge(Drops(), "stop-near-limit:share=0.5")
    executed, own = batch.action.episode_rows(0), batch.channel(OWN).episode_rows(0)
    held = (executed != own).any(axis=1)
    assert held.any()
    assert not held[0]
    assert np.array_equal(executed[held], np.tile([0.0] * 6 + [1.0], (held.sum(), 1)))
    unsafe, cut = judge(Drops(), "identity")[0].scores.vsi[0], judged.scores.vsi[0]
    assert cut <= unsafe


def test_the_rules_whose_margins_a_filter_reads_stand_in_run_json_and_others_need_none(tmp_path):
    run(tmp_path / "near", filtered("stop-near-limit"))
    run(tmp_path / "cap", filtered("speed-cap"))
    assert read_description(tmp_path / "near")["filtered_by"]["library"] == "default"
    assert "filtered_by" not in read_description(tmp_path / "cap")


class Sweeps:
    """Moves towards the cup of task 1."""

    def act(self, observation):
        return np.array([0.5, 0, -0.75, 0, 0, 0, -1.0])


def test_distance_barrier_keeps_the_hand_from_bystanders_and_marks_its_policy_as_privileged():
    _, free = judge(Sweeps(), None, task=1)
    judged, kept = judge(Sweeps(), "distance-barrier", task=1)

    def nearest(batch):
        bodies, places = batch.body_pos_m.episode_poses(0)
        cup = [batch.body_label(body) for body in bodies].index("cup")
        beyond = np.maximum(np.abs(batch.eef_pos_m.episode_rows(0) - places[:, cup]) - 0.02, 0)
        return np.linalg.norm(beyond, axis=1).min()

    assert nearest(free) < 0.03
    assert nearest(kept) >= 0.06 - 1e-9
    assert judged.privileged == ("Sweeps",)
    assert mark_flags(kept, PRIVILEGED) == (True,)
    assert mark_flags(free, PRIVILEGED) == (False,)


def test_the_distance_to_a_box_is_that_to_its_nearest_point_in_any_pose():
    rng = np.random.default_rng(0)
    for _ in range(50):
        half, place, point = rng.uniform(0.01, 0.1, 3), rng.normal(size=3), rng.normal(size=3)
        turn, center = Rotation.random(random_state=rng), rng.uniform(-0.05, 0.05, 3)
        poses = {"body_pos_m": {"b": place}, "body_quat_wxyz": {"b": np.roll(turn.as_quat(), 1)}}
        shape = {"half_extents_m": {"b": half}, "center_m": {"b": center}, "movable": frozenset("b")}
        truth = Privileged(**poses, **shape, joint_pos={}, sites_m={}, goal=())
        distance, normal = box_distance(truth, "b", point)
        middle = place + turn.apply(center)
        nearest = middle + turn.apply(np.clip(turn.inv().apply(point - middle), -half, half))
        assert distance == pytest.approx(np.linalg.norm(point - nearest))
        np.testing.assert_allclose(point - distance * normal, nearest, atol=1e-12)
        inside, outward = box_distance(truth, "b", middle + turn.apply(0.9 * half))
        assert inside == pytest.approx(-0.1 * half.min())
        assert np.linalg.norm(outward) == pytest.approx(1)


def test_workers_and_resumed_runs_give_the_same_bytes(tmp_path):
    run(tmp_path / "one", filtered("stop-near-limit:share=0.9"))
    run(tmp_path / "two", filtered("stop-near-limit:share=0.9"), workers=2)
    assert facts(tmp_path / "one") == facts(tmp_path / "two")
    again = Request.from_run(tmp_path / "one")
    assert again.filters == {"random": "stop-near-limit:share=0.9"}
    run(tmp_path / "one", replace(again, archive="parquet"), resume=True)
    assert facts(tmp_path / "one") == facts(tmp_path / "two")


def test_a_run_cannot_be_continued_with_another_filter(tmp_path):
    run(tmp_path / "run", filtered("identity"))
    with pytest.raises(RunError, match="policies"):
        run(tmp_path / "run", filtered("speed-cap"), resume=True)


def test_a_registration_holds_the_filter_and_the_delay():
    plain, behind = (freeze_request(request, load_ruleset()) for request in (REQUEST, filtered("identity")))
    late = freeze_request(replace(REQUEST, delays={"random": "2"}), load_ruleset())
    assert len({plain.digest, behind.digest, late.digest}) == 3
    assert "filter" not in json.loads(plain.encode())["policies"][0]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("slow", "there is no filter 'slow'"),
        ("identity:share=1", "the filter identity has no 'share'"),
        ("speed-cap:limit=1", "the filter speed-cap has no 'limit'"),
        ("speed-cap:share=-1", "is not a number above 0"),
        ("python:numpy:pi", "is a float"),
        ("python:numpy", "not module:factory"),
    ],
)
def test_a_filter_that_cannot_be_made_says_why(name, told):
    with pytest.raises(PolicyError, match=told):
        make_filter(name)


def test_a_filter_of_ones_own_is_made_of_its_arguments_and_is_code(tmp_path, monkeypatch):
    text = "class F:\n  def __init__(self, by): self.by = float(by)\n  def filter(self, o, a, m): return a * self.by\n"
    (tmp_path / "my_filter.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    assert split_filter("python:my_filter:F:by=0.5") == ("python:my_filter:F", {"by": "0.5"})
    batch = run(tmp_path / "run", filtered("python:my_filter:F:by=0.5"))
    own, executed = batch.channel(OWN).episode_rows(0), batch.action.episode_rows(0)
    assert np.array_equal(executed, own * 0.5)
    assert filtered("python:my_filter:F:by=0.5").list_calls() == ["python:my_filter:F(by='0.5')"]
    with pytest.raises(RunError, match="names what is not data"):
        run(tmp_path / "again", replace(Request.from_run(tmp_path / "run")))


@pytest.mark.parametrize(("gives", "told"), [([9.0] * 7, "out of range"), ([0.0], "shape"), (None, "None in place")])
def test_a_filter_that_gives_no_valid_action_is_an_error_of_the_filter(gives, told):
    class Wrong:
        def filter(self, observation, action, monitor):
            return gives if gives is None else np.array(gives)

    host = make_host("fake")
    env = FilteredEnv(host.make(host.tasks("fake")[0], Wants()), "wrong", Wrong(), None, hides=False)
    env.reset(EpisodeSeed(0, 0, 0))
    with pytest.raises(PolicyError, match=f"the filter wrong gives .*{told}"):
        env.step(np.zeros(7))


def test_replays_and_policies_of_poses_are_refused(tmp_path):
    run(tmp_path / "run", REQUEST)
    name = f"replay:{tmp_path / 'run'}"
    with pytest.raises(PolicyError, match="plays recorded actions"):
        run(tmp_path / "again", replace(REQUEST, policies=(name,), filters={name: "identity"}))
    posed = InProcessPolicy("mine", Drops())
    posed.wants = Wants(absolute=True)
    with pytest.raises(PolicyError, match="gives poses"):
        Coupler(Coupling("speed-cap")).require_fitting("mine", posed)
    Coupler(Coupling("identity")).require_fitting("mine", posed)
