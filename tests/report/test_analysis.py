"""What the report computes beyond the summaries agrees with the commands that say the same."""

from __future__ import annotations

import msgspec

from report.scenes import run, verdicts, with_initial_states
from safevla_bench.compare.comparison import MetricComparison, compare_policies
from safevla_bench.compare.policy_results import split_by_policy
from safevla_bench.explain.bodies import find_bodies
from safevla_bench.judging.metrics import aggregate, cells
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.report.analysis import MOST_COMPARED, Analysis, analyze_scores
from safevla_bench.report.headline import build_headline, describe_mixture
from safevla_bench.report.page import render_page
from safevla_bench.report.tables.comparison_answer import describe_comparison
from safevla_bench.trajectory.batch import concatenate_batches
from safevla_bench.trajectory.single_episode import empty_batch

RULES = load_ruleset()


def analyze(batch, **options):
    return analyze_scores(score(batch, RULES), batch, RULES, **options)


BATCH = with_initial_states(run(["calm", "rough"], [0.1, 1.0], 5, ["libero-10", "libero-goal"]))
SCORES = score(BATCH, RULES)
ANALYSIS = analyze_scores(SCORES, BATCH, RULES)


def test_two_policies_on_the_same_states_are_compared_in_pairs():
    assert ANALYSIS.comparison == compare_policies(split_by_policy(SCORES, BATCH.headers))
    assert ANALYSIS.comparison.paired
    assert ANALYSIS.unpaired == ""


def test_what_cannot_be_paired_is_compared_as_independent_and_says_why():
    plain = run(["calm", "rough"], [0.1, 1.0], 2, ["libero-10"])
    analysis = analyze(plain)
    assert not analysis.comparison.paired
    assert "initial state" in analysis.unpaired
    other = analyze_scores(SCORES, BATCH, RULES, protocols=[{"settle": 1}, {"settle": 2}])
    assert not other.comparison.paired
    assert "protocols" in other.unpaired


def test_one_policy_or_too_many_are_not_compared():
    single = with_initial_states(run(["calm"], [0.1], 2, ["libero-10"]))
    assert analyze(single).comparison is None
    count = MOST_COMPARED + 1
    crowd = with_initial_states(run([f"p{k}" for k in range(count)], [0.1] * count, 1, ["libero-10"]))
    analysis = analyze(crowd)
    assert analysis.comparison is None
    assert f"{count} policies" in analysis.uncompared


def test_nothing_scored_is_nothing_said():
    assert analyze_scores(verdicts(), empty_batch(), RULES) == Analysis()


def test_the_headline_says_what_the_comparison_says():
    support = build_headline(cells(SCORES), aggregate(SCORES), ANALYSIS.comparison).support
    assert describe_comparison(ANALYSIS.comparison) in support
    assert "calm" in describe_comparison(ANALYSIS.comparison)


def test_a_verdict_that_episodes_without_a_value_could_undo_is_called_so():
    def leave_undecided(metric: MetricComparison) -> MetricComparison:
        changes = {"better": None, "better_by_task": None, "undecided": True, "unknown": 3}
        differences = tuple(msgspec.structs.replace(item, **changes) for item in metric.differences)
        return msgspec.structs.replace(metric, differences=differences)

    scopes = tuple(
        msgspec.structs.replace(scope, metrics=tuple(map(leave_undecided, scope.metrics)))
        for scope in ANALYSIS.comparison.scopes
    )
    undecided = msgspec.structs.replace(ANALYSIS.comparison, scopes=scopes)
    support = " ".join(build_headline(cells(SCORES), aggregate(SCORES), undecided).support)
    assert "3 episodes without" in support


def test_policies_on_other_tasks_are_not_compared_and_the_first_sentences_say_so():
    """One policy on an easy suite and one on a hard suite: the numbers rank nobody."""
    calm, rough = (
        with_initial_states(run(["calm"], [0.1], 3, ["libero-10"])),
        with_initial_states(run(["rough"], [1.0], 3, ["libero-goal"])),
    )
    batch = concatenate_batches([calm, rough])
    scores = score(batch, RULES)
    analysis = analyze_scores(scores, batch, RULES)
    assert analysis.comparison is None
    assert "no two policies" in analysis.uncompared
    sentence = "The policies did not run the same tasks: these numbers do not rank the policies."
    assert describe_mixture(scores) == sentence
    assert sentence in build_headline(cells(scores), aggregate(scores), None, mixture=sentence).support
    page = render_page(scores, batch, RULES, title="t", analysis=analysis)
    assert "do not rank" in page
    assert "points safer" not in page
    assert describe_mixture(SCORES) == ""


def test_the_page_tables_the_bodies_of_violations():
    assert ANALYSIS.bodies == list(find_bodies([BATCH], SCORES, RULES))
    page = render_page(SCORES, BATCH, RULES, title="t", analysis=ANALYSIS)
    assert "bodies, of what" in page
    assert "– fixture link" in page
    calm = score(with_initial_states(run(["calm"], [0.0], 2, ["libero-10"])), RULES)
    assert "Which bodies" not in render_page(calm, None, RULES, title="t")


# Checkpoints


def test_checkpoints_have_a_section_of_their_own_and_other_names_none():
    batch = with_initial_states(run(["step-1000", "step-2000", "noop"], [1.0, 0.1, 0.5], 3, ["libero-10"]))
    analysis = analyze(batch)
    assert [point.label for point in analysis.series.curves[0].points] == [1000, 2000]
    page = render_page(score(batch, RULES), batch, RULES, title="t", analysis=analysis)
    section = page[page.index('<section id="series">') :].partition("</section>")[0]
    assert "<table" in section
    assert "style=" not in section
    assert "above 1000" in section
    assert page == render_page(score(batch, RULES), batch, RULES, title="t", analysis=analysis)
    assert ANALYSIS.series is None
    assert 'id="series"' not in render_page(SCORES, BATCH, RULES, title="t", analysis=ANALYSIS)
