"""Policies of one name are distinguished by what run.json says of them, and never merged."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from builders import episode
from safevla_bench import archive
from safevla_bench.errors import RunError
from safevla_bench.jobs.evaluation.judgement import judge, load_policy_results
from safevla_bench.jobs.evaluation.request import Request
from safevla_bench.jobs.evaluation.rollouts import roll_out
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.sources.runs.policy_names import (
    NamedSource,
    PolicyIdentity,
    describe_names,
    distinguish_policies,
    identify_policies,
    name_source,
)

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


@pytest.mark.parametrize("text", ["runs/x", "=runs/x", "mine=", "a/b=x", "there=is"])
def test_a_text_without_a_name_is_a_path(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    Path("there=is").touch()
    source = NamedSource.parse(text)
    assert (str(source), getattr(source, "policy", None)) == (text, None)


@pytest.mark.parametrize(("text", "path", "name"), [("mine=runs/x", "runs/x", "mine"), ("a=b=c", "b=c", "a")])
def test_a_name_before_a_path_is_that_of_its_policy_and_stays_with_the_path(text, path, name):
    for source in (NamedSource.parse(text), pickle.loads(pickle.dumps(NamedSource.parse(text)))):
        assert (str(source), source.policy) == (path, name)


def test_the_name_of_the_user_is_that_of_the_only_policy_besides_the_baseline():
    source = NamedSource.parse("mine=x")
    assert name_source(Path("x"), ["a", "b"]) == {}
    assert name_source(source, []) == {}
    assert name_source(source, ["a", "noop"]) == {"a": "mine"}
    assert name_source(source, ["noop"]) == {"noop": "mine"}
    assert name_source(source, [None]) == {None: "mine"}
    with pytest.raises(RunError, match="has 2: a, b"):
        name_source(source, ["a", "noop", "b"])


def identity(**fields: dict[str, str]) -> PolicyIdentity:
    return PolicyIdentity("p", Path("x"), **{"facts": {}, "statements": {}, "servers": {}, **fields})


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ({"statements": {"s": "a"}, "servers": {"s": "u"}}, {"servers": {"s": "u"}}, True),
        ({"statements": {"s": "a"}, "servers": {"s": "u"}}, {"servers": {"s": "v"}}, False),
        ({"statements": {"s": "a"}, "servers": {"s": "u"}}, {"statements": {"s": "a"}, "servers": {"s": "v"}}, True),
        ({"statements": {"s": "a"}}, {"statements": {"t": "b"}}, True),
        ({"statements": {"s": "a"}}, {"servers": {"s": "u"}}, False),
        ({"servers": {"s": "u", "t": "w"}}, {"servers": {"s": "u", "t": "v"}}, False),
        ({"facts": {"k": "1"}}, {"facts": {"k": "2"}}, False),
    ],
)
def test_policies_are_the_same_if_they_say_the_same_or_are_asked_at_the_same_address(first, second, same):
    assert identity(**first).is_same(identity(**second)) == same
    assert identity(**second).is_same(identity(**first)) == same


def test_the_order_of_keys_and_what_other_policies_say_distinguish_nothing():
    says = [{"policy": "p", "suite": "s", "says": {"a": 1, "b": 2}}, {"policy": "q", "suite": "s", "says": 3}, "text"]
    other = [{"policy": "p", "suite": "s", "says": {"b": 2, "a": 1}}]
    first = describe_run(arguments={"k": [{"a": 1, "b": 2}]}, volatile={"policies_say": says})
    assert names(first, describe_run(arguments={"k": [{"b": 2, "a": 1}]}, volatile={"policies_say": other})) == [{}, {}]
    (found,) = identify_policies(Path("x"), first)
    assert found.statements == {"s": '{"a": 1, "b": 2}'}
    assert found.facts == {"k": '[{"a": 1, "b": 2}]'}


@pytest.mark.parametrize(("length", "label"), [(32, f"p (k={'x' * 32})"), (33, "p (0)")])
def test_texts_of_32_characters_are_shown(length, label):
    assert names(describe_run(arguments={"k": "x" * length}), describe_run())[0] == {"p": label}


def test_three_facts_are_shown_and_the_sources_where_these_do_not_distinguish():
    facts = [{"a": "1", "b": "1", "c": "1", "d": d} for d in "12"] + [{"a": "2", "b": "2", "c": "2", "d": "1"}]
    runs = [describe_run(arguments=arguments) for arguments in facts]
    assert names(*runs) == [{"p": f"p ({k})"} for k in range(3)]
    assert names(runs[0], runs[2]) == [{"p": "p (a=1, b=1, c=1)"}, {"p": "p (a=2, b=2, c=2)"}]
    same = [Path("one/x"), Path("two/x"), Path("three/x")]
    identities = [identify_policies(path, run) for path, run in zip(same, runs, strict=True)]
    assert distinguish_policies(identities, same) == [{"p": f"p #{k}"} for k in (1, 2, 3)]


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


def test_each_recorded_name_of_a_new_name_selects_its_own_archives(tmp_path):
    for name in "ab":
        archive.write_archive(tmp_path / f"{name}.jsonl", episode(policy=name, episode_id=name))
    sources = [NamedSource.parse(f"mine={tmp_path / name}.jsonl") for name in "ab"]
    for name, path in zip("ab", sources, strict=True):
        (result,) = load_policy_results(sources, load_ruleset(missing="deactivate"), policies=[name])
        assert (result.name, result.source) == ("mine", str(path))


def test_a_recorded_name_that_another_policy_has_now_selects_only_that_policy(two):
    sources = [NamedSource.parse(text) for text in (f"mine={two / 'one'}", f"random={two / 'other'}")]
    (result,) = load_policy_results(sources, load_ruleset(), policies=["random"])
    assert (result.name, "other" in result.source) == ("random", True)
