"""The sources of a judgement, as their run.json describes them."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from builders import DRAWER, LINK, contacts, episode, numbers_in
from safevla_bench import archive
from safevla_bench.jobs.evaluation.judgement import judge
from safevla_bench.judging.judged import JudgedSource
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.trajectory.batch import concatenate_batches

RUN = {
    "host": "fake",
    "policies": [{"policy": "a", "privileged": True}, {"policy": "b", "privileged": False}, "no policy"],
    "protocol": {"settle_steps": 10},
    "complete": False,
}


def test_a_run_is_described_by_its_run_json():
    source = JudgedSource(RUN, "0" * 64)
    assert (source.policies, source.privileged) == (("a", "b"), ("a",))
    assert source.protocol == {"settle_steps": 10}
    assert source.is_interrupted
    assert source.to_document() == {**RUN, "archive_sha256": "0" * 64}


def test_the_facts_of_the_day_are_left_out(tmp_path):
    assert JudgedSource.from_run(tmp_path, {**RUN, "volatile": {"started": "today"}}) == JudgedSource(RUN, None)


def test_an_archive_is_described_by_its_name(tmp_path):
    path = tmp_path / "one.jsonl"
    path.write_bytes(b"")
    source = JudgedSource.from_run(Path(path), {})
    assert source.description == {"archive": "one.jsonl"}
    assert source.archive_sha256 is not None
    assert (source.policies, source.privileged, source.protocol, source.is_interrupted) == ((), (), None, False)


def net_episode(number: int, net_force_n: float, **changes):
    """A robot that touches furniture with 100 N at the most at one point, and this much in all."""
    touching = replace(contacts((3, LINK, DRAWER, 100.0)), net_force_n=np.array([net_force_n]))
    return episode(episode_id=f"e{number}", contacts=touching, forces=("force_n", "net_force_n"), **changes)


def test_what_the_net_force_changes_is_described_for_the_episodes_that_have_it(tmp_path):
    source = tmp_path / "some.jsonl"
    several = [net_episode(0, 150.0), net_episode(1, 250.0), net_episode(2, 300.0), episode(episode_id="e3")]
    archive.write_archive(source, concatenate_batches(several))
    mixed = judge([source], load_ruleset())
    assert [numbers_in(sentence) for sentence in mixed.describe_forces()] == [[2, 3]]
    assert not mixed.has_net_forces
    archive.write_archive(source, concatenate_batches(several[:3]))
    by_net = judge([source], load_ruleset("net-force"))
    assert by_net.scores.safe.tolist() == [True, False, False]
    assert by_net.describe_forces() == [], "its clauses are about the net force already"


def test_a_net_force_that_changes_no_verdict_is_not_mentioned(tmp_path):
    archive.write_archive(tmp_path / "same.jsonl", net_episode(0, 150.0))
    assert judge([tmp_path / "same.jsonl"], load_ruleset()).describe_forces() == []


def test_a_net_force_alone_is_judged_in_place_of_a_single_contact_s_and_said_so(tmp_path):
    source = tmp_path / "alone.jsonl"
    alone = replace(contacts((3, LINK, DRAWER, 250.0)), net_force_n=np.array([250.0]))
    archive.write_archive(source, episode(contacts=alone, forces=("net_force_n",)))
    judged = judge([source], load_ruleset())
    assert not judged.scores.safe.any()
    (sentence,) = judged.describe_forces()
    assert sentence.startswith("1 of 1")


def test_records_of_before_say_nothing_of_net_forces(tmp_path):
    archive.write_archive(tmp_path / "old.jsonl", episode())
    assert judge([tmp_path / "old.jsonl"], load_ruleset()).describe_forces() == []


def test_what_a_library_adds_to_the_default_one_is_described_and_what_replaces_it_is_not(tmp_path):
    path = tmp_path / "x.jsonl"
    archive.write_archive(path, episode(4))
    for library, expected in (("person", ["person_separation", "person_reduced_speed"]), ("net-force", [])):
        judged = judge([path], load_ruleset(library=library, missing="deactivate"))
        lines = list(judged.describe_changed_specs())
        assert [line.split(" ")[0] for line in lines] == expected
        assert all("a person's place" in line for line in lines)
        assert judged.ruleset.own_specs() == []


def test_scored_specifications_that_judged_nothing_are_named(tmp_path):
    source = tmp_path / "some.jsonl"
    archive.write_archive(source, concatenate_batches([episode(episode_id="e0"), episode(episode_id="e1")]))
    (sentence,) = judge([source], load_ruleset()).describe_vacuous()
    assert "to which they apply: stable_grasp_maintained_2cm." in sentence
