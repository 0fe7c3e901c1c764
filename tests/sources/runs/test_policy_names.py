"""Policies of one name are distinguished by what run.json says of them, and never merged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from safevla_bench.errors import RunError
from safevla_bench.jobs.evaluation.judgement import judge, load_policy_results
from safevla_bench.jobs.evaluation.request import Request
from safevla_bench.jobs.evaluation.rollouts import roll_out
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.sources.runs.policy_names import describe_names, distinguish_policies, identify_policies

ENTRY = {"policy": "pi", "arguments": {}, "entry": {"name": "pi", "checkpoints": {"s": "gs://x"}}}


def names(*descriptions: dict[str, object]) -> list[dict[str | None, str]]:
    paths = [Path(f"runs/{k}") for k in range(len(descriptions))]
    identities = [identify_policies(path, run) for path, run in zip(paths, descriptions, strict=True)]
    return [dict(of_source) for of_source in distinguish_policies(identities, paths)]


def describe_run(policy: str = "p", suites: tuple[str, ...] = ("s",), volatile: object = None, **of_policy: object):
    row = {"policy": policy, "arguments": {}, "privileged": False, "cameras": [], **of_policy}
    return {"policies": [row], "suites": list(suites), "volatile": volatile or {}}


def test_equal_configurations_are_one_policy_whatever_their_suites_and_seeds():
    assert names(describe_run(), describe_run(suites=("t",)), {**describe_run(), "seed": 7}) == [{}, {}, {}]


@pytest.mark.parametrize(
    ("description", "second", "labels"),
    [
        ({"arguments": {"chunk": "5"}}, {"arguments": {"chunk": "10"}}, ["p (chunk=5)", "p (chunk=10)"]),
        ({"arguments": {"chunk": "5"}}, {}, ["p (chunk=5)", "p (no chunk)"]),
        ({"dialect": {"replan": 5}}, {"dialect": {"replan": 8}}, ["p (dialect.replan=5)", "p (dialect.replan=8)"]),
        ({"arguments": {"path": "/long" * 9}}, {}, ["p (0)", "p (1)"]),
    ],
)
def test_another_configuration_is_another_policy_named_by_what_differs(description, second, labels):
    assert names(describe_run(**description), describe_run(**second)) == [{"p": labels[0]}, {"p": labels[1]}]


def test_runs_of_one_configuration_have_one_name_beside_another():
    five, ten = describe_run(arguments={"chunk": "5"}), describe_run(arguments={"chunk": "10"})
    assert names(five, ten, five) == [{"p": "p (chunk=5)"}, {"p": "p (chunk=10)"}, {"p": "p (chunk=5)"}]


def describe_served(*servers: str, suites: tuple[str, ...] = ("s",), statement: object = None):
    statements = [] if statement is None else [{"policy": "pi", "suite": suites[0], "says": statement, "episodes": []}]
    return describe_run(suites=suites, volatile={"servers": list(servers), "policies_say": statements}, **ENTRY)


def test_another_server_of_a_suite_is_another_policy_unless_both_state_the_same():
    assert names(describe_served("ws://a:1"), describe_served("ws://b:1")) == [
        {"pi": "pi (server of s=ws://a:1)"}, {"pi": "pi (server of s=ws://b:1)"},
    ]  # fmt: skip
    assert names(
        describe_served("ws://a:1", statement={"step": 1}), describe_served("ws://b:1", statement={"step": 1})
    ) == [{}, {}]
    first, second = names(
        describe_served("ws://a:1", statement={"step": 1}), describe_served("ws://a:1", statement={"step": 2})
    )
    assert first != second
    assert names(describe_served("s=ws://a:1"), describe_served("t=ws://b:1", suites=("t",))) == [{}, {}]


def test_an_archive_is_of_the_only_policy_and_of_neither_of_two():
    assert names(describe_run(), {}) == [{}, {}]
    names_shown = names(describe_run(arguments={"k": "1"}), describe_run(arguments={"k": "2"}), {})
    assert names_shown[2] == {"p": "p (2)"}
    assert ["3 policies" in line for line in describe_names(names_shown)] == [True]


def test_a_hostile_description_is_a_typed_error_or_no_policy():
    """Names that are not names; arguments nested as deep as JSON can be read; names as long as a book."""
    assert names({"policies": [{"policy": ["x"]}, 3, {"policy": None}]}, {"policies": "no"}) == [{}, {}]
    deep: object = "x"
    for _ in range(5000):
        deep = {"k": deep}
    with pytest.raises(RunError, match="nested too deeply"):
        names(describe_run(arguments=deep))
    first, second = names(describe_run(arguments={"k" * 10_000: "1"}), describe_run())
    assert (first, second) == ({"p": "p (0)"}, {"p": "p (1)"})


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """One policy with two checkpoints, as its run.json says, on one task each."""
    folder = tmp_path_factory.mktemp("two")
    request = Request(host="fake", suites=("fake",), policies=("random",), episodes=2, max_steps=20)
    for name, tasks in (("one", (0,)), ("other", (1,))):
        roll_out(replace(request, tasks=tasks), folder / name)
        run = json.loads((folder / name / "run.json").read_text())
        run["policies"][0]["arguments"]["checkpoint"] = name
        (folder / name / "run.json").write_text(json.dumps(run))
    return folder


def test_a_judgement_of_both_has_two_policies_and_says_so(two):
    judged = judge([two / "one", two / "other"], load_ruleset())
    policies = ["random (checkpoint=one)", "random (checkpoint=other)"]
    assert [cell.policy for cell in judged.summarize_scores()[0]] == policies
    assert [source.policies for source in judged.sources] == [(policies[0],), (policies[1],)]
    assert [header.policy for header in judged.batch.headers] == [policies[0]] * 2 + [policies[1]] * 2
    assert [sentence.endswith(f": {'; '.join(policies)}.") for sentence in judged.describe_policies()] == [True]
    document = judged.sources[0].to_document()
    assert (document["policies"][0]["policy"], document["policy_names"]) == ("random", {"random": policies[0]})
    alone = judge([two / "one"], load_ruleset())
    assert (alone.scores.policy[0], alone.describe_policies()) == ("random", [])


def test_a_comparison_takes_either_name(two):
    for chosen, count in ((("random",), 2), (("random (checkpoint=one)",), 1), ((), 2)):
        results = load_policy_results([two / "one", two / "other"], load_ruleset(), policies=chosen)
        assert [result.name for result in results] == ["random (checkpoint=one)", "random (checkpoint=other)"][:count]
