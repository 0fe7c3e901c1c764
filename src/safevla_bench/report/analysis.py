"""The analyses that a report adds to its metrics: comparison, sensitivity, and the times and bodies of violations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from safevla_bench.compare.comparison import Comparison, compare_where_possible
from safevla_bench.compare.policy_results import PolicyResults, Protocols, split_by_policy
from safevla_bench.compare.series import SeriesComparison, compare_series, find_series
from safevla_bench.errors import RunError, SpecError
from safevla_bench.explain.bodies import BodyViolation, find_bodies
from safevla_bench.explain.exposure import CellOnset, measure_onsets
from safevla_bench.judging.ruleset import Ruleset
from safevla_bench.judging.scores import IntervalMethod, Scores
from safevla_bench.sensitivity.curves import Rescore, ThresholdAblation, ablate_thresholds
from safevla_bench.specs.spec import Library
from safevla_bench.trajectory.batch import Batch

MOST_COMPARED = 5  # maximum number of policies that a report compares; `safevla compare` has no limit


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """The analyses of a report. Each field is None or empty if there is nothing to show."""

    comparison: Comparison | None = None
    uncompared: str = ""  # why there is no comparison
    unpaired: str = ""  # why the comparison does not pair episodes
    series: SeriesComparison | None = None  # comparison of training checkpoints, found by the policies' names
    ablation: ThresholdAblation | None = None
    onsets: Sequence[CellOnset] = ()
    bodies: Sequence[BodyViolation] | None = None  # bodies involved in violations


def analyze_scores(
    scores: Scores,
    batch: Batch,
    ruleset: Ruleset,
    rescore: Rescore | None = None,
    *,
    privileged: Sequence[str | None] = (),
    protocols: Protocols = (),
    bodies: Sequence[BodyViolation] | None = None,
    uncounted: Mapping[str | None, Sequence[str]] = {},
) -> Analysis:
    """Return all analyses of the scores; they are empty if no episode is counted. No file is written.

    Args:
        scores: the verdicts.
        batch: the records, in the order of `scores`. If `bodies` is given, only headers, times and lengths are used.
        ruleset: the specifications and the tags of tasks.
        rescore: function that judges the same records by another specification library; None = use only `scores`.
        privileged: the policies that saw simulator state which no real robot has.
        protocols: the evaluation protocols of the sources, if known; if they differ, episodes are not paired.
        bodies: the bodies of all violations; None = find them in the records.
        uncounted: policy -> phrases about its planned episodes without scores; if any, its comparisons and trends
            have no verdict.
    """
    if not scores.is_counted.any():  # all episodes were stopped or crashed
        return Analysis()
    policies = split_by_policy(scores, batch.headers, privileged=privileged, uncounted=uncounted)
    return Analysis(
        **_compare_policies(policies, protocols),
        series=_compare_series(policies, scores.intervals, protocols),
        ablation=_ablate_thresholds(scores, ruleset.library, rescore),
        onsets=measure_onsets(scores, batch.dt_s, batch.lengths, batch.stamps_s),
        bodies=list(find_bodies([batch], scores, ruleset)) if bodies is None else bodies,
    )


def _compare_policies(policies: Sequence[PolicyResults], protocols: Protocols) -> dict[str, Any]:
    # Return fields of `Analysis`: `comparison` and `unpaired`. If nothing is compared, return the reason, `uncompared`.
    # Return {} if fewer than two policies have episodes.
    with_episodes = [policy for policy in policies if len(policy)]
    if len(with_episodes) < 2:
        return {}
    if len(with_episodes) > MOST_COMPARED:
        return {"uncompared": f"{len(with_episodes)} policies are too many for a report: use safevla compare."}
    try:
        comparison, unpaired = compare_where_possible(with_episodes, protocols=protocols)
    except RunError as error:
        return {"uncompared": f"No comparison: {error.problem}."}
    return {"comparison": comparison, "unpaired": unpaired}


def _compare_series(
    policies: Sequence[PolicyResults], intervals: IntervalMethod, protocols: Protocols
) -> SeriesComparison | None:
    # Return the comparison of training checkpoints. Return None without a series, or if the runs cannot be compared.
    # In a series, the policies' names differ only in a number, such as the training step.
    runs = find_series(policies)
    with suppress(RunError):  # the report has no section on the series if the runs cannot be compared
        return compare_series(runs, intervals=intervals, protocols=protocols) if runs else None
    return None


def _ablate_thresholds(scores: Scores, library: Library, rescore: Rescore | None) -> ThresholdAblation | None:
    # Return the metrics under the paper's threshold variants. `rescore` judges the same records with another library.
    # If `rescore` is None, only `scores` are used. Return None if the library does not allow the variants.
    with suppress(SpecError):  # raised if the library and the paper's threshold variants have different units
        return ablate_thresholds(scores, library, rescore)
    return None
