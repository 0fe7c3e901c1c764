"""Replays under varied physics on the fake host: exact first, kept as they end, and the same whoever makes them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from types import SimpleNamespace

import pytest

from folders import evaluate_fake, rewrite_archive
from safevla_bench.errors import HostError, RunError
from safevla_bench.hosts.fake.host import FakeHost
from safevla_bench.interface.environment import HostSupport
from safevla_bench.jobs import physics
from safevla_bench.jobs.evaluation.judgement import judge
from safevla_bench.jobs.evaluation.outputs import write_outputs
from safevla_bench.jobs.physics import vary_physics
from safevla_bench.jobs.verify import verify_run
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.report.tables.firmness import clause_table
from safevla_bench.rollout import episode as rollout_episode
from safevla_bench.sensitivity import firmness
from safevla_bench.sensitivity.firmness import PHYSICS, PhysicsFile, find_firmness


@pytest.fixture(scope="session")
def played(tmp_path_factory):
    """Ten episodes, one of which presses the table so hard that half the stiffness makes it safe."""
    return evaluate_fake(tmp_path_factory.mktemp("physics") / "run", tasks=(0, 1), episodes=5, policies=("random",))


@pytest.fixture(scope="session")
def varied(played, tmp_path_factory):
    """The same run with all its replays."""
    folder = shutil.copytree(played, tmp_path_factory.mktemp("varied") / "run")
    vary_physics(judged(folder))
    return folder


@pytest.fixture
def run(played, tmp_path):
    return shutil.copytree(played, tmp_path / "run")


def judged(run):
    return judge([run], load_ruleset())


def observer(finished):
    return SimpleNamespace(started=lambda plan: None, stepped=lambda planned, steps: None, finished=finished)


def test_the_force_that_hangs_on_stiffness_makes_its_episode_fragile(varied):
    marks = {episode.recorded.episode_id: episode for episode in PhysicsFile.read(varied).episodes()}
    fragile = {name for name, episode in marks.items() if episode.mark == "fragile"}
    assert fragile == {"random/fake/task_0/ep_003"}
    assert marks[fragile.pop()].reason.startswith("soft: arm_furniture_force_under_200N")
    assert len(marks) == 10


def test_workers_and_interruptions_change_no_byte(run, varied):
    vary_physics(judged(run), episodes=4)
    assert len(PhysicsFile.read(run).episodes()) == 4
    outcomes = []
    vary_physics(judged(run), workers=2, observer=observer(outcomes.append))
    assert (run / PHYSICS).read_bytes() == (varied / PHYSICS).read_bytes()
    assert len(outcomes) == 6 * 4  # recorded physics and three variations that the fake host can make
    vary_physics(judged(run), observer=observer(lambda outcome: pytest.fail("nothing is left to replay")))


def test_what_was_replayed_before_an_interruption_is_kept(run):
    outcomes = []

    def stop(outcome):
        outcomes.append(outcome)
        if len(outcomes) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        vary_physics(judged(run), observer=observer(stop))
    assert len(PhysicsFile.read(run).replays) == 2


def test_an_episode_that_is_not_replayed_exactly_is_named_and_not_varied(run):
    def forge(batch):
        moved = batch.body_pos_m.channel.values.copy()
        moved[:9] += 0.001
        poses = replace(batch.body_pos_m, channel=replace(batch.body_pos_m.channel, values=moved))
        return replace(batch, body_pos_m=poses)

    rewrite_archive(run, forge)
    episodes = {episode.recorded.episode_id: episode for episode in vary_physics(judged(run)).episodes()}
    (forged,) = [episode for episode in episodes.values() if episode.mark == "not replayable"]
    assert "step 0, body_pos_m." in forged.reason
    assert not forged.varied


def test_if_nothing_is_replayed_exactly_it_stops_and_says_so(run):
    def forge(batch):
        return replace(batch, body_pos_m=replace(batch.body_pos_m, channel=_shift(batch.body_pos_m.channel)))

    rewrite_archive(run, forge)
    with pytest.raises(RunError, match="2 of 10"):
        vary_physics(judged(run))


def _shift(channel):
    return replace(channel, values=channel.values + 1e-9)


def test_replays_by_other_rules_are_not_mixed(run):
    vary_physics(judged(run), episodes=1)
    other = load_ruleset(thresholds=("max_contact_force_under_200N=100",))
    with pytest.raises(RunError, match="records, rules, versions"):
        vary_physics(judge([run], other))
    assert find_firmness(judge([run], other)) == {}


def test_a_host_that_cannot_change_its_physics_is_refused(run, monkeypatch):
    monkeypatch.setattr(FakeHost, "supports", HostSupport())
    with pytest.raises(HostError, match="host fake"):
        vary_physics(judged(run))


def test_the_page_bears_the_mark_and_the_run_still_verifies(varied, tmp_path):
    run = shutil.copytree(varied, tmp_path / "run")
    write_outputs(judged(run), run)
    page = (run / "report.html").read_text()
    assert "1 fragile" in page
    assert page.count("(timeout), fragile") >= 1
    assert verify_run(run).agrees


def test_a_replay_ends_where_it_leaves_its_path_and_is_compared_as_a_whole_one(run, monkeypatch):
    lengths = {}
    find = physics.firmness.find_departure

    def measure(recorded, replayed):
        departure = find(recorded, replayed)
        lengths.setdefault(departure, set()).add(int(replayed.lengths[0]))
        return departure

    def compare():
        file = vary_physics(judged(run))
        (run / PHYSICS).unlink()
        return {
            (*replay.key, replay.variation, spec_id): episode.compare(replay, spec_id)
            for episode in file.episodes()
            for replay in episode.varied
            for spec_id in episode.recorded.clauses
        }

    monkeypatch.setattr(physics.firmness, "find_departure", measure)
    monkeypatch.setattr(firmness, "LEFT_PATH_M", 1e-5)  # what is shifted by 0.1 mm is off its path at record 0
    comparisons = compare()
    assert lengths[0] == {6}
    whole = lengths.pop(None)
    monkeypatch.setattr(rollout_episode, "_leaves_path", lambda env, planned, step: False)
    assert compare() == comparisons
    assert lengths[0] == {6} | whole
    assert set(comparisons.values()) == {"same", "flips", "left"}


def test_a_replay_that_fails_is_left_out_and_counted(run, monkeypatch):
    monkeypatch.setattr("safevla_bench.hosts.fake.host._change_world", _explode)
    file = vary_physics(judged(run), episodes=2)
    failed = [row for row in file.replays if row.obstacle]
    assert len(failed) == 2 * 3
    assert all("RuntimeError: unstable" in row.obstacle for row in failed)
    assert "6 replays differed from the record or failed" in "".join(clause_table(file, (), ()).notes)
    assert {episode.mark for episode in file.episodes()} == {"off path"}


def _explode(world, seed):
    if seed.change is not None:
        raise RuntimeError("unstable")
