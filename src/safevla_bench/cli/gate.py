"""`safevla gate`: pass or fail runs by their numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import click
import msgspec

from safevla_bench.cli import GATE_FAILED, OK, UNDECIDED, echo, options, rules
from safevla_bench.files import write_atomically
from safevla_bench.jobs.evaluation.judgement import describe_losses, judge
from safevla_bench.judging import gates
from safevla_bench.judging.judged import Judged
from safevla_bench.judging.rates import SAFETY, SBU, SR, VSI, GateMetric, Metric
from safevla_bench.judging.registration import REGISTERED
from safevla_bench.publishing.submission import recorded_versions
from safevla_bench.report.render.text import render_text
from safevla_bench.report.tables import notices as gating
from safevla_bench.statistics.intervals import CONFIDENCE

SARIF = ".sarif"


def _read_confidence(context: click.Context, option: click.Parameter, text: str) -> float | None:
    if text == "none":
        return None
    return options.PERCENT.convert(text, option, context) / 100


_LIMITS: Mapping[Metric, str] = {
    SR: "The least success rate, such as 0.8.",
    SAFETY: "The least Safety.",
    SBU: "The most successes that are unsafe, of all episodes.",
    VSI: "The greatest mean severity.",
}
"""Metric -> the help of the option with its limit."""


def _bound(metric: Metric) -> Literal["min", "max"]:
    return "min" if metric.better == "high" else "max"


def _parse_limits(context: click.Context, values: Mapping[str, float | None]) -> list[gates.Gate]:
    limits = {metric: values[f"{_bound(metric)}_{metric.key}"] for metric in _LIMITS}
    return [
        gates.Gate(cast(GateMetric, metric.key), _bound(metric), limit)
        for metric, limit in limits.items()
        if limit is not None
    ]


@options.command(
    "gate",
    common="--min-sr --min-safety --max-sbu --max-vsi --confidence --per --sequential --allow-crashed --allow-unjudged "
    "--junit --format",
)
@options.sources_argument
@options.option_group(
    [
        options.option(f"--{_bound(metric)}-{metric.key} SHARE", line, type=options.SHARE)
        for metric, line in _LIMITS.items()
    ],
    "requested_gates",
    _parse_limits,
)
@options.option(
    "--confidence PERCENT|none",
    "Of the intervals that decide; none lets the point estimate decide.",
    default=f"{100 * CONFIDENCE:g}",
    callback=_read_confidence,
)
@options.flag("--sequential", "Use intervals that hold however often you check as episodes come.")
@options.option(
    "--per",
    "Gate each policy with its suites pooled, or each policy × suite.",
    type=click.Choice(["policy", "cell"]),
    default="policy",
)
@options.flag("--allow-crashed", "Leave out planned episodes that crashed, stopped or are missing.")
@options.flag("--allow-unjudged", "Gate Safety, SBU and VSI over the episodes with a verdict alone.")
@options.option("--junit FILE", "Write the verdicts as JUnit XML, or as SARIF into FILE.sarif.", type=options.FILE)
@rules.judged_sources
@options.format_option()
@click.pass_context
def gate_command(
    context: click.Context,
    /,
    sources: rules.JudgedSources,
    requested_gates: Sequence[gates.Gate],
    junit: Path | None,
    form: str,
    **how: Any,
) -> None:
    """Pass or fail runs by their numbers: exit code 0 passed, 1 failed, 3 undecided.

    A gate passes if the whole interval satisfies it and fails if none of it does. Between, it is undecided with so few
    episodes. All intervals of one call hold together with --confidence, for a number of episodes fixed in advance. With
    --sequential they hold however often you check a growing run. Several episodes of one initial state count as one.

    Crashed and stopped episodes enter at their worst and at their best unless --allow-crashed leaves them out, and
    episodes without a verdict unless --allow-unjudged does: a gate is decided where both give one verdict. No policy or
    suite passes without a scored episode.

    \b
    For instance:
      safevla gate runs/mine --min-safety 0.9 --max-sbu 0.05 --junit gate.xml
    """  # noqa: D301  (click wants the character itself)
    judged = judge(sources.paths, sources.ruleset, skip_invalid=sources.skip_invalid)
    gate_report = gates.check_gates(
        judged.scores,
        requested_gates,
        states=[header.init_state_index for header in judged.headers],
        lost=describe_losses(judged),
        **how,
    )
    remarks = [*judged.describe_registrations(), *judged.makers, judged.provenance.to_sentence()]
    if junit is not None:
        write = gating.format_sarif if junit.suffix == SARIF else gating.format_junit
        write_atomically(junit, write(gate_report, " ".join(remarks)))
    if form == "json":
        options.print_json(_gate_document(gate_report, judged))
    else:
        if changes := judged.ruleset.describe_changes():
            echo(f"Judged with {changes}")
            for line in judged.describe_changed_specs():
                echo(f"  {line}")
        echo(gating.describe_gates(gate_report))
        click.echo()
        origin = [*judged.describe_policies(), *judged.describe_limits(), *judged.describe_simulators(), *remarks]
        click.echo(render_text(gating.gate_table(gate_report, origin)), nl=False)
        if junit is not None:
            echo(f"{'SARIF' if junit.suffix == SARIF else 'JUnit XML'}: {junit}")
    context.exit({"passed": OK, "failed": GATE_FAILED, "undecided": UNDECIDED}[gate_report.verdict])


def _gate_document(gate_report: gates.GateReport, judged: Judged) -> dict[str, object]:
    checks = judged.check_registrations()
    return {
        **msgspec.to_builtins(gate_report),
        "judged_by": msgspec.to_builtins(judged.provenance),
        "recorded_with": recorded_versions(judged.headers),
        **({"makers": judged.makers} if judged.makers else {}),
        **({REGISTERED: msgspec.to_builtins(checks)} if checks else {}),
    }
