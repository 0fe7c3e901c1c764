"""The ranking of policies by Safety under other thresholds, and whether any of them turns it over."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from safevla_bench.compare.comparison import Comparison, compare_policies
from safevla_bench.compare.difference import ComparisonOptions, Difference
from safevla_bench.compare.policy_results import PolicyResults, split_by_policy
from safevla_bench.errors import RunError
from safevla_bench.judging.rates import SAFETY
from safevla_bench.judging.scores import Scores
from safevla_bench.sensitivity.curves import Rescore, ThresholdVariant, apply_variant
from safevla_bench.specs.spec import Library
from safevla_bench.trajectory.header import Header


class VariantRanking(msgspec.Struct, frozen=True, kw_only=True):
    """The policies under one variant, the safest first, and the difference of each pair of them."""

    variant: str
    order: tuple[str, ...]
    """Policies of equal Safety stand in the order of the first variant."""
    differences: tuple[Difference, ...]
    reversed: tuple[tuple[str, str], ...]
    """Pairs told apart the other way round than under the first variant: the safer one there, the safer one here."""


class RankingSensitivity(msgspec.Struct, frozen=True, kw_only=True):
    """The ranking by Safety over all suites under each variant; the first is the reference."""

    variants: tuple[VariantRanking, ...]
    paired: bool
    confidence: float
    unpaired: str = ""
    """The reason why episodes are not paired."""

    @property
    def changes(self) -> tuple[VariantRanking, ...]:
        """The variants under which some pair of policies is told apart the other way round."""
        return tuple(ranking for ranking in self.variants if ranking.reversed)


def compare_where_possible(
    results: Sequence[PolicyResults],
    options: ComparisonOptions | None = None,
    *,
    protocols: Sequence[Mapping[str, object]] = (),
) -> tuple[Comparison, str]:
    """Return the comparison of paired episodes and "", else that of independent episodes and why they are not paired.

    Episodes of several physics versions are compared too, and the comparison is marked.

    `options`: how to compare; None = the defaults.

    Raises:
        RunError: the policies cannot be compared as independent episodes either; see `compare_policies`.
    """
    return _pair_where_possible(
        lambda paired: compare_policies(results, options, paired=paired, across_versions=True), protocols
    )


Compared = TypeVar("Compared")


def _pair_where_possible(
    compare: Callable[[bool], Compared], protocols: Sequence[Mapping[str, object]]
) -> tuple[Compared, str]:
    if any(protocol != protocols[0] for protocol in protocols):
        return compare(False), "the sources were run under different protocols"
    try:
        return compare(True), ""
    except RunError as error:
        unpaired = error.problem
    return compare(False), unpaired


_BY_SAFETY = ComparisonOptions(metrics=(SAFETY.key,))


def rank_under_variants(
    scores: Scores,
    headers: Sequence[Header],
    library: Library,
    variants: Sequence[ThresholdVariant],
    rescore: Rescore | None = None,
    *,
    protocols: Sequence[Mapping[str, object]] = (),
) -> RankingSensitivity | None:
    """Return the ranking of the policies by Safety over all suites, under each variant of the thresholds.

    None if there is no variant, or the policies cannot be ranked under every variant: there is only one policy, a
    policy has no Safety over all suites, or no two have a common task. Policies without an episode are left out.
    Episodes are paired under every variant or under none, so that only the thresholds differ; `unpaired` says why not.
    A threshold can decide whether episodes pair: a stopped episode counts if it had violated.

    Raises:
        SpecError: a variant needs `rescore`, and there is none; a specification states its number, not `threshold`.
        KeyError: a variant has a specification that is not in `library`.
    """

    def results_by_variant() -> Iterator[list[PolicyResults]]:
        for variant in variants:
            changed = apply_variant(scores, library, variant, rescore)
            yield [result for result in split_by_policy(changed, headers) if len(result)]

    try:
        comparisons, unpaired = _pair_where_possible(
            lambda paired: [
                compare_policies(results, _BY_SAFETY, paired=paired, across_versions=True)
                for results in results_by_variant()
            ],
            protocols,
        )
    except RunError:
        return None
    values = [_pooled_values(comparison) for comparison in comparisons]
    if len({comparison.policies for comparison in comparisons}) != 1 or not all(values):
        return None
    return RankingSensitivity(
        variants=tuple(_rank_variants(variants, comparisons, values)),
        paired=not unpaired,
        confidence=_BY_SAFETY.confidence,
        unpaired=unpaired,
    )


def _rank_variants(
    variants: Sequence[ThresholdVariant],
    comparisons: Sequence[Comparison],
    values: Sequence[Mapping[str, float]],
) -> Iterator[VariantRanking]:
    """Yield the ranking under each variant; `values` are each policy's Safety there. The first is the reference."""
    order = sorted(values[0], key=lambda name: -values[0][name])
    reference = _by_pair(comparisons[0].scopes[-1].metrics[0].differences)
    for variant, comparison, safety in zip(variants, comparisons, values, strict=True):
        differences = comparison.scopes[-1].metrics[0].differences
        yield VariantRanking(
            variant=variant.name,
            order=tuple(sorted(order, key=safety.__getitem__, reverse=True)),
            differences=differences,
            reversed=tuple(_reversed_pairs(reference, differences)),
        )


def _pooled_values(comparison: Comparison) -> dict[str, float]:
    values: dict[str, float] = {}
    for metric in comparison.scopes[-1].metrics:
        for standing in metric.standings:
            if standing.value is None:
                return {}
            values[standing.policy] = standing.value
    return values


def _by_pair(differences: Sequence[Difference]) -> dict[tuple[str, str], Difference]:
    return {(difference.first, difference.second): difference for difference in differences}


def _reversed_pairs(
    reference: Mapping[tuple[str, str], Difference], differences: Sequence[Difference]
) -> list[tuple[str, str]]:
    return [
        (before.better, difference.better)
        for pair, difference in _by_pair(differences).items()
        if (before := reference[pair]).better and difference.better and before.better != difference.better
    ]
