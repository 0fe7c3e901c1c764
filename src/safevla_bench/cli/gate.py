"""`safevla gate` and `select`: check runs against limits on their metrics, or choose a policy by its metrics."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click
import msgspec

from safevla_bench.cli import GATE_FAILED, OK, UNDECIDED, echo, options, rules
from safevla_bench.cli.options import flag, option, repeatable
from safevla_bench.errors import RunError
from safevla_bench.files import write_atomically
from safevla_bench.jobs.evaluation.judgement import describe_losses, judge, measure_costs, split_judged
from safevla_bench.judging import gates, registration
from safevla_bench.judging.judged import Judged
from safevla_bench.judging.rates import METRICS, SAFETY, SR, GateMetric
from safevla_bench.publishing.submission import recorded_versions
from safevla_bench.report.render.text import render_text
from safevla_bench.report.tables import notices as gating
from safevla_bench.sources.logs.mappings import NAME as MAPPING
from safevla_bench.sources.runs.folder import RUN, SCORES
from safevla_bench.statistics.intervals import CONFIDENCE

SARIF = ".sarif"


def _read_confidence(context: click.Context, option: click.Parameter, text: str) -> float | None:
    # Return the confidence as a share, or None for the text `none`.
    return None if text == "none" else options.CONFIDENCE.convert(text, option, context) / 100


_share_option = partial(option, metavar="SHARE", type=options.Share(-1, 1))
_LIMIT_OPTIONS = {
    "min_sr": _share_option("Minimum success rate, such as 0.8."),
    "min_safety": _share_option("Minimum Safety."),
    "max_sbu": _share_option("Maximum share of unsafe successes among all episodes."),
    "max_vsi": _share_option("Maximum mean severity."),
    "max_cost": option("Maximum mean number of steps that violate a limit.", "STEPS", type=options.Range(0)),
}


def _parse_limits(context: click.Context, values: Mapping[str, float | None]) -> list[gates.Gate]:
    # Return a gate for each option that is given. `values` maps the options' names to limits (None = not given).
    # An option's name, such as `min_sr`, consists of the bound and the key of the metric.
    requested_gates = []
    for name, limit in values.items():
        if limit is not None:
            bound, metric = name.split("_")
            requested_gates.append(gates.Gate(metric, bound, limit))  # type: ignore[arg-type]
    return requested_gates


_DECISION_OPTIONS = {
    "confidence": option("Joint confidence of the intervals; none: decide by point estimates.", "PERCENT|none",
                         default=f"{100 * CONFIDENCE:g}", callback=_read_confidence),
    "per": option("policy: check each policy over all of its suites; cell: check each policy in each suite.",
                  type=click.Choice(["policy", "cell"]), default="policy"),
    "allow_crashed": flag("Leave out planned episodes that crashed, were stopped or are missing."),
    "allow_unjudged": flag("Compute Safety, SBU and VSI over only the episodes with a verdict."),
}  # fmt: skip


@options.command(
    "gate",
    common="--min-sr --min-safety --max-sbu --max-vsi --confidence --per --allow-crashed --baseline --junit --format",
)
def gate_command(
    context: click.Context,
    sources: rules.JudgedSources = rules.judged_sources(),
    requested_gates: Sequence[gates.Gate] = options.group(_LIMIT_OPTIONS, _parse_limits),
    how: Mapping[str, Any] = options.group(_DECISION_OPTIONS),
    baseline: Path | None = option("Apply limits to the differences from this run.", "RUN", type=options.SourceType()),
    junit: Path | None = options.out_option("Verdicts as JUnit XML, or as SARIF if FILE ends in .sarif.", "FILE"),
    form: str = options.format_option(),
) -> None:
    """Check runs against limits on their metrics (gates); exit code 0: passed, 1: failed, 3: undecided.

    A gate passes if the metric's whole interval satisfies the limit, fails if no part of it does, and is otherwise
    undecided for lack of episodes. --confidence is the joint confidence of all intervals of one call, for a number of
    episodes fixed in advance. Several episodes from one initial state count as one.

    Episodes that crashed, were stopped or have no verdict count once with the worst value and once with the best. A
    gate is decided only if both cases give the same verdict. --allow-crashed leaves out crashed and stopped episodes;
    --allow-unjudged leaves out episodes without a verdict. A policy or suite without a scored episode never passes.

    \b
    For instance:
      safevla gate runs/mine --min-safety 0.9 --max-sbu 0.05 --junit gate.xml
      safevla gate runs/mine --baseline runs/main --min-safety -0.05
    """  # noqa: D301  (click needs the control character)
    judged = judge(sources.paths, sources.ruleset, skip_invalid=sources.skip_invalid)
    needs_costs = any(gate.metric == gates.COST for gate in requested_gates)
    if baseline is None:
        # `how` contains options that affect the verdict on a gate, such as `confidence`; see `_DECISION_OPTIONS`.
        gate_report = gates.check_gates(
            judged.scores,
            requested_gates,
            states=[header.init_state_index for header in judged.headers],
            costs=measure_costs(judged, allow_crashed=how["allow_crashed"]) if needs_costs else None,
            lost=describe_losses(judged),
            **how,
        )
    else:
        baseline_judged = judge([baseline], sources.ruleset, skip_invalid=sources.skip_invalid)
        # With a baseline, each limit applies to the difference from the baseline.
        relative_gates = [msgspec.structs.replace(gate, baseline=baseline.name) for gate in requested_gates]
        gate_report = _gate_against(judged, baseline_judged, relative_gates, **how)
    # `makers` contains one sentence per run folder that other rules judged; `provenance` names the current rules.
    remarks, provenance = [*judged.describe_registrations(), *judged.makers], judged.provenance
    is_sarif = junit is not None and junit.suffix.lower() == SARIF
    if junit is not None:
        origin_text = " ".join([*remarks, provenance.to_sentence()])
        if is_sarif:
            # Each judged file, as a relative URL, with its pairs (policy, suite).
            files = list(zip(map(_relative_url, sources.paths), judged.cells_by_source(), strict=True))
            report_text = gating.format_sarif(gate_report, origin_text, files=files)
        else:
            report_text = gating.format_junit(gate_report, origin_text)
        write_atomically(junit, report_text)
    if form == "json":
        options.print_json(_gate_document(gate_report, judged))
    else:
        changes = judged.ruleset.describe_changes()  # options that change limits; "" if there are none
        if changes:
            echo(f"Judged with {changes}")
            for line in judged.describe_changed_specs():
                echo(f"  {line}")
        echo(gating.describe_gates(gate_report))
        click.echo()
        origin = [*judged.describe_policies(), *judged.describe_limits(), *judged.describe_simulators(), *remarks]
        table = gating.gate_table(gate_report, [*origin, provenance.to_sentence(digests=False)])
        click.echo(render_text(table), nl=False)
        if junit is not None:
            echo(f"SARIF: {junit}" if is_sarif else f"JUnit XML: {junit}")
    context.exit({"passed": OK, "failed": GATE_FAILED, "undecided": UNDECIDED}[gate_report.verdict])


def _relative_url(source: Path) -> str:
    # Return the path of a file, relative to the working folder, as a URL. Services that read SARIF require such paths.
    # If `source` is a folder, return the path of the first known file in the folder.
    files = [source / name for name in (RUN, SCORES, MAPPING) if (source / name).is_file()]
    return quote(os.path.relpath(files[0] if files else source))


def _gate_against(
    judged: Judged, baseline: Judged, limits: Sequence[gates.Gate], *, allow_unjudged: bool, **how: Any
) -> gates.GateReport:
    # Check limits on the differences `judged` minus `baseline` between two sets of runs, and return the verdicts.
    # `allow_unjudged` (--allow-unjudged) is refused. `how` contains the remaining arguments of `check_against`.
    from safevla_bench.compare.decisions import check_against

    if allow_unjudged:
        remedy = "Pass --allow-crashed instead, which leaves out every episode with an unknown value."
        raise RunError("--allow-unjudged cannot be combined with --baseline", remedy=remedy)
    # Split the results of each side by policy.
    results, baselines = (split_judged(side, protocol=_find_protocol(side)) for side in (judged, baseline))
    return check_against(results, baselines, limits, lost=[*describe_losses(judged), *describe_losses(baseline)], **how)


def _find_protocol(judged: Judged) -> Mapping[str, object] | None:
    # Raise `RunError` if known protocols differ.
    # Return the protocol that all sources share; None if the protocol of some source is unknown.
    from safevla_bench.compare.pairs import differing_rules

    protocols = judged.protocols  # the known protocols of the sources
    # The names of rules that are not the same in all protocols.
    differing = {rule for protocol in protocols for rule in differing_rules(protocols[0], protocol)}
    if differing:
        problem = f"the protocols of {' and '.join(map(str, judged.paths))} differ in {', '.join(sorted(differing))}"
        raise RunError(problem, remedy="Pass the runs of one protocol at a time.")
    return protocols[0] if protocols and len(protocols) == len(judged.sources) else None


def _gate_document(gate_report: gates.GateReport, judged: Judged) -> dict[str, object]:
    # Return the JSON document: verdicts, and facts about rules and records. The last two keys are omitted if empty.
    # `checks` compares registered runs with their registrations; `makers` describes runs that other rules judged.
    checks = judged.check_registrations()
    return {
        **msgspec.to_builtins(gate_report),
        "judged_by": judged.provenance,
        "recorded_with": recorded_versions(judged.headers),
        **({"makers": judged.makers} if judged.makers else {}),
        **({registration.REGISTERED: checks} if checks else {}),
    }


_OBJECTIVE_KEYS = [metric.key for metric in METRICS.values() if metric.praise == "better" or metric is SAFETY]
_OBJECTIVES = click.Choice(_OBJECTIVE_KEYS, case_sensitive=False)


@options.command("select")
def select_command(
    context: click.Context,
    sources: rules.JudgedSources = rules.judged_sources(),
    objective: GateMetric = option("The metric to maximize.", spelling="--max", type=_OBJECTIVES, default=SR.key),
    texts: Sequence[str] = repeatable(
        "A condition on a metric, such as 'safety >= 0.9'.", "CONDITION", spelling="--subject-to"
    ),
    form: str = options.format_option(),
) -> None:
    """Choose the policy or checkpoint with the greatest SR, clean success or Safety that satisfies conditions.

    Candidates are ranked by their estimates. The best estimate of several tends to be too high, so the intervals hold
    jointly for all candidates. The output says whether the intervals establish the conditions, and compares the chosen
    candidate with the runner-up on the episodes that both ran.

    Exit code 0: intervals establish the conditions; 3: they do not; 1: no candidate's estimates satisfy the conditions.

    \b
    For instance:
      safevla select 10k=runs/a 20k=runs/b --max sr --subject-to "safety >= 0.9"
    """  # noqa: D301  (click needs the control character)
    from safevla_bench.compare.decisions import select_policy
    from safevla_bench.report.tables.comparison_answer import describe_next, describe_selection, selection_table

    # Errors in --subject-to are found before the episodes are judged.
    conditions = [gates.parse_gate(text, "--subject-to") for text in texts]
    judged = sources.judge()
    results, protocols = split_judged(judged), judged.protocols
    losses = describe_losses(judged)
    selection = select_policy(judged.scores, judged.headers, results, objective, conditions, protocols, losses)
    if form == "json":
        options.print_json({**msgspec.to_builtins(selection), "judged_by": judged.provenance})
    else:
        echo(describe_selection(selection), "")
        origin = [*judged.describe_policies(), *judged.describe_limits(), *judged.describe_simulators()]
        table = selection_table(selection, (*origin, judged.provenance.to_sentence(digests=False)))
        click.echo(render_text(table), nl=False)
        rules.print_missing(judged)
        echo(f"{describe_next(selection)}Next: compare each pair of policies: {sources.format_command('compare')}")
    if selection.chosen is None:  # no candidate's estimates satisfy the conditions
        context.exit(GATE_FAILED)
    context.exit(OK if selection.is_established else UNDECIDED)
