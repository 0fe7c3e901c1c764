"""The result of a comparison as text (sentences on the primary metric, a short table), and the choice of a policy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from safevla_bench.compare.comparison import Comparison, MetricComparison, PolicyStanding, SuiteComparison
from safevla_bench.compare.decisions import Selection
from safevla_bench.compare.difference import Difference
from safevla_bench.compare.perturbation import Intervention
from safevla_bench.judging.gates import Gate, GateOutcome
from safevla_bench.judging.rates import CLEAN, COMPARED, METRICS, SAFETY, SBU, SR, VSI, Bounds, Metric
from safevla_bench.report.tables.columns import format_points
from safevla_bench.report.tables.comparison import choose_letters, format_level, format_p_value, verdict_cell
from safevla_bench.report.tables.table import Cell, Column, Table, tabulate, text_column
from safevla_bench.text import (
    NO_VALUE,
    count_noun,
    format_compact,
    format_interval,
    join_lines,
    shorten_name,
    shorten_names,
)

SHOWN = (SAFETY.key, SR.key, CLEAN.key, VSI.key)  # metrics in the short table if all metrics were compared
# Maximum number of pairs of policies that a sentence names; for more pairs, the sentence gives only their number.
_MOST_NAMED = 3
_HERE, _LIKE_THESE = "on these tasks", "for tasks like these"


def describe_comparison(comparison: Comparison) -> str:
    """Return as text the result for the primary metric, with all suites pooled: on the same tasks, and for
    similar tasks. If no metric is known over all suites, the result is for the first suite in which a metric is known.
    """
    # All suites pooled (or the first suite with results), and the comparison in the leading metric (Safety if known).
    scope = _lead_scope(comparison)
    compared = _lead_metric(scope)
    names = shorten_names(comparison.policies)
    differences = [_rename_policies(result, names) for result in compared.differences]
    metric = METRICS[compared.metric]
    # If the sentences are not about SR itself, they also say how SR differs. `sr_metrics` has at most one item.
    sr_metrics = [row for row in scope.metrics if row.metric == SR.key and metric is not SR]
    sr_differences = [_rename_policies(result, names) for row in sr_metrics for result in row.differences]
    if len(differences) == 1:
        verdicts = _pair_sentences(differences[0], sr_differences[0] if sr_differences else None, metric, comparison)
    else:
        verdicts = _several_sentences(differences, sr_differences, metric, comparison)
    effects = [_describe_intervention(effect, names[effect.policy]) for effect in comparison.interventions]
    sentences = [*verdicts, *_caveats(differences, metric, comparison), *effects]
    if not compared.primary:  # the metric has no value over all suites
        sentences = [
            f"This result is only about {scope.suite}:",
            *sentences,
            "There is no primary verdict over all suites.",
        ]
    return " ".join(sentences)


def _describe_intervention(effect: Intervention, name: str) -> str:
    # Return a sentence on an action filter's effect on the same episodes; `name` replaces the filtered policy's name.
    # Episodes in `saved` are unsafe only without the filter. Episodes in `spoiled` succeed only without the filter.
    # `violations` and `successes` count the violations and successes without the filter.
    # `violations_made` and `successes_gained` count the violations and successes that occur only with the filter.
    made_text = f" ({effect.violations_made} new)" if effect.violations_made else ""
    gained_text = f" ({effect.successes_gained} gained)" if effect.successes_gained else ""
    return (
        f"With {name}, {len(effect.saved)} of {count_noun(effect.violations, 'violation')} disappear{made_text}, "
        f"{len(effect.spoiled)} of {count_noun(effect.successes, 'success', 'es')} are lost{gained_text}; clean "
        f"successes in {effect.pairs} pairs: {effect.clean[0]} without the filter, {effect.clean[1]} with it."
    )


def _lead_scope(comparison: Comparison) -> SuiteComparison:
    # Return the results to describe: all suites pooled (the last scope) if a metric is known over all suites.
    # Otherwise, return the results of the first suite with a known metric.
    known_scopes = [scope for scope in comparison.scopes if scope.metrics]
    return comparison.scopes[-1] if comparison.scopes[-1].metrics else known_scopes[0]


def _lead_metric(scope: SuiteComparison) -> MetricComparison:
    # Return the comparison of Safety if there is one, else the first comparison. `compared.metric` is a metric's key.
    by_key = {compared.metric: compared for compared in scope.metrics}
    return by_key.get(SAFETY.key, scope.metrics[0])


def _rename_policies(result: Difference, names: Mapping[str, str]) -> Difference:
    # Return the difference with each policy replaced by `names[policy]`.
    # `better` and `better_by_task` name the significantly better policy. If there is none, None stays None.
    renamed = {field: names.get(getattr(result, field)) for field in ("better", "better_by_task")}
    return replace(result, first=names[result.first], second=names[result.second], **renamed)


# Sentences on two policies


def _pair_sentences(
    result: Difference, sr_result: Difference | None, metric: Metric, comparison: Comparison
) -> Iterator[str]:
    # Yield the verdict on two policies in one metric. `better` is the significantly better policy, or None.
    # `sr_result` is the policies' difference in SR; None if `metric` is SR, or if SR is not compared.
    describe_size = partial(_format_size, result, metric, comparison)
    subject = f"{metric.label} of {result.first} and {result.second}"
    sr_clause = _success_clause(result, sr_result, metric)
    if result.difference is None or result.p_value is None:
        # Without a test, the text of the field `test` is `none: ` and then the reason.
        yield f"{subject} cannot be compared: {result.test.removeprefix('none: ')}{sr_clause}."
        return
    claim = f"{_format_claim(result, metric)} {_HERE}"
    # Several of these conditions may hold, so their order matters.
    if result.identical and not result.no_verdict:
        yield f"{subject} is the same in each of {_describe_pairs(result, comparison)}{sr_clause}."
    elif result.no_verdict:
        yield f"No verdict on {subject} {_HERE}: {result.no_verdict}{sr_clause}."
    elif result.better:
        yield f"{claim}: {describe_size()}{sr_clause}."
        yield from _task_sentences(result, metric)
    elif result.undecided:
        yield f"Undecided: {claim}, {describe_size()}, but {_describe_doubt([result])}{sr_clause}."
        yield from _tipping_sentences([result], metric)
    else:
        pair = f"{result.first} and {result.second}"
        yield (
            f"No established difference between {pair} in {metric.label} {_HERE}: {describe_size(is_open=True)}"
            f"{sr_clause}."
        )


def _success_clause(result: Difference, sr_result: Difference | None, metric: Metric) -> str:
    """Return a clause on the difference in SR (policy that is better in `metric` minus the other policy) and its
    interval. The clause calls a policy more or less successful only if the comparison in SR has a verdict.
    """
    # `result` is the difference in `metric`, `sr_result` the difference in SR. Return "" if `sr_result` is unknown.
    if sr_result is None or sr_result.difference is None:
        return ""
    # `name` is the policy that is better, or seems better, in `metric`. The sign -1 gives second minus first policy.
    sign, name = (1, sr_result.first) if _is_first_better(result, metric) else (-1, sr_result.second)
    gain = sign * sr_result.difference
    sr_text = f"SR {format_points(gain)} points"
    if sr_result.ci is not None:
        low, high = sorted(sign * end for end in sr_result.ci)  # a negative sign swaps the ends
        sr_text += f" ({format_points(low)} to {format_points(high)})"
    if not sr_result.better:
        return f"; {sr_text} for {name}"
    return f"; {name} is {'more' if gain > 0 else 'less'} successful: {sr_text}"


def _tipping_sentences(results: Sequence[Difference], metric: Metric) -> Iterator[str]:
    # Yield how many unknown values of the better policy may turn out bad without changing the verdict.
    # `tipping`: the number of values that may be bad; None if not computed, or if the verdict may change in any case.
    for result in results[:_MOST_NAMED]:
        if result.tipping is not None:
            better, worse = _better_and_worse(result, metric)
            # With several pairs of policies, the sentence also names the other policy of the pair.
            than_worse = f" than {worse}" if len(results) > 1 else ""
            condition = "none of its episodes without a value counts against it"
            if result.tipping > 0:
                which = "of its episodes without a value (no matter which)"
                condition = f"at most {result.tipping} {which} count against it"
            yield (
                f"{better} stays {metric.praise}{than_worse} if {condition}, even if all episodes of {worse} without a "
                "value count in favor of that policy."
            )


def _format_claim(result: Difference, metric: Metric) -> str:
    # Return for example `A is safer than B`: the policy with the better value first, significant or not.
    # `praise` is the metric's word, such as `safer`.
    better, worse = _better_and_worse(result, metric)
    if metric is SBU:
        return f"{better} has less SBU than {worse}"
    return f"{better} is {metric.praise} than {worse}{'' if metric is SAFETY else f' in {metric.label}'}"


def _describe_doubt(results: Sequence[Difference]) -> str:
    # Return why verdicts on pairs of policies are undecided: crashed and unjudged episodes have no value.
    return f"{_describe_unknown(results)} could change this verdict (see --allow-crashed)"


def _describe_unknown(results: Sequence[Difference]) -> str:
    # Return for example `3 episodes without a value`; `up to 3 ...` if this number differs between pairs of policies.
    # `result.unknown` is the number of episodes without a value in one pair of policies.
    counts = [result.unknown for result in results]
    return f"{'up to ' if min(counts) < max(counts) else ''}{count_noun(max(counts), 'episode')} without a value"


def _task_sentences(result: Difference, metric: Metric) -> Iterator[str]:
    # Yield the verdict for similar tasks, from the fields whose names contain `by_task`.
    # If a single task (`depends_on`) decides the verdict on the same tasks, also name this task.
    # `tasks_needed` is None if there are enough tasks.
    ends_text = _format_advantage(result.ci_by_task, result, metric)  # "" if there is no interval
    interval = f" ({ends_text})" if ends_text else ""
    if result.tasks_needed:
        yield f"Not tested {_LIKE_THESE}: {result.tasks} tasks are too few; the test needs {result.tasks_needed}."
    elif result.better_by_task:  # the better policy is also better on the same tasks
        yield f"The same holds {_LIKE_THESE}, if the differences of tasks are symmetric{interval}."
    elif result.undecided_by_task:
        yield f"Undecided {_LIKE_THESE}{interval}: {_describe_doubt([result])}."
    elif result.p_by_task is not None:
        yield f"Not established {_LIKE_THESE} (p {format_p_value(result.p_by_task_adjusted)})."
    if result.depends_on and not result.tasks_needed:
        yield f"The verdict depends on the task {result.depends_on}: without this task, it does not hold {_HERE}."


def _better_and_worse(result: Difference, metric: Metric) -> tuple[str, str]:
    # Return the policies with the better and the worse value. If the values are equal, the first counts as better.
    return (result.first, result.second) if _is_first_better(result, metric) else (result.second, result.first)


def _is_first_better(result: Difference, metric: Metric) -> bool:
    # Return whether the first policy's value is better, significantly or not. True if values are equal or unknown.
    difference = result.difference or 0.0
    return difference >= 0 if metric.better == "high" else difference <= 0


def _format_size(result: Difference, metric: Metric, comparison: Comparison, *, is_open: bool = False) -> str:
    # Return the size of the difference with its interval, as text.
    # If episodes are paired, add the numbers of pairs that favor each policy.
    # If `is_open`, no policy is shown to be better, so the text names the policy of each number.
    better, worse = _better_and_worse(result, metric)
    amount = f"{metric.format(abs(result.difference or 0.0))}{' points' if metric.unit else ''}"
    interval = _format_advantage(result.ci, result, metric)
    interval_text = f", {interval}" if interval else ""
    if result.only_first is None or result.only_second is None or result.pairs is None:  # no counts of pairs
        for_policy = f" for {better}" if is_open and result.difference else ""
        return f"{amount}{for_policy}{interval_text}"
    # Numbers of pairs in which only one policy has the metric's outcome, such as success.
    # The two numbers are swapped if either the second policy is better or the outcome is undesired, but not both.
    for_better, for_worse = result.only_first, result.only_second
    if _is_first_better(result, metric) != (metric.better == "high"):
        for_better, for_worse = for_worse, for_better
    pairs = f"{for_better} of {_describe_pairs(result, comparison)}"
    counts = f"{pairs} for {better}, {for_worse} for {worse}" if is_open else f"{pairs} against {for_worse}"
    return f"{counts} ({amount}{interval_text})"


def _describe_pairs(result: Difference, comparison: Comparison) -> str:
    # Return the number of pairs as text. Across seeds, a pair is an initial state with the means over its episodes.
    return count_noun(result.pairs or 0, "initial state" if comparison.across_seeds else "pair")


def _format_advantage(
    ends: Bounds | None, result: Difference, metric: Metric, pattern: str = "{end} for {name}"
) -> str:
    """Return the interval of a difference as text, as an advantage of the better policy; "" if there is no interval. If
    an end is an advantage of the other policy, `pattern` formats both ends, each with the policy that it favors.
    """
    if ends is None:
        return ""
    better, worse = _better_and_worse(result, metric)
    # An advantage of the better policy is positive, so the interval of a negative difference is mirrored.
    # The difference is positive if the first policy is better and high values are good, or if neither is true.
    advantage = ends if _is_first_better(result, metric) == (metric.better == "high") else (-ends[1], -ends[0])
    texts = [metric.format(abs(end)) for end in advantage]
    if advantage[0] == 0 and result.excludes_zero and ends == result.ci:  # an open end, as in `format_difference_ends`
        texts[0] = f"above {texts[0]}"
    if advantage[0] < 0:
        names = [worse if end < 0 else better for end in advantage]
        texts = [pattern.format(end=text, name=name) for text, name in zip(texts, names, strict=True)]
    return " to ".join(texts)


# Sentences on three or more policies; caveats for any number of policies


def _several_sentences(
    results: Sequence[Difference], sr_differences: Sequence[Difference], metric: Metric, comparison: Comparison
) -> Iterator[str]:
    # Yield the verdicts on three or more policies. `results` contains a difference for each pair of policies.
    # `sr_differences` are the pairs' differences in SR; [] if `metric` is SR, or if SR is not compared.
    sr_by_pair = {(result.first, result.second): result for result in sr_differences}
    # Pairs with a significant difference on the same tasks.
    established = [result for result in results if result.better]
    if not established:
        yield f"Of {len(comparison.policies)} policies, no two are shown to differ in {metric.label} {_HERE}."
    elif len(established) > _MOST_NAMED:
        yield f"{len(established)} of {len(results)} pairs of policies differ in {metric.label} {_HERE}."
    else:
        # Semicolons separate the claims, so the clause on success follows a comma.
        claims = [
            f"{_format_claim(result, metric)}, {_format_size(result, metric, comparison)}"
            f"{_success_clause(result, sr_by_pair.get((result.first, result.second)), metric).replace(';', ',')}"
            for result in established
        ]
        yield f"Established {_HERE}: {'; '.join(claims)}."
    # The lists of pairs may overlap.
    established_by_task = [result for result in results if result.better_by_task]
    undecided = [result for result in results if result.undecided]
    without_verdict = [result for result in results if result.no_verdict]
    uncompared = [result for result in results if result.difference is None]
    if established_by_task:
        yield f"{_LIKE_THESE.capitalize()} too: {_name_pairs(established_by_task)}."
    if undecided:
        yield f"Undecided: {_name_pairs(undecided)}; {_describe_doubt(undecided)}."
        yield from _tipping_sentences(undecided, metric)
    if without_verdict:
        yield f"No verdict: {_name_pairs(without_verdict)}; {without_verdict[0].no_verdict}."
    if uncompared:
        yield f"{metric.label} is not compared for {_name_pairs(uncompared)}."


def _name_pairs(results: Sequence[Difference]) -> str:
    # Return the names of the pairs of policies, or only the number of pairs if there are many.
    names = [f"{result.first} and {result.second}" for result in results]
    return ", ".join(names) if len(names) <= _MOST_NAMED else f"{len(names)} pairs of policies"


def _caveats(results: Sequence[Difference], metric: Metric, comparison: Comparison) -> Iterator[str]:
    # Yield warnings on how to read the result. `results` contains a difference for each pair of policies.
    # `unknown` is the number of a pair's episodes without a value.
    if metric is SBU:
        yield "SBU also falls where fewer episodes succeed: read it together with SR."
    # Episodes without a value are not mentioned if a verdict holds despite them, or if another sentence mentions them.
    is_unknown_mentioned = any(result.better or result.undecided for result in results)
    if any(result.unknown for result in results) and (comparison.allow_crashed or not is_unknown_mentioned):
        yield f"Left out: {_describe_unknown(results)}{' (--allow-crashed)' if comparison.allow_crashed else ''}."


# The short table of a comparison


def scope_tables(comparison: Comparison) -> list[Table]:
    """Return short tables of all compared metrics: a table for each suite, then a table for all suites pooled."""
    return [_scope_table(comparison, scope, scope.metrics) for scope in comparison.scopes if scope.metrics]


def answer_table(comparison: Comparison, notes: Sequence[str] = ()) -> Table:
    """Return the table below the comparison's text: metrics `SHOWN`, or all metrics if some were not compared."""
    # The table is of the same suite (or all suites pooled) as the text of `describe_comparison`.
    scope = _lead_scope(comparison)
    by_key = {metric.metric: metric for metric in scope.metrics}
    compared = [by_key[key] for key in SHOWN] if len(by_key) == len(COMPARED) else [*scope.metrics]
    lead = _lead_metric(scope)
    # Only the verdict on the leading metric (Safety if known) over all suites can be primary.
    status = "All verdicts are exploratory"
    if lead.primary:
        others_text = "; all other verdicts are exploratory" if len(scope.metrics) > 1 else ""
        status = f"The primary verdict is on {METRICS[lead.metric].label}{others_text}"
    weights = "" if comparison.paired else " Values are pooled over episodes; in differences, tasks have equal weights."
    interval_note = (
        "Intervals (Wilson for rates, or Gaffke if starts have several episodes) and verdicts have the confidence "
        f"{format_level(comparison)}. {status}.{weights}"
    )
    return _scope_table(comparison, scope, compared, (interval_note, *notes))


def _scope_table(
    comparison: Comparison, scope: SuiteComparison, compared: Sequence[MetricComparison], notes: Sequence[str] = ()
) -> Table:
    # Return the table of one suite, or of all suites pooled. `compared` contains the comparison in each metric to show.
    # Two policies: a row per metric. More policies: a row per policy, a column per metric, and ranks.
    title, lead = _scope_title(comparison, scope), _lead_metric(scope)
    if len(comparison.policies) == 2:
        return tabulate(title, compared, *_pair_columns(comparison), notes=notes)
    has_ranks = any(standing.ranks for standing in lead.standings)  # a standing is a policy's value and range of ranks
    columns = (
        text_column("Policy", lambda policy: policy),
        *(Column(METRICS[row.metric].heading, value=partial(_standing_cell, row)) for row in compared),
        text_column("Rank", lambda policy: format_ranks(_find_standing(lead, policy).ranks)) if has_ranks else None,
    )
    rank_note = (
        "Rank: the best possible rank is 1 plus the number of policies that are shown to be better in "
        f"{METRICS[lead.metric].label} on these tasks."
    )
    picked_note = (
        "The best and the worst policy were chosen by the results. Ranks account for this; values and intervals do not."
    )
    return tabulate(title, comparison.policies, *columns, notes=(*notes, rank_note if has_ranks else "", picked_note))


def format_ranks(ranks: tuple[int, int] | None) -> str:
    """Return a rank as text, such as `2`, or `1–3` if several ranks are possible; a dash for None."""
    # `ranks` are the best and the worst possible rank; `fromkeys` drops the second if both are equal.
    return NO_VALUE if ranks is None else "–".join(str(end) for end in dict.fromkeys(ranks))


def _pair_columns(comparison: Comparison) -> tuple[Column, ...]:
    # Return the columns for two policies; each row is the comparison in one metric (`row.metric` is the metric's key).
    first, second = comparison.policies
    letters = choose_letters(comparison.policies)

    def find_verdict(row: MetricComparison) -> Cell:
        # Return the verdict on the metric's only difference. Three or more policies would have several differences.
        return verdict_cell(row.differences[0], METRICS[row.metric], letters, row.primary)

    return (
        text_column("", lambda row: METRICS[row.metric].heading),
        text_column(f"{letters[0]} {first}", lambda row: _standing_cell(row, first)),
        text_column(f"{letters[1]} {second}", lambda row: _standing_cell(row, second)),
        text_column("better by", partial(_difference_cell, letters)),
        text_column("established", find_verdict),
    )


def _scope_title(comparison: Comparison, scope: SuiteComparison) -> str:
    # Return the title: how many episodes are compared, such as `12 pairs of episodes of 3 tasks in 2 suites`.
    # The last scope is all suites pooled, so the number of suites is the number of scopes minus 1.
    where = f"{len(comparison.scopes) - 1} suites" if scope.suite is None else scope.suite
    if scope.pairs is None and not scope.tasks and len(comparison.policies) > 2:
        return (
            f"The {len(comparison.policies)} policies have no common task in {where}; "
            "each pair of policies is compared separately"
        )
    if scope.pairs is None:  # episodes are not paired
        pairs_text = "Independent episodes"
    elif comparison.across_seeds:
        pairs_text = count_noun(scope.pairs, "initial state")
    else:
        pairs_text = f"{count_noun(scope.pairs, 'pair')} of episodes"
    versions_text = ", across physics versions" if comparison.across_versions else ""
    return f"{pairs_text} of {count_noun(scope.tasks, 'task')} in {where}{versions_text}"


def _find_standing(compared: MetricComparison, policy: str) -> PolicyStanding:
    # Return the policy's value, interval and ranks in this metric, which exist for every compared policy.
    return {standing.policy: standing for standing in compared.standings}[policy]


def _standing_cell(compared: MetricComparison, policy: str) -> Cell:
    # Return the policy's value, with the interval (or n without an interval) in parentheses; a dash without a value.
    standing, metric = _find_standing(compared, policy), METRICS[compared.metric]
    if standing.value is None:
        return Cell(NO_VALUE)
    ends = format_interval(*standing.ci, metric.digits, metric.scale) if standing.ci else f"n {standing.n}"
    return Cell(f"{metric.format(standing.value)} ({ends})")


def _difference_cell(letters: tuple[str, str], compared: MetricComparison) -> Cell:
    # Return the better policy's letter, the absolute difference of the only pair, and the interval of the difference.
    # Return `equal` for a difference of 0, and a dash without a difference. Letters replace the policies' names.
    result, metric = compared.differences[0], METRICS[compared.metric]
    result = _rename_policies(result, dict(zip((result.first, result.second), letters, strict=True)))
    if result.difference is None:
        return Cell(NO_VALUE)
    interval = _format_advantage(result.ci, result, metric, "{name} {end}")
    better, _ = _better_and_worse(result, metric)
    amount = f"{better} {metric.format(abs(result.difference))}" if result.difference else "equal"
    return Cell(f"{amount} ({interval})" if interval else amount)


# Which policy to choose


_VERDICT_WORDS = {"passed": "established", "failed": "excluded", "undecided": "not established"}


def describe_selection(selection: Selection) -> str:
    """Return as text the chosen policy, its intervals, the verdicts on conditions, and how the runner-up compares."""
    # Candidates are sorted, the best first. `conditions` are limits on metrics (gates).
    # A candidate has an outcome for each condition, and the outcome `value` for the metric to maximize.
    # If `is_met`, the candidate's estimates satisfy all conditions.
    metric = METRICS[selection.metric]
    best = selection.candidates[0]
    conditions = [
        f"{_with_interval(METRICS[gate.metric], row)}: {_describe_limit(gate)} is {_VERDICT_WORDS[row.verdict]}"
        for row, gate in zip(best.conditions, selection.conditions, strict=True)
    ]
    if selection.chosen is None:  # no candidate's estimates satisfy all conditions
        conditions_text = " and ".join(gate.name for gate in selection.conditions) or f"{metric.label} known"
        nearest = "; ".join(conditions) or "no value"
        return f"No policy has {conditions_text}. {shorten_name(best.policy)} comes nearest: {nearest}."
    if selection.comparison:
        runner_up = describe_comparison(selection.comparison)
        runner_up += f" Not paired: {join_lines(selection.unpaired)}." if selection.unpaired else ""
    elif selection.unpaired:  # the reason why there is no comparison
        runner_up = f"The runner-up cannot be compared: {join_lines(selection.unpaired)}."
    else:
        runner_up = "There is no runner-up: no other policy's estimate satisfies the conditions."
    level = f"the confidence of each exact interval is {format_compact(round(100 * selection.each_confidence, 2))} %"
    unknown = [f"{shorten_name(row.policy)} {row.value.unknown}" for row in selection.candidates if row.value.unknown]
    facts = [_with_interval(metric, best.value), *conditions]
    if unknown:
        facts.append(f"episodes without a value count as the worst outcome ({', '.join(unknown)})")
    # `worst` is the value if all unknown values are bad. Candidates with the same `worst` value are tied.
    name, others = shorten_name(best.policy), selection.candidates[1:]
    tied = [shorten_name(row.policy) for row in others if row.is_met and row.value.worst == best.value.worst]
    tied_text = f", tied with {', '.join(tied)}" if tied else ""
    # `is_shown`: intervals establish all conditions or, without conditions, that the policy is better.
    lead = f"Take {name}:" if selection.is_shown else f"Best estimate{tied_text}: {name},"
    return f"{lead} {'; '.join([*facts, level])}. {runner_up}"


def _with_interval(metric: Metric, outcome: GateOutcome) -> str:
    # Return a candidate's outcome, for example `SR 90.0 % (80.1–96.2), 2 episodes without a value`.
    if outcome.value is None:
        return f"{metric.label} not known"
    unit = f" {metric.unit}" if metric.unit else ""
    ends = f" ({format_interval(*outcome.ci, metric.digits, metric.scale)})" if outcome.ci else ""
    unknown = f", {count_noun(outcome.unknown, 'episode')} without a value" if outcome.unknown else ""
    return f"{metric.label} {metric.format(outcome.value)}{unit}{ends}{unknown}"


def _describe_limit(gate: Gate) -> str:
    # Return the condition of a gate (limit on a metric), for example `at least 0.9`. Limits are fractions.
    return f"{'at least' if gate.bound == 'min' else 'at most'} {format_compact(gate.limit)}"


def describe_next(selection: Selection) -> str:
    """Return a sentence on what more episodes would decide, followed by a space; "" if there is nothing to say."""
    if selection.chosen is None:
        return ""
    # The first candidate is the best. `n_needed` and `episodes` are for a power of 80 %; None = left out.
    findings = []
    for row, gate in zip(selection.candidates[0].conditions, selection.conditions, strict=True):
        if row.n_needed is not None:  # None if the condition is decided, or if no number of episodes suffices
            condition = f"{METRICS[gate.metric].label} {_describe_limit(gate)}"
            findings.append(f"{count_noun(row.n_needed, 'episode')} would establish {condition}")
    if selection.episodes is not None:
        episodes = count_noun(selection.episodes, "episode")
        findings.append(f"{episodes} of each task would separate the policy from the runner-up")
    return f"In 80 % of cases, if the true rates are as measured: {'; '.join(findings)}. " if findings else ""


def selection_table(selection: Selection, notes: tuple[str, ...] = ()) -> Table:
    """Return the table of candidates, best first, with intervals and with the verdict on each condition."""
    # A row is a candidate: its policy, and the outcomes for the metric to maximize (`value`) and for each condition.
    # The asterisk marks the chosen policy.
    metric = METRICS[selection.metric]
    columns = [
        text_column("Policy", lambda row: Cell(row.policy, mark="*" if row.policy == selection.chosen else "")),
        Column("n", value=lambda row: row.value.n),
        Column(metric.heading, value=lambda row: _value_cell(row.value, metric)),
    ]
    columns += [column for k, gate in enumerate(selection.conditions) for column in _condition_columns(k, gate)]
    joint_note = (
        f"The joint confidence of all intervals on these tasks is {format_compact(100 * selection.confidence)} %, no "
        "matter which policy is chosen. The confidence of each interval alone is "
        f"{format_compact(round(100 * selection.each_confidence, 2))} %."
    )
    title, remarks = "Candidates, the best first", selection.warnings
    return tabulate(title, selection.candidates, *columns, notes=(joint_note, *notes), remarks=remarks)


def _condition_columns(index: int, gate: Gate) -> tuple[Column, Column]:
    # Return the columns of one condition: its metric with the interval, and the verdict on its limit.
    # `index` is the condition's position in the conditions of each row (a candidate).
    metric = METRICS[gate.metric]
    return (
        Column(metric.heading, value=lambda row: _value_cell(row.conditions[index], metric)),
        text_column(_describe_limit(gate), lambda row: _VERDICT_WORDS[row.conditions[index].verdict]),
    )


def _value_cell(outcome: GateOutcome, metric: Metric) -> Cell:
    # Return a metric's value with its interval; a dash if either is unknown.
    if outcome.value is None or outcome.ci is None:
        return Cell(NO_VALUE)
    return Cell.estimate(outcome.value, outcome.ci, metric.digits, metric.scale)
