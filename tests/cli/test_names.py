"""A policy has the name that the user gives it: when it runs, or where its run is given to a command."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

import safevla_bench as sb
from builders import episode
from safevla_bench.archive import write_archive
from safevla_bench.errors import PolicyError
from safevla_bench.policies import split_name
from safevla_bench.sources.runs.policy_names import NamedSource
from safevla_bench.sources.runs.sources import open_sources

FAKE = ("--host", "fake", "--suite", "fake", "--task", "0", "--max-steps", "6")
SPEC = "python:shaky:Policy"
MODULE = """
import numpy as np

class Policy:
    def __init__(self, strength="0", offset="0"):
        self.strength = float(strength) + float(offset)

    def act(self, observation):
        return np.full((2, 7), self.strength)
"""
TWO = (
    *("--policy", f"weak={SPEC}", "--policy-arg", "weak:strength=0.1"),
    *("--policy", f"strong={SPEC}", "--policy-arg", "strong:strength=0.9"),
)


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "shaky.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)


def policies_of(safevla, *command):
    """The policies of a table."""
    return [row[0]["text"] for table in safevla.json("tables", *command, "--which", "main") for row in table["rows"]]


def test_two_checkpoints_of_one_module_stand_under_their_names_everywhere(safevla, tmp_path):
    out = safevla.ok("eval", *FAKE, *TWO, "--out", "run")
    assert SPEC not in out
    assert "\nweak " in out
    rows = json.loads(Path("run/run.json").read_text())["policies"]
    assert [(row["policy"], row["spec"], row["arguments"]) for row in rows] == [
        ("weak", SPEC, {"strength": "0.1"}),
        ("strong", SPEC, {"strength": "0.9"}),
    ]
    for command in (
        ("tables", "run", "--which", "main"),
        ("compare", "run"),
        ("gate", "run", "--min-sr", "0"),
        ("episodes", "run"),
        ("board", "run", "--no-reports"),
    ):
        code, out, err = safevla(*command)
        assert code in (0, 3), err
        assert "python:" not in out
    assert "weak" in (tmp_path / "run/board/index.html").read_text()


def test_names_survive_workers_resuming_and_shards(safevla):
    plan = ("eval", "--record-only", *FAKE, *TWO)
    safevla.ok(*plan, "--out", "whole")
    safevla.ok(*plan, "--workers", "2", "--out", "workers")
    for k in (1, 2):
        safevla.ok(*plan, "--shard", f"{k}/2", "--out", f"shard{k}")
    safevla.ok("merge", "shard1", "shard2", "--out", "merged")
    for folder in ("workers", "merged"):
        for name in ("archive/part-00000.parquet", "episodes.parquet"):
            assert Path(folder, name).read_bytes() == Path("whole", name).read_bytes()
    before = Path("whole/run.json").read_bytes()
    safevla.ok("eval", "--record-only", "--resume", "--out", "whole", "--trust", "whole")
    safevla.ok(*plan, "--resume", "--out", "whole")
    assert Path("whole/run.json").read_bytes() == before
    others = [word.replace(f"strong={SPEC}", "strong=noop") for word in TWO[:-2]]
    assert "spec" in safevla.refuses("eval", "--record-only", *FAKE, *others, "--resume", "--out", "whole")


def test_a_replay_has_a_name_and_plays_what_it_was_told(safevla):
    safevla("eval", "--record-only", *FAKE, "--policy", f"mine={SPEC}", "--policy-arg", "strength=0.3", "--out", "run")
    assert "again" in safevla.ok("eval", "--record-only", "--policy", "again=replay:run", "--out", "played")
    assert policies_of(safevla, "run", "played") == ["mine", "again"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a/b=noop", "'a/b' cannot"),
        ("=noop", "'' cannot"),
        (f"{'x' * 61}=noop", "be the name"),
        ("mine=", "has no policy after"),
    ],
)
def test_what_is_not_a_name_is_refused(safevla, text, message):
    assert message in safevla.refuses("eval", "--record-only", *FAKE, "--policy", text, "--dry-run")
    with pytest.raises(PolicyError):
        split_name(text)


def test_two_policies_cannot_have_one_name(safevla):
    two = ("--policy", "a=noop", "--policy", "a=random")
    assert "'a' is named" in safevla.refuses("eval", "--record-only", *FAKE, *two, "--dry-run")


def test_a_colon_before_the_sign_makes_it_part_of_the_policy():
    assert split_name("replay:runs/a=b") == (None, "replay:runs/a=b")
    assert split_name("m=replay:runs/a=b") == ("m", "replay:runs/a=b")


# Runs that exist


@pytest.fixture
def runs(safevla):
    """Two runs of one module, and one of two policies."""
    for name, strength in (("a", "0.1"), ("b", "0.9")):
        options = ("--policy", SPEC, "--policy-arg", f"{SPEC}:strength={strength}")
        floor = ("--policy", "noop") if name == "a" else ()
        safevla("eval", "--record-only", *FAKE, *options, *floor, "--out", name)
    safevla("eval", "--record-only", *FAKE, "--policy", "random", "--policy", SPEC, "--out", "both")


def test_runs_are_named_where_they_are_given_and_noop_stays_what_it_is(safevla, runs):
    assert set(policies_of(safevla, "first=a", "second=b")) == {"first", "second", "noop"}
    for command in (
        ("compare", "first=a", "second=b"),
        ("gate", "first=a", "--min-sr", "0"),
        ("score", "first=a", "--out", "scores"),
        ("board", "first=a", "second=b", "--no-reports", "--out", "board"),
        ("figures", "first=a", "second=b", "--which", "tradeoff", "--format", "svg", "--out", "figures"),
        ("export", "first=a", "--format", "safevla-csv", "--out", "a.csv"),
    ):
        code, out, err = safevla(*command)
        assert code in (0, 3), err
        assert "python:" not in out
    assert "first" in Path("a.csv").read_text()
    assert "python" not in Path("a.csv").read_text()
    scores = json.loads(Path("scores/scores.json").read_text())
    assert {episode["policy"] for episode in scores["episodes"]} == {"first", "noop"}
    assert scores["sources"][0]["policy_names"] == {SPEC: "first"}


def test_an_archive_is_named_too_and_keeps_the_name_when_it_is_converted(safevla, runs):
    safevla("convert", "first=a", "first.parquet")
    assert set(policies_of(safevla, "first.parquet")) == {"first", "noop"}
    assert set(policies_of(safevla, "other=first.parquet")) == {"other", "noop"}
    for source in ("both", "both/archive/part-00000.parquet"):
        err = safevla.refuses("tables", f"x={source}")
        assert f"random, {SPEC}" in err
        assert "--policy NAME=POLICY" in err


def test_records_that_name_no_policy_are_judged_under_the_name_that_is_given(safevla):
    for name in ("a", "b"):
        write_archive(Path(f"{name}.jsonl"), episode(policy=None))
    assert "NAME=PATH" in safevla.refuses("score", "a.jsonl", "b.jsonl", "--out", "scores")
    safevla.ok("score", "first=a.jsonl", "second=b.jsonl", "--out", "scores")
    scores = json.loads(Path("scores/scores.json").read_text())
    assert [row["policy"] for row in scores["episodes"]] == ["first", "second"]
    assert [source["policy_names"] for source in scores["sources"]] == [{"": "first"}, {"": "second"}]


def test_one_name_for_two_that_differ_does_not_merge_them(safevla, runs):
    assert set(policies_of(safevla, "m=a", "m=b")) == {"m (strength=0.1)", "m (strength=0.9)", "noop"}


def test_scores_under_another_name_are_not_written_into_the_run(safevla, runs):
    assert "missing option '--out'" in safevla.refuses("score", "first=a")


def test_a_path_that_exists_is_a_path_whatever_it_is_called(tmp_path):
    (tmp_path / "x=y").mkdir()
    assert type(NamedSource.parse("x=y")) is type(Path())
    assert type(NamedSource.parse("runs/x=y")) is type(Path())
    source = NamedSource.parse("x=z")
    assert (source, source.policy) == (Path("z"), "x")
    copy = pickle.loads(pickle.dumps(source))
    assert (copy, copy.policy) == (source, "x")


def test_python_has_names_too(safevla, runs):
    run = sb.evaluate({"weak": SPEC, "idle": "noop"}, "fake", tasks=[0], max_steps=4)
    assert [row.score.policy for row in run] == ["weak", "idle"]
    (episode,) = sb.evaluate(f"mine={SPEC}", "fake", tasks=[0], max_steps=4)
    assert episode.score.policy == "mine"
    loaded = sb.load("first=a", "second=b")
    assert {row.score.policy for row in loaded} == {"first", "second", "noop"}
    assert [source.policy_names for source in open_sources([NamedSource.parse("q=a")])] == [{SPEC: "q"}]


def test_a_registration_holds_what_makes_a_policy_and_sees_another(safevla):
    options = (*FAKE, "--policy", f"mine={SPEC}")
    safevla.ok("eval", *options, "--dry-run", "--freeze", "r.json")
    code, out, err = safevla("eval", "--registered", "r.json", "--trust", "r.json", "--out", "run")
    assert (code, "differs from its registration" in err) == (0, False)
    assert "mine" in out
    err = safevla("eval", "--registered", "r.json", "--policy", "mine=noop", "--out", "other")[2]
    assert "differs from its registration" in err


def test_an_argument_replaces_only_the_registered_argument_with_its_key(safevla):
    arguments = ("--policy-arg", "strength=0.3", "--policy-arg", "offset=0.1")
    safevla.ok("eval", *FAKE, "--policy", f"mine={SPEC}", *arguments, "--dry-run", "--freeze", "r.json")
    again = ("eval", "--registered", "r.json", "--trust", "r.json", "--out", "run", "--policy-arg", "mine:offset=0.1")
    assert "differs from its registration" not in safevla(*again)[2]
