"""`safevla compare`, `safevla sensitivity` and `safevla samplesize`: what the numbers can and cannot tell."""

from __future__ import annotations

import json
from pathlib import Path

import click
import msgspec

from safevla_bench import compare, evaluate, sensitivity
from safevla_bench.cli.options import format_option, judge_options, skip_option, sources_argument
from safevla_bench.cli.progress import working
from safevla_bench.cli.score import say_missing
from safevla_bench.compare import sample_size
from safevla_bench.report import judgement
from safevla_bench.report.render import text
from safevla_bench.report.tables import comparison
from safevla_bench.report.tables import sensitivity as varying

confidence_option = click.option(
    "--confidence",
    type=click.FloatRange(0, 100, min_open=True, max_open=True),
    default=95.0,
    show_default=True,
    metavar="PERCENT",
    help="Of intervals; tests are made at its complement.",
)


@click.command("compare")
@sources_argument
@click.option("--policy", "policies", multiple=True, metavar="NAME", help="Only this policy. Repeatable.")
@click.option(
    "--across-seeds", is_flag=True, help="Pair by initial state alone, for the same states run with another seed."
)
@click.option("--unpaired", is_flag=True, help="Take the episodes as independent: Newcombe's interval, an exact test.")
@click.option(
    "--test",
    type=click.Choice(["barnard", "boschloo"]),
    default="barnard",
    show_default=True,
    help="The test of rates under --unpaired.",
)
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    type=click.Choice(compare.METRICS),
    help="Only this metric. Repeatable; all by default.",
)
@confidence_option
@click.option("--seed", default=0, show_default=True, help="Of the bootstrap and the re-labelling tests.")
@judge_options
@skip_option
@format_option
def compare_command(
    sources: tuple[Path, ...],
    policies: tuple[str, ...],
    across_seeds: bool,
    unpaired: bool,
    test: compare.Test,
    metrics: tuple[str, ...],
    confidence: float,
    seed: int,
    judge: evaluate.Judge,
    skip_invalid: bool,
    form: str,
) -> None:
    """Compare the policies of archives or run folders; of one source that holds several, those.

    Sources of one policy that have no suite in common, such as runs on two simulators, count as one run of it.
    Episodes are paired by suite, task, initial state and seed. Sources that did not run the same episodes, or not with
    the same environment seed, horizon and protocol, are refused; --unpaired takes them as independent samples, which
    needs more episodes for the same answer. Pairs that crashed on one side are left out and counted.
    """
    how = compare.How(metrics=metrics or compare.METRICS, confidence=confidence / 100, seed=seed, test=test)
    with working("comparing"):
        entrants = evaluate.contestants(sources, judge, policies=policies, skip_invalid=skip_invalid)
        found = compare.compare(entrants, how, paired=not unpaired, across_seeds=across_seeds)
    told = evaluate.judged_by(judge)
    if form == "json":
        _json({**msgspec.to_builtins(found), "judged_by": told})
        return
    click.echo(text(comparison.standings(found, [judgement.line(told)])))
    click.echo(text(comparison.differences(found)), nl=False)


@click.command("sensitivity")
@sources_argument
@click.option(
    "--sweep",
    "sweeps",
    multiple=True,
    metavar="NAME=GRID",
    help="Move one threshold: NAME is a specification, a family or `force`; GRID is LOW:HIGH:COUNT or A,B,C in the "
    "specification's unit. Repeatable.",
)
@judge_options
@skip_option
@format_option
def sensitivity_command(
    sources: tuple[Path, ...], sweeps: tuple[str, ...], judge: evaluate.Judge, skip_invalid: bool, form: str
) -> None:
    r"""Show how far Safety, SBU and VSI depend on the thresholds.

    Without --sweep these are the nine variants of the paper's Table 9; with it, one threshold after another over its
    grid. The numbers come from the worst values that were recorded, and equal a full re-score.

    \b
    For instance:
      safevla sensitivity runs/mine --sweep non_target_max_disp=0.002:0.05:25
    """
    specs, _ = judge.load()
    wanted = [sensitivity.asked(one, specs) for one in sweeps]
    with working("judging"):
        judged = evaluate.judge(sources, judge, skip_invalid=skip_invalid)
        rescore = evaluate.rescorer(judged, judge)
        swept = [sensitivity.sweep(judged.scores, specs, one, rescore) for one in wanted]
        ablated = None if sweeps else sensitivity.ablate(judged.scores, specs, rescore)
    if form == "json":
        _json(swept if ablated is None else ablated)
        return
    tables = [varying.sweep(one) for one in swept] if ablated is None else [varying.ablation(ablated)]
    click.echo("\n".join(text(one) for one in tables), nl=False)
    say_missing(judged)
    click.echo(judgement.line(judged.scores.provenance))


@click.command("samplesize")
@click.option(
    "--detect",
    required=True,
    type=click.FloatRange(0, 100, min_open=True, max_open=True),
    metavar="POINTS",
    help="The difference to see, in percentage points.",
)
@click.option("--baseline", default=0.8, show_default=True, type=click.FloatRange(0, 1), help="The rate of one policy.")
@click.option(
    "--power",
    default=0.8,
    show_default=True,
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    help="The chance of seeing it where it is there.",
)
@click.option("--paired", is_flag=True, help="Only plan pairs: both policies on the same episodes.")
@click.option(
    "--discordant",
    type=click.FloatRange(0, 1, min_open=True),
    metavar="SHARE",
    help="Share of pairs in which the policies differ, from a pilot run; else a range is shown.",
)
@confidence_option
@format_option
def samplesize_command(
    detect: float,
    baseline: float,
    power: float,
    paired: bool,
    discordant: float | None,
    confidence: float,
    form: str,
) -> None:
    """Plan how many episodes of each policy it takes to tell two rates apart, independent and paired.

    The difference is taken to that side of the baseline which needs more episodes. Pairs need fewer, the fewer of them
    differ; `safevla compare` of a pilot run shows that share (only A + only B, over the pairs).
    """
    wanted = sample_size.Wanted(
        difference=detect / 100,
        baseline=baseline,
        power=power,
        confidence=confidence / 100,
        discordant=discordant,
        only_paired=paired or discordant is not None,
    )
    found = sample_size.plan(wanted)
    if form == "json":
        _json(found)
        return
    click.echo("\n".join(text(one) for one in comparison.plan(found)), nl=False)


def _json(document: object) -> None:
    click.echo(json.dumps(msgspec.to_builtins(document), indent=2, allow_nan=False))
