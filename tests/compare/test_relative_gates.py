"""Gates relative to another run: differences on the same episodes, and nothing that passes in silence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compare.made_runs import policy, run_headers
from report.scenes import joined
from safevla_bench.compare.decisions import check_against
from safevla_bench.compare.policy_results import split_by_policy
from safevla_bench.errors import RunError, SafevlaError
from safevla_bench.judging.gates import Gate
from safevla_bench.sources.runs.folder import AbsentEpisode
from safevla_bench.statistics.intervals import tango_interval

NO_WORSE = Gate("safety", "min", -0.05, "main")


def results(*runs, absent=()):
    scores = replace(joined(*runs), absent=tuple(absent))
    return split_by_policy(scores, run_headers(scores))


def check(mine, theirs, *gates, **how):
    return check_against(results(mine), results(theirs), gates or [NO_WORSE], **how)


@pytest.mark.parametrize(
    ("mine", "theirs", "limit", "verdict"),
    [
        (300, 300, -0.05, "passed"),
        (200, 300, -0.05, "failed"),
        (291, 300, -0.05, "undecided"),
        (300, 200, 0.1, "passed"),
    ],
)
def test_the_whole_interval_of_the_paired_difference_decides(mine, theirs, limit, verdict):
    report = check(policy("a", 0, mine, n=300), policy("a", 0, theirs, n=300), Gate("safety", "min", limit, "main"))
    (outcome,) = report.outcomes
    expected = tango_interval(max(mine - theirs, 0), max(theirs - mine, 0), 300)
    assert (report.verdict, outcome.n) == (verdict, 300)
    assert outcome.value == pytest.approx((mine - theirs) / 300)
    assert outcome.ci == pytest.approx((expected.low, expected.high), abs=1e-3)


def test_a_metric_of_which_less_is_better_is_limited_from_above():
    runs = policy("a", 300, 200, n=300), policy("a", 300, 300, n=300)
    assert check(*runs, Gate("sbu", "max", 0.05, "main")).verdict == "failed"
    assert check(*reversed(runs), Gate("sbu", "max", 0.05, "main")).verdict == "passed"


def test_several_gates_share_the_confidence_and_say_so():
    report = check(policy("a", 100, 100), policy("a", 100, 100), NO_WORSE, Gate("sr", "min", -0.05, "main"))
    assert report.each_confidence == pytest.approx(0.975)
    assert any("Bonferroni" in note for note in report.notes)


def test_pairs_that_cannot_tell_leave_the_gate_undecided():
    few = check(policy("a", 0, 50, n=50), policy("a", 0, 50, n=50)).outcomes[0]
    assert (few.verdict, few.reason, few.n_needed) == ("undecided", "50 pairs cannot tell", None)


def test_a_crash_enters_at_its_worst_and_at_its_best_unless_it_is_left_out():
    run, n = policy("a", 0, 300, n=300), 40
    lost = [
        AbsentEpisode(episode_id=f"x{k}", benchmark="libero-goal", task_id="task_0", policy="a", outcome="crashed",
                      init_state_index=1000 + k, seed=0)
        for k in range(n)
    ]  # fmt: skip
    mine, theirs = results(run, absent=lost), results(policy("a", 0, 300 + n, n=300 + n))
    theirs = [replace(theirs[0], headers=(*theirs[0].headers[:300], *lost_headers(theirs[0].headers[300:])))]
    report = check_against(mine, theirs, [NO_WORSE])
    assert (report.verdict, report.outcomes[0].unknown) == ("undecided", n)
    assert "unknown in 40 episodes" in report.outcomes[0].reason
    assert check_against(mine, theirs, [NO_WORSE], allow_crashed=True).verdict == "passed"


def lost_headers(headers):
    import msgspec

    return [
        msgspec.structs.replace(header, task_id="task_0", init_state_index=1000 + k) for k, header in enumerate(headers)
    ]


def test_what_is_missing_from_either_run_leaves_the_gate_undecided():
    runs = results(policy("a", 0, 300, n=300)), results(policy("a", 0, 300, n=300))
    assert check_against(*runs, [NO_WORSE], lost=["1 run was interrupted"]).verdict == "undecided"


def test_a_policy_is_held_against_its_name_else_against_the_only_one():
    mine, other = results(policy("a", 100, 100)), results(policy("b", 100, 100))
    assert check_against(mine, other, [NO_WORSE]).outcomes[0].policy == "a"
    several = results(policy("a", 0, 0), policy("b", 100, 100))
    assert check_against(mine, several, [NO_WORSE]).outcomes[0].value == 1.0
    with pytest.raises(RunError, match="no policy 'a', and not one alone"):
        check_against(mine, results(policy("c", 9, 9), policy("b", 9, 9)), [NO_WORSE])


def test_other_episodes_and_impossible_limits_are_refused():
    with pytest.raises(RunError, match="cannot be paired with the baseline"):
        check(policy("a", 9, 9), policy("a", 9, 9, n=90))
    with pytest.raises(SafevlaError, match=r"-0\.05 is no limit for safety"):
        check(policy("a", 9, 9), policy("a", 9, 9), Gate("safety", "min", -0.05))
