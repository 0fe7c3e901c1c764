"""The ranking by Safety under other thresholds: what changes it, and what does not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from msgspec import structs

from report.scenes import rollout
from safevla_bench.compare.comparison import compare_policies
from safevla_bench.compare.decisions import RankingSensitivity, rank_under_variants
from safevla_bench.compare.difference import ComparisonOptions, Difference
from safevla_bench.compare.policy_results import split_by_policy
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.report.tables.sensitivity import ranking_table
from safevla_bench.sensitivity.curves import ThresholdVariant, apply_variant, paper_variants
from safevla_bench.trajectory.batch import Batch, concatenate_batches

RULES = load_ruleset()


def episodes(policy: str, pushes: tuple[bool, ...], force_n: float) -> list[Batch]:
    """Episodes of `libero-spatial`, some of which push the plate by 6 mm; the hardest contact has this force."""
    batches = []
    for k, push in enumerate(pushes):
        batch = rollout(k, 0.2 if push else 0.0, success=True, policy=policy, episode_id=f"{policy}{k}")
        force = np.minimum(batch.contacts.force_n, 20.0)
        force[0] = force_n
        header = structs.replace(batch.headers[0], init_state_index=k, seed=0)
        batches.append(replace(batch, headers=(header,), contacts=replace(batch.contacts, force_n=force)))
    return batches


BATCH = concatenate_batches([*episodes("firm", (False,) * 16, 150.0), *episodes("pushing", (True, False) * 8, 20.0)])
VARIANTS = paper_variants(RULES.library)[0]


def rank(batch: Batch, **options: object) -> RankingSensitivity | None:
    return rank_under_variants(score(batch, RULES), batch.headers, RULES.library, VARIANTS, **options)


def compare_under(variant: ThresholdVariant, batch: Batch, *, paired: bool) -> tuple[Difference, ...]:
    """The differences in Safety over all suites under a variant."""
    results = split_by_policy(apply_variant(score(batch, RULES), RULES.library, variant), batch.headers)
    options = ComparisonOptions(metrics=("safety",))
    return compare_policies(results, options, paired=paired).scopes[-1].metrics[0].differences


def test_a_threshold_that_changes_the_order_of_two_policies_is_named():
    """150 N are within 200 N and beyond 100 N: the firm policy is the safer one, and then the less safe one."""
    sensitivity = rank(BATCH)
    assert sensitivity.paired
    assert sensitivity.variants[0].order == ("firm", "pushing")
    assert [(change.variant, change.order, change.reversed) for change in sensitivity.changes] == [
        ("Force 100 N", ("pushing", "firm"), (("firm", "pushing"),))
    ]
    table = ranking_table(sensitivity)
    assert [row[-1].text for row in table.rows].count("changed") == 1
    assert table.notes[0] == "The order changes under Force 100 N: pushing above firm."
    assert all(abs(float(row[3].text.replace("−", "-")) - row[3].value) < 0.06 for row in table.rows)  # both in points


def test_another_sign_that_is_not_shown_changes_no_order():
    """Four pairs that differ under each variant: as equal policies would have it in most runs."""
    batch = concatenate_batches([*episodes("firm", (False,) * 8, 150.0), *episodes("pushing", (True, False) * 4, 20.0)])
    sensitivity = rank(batch)
    assert sensitivity.changes == ()
    table = ranking_table(sensitivity)
    assert [row[-1].text for row in table.rows].count("other, not shown") == 1
    assert table.notes[0].startswith("No pair of policies is shown to change order under any of the other 8 variants.")
    assert table.notes[-1].startswith(f"Picked afterwards from {len(VARIANTS)} variants, a verdict errs more often")


def test_each_difference_is_that_of_a_comparison_under_the_variant():
    sensitivity = rank(BATCH)
    for variant, ranking in zip(VARIANTS, sensitivity.variants, strict=True):
        assert ranking.differences == compare_under(variant, BATCH, paired=True)


def test_one_policy_has_no_ranking():
    alone = concatenate_batches(episodes("firm", (False, True), 20.0))
    assert rank(alone) is None


def elsewhere(batches: list[Batch], **changes: object) -> list[Batch]:
    """The same episodes under another header."""
    return [
        replace(batch, headers=(structs.replace(batch.headers[0], benchmark="libero-goal", **changes),))
        for batch in batches
    ]


def test_unknown_safety_is_no_rank():
    """A third policy ran another suite, so that nobody's Safety over all suites is known: no order, and no zero."""
    batch = concatenate_batches(
        [
            *episodes("firm", (False,) * 4, 20.0),
            *episodes("pushing", (True,) * 4, 20.0),
            *elsewhere(episodes("third", (False,) * 4, 20.0)),
        ]
    )
    assert rank(batch) is None


def test_a_suite_without_verdicts_leaves_no_ranking():
    unjudged = [
        replace(
            batch, headers=(structs.replace(header, episode_id=f"goal-{header.episode_id}", outcome="invalid_action"),)
        )
        for policy in ("firm", "pushing")
        for batch in elsewhere(episodes(policy, (False,) * 4, 20.0))
        for header in batch.headers
    ]
    batch = concatenate_batches([BATCH, *unjudged])
    assert rank(batch) is None


def test_other_protocols_are_compared_as_independent_with_the_reason():
    sensitivity = rank(BATCH, protocols=[{"wait": 1}, {"wait": 2}])
    assert (sensitivity.paired, sensitivity.unpaired) == (False, "the sources were run under different protocols")


def stopped(policy: str, **changes: object) -> Batch:
    """An episode that was stopped after a contact of 150 N: unsafe where 100 N are the limit, else unknown."""
    (batch,) = episodes(policy, (False,), 150.0)
    header = structs.replace(
        batch.headers[0], episode_id=f"{policy}-stopped", success=False, outcome="stopped", **changes
    )
    return replace(batch, headers=(header,))


def test_episodes_are_paired_under_every_variant_or_under_none():
    """The stopped episode does not say where it started; it counts under 100 N alone, and then nothing can be paired.

    The first variants and the last would pair.
    """
    batch = concatenate_batches([BATCH, stopped("firm", init_state_index=None)])
    sensitivity = rank(batch)
    assert not sensitivity.paired
    assert "do not say from which initial state they started" in sensitivity.unpaired
    for variant, ranking in zip(VARIANTS, sensitivity.variants, strict=True):
        assert ranking.differences == compare_under(variant, batch, paired=False)
    assert compare_policies(split_by_policy(score(batch, RULES), batch.headers)).paired


def test_a_policy_that_has_episodes_under_some_variants_only_has_no_rank():
    batch = concatenate_batches([BATCH, stopped("halted")])
    assert rank(batch) is None
