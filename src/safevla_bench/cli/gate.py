"""`safevla gate`: pass or fail a run by its numbers."""

from __future__ import annotations

import json
from pathlib import Path

import click
import msgspec

from safevla_bench import evaluate, gates
from safevla_bench.cli import GATE_FAILED, OK, UNDECIDED, printable
from safevla_bench.cli.options import format_option, judge_options, skip_option, sources_argument
from safevla_bench.files import write_atomically
from safevla_bench.report import judgement
from safevla_bench.report.render import text
from safevla_bench.report.tables import gates as gating

_SHARE = click.FloatRange(0, 1)


@click.command("gate")
@sources_argument
@click.option("--min-sr", type=_SHARE, metavar="SHARE", help="The least success rate, such as 0.8.")
@click.option("--min-safety", type=_SHARE, metavar="SHARE", help="The least Safety.")
@click.option("--max-sbu", type=_SHARE, metavar="SHARE", help="The most successes that are unsafe, of all episodes.")
@click.option("--max-vsi", type=_SHARE, metavar="VALUE", help="The greatest mean severity.")
@click.option(
    "--confidence",
    type=click.FloatRange(0, 100, min_open=True, max_open=True),
    metavar="PERCENT",
    help="Let the whole interval decide; without it the point estimate does.",
)
@click.option(
    "--per",
    type=click.Choice(["policy", "cell", "all"]),
    default="policy",
    show_default=True,
    help="Gate each policy with its suites pooled, each policy × suite, or everything together.",
)
@click.option("--allow-crashed", is_flag=True, help="Let a run pass in which planned episodes were not scored.")
@click.option("--junit", type=click.Path(path_type=Path), metavar="FILE", help="Write the verdicts as JUnit XML.")
@judge_options
@skip_option
@format_option
@click.pass_context
def gate_command(
    context: click.Context,
    sources: tuple[Path, ...],
    min_sr: float | None,
    min_safety: float | None,
    max_sbu: float | None,
    max_vsi: float | None,
    confidence: float | None,
    per: gates.Per,
    allow_crashed: bool,
    junit: Path | None,
    judge: evaluate.Judge,
    skip_invalid: bool,
    form: str,
) -> None:
    r"""Pass or fail runs by their numbers: exit code 0 passed, 1 failed, 3 cannot be told.

    With --confidence a gate passes where the whole interval satisfies it and fails where none of it does; between, it
    cannot be told with so few episodes. Crashed, stopped, skipped or unfinished episodes make a pass undecided unless
    --allow-crashed is given, and no policy or suite passes without a scored episode.

    \b
    For instance:
      safevla gate runs/mine --min-safety 0.9 --max-sbu 0.05 --confidence 95 --junit gate.xml
    """
    asked = [
        gates.Gate("sr", "min", min_sr) if min_sr is not None else None,
        gates.Gate("safety", "min", min_safety) if min_safety is not None else None,
        gates.Gate("sbu", "max", max_sbu) if max_sbu is not None else None,
        gates.Gate("vsi", "max", max_vsi) if max_vsi is not None else None,
    ]
    judged = evaluate.judge(sources, judge, skip_invalid=skip_invalid)
    found = gates.check(
        judged.scores,
        [one for one in asked if one is not None],
        per=per,
        confidence=None if confidence is None else confidence / 100,
        lost=evaluate.lost(judged),
        allow_crashed=allow_crashed,
    )
    said = judgement.line(judged.scores.provenance)
    if junit is not None:
        write_atomically(junit, gating.junit(found, said))
    if form == "json":
        told = {**msgspec.to_builtins(found), "judged_by": judged.scores.provenance}
        click.echo(json.dumps(told, indent=2, allow_nan=False))
    else:
        click.echo(text(gating.table(found, [said])), nl=False)
        if junit is not None:
            click.echo(printable(f"JUnit XML: {junit}"))
    context.exit({"passed": OK, "failed": GATE_FAILED, "undecided": UNDECIDED}[found.verdict])
