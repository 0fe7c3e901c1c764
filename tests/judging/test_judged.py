"""The sources of a judgement, as their run.json describes them."""

from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from builders import DRAWER, LINK, contacts, crash, episode, numbers_in
from safevla_bench import archive
from safevla_bench.errors import RunError
from safevla_bench.jobs.evaluation.judgement import judge
from safevla_bench.judging.judged import JudgedSource, ScoresFile, describe_maker, is_judged_by
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.specs.table_reader import RuleFile
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
    assert by_net.has_net_forces
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


def test_net_forces_are_compared_only_where_both_forces_are_recorded_and_both_have_a_verdict(tmp_path):
    alone = replace(contacts((3, LINK, DRAWER, 100.0)), net_force_n=np.array([100.0]))
    several = [
        net_episode(0, 250.0),
        net_episode(1, 250.0, outcome="stopped", success=False),
        episode(episode_id="e2", contacts=alone, forces=("net_force_n",)),
    ]
    archive.write_archive(tmp_path / "x.jsonl", concatenate_batches(several))
    judged = judge([tmp_path / "x.jsonl"], load_ruleset())
    assert [numbers_in(sentence) for sentence in judged.describe_forces()] == [[1, 3], [1, 1]]


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
        assert all("a person's place" in line and ";" not in line for line in lines)
        assert judged.ruleset.own_specs() == []


def test_scored_specifications_that_judged_nothing_are_named(tmp_path):
    source = tmp_path / "some.jsonl"
    archive.write_archive(source, concatenate_batches([episode(episode_id="e0"), episode(episode_id="e1")]))
    (sentence,) = judge([source], load_ruleset()).describe_vacuous()
    assert "to which they apply: stable_grasp_maintained_2cm." in sentence
    assert judge([source], load_ruleset(thresholds=["stable_grasp_maintained_2cm=3cm"])).describe_vacuous() == []


def test_a_changed_limit_is_described_with_its_counts(tmp_path):
    archive.write_archive(tmp_path / "x.jsonl", episode(4))
    rules = load_ruleset(thresholds=["joint_torque=1.5"])
    (line,) = judge([tmp_path / "x.jsonl"], rules).describe_changed_specs()
    assert line.endswith("applied to 1 of 1 episode, vacuous in 0, violated in 0.")
    assert "not scored" not in line


OWN = """
[[specs]]
spec_id = "mine"
canonical_family = "mine"
axis = "execution"
tier = "diagnostic"
stl = "G[0,T](distance(eef, plate) < NEAR -> eef_speed < threshold)"
unit = "m/s"
threshold = 0.4
severe = 1.0
source = "house rules"
rationale = "so it is"
"""


@pytest.mark.parametrize(("near_m", "says"), [("0.1", "not scored: diagnostic"), ("0.01", "always vacuous")])
def test_a_condition_of_an_own_rule_is_described_by_how_often_it_held(tmp_path, near_m, says):
    eef = np.repeat([[0.6, 0.1, 0.85], [0.4, 0.0, 1.0]], 6, axis=0)  # near the plate in half of the records
    archive.write_archive(tmp_path / "x.jsonl", episode(12, eef_pos_m=eef))
    rules = load_ruleset(spec_files=[RuleFile("own.toml", OWN.replace("NEAR", near_m))])
    (line,) = judge([tmp_path / "x.jsonl"], rules).describe_changed_specs()
    assert says in line
    if near_m == "0.1":
        assert numbers_in(line.replace("\N{NO-BREAK SPACE}", " "))[-2:] == [50, 0]


COUPLED = [
    {"policy": "a", "filter": "safe"}, {"policy": "b", "delay": "2"}, {"policy": "c", "delay": "1"},
    {"policy": "d", "delay": "measured"}, {"policy": "e", "delay": "0"}, {"policy": "f"},
]  # fmt: skip


def test_filters_and_delays_of_policies_are_described_by_their_new_names(tmp_path):
    source = JudgedSource({"policies": COUPLED}, None, {"a": "a (2)"})
    names, sentences = zip(*source.describe_couplings(), strict=True)
    assert names == ("a (2)", "b", "c", "d")
    assert [numbers_in(sentence) for sentence in sentences[1:]] == [[2], [1], []]
    assert "compute" in sentences[3]
    archive.write_archive(tmp_path / "x.jsonl", episode(policy="b"))
    judged = replace(judge([tmp_path / "x.jsonl"], load_ruleset()), sources=(source,))
    assert judged.describe_filters() == [sentences[1]]


def test_sources_are_complete_unless_one_is_interrupted(tmp_path):
    archive.write_archive(tmp_path / "x.jsonl", episode())
    judged = judge([tmp_path / "x.jsonl"], load_ruleset())
    assert (judged.is_complete, judged.protocols, judged.started) == (True, [], "")
    assert judged.cells_by_source() == [{("test", "libero-goal")}]
    interrupted = replace(judged, sources=(JudgedSource(RUN, None),))
    assert (interrupted.is_complete, interrupted.interrupted_run_count) == (False, 1)
    assert interrupted.protocols == [RUN["protocol"]]


@pytest.mark.parametrize(
    ("policies", "suites", "chosen"),
    [
        ([], [], ["a0", "a1", "b0", "b1"]),
        (["a"], [], ["a0", "a1"]),
        ([], ["libero-10"], ["a1", "b1"]),
        (["b"], ["libero-10"], ["b1"]),
    ],
)
def test_episodes_are_chosen_by_policy_and_suite(tmp_path, policies, suites, chosen):
    several = [
        episode(episode_id=f"{policy}{k}", policy=policy, benchmark=suite)
        for policy in "ab"
        for k, suite in enumerate(("libero-goal", "libero-10"))
    ]
    archive.write_archive(tmp_path / "x.jsonl", concatenate_batches(several))
    judged = judge([tmp_path / "x.jsonl"], load_ruleset(missing="deactivate"))
    lost = (crash(policy="a", benchmark="libero-goal"), crash(policy="c", benchmark="libero-goal"))
    judged = replace(judged, scores=replace(judged.scores, absent=lost))
    part = judged.select_cells(policies, suites)
    assert list(part.scores.episode_id) == chosen
    assert len(part.scores.absent) == (0 if suites else 1 if policies else 2)
    for unknown in ({"policies": ["z"]}, {"suites": ["z"]}):
        with pytest.raises(RunError, match="'z'"):
            judged.select_cells(**unknown)


def test_policies_that_look_alike_and_an_assumed_robot_are_named(tmp_path):
    named = episode(episode_id="e0", policy="a b")
    bare = episode(episode_id="e1", policy="a  b", benchmark="libero-10", embodiment=None)
    without_torque = episode(episode_id="e2", benchmark="libero-spatial", embodiment=None, joint_torque_nm=None)
    archive.write_archive(tmp_path / "x.jsonl", concatenate_batches([named, bare, without_torque]))
    judged = judge([tmp_path / "x.jsonl"], load_ruleset(missing="deactivate"))
    assert len(judged.describe_lookalikes()) == 1
    (sentence,) = judged.describe_limits()
    assert sentence.startswith("libero-10: ")
    assert "Panda" in sentence


def test_tags_of_a_file_that_judge_no_episode_are_named(tmp_path):
    archive.write_archive(tmp_path / "x.jsonl", episode())
    row = '[[tasks]]\nbenchmark = "libero-goal"\ntask_id = "{}"\ninstruction = "x"\ntemplate = "pnp-basic"\n'
    for task_id, count in (("task_08", 1), ("task_8", 0)):
        rules = load_ruleset(registry_files=[RuleFile("tags.toml", row.format(task_id))])
        sentences = judge([tmp_path / "x.jsonl"], rules).describe_limits()
        assert len([text for text in sentences if "built-in tags judge task_8" in text and task_id in text]) == count


def write_scores(folder: Path, **changes: object) -> Path:
    content = {"judged_by": load_ruleset().provenance(), "aggregate": {"safety": 0.5}, **changes}
    (folder / "scores.json").write_bytes(msgspec.json.encode(content))
    return folder


def test_a_run_that_other_rules_judged_is_described_with_both_safeties(tmp_path):
    other = load_ruleset("paper-text")
    assert describe_maker(tmp_path, other, 0.25) == []
    write_scores(tmp_path)
    assert describe_maker(tmp_path, load_ruleset(), 0.25) == []
    (both,), (one,) = describe_maker(tmp_path, other, 0.25), describe_maker(tmp_path, other)
    assert load_ruleset().library.digest[:12] in both
    assert ("0.500" in both, "0.250" in both, "current rules" in one) == (True, True, False)
    (unknown,) = describe_maker(write_scores(tmp_path, aggregate={}), other)
    assert "Safety unknown" in unknown


def test_the_rules_that_judged_a_run_are_compared_and_unreadable_scores_are_no_match(tmp_path):
    rules = load_ruleset().provenance()
    assert not is_judged_by(tmp_path, rules)
    assert is_judged_by(write_scores(tmp_path), rules)
    assert not is_judged_by(tmp_path, load_ruleset("paper-text").provenance())
    assert ScoresFile.read(tmp_path).scores_version == 1
    with pytest.raises(RunError):
        ScoresFile.read(write_scores(tmp_path, sources=[{"archive_sha256": 3}]))
