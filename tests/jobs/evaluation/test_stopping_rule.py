"""`--until`: a run ends with the round that decides, whoever ran it, and says so; nothing else of it changes."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from builders import numbers_in
from folders import contents
from safevla_bench.errors import RunError
from safevla_bench.hosts import make_host
from safevla_bench.hosts.protocols import load_protocol
from safevla_bench.jobs.evaluation.judgement import judge
from safevla_bench.jobs.evaluation.outputs import render_report
from safevla_bench.jobs.evaluation.preparation import _assign_rounds
from safevla_bench.jobs.evaluation.request import ExecutionOptions, Request
from safevla_bench.jobs.evaluation.rollouts import roll_out
from safevla_bench.jobs.evaluation.stopping_rule import (
    STOPPED_EARLY,
    RoundTally,
    describe_decision,
    parse_condition,
    was_stopped_early,
)
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.rollout.plan import EpisodeQueue, Shard, plan_episodes
from safevla_bench.sources.runs.folder import read_description
from safevla_bench.sources.runs.parts import episode_rows
from scenes import Watcher

POLICIES = ("noop", "random")
REQUEST = Request(
    host="fake", suites=("fake",), tasks=(0, 1), episodes=5, policies=POLICIES, max_steps=4, until="safety >= 0.3"
)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    folder = tmp_path_factory.mktemp("until") / "run"
    roll_out(REQUEST, folder)
    return folder


def test_a_run_ends_with_the_round_that_decides_and_its_archive_is_whole(stopped):
    """Two policies on two tasks: 0.3 ** 6 is within what two policies may spend by the third of five looks."""
    rows, description = episode_rows(stopped), read_description(stopped)
    assert sorted({int(row.episode_id[-3:]) for row in rows}) == [0, 1, 2]
    assert [row.policy for row in rows] == ["noop"] * 6 + ["random"] * 6
    assert (description["planned"], description["complete"]) == (20, True)
    assert (description["decision"]["is_decided"], description["decision"]["rounds"]) == (True, 3)
    assert numbers_in(describe_decision(description)) == [12, 20, 0.3, 6, 6, 6, 6]
    assert len(judge([stopped], load_ruleset()).scores) == 12


def test_whoever_runs_the_episodes_the_folder_is_the_same(stopped, tmp_path):
    """Episodes of later rounds that other workers had finished by then are dropped."""
    roll_out(REQUEST, tmp_path / "run", running=ExecutionOptions(workers=2))
    assert contents(tmp_path / "run") == contents(stopped)


def test_a_run_that_was_interrupted_goes_on_and_ends_where_it_would_have(stopped, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        roll_out(REQUEST, tmp_path / "run", Watcher(stop_after=6))
    roll_out(REQUEST, tmp_path / "run", running=ExecutionOptions(resume=True))
    assert contents(tmp_path / "run") == contents(stopped)


def test_what_is_not_decided_runs_to_the_end_and_says_so(tmp_path):
    request = Request(
        host="fake", suites=("fake",), tasks=(0,), episodes=3, policies=POLICIES, max_steps=3,
        until="noop safer than random",
    )  # fmt: skip
    assert len(roll_out(request, tmp_path / "run")) == 6
    assert describe_decision(read_description(tmp_path / "run")).startswith("Not decided after")


def planned_rounds(look_every: int, episodes: int = 4):
    tasks = [replace(task, init_states=None) for task in make_host("fake").tasks("fake")[:2]]
    plan = plan_episodes(tasks, episodes, list(POLICIES), load_protocol(), max_steps=4)
    return [replace(planned, round=planned.episode // look_every) for planned in plan]


def test_the_queue_begins_no_round_before_the_one_before_is_begun():
    queue, order = EpisodeQueue(planned_rounds(2)), []
    while (planned := queue.take_next(None, ())) is not None:
        order.append(planned.round)
    assert order == sorted(order)
    assert len(order) == 16


@pytest.mark.parametrize("order", [1, -1])
def test_looks_are_made_after_whole_rounds_in_their_order_however_episodes_arrive(order, monkeypatch):
    """Else a decision would depend on which worker was quicker, and the sequence would not hold for unequal tasks."""
    rounds = planned_rounds(1)
    tally = RoundTally(parse_condition("noop safer than random", POLICIES), load_ruleset(), rounds)
    looks = []
    decide = tally._decide
    monkeypatch.setattr(tally, "_decide", lambda: (looks.append(tally._rounds), decide())[1])
    for planned in sorted(rounds, key=lambda planned: order * planned.round):
        tally.add_episode(planned, None)
    assert looks == [1, 2, 3, 4]


def tally_with(condition, safe, look_every=1, **plan):
    """The tally after all rounds, of episodes whose Safety `safe` gives by policy and number; None = unknown."""
    rounds = planned_rounds(look_every, **plan)
    rule = parse_condition(condition, POLICIES)
    tally = RoundTally(rule, load_ruleset(), rounds)
    values = {planned.episode_id: safe(planned.policy, planned.episode) for planned in rounds}
    tally._values = {name: float(value) for name, value in values.items() if value is not None}
    tally._rounds = len(tally._missing)
    return tally._decide()


def test_the_comparison_takes_pairs_of_the_same_task_and_state():
    decision = tally_with("noop safer than random", lambda policy, _: policy == "noop")
    assert parse_condition("noop  Safer Than random", POLICIES).rivals == ("noop", "random")
    (finding,) = decision.findings
    assert (finding.verdict, finding.n, finding.unknown) == ("safer", 8, 0)
    assert (finding.least.gained, finding.least.total) == (8, 8)
    assert "(8 of 8" in decision.to_sentence(16)


def test_four_crashes_of_twelve_leave_a_gate_undecided_which_eight_safe_episodes_alone_would_pass():
    def safe(policy, episode):
        return None if policy == "noop" and episode % 3 == 0 else True

    decision = tally_with("safety >= 0.5", safe, episodes=6)
    noop, random = decision.findings
    assert (noop.verdict, noop.n, noop.unknown, noop.least.gained, noop.greatest.gained) == (
        "undecided", 12, 4, 8, 12,
    )  # fmt: skip
    assert random.verdict == "passed"
    assert "4 unknown" in decision.to_sentence(24)


@pytest.mark.parametrize("condition", ["safety >= 0.5", "vsi <= 0.5", "sbu <= 0.5", "noop safer than random"])
def test_a_verdict_stands_only_if_unknown_episodes_cannot_change_it(condition):
    def decide(lost):
        good = condition.startswith("safety") or "safer" in condition
        wins = (lambda policy: policy == "noop") if "safer" in condition else (lambda policy: good)
        return tally_with(condition, lambda policy, n: None if n < lost else wins(policy), episodes=30)

    assert decide(0).is_decided
    assert decide(5).is_decided
    assert not decide(15).is_decided
    assert not decide(30).is_decided


def test_seeds_of_one_state_are_run_in_one_round_and_are_one_observation():
    """Ten states that A wins with both seeds are ten pairs, and so are ten that it wins with one and ties."""
    tasks = make_host("fake").tasks("fake")[:2]
    wrapping = load_protocol("safevla-bench-rl")
    plan = _assign_rounds(plan_episodes(tasks, 10, list(POLICIES), wrapping, max_steps=4))
    assert {(planned.start.init_state_index, planned.round) for planned in plan} == {(k, k) for k in range(5)}
    for wins in (1, 2):
        tally = RoundTally(parse_condition("noop safer than random", POLICIES), load_ruleset(), plan)
        tally._values = {e.episode_id: float(e.policy == "noop" and e.episode < 5 * wins) for e in plan}
        tally._rounds = 5
        (finding,) = tally._decide().findings
        assert (finding.verdict, finding.n, finding.unknown) == ("safer", 10, 0)
    tally = RoundTally(parse_condition("safety >= 0.5", POLICIES), load_ruleset(), plan)
    tally._rounds, tally._values = 5, dict.fromkeys((planned.episode_id for planned in plan), 1.0)
    assert (tally._decide().boundary, tally._decide().findings[0].n) == ("confidence sequence", 10)


def test_each_look_has_the_same_share_of_every_task_even_if_tasks_have_unequal_numbers_of_starts():
    """With one start of each task in a round, small tasks would decide alone, and nearly always wrongly."""
    first, second = make_host("fake").tasks("fake")[:2]
    protocol = load_protocol("safevla-bench")
    plan = [plan_episodes([task], n, list(POLICIES), protocol, max_steps=4) for task, n in ((first, 2), (second, 5))]
    rounds = Counter((planned.round, planned.task.index) for planned in _assign_rounds([*plan[0], *plan[1]]))
    assert rounds == {(0, 0): 2, (1, 0): 2, (0, 1): 6, (1, 1): 4}
    assert {(planned.state, planned.round) for planned in _assign_rounds(plan[1])} == {(k, k) for k in range(5)}


@pytest.mark.parametrize(
    ("condition", "problem"),
    [
        ("safety > 0.9", "not a condition"),
        ("safety >= 90", "instead of 90"),
        ("speed >= 0.9", "not a condition"),
        ("safety >= nan", "not a condition"),
        ("safety >= 0.9 please", "not a condition"),
        ("noop safer than careful", "this run lacks: 'careful'"),
        ("noop safer than noop", "policy with itself"),
        ("", "not a condition"),
    ],
)
def test_a_condition_that_is_none_is_refused_with_the_forms_there_are(condition, problem):
    with pytest.raises(RunError, match=problem):
        parse_condition(condition, POLICIES)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"shard": "1/2"}, "--until and --shard"),
        ({"until": "sr >= 0.5", "stop_on_violation": True}, "--stop-on-violation leaves the metric"),
    ],
)
def test_what_contradicts_a_stopping_rule_is_refused(changes, problem, tmp_path):
    if "shard" in changes:
        changes = {"shard": Shard.parse(changes["shard"])}
    with pytest.raises(RunError, match=problem):
        roll_out(replace(REQUEST, **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_report_of_such_a_run_says_that_its_intervals_are_not_for_that(stopped, tmp_path):
    safe = judge([stopped], load_ruleset())
    assert was_stopped_early(safe)
    assert STOPPED_EARLY in render_report(safe)


def test_crashes_of_a_run_that_its_rule_ended_are_retried_in_their_places(tmp_path, monkeypatch):
    """The rounds that were left out leave gaps in the plan: the n-th row is not the n-th planned episode."""
    request = replace(REQUEST, tasks=(2, 0), until="safety >= 0.01")
    roll_out(request, tmp_path / "run")
    monkeypatch.setattr("safevla_bench.hosts.fake.host.CRASH_AFTER", -1)
    rows = roll_out(request, tmp_path / "run", running=ExecutionOptions(resume=True, retry_crashed=True))
    roll_out(request, tmp_path / "whole")
    assert {row.outcome for row in rows} == {"timeout"}
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")
