"""What was registered beforehand is known again byte for byte, and a run that is another is told of."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from safevla_bench.errors import RunError
from safevla_bench.jobs.evaluation.judgement import find_recipe, judge
from safevla_bench.jobs.evaluation.outputs import render_report, scores_document, table_material
from safevla_bench.jobs.evaluation.preparation import request_rules
from safevla_bench.jobs.evaluation.request import Request
from safevla_bench.jobs.evaluation.rollouts import describe_deviation, freeze_request, registered_request, roll_out
from safevla_bench.judging.registration import REGISTERED, describe_rules, read_registration
from safevla_bench.judging.ruleset import Ruleset, load_ruleset
from safevla_bench.rollout.plan import Shard
from safevla_bench.sources.runs.folder import EpisodeRow, dump_json, read_description, read_episodes, write_episodes
from safevla_bench.sources.runs.writer import merge_shards

REQUEST = Request(host="fake", suites=("fake",), tasks=(0, 1), episodes=2, policies=("noop", "random"), max_steps=3)
RULES = load_ruleset()
PLAN = "the plan in run.json differs"


@pytest.fixture(scope="module")
def registration():
    return freeze_request(REQUEST, RULES)


@pytest.fixture(scope="module")
def run(tmp_path_factory, registration):
    folder = tmp_path_factory.mktemp("registered") / "run"
    roll_out(registered_request(registration), folder)
    return folder


@pytest.fixture
def copy(run, tmp_path):
    return Path(shutil.copytree(run, tmp_path / "run"))


@pytest.fixture(scope="module")
def content(registration):
    return registration.encode()


def sentences_of(*folders, rules=RULES):
    return judge(folders, rules).describe_registrations()


def test_the_same_plan_gives_the_same_bytes_and_another_another_digest(registration):
    assert freeze_request(REQUEST, RULES).encode() == registration.encode()
    others = [
        freeze_request(replace(REQUEST, **change), RULES)
        for change in ({"seed": 1}, {"episodes": 3}, {"policies": ("noop",)}, {"protocol": "lerobot"})
    ]
    others.append(freeze_request(REQUEST, load_ruleset(thresholds=["joint_torque=1.5"])))
    assert len({registration.digest, *(changed.digest for changed in others)}) == 6


def test_it_holds_specs_tasks_seeds_policies_protocol_and_n(registration):
    document = registration.to_document()
    assert document["n"] == 8
    assert [task["task"] for task in document["tasks"]] == ["fake/task_0", "fake/task_1"]
    assert [task["episodes"] for task in document["tasks"]] == ["0/7 1/7", "0/7 1/7"]
    assert [policy["policy"] for policy in document["policies"]] == ["noop", "random"]
    assert {spec["spec_id"] for spec in document["specs"]} == {spec.spec_id for spec in RULES.library.safe}
    assert document["rules"]["library"]["digest"] == RULES.library.digest
    assert document["protocol"]["name"] == "safevla-bench"


@given(place=st.integers(0, 10**6), byte=st.integers(0, 255))
@settings(max_examples=25, deadline=None)
def test_a_changed_byte_is_refused(tmp_path_factory, content, place, byte):
    changed = bytearray(content)
    changed[place % len(content)] = byte
    path = tmp_path_factory.mktemp("changed") / "registration.json"
    path.write_bytes(changed)
    if bytes(changed) == content:
        assert read_registration(path).encode() == content
    else:
        with pytest.raises(RunError):
            read_registration(path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"digest": "x"}', "null", "[" * 100_000])
def test_what_is_not_a_registration_is_refused_by_name(tmp_path, text):
    path = tmp_path / "registration.json"
    path.write_text(text)
    with pytest.raises(RunError, match=r"registration\.json"):
        read_registration(path)


def test_a_run_of_it_says_so_everywhere_and_needs_no_file(run, registration):
    judged = judge([run], RULES)
    (sentence,) = judged.describe_registrations()
    assert f"(digest {registration.digest[:12]})" in sentence
    assert sentence in table_material(judged).remarks
    assert sentence in render_report(judged)
    (check,) = scores_document(judged)[REGISTERED]
    assert (check.digest, check.differences) == (registration.digest, ())
    assert judged.sources[0].to_document()[REGISTERED] == registration.digest
    assert read_description(run)[REGISTERED] == json.loads(registration.encode())


def test_a_run_without_registration_says_nothing_and_is_counted_beside_a_registered_one(tmp_path, run):
    roll_out(Request(host="fake", suites=("fake",), policies=("scripted:careful",), max_steps=2), tmp_path / "other")
    assert sentences_of(tmp_path / "other") == []
    assert scores_document(judge([tmp_path / "other"], RULES)).get(REGISTERED) is None
    assert "1 of 2 sources was" in sentences_of(run, tmp_path / "other")[1]


@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ({"seed": 1}, PLAN),
        ({"max_steps": 2}, PLAN),
        ({"episodes": 1}, "4 of 8 registered episodes are missing"),
        ({"tasks": (0,)}, "4 of 8 registered episodes are missing"),
        ({"tasks": (0, 1, 2)}, "4 episodes are not registered"),
        ({"policies": ("noop",)}, "4 of 8 registered episodes are missing"),
        ({"policies": ("noop", "random", "scripted:hasty")}, PLAN),
        ({"protocol": "lerobot"}, PLAN),
        ({"until": "safety >= 0.99"}, PLAN),
        ({"stop_on_violation": True}, PLAN),
    ],
)
def test_a_run_that_is_another_says_so_before_and_after(tmp_path, registration, change, difference):
    request = replace(REQUEST, **change, registration=registration)
    roll_out(request, tmp_path / "run")
    (sentence,) = sentences_of(tmp_path / "run")
    assert sentence.startswith("Not as registered")
    assert difference in sentence
    assert registration.digest in describe_deviation(registration, request, RULES)


def test_other_rules_are_a_difference_and_the_registered_ones_are_loaded_again(run, registration, tmp_path):
    (sentence,) = sentences_of(run, rules=load_ruleset("paper-text", missing="deactivate"))
    assert "library paper-text (" in sentence
    assert "judged by different" in sentences_of(run, rules=load_ruleset(missing="deactivate"))[0]
    strict = freeze_request(REQUEST, load_ruleset(thresholds=["joint_torque=1.5"]))
    assert strict.load_rules().library.digest == strict.rules.library.digest != RULES.library.digest
    roll_out(registered_request(strict), tmp_path / "run")
    assert find_recipe([tmp_path / "run"]) == strict.rules.recipe
    assert request_rules(registered_request(strict)).library.digest == strict.rules.library.digest


def test_the_policies_may_be_run_apart_and_the_plan_in_shards(tmp_path, registration):
    for policy in REQUEST.policies:
        roll_out(replace(registered_request(registration), policies=(policy,)), tmp_path / policy)
    (sentence,) = sentences_of(tmp_path / "noop", tmp_path / "random")
    assert sentence.startswith("These 2 runs")
    for number in (1, 2):
        roll_out(replace(registered_request(registration), shard=Shard(number, 2)), tmp_path / f"shard{number}")
    assert "episodes are missing" in sentences_of(tmp_path / "shard1")[0]
    merge_shards([tmp_path / "shard1", tmp_path / "shard2"], tmp_path / "merged")
    assert sentences_of(tmp_path / "merged")[0].startswith("This run was")


def test_an_episode_that_is_not_the_planned_one_is_found_in_the_table_of_episodes(copy):
    """run.json alone would still say what was registered."""
    *rows, last = read_episodes(copy)
    moved = {name: getattr(last, name) for name in last.__dataclass_fields__} | {"init_state_index": 9}
    write_episodes(copy, [*rows, EpisodeRow(**moved)])
    (sentence,) = sentences_of(copy)
    assert "1 of 8" in sentence
    assert "1 episode is not registered" in sentence
    (copy / "run.json").write_bytes(
        dump_json({**read_description(copy), "decision": {"is_decided": True, "episodes": 2}})
    )
    (decided,) = sentences_of(copy)
    assert ("missing" in decided, "1 episode is not registered" in decided) == (False, True)


def test_a_registration_that_was_changed_in_run_json_is_reported(copy):
    description = read_description(copy)
    description[REGISTERED]["seed"] = 5
    (copy / "run.json").write_bytes(dump_json(description))
    (sentence,) = sentences_of(copy)
    assert "registration was changed" in sentence


@pytest.mark.parametrize("change", [{"shard": Shard(1, 2)}, {"policies": ("replay:runs/x",)}])
def test_what_cannot_be_registered_is_refused_with_the_remedy(change):
    with pytest.raises(RunError):
        freeze_request(replace(REQUEST, **change), RULES)


@pytest.mark.parametrize("policies", [None, 3, [1, None, {}], [{"policy": ["x"]}], {"policy": "noop"}])
def test_a_run_json_with_damaged_policies_is_an_error_that_names_it(copy, policies):
    description = {**read_description(copy), "policies": policies, "decision": policies}
    (copy / "run.json").write_bytes(dump_json(description))
    with pytest.raises(RunError, match="plan is damaged"):
        sentences_of(copy)


def test_a_registration_made_by_hand_names_a_protocol_or_is_refused(registration):
    unnamed = msgspec.structs.replace(registration, protocol={})
    with pytest.raises(RunError, match="protocol"):
        roll_out(registered_request(unnamed), Path("nowhere"))


def test_the_digest_does_not_depend_on_the_order_of_keys_and_covers_only_json(registration):
    turned = msgspec.structs.replace(registration, protocol=dict(reversed(registration.protocol.items())))
    assert turned.digest == registration.digest
    with pytest.raises(ValueError, match="JSON"):
        msgspec.structs.replace(registration, protocol={"settle_s": float("nan")}).encode()
    assert "Zürich".encode() in msgspec.structs.replace(registration, host="Zürich").encode()


def test_a_file_that_is_missing_or_has_another_space_is_refused(tmp_path, content):
    with pytest.raises(RunError):
        read_registration(tmp_path / "missing.json")
    (tmp_path / "spaced.json").write_bytes(content + b"\n")
    with pytest.raises(RunError, match="bytes"):
        read_registration(tmp_path / "spaced.json")


def test_rules_that_were_not_loaded_cannot_be_registered():
    with pytest.raises(RunError, match="load_ruleset"):
        describe_rules(Ruleset(RULES.library, RULES.registry))


def test_a_policy_whose_argument_is_its_name_is_the_registered_one(copy):
    description = read_description(copy)
    description["policies"][0]["spec"] = description["policies"][0]["policy"]
    (copy / "run.json").write_bytes(dump_json(description))
    assert sentences_of(copy)[0].startswith("This run was")
