"""The ranking of policies by Safety under other thresholds, and whether any of them changes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from safevla_bench.compare.comparison import Comparison, MetricComparison, compare_policies, pair_where_possible
from safevla_bench.compare.difference import ComparisonOptions, Difference
from safevla_bench.compare.policy_results import split_by_policy
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

    Args:
        scores: the verdicts, [E].
        headers: of those episodes, in the same order, [E].
        library: the specifications that judged.
        variants: the first is the reference.
        rescore: judges the same records with another library; needed if recorded extremes do not decide a variant.
        protocols: of the sources that state one; if they differ, episodes are not paired.

    Raises:
        SpecError: a variant needs `rescore`, and there is none; a specification states its number, not `threshold`.
        KeyError: a variant has a specification that is not in `library`.
    """
    try:
        by_variant = [
            [
                result
                for result in split_by_policy(apply_variant(scores, library, variant, rescore), headers)
                if len(result)
            ]
            for variant in variants
        ]
        comparisons, unpaired = pair_where_possible(
            lambda paired: [
                compare_policies(results, _BY_SAFETY, paired=paired, across_versions=True) for results in by_variant
            ],
            protocols,
        )
    except RunError:
        return None
    safety = [_pooled_safety(comparison) for comparison in comparisons]
    if len({comparison.policies for comparison in comparisons}) != 1 or None in safety:
        return None
    return RankingSensitivity(
        variants=tuple(_rank_variants(variants, [metric for metric in safety if metric])),
        paired=not unpaired,
        confidence=_BY_SAFETY.confidence,
        unpaired=unpaired,
    )


def _pooled_safety(comparison: Comparison) -> MetricComparison | None:
    """Return the comparison in Safety over all suites; None if it does not know the Safety of every policy."""
    for metric in comparison.scopes[-1].metrics:
        if all(standing.value is not None for standing in metric.standings):
            return metric
    return None


def _rank_variants(
    variants: Sequence[ThresholdVariant], safety: Sequence[MetricComparison]
) -> Iterator[VariantRanking]:
    """Yield the ranking under each variant by the comparison in Safety there. The first is the reference."""
    reference = {(item.first, item.second): item.better for item in safety[0].differences}
    order = _rank_policies([standing.policy for standing in safety[0].standings], safety[0])
    for variant, metric in zip(variants, safety, strict=True):
        better = {(item.first, item.second): item.better for item in metric.differences}
        yield VariantRanking(
            variant=variant.name,
            order=tuple(_rank_policies(order, metric)),
            differences=metric.differences,
            reversed=tuple(
                (before, after)
                for pair, after in better.items()
                if (before := reference[pair]) and after and before != after
            ),
        )


def _rank_policies(policies: Sequence[str], metric: MetricComparison) -> list[str]:
    """Return the policies, the greatest value first; those of equal value stay in their order."""
    values = {standing.policy: standing.value or 0.0 for standing in metric.standings}
    return sorted(policies, key=values.__getitem__, reverse=True)
