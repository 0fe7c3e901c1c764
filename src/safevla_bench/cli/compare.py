"""`safevla compare` and `sensitivity`: differences between policies and the influence of thresholds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import click
import msgspec

from safevla_bench.cli import echo, options, rules
from safevla_bench.cli.options import flag, option, repeatable
from safevla_bench.cli.progress import show_status
from safevla_bench.compare import sample_size
from safevla_bench.compare.comparison import compare_policies
from safevla_bench.compare.decisions import RankingSensitivity, rank_under_variants
from safevla_bench.compare.difference import ComparisonOptions
from safevla_bench.compare.perturbation import compare_changes
from safevla_bench.compare.policy_results import PolicyResults, comparison_warnings
from safevla_bench.errors import RunError
from safevla_bench.jobs.evaluation.judgement import load_policy_results, make_rescorer
from safevla_bench.jobs.evaluation.outputs import compare_with_paper, comparison_tables
from safevla_bench.judging.judged import Judged
from safevla_bench.judging.rates import COMPARED
from safevla_bench.judging.registration import REGISTERED, check_registrations
from safevla_bench.judging.ruleset import Ruleset
from safevla_bench.report.published import PREFIX, find_paper_cells
from safevla_bench.report.render import TableFormat, render_html, render_tables
from safevla_bench.report.render.text import render_text
from safevla_bench.report.tables import sensitivity as varying
from safevla_bench.report.tables.cells import Roster
from safevla_bench.report.tables.comparison import change_table, describe_changes
from safevla_bench.report.tables.comparison_answer import describe_comparison
from safevla_bench.report.tables.firmness import describe_firmness, firmness_tables
from safevla_bench.report.tables.host_means import host_mean_table, host_means, mean_documents
from safevla_bench.report.tables.published import (
    COMPARED_RATES,
    describe_published,
    published_table,
)
from safevla_bench.report.tables.readings import describe_readings, reading_summary_table, reading_table
from safevla_bench.report.tables.sensitivity import describe_sensitivity, range_table
from safevla_bench.report.tables.table import Table
from safevla_bench.sensitivity.curves import (
    SweepRequest,
    ThresholdVariant,
    ablate_thresholds,
    cell_curves,
    compare_readings,
    parse_sweep,
    sweep_threshold,
    sweep_variants,
)
from safevla_bench.sources.runs.sources import open_sources
from safevla_bench.text import escape_controls


@options.command(
    "compare",
    common="--policy --across-seeds --unpaired --allow-crashed --margin --metric --confidence --full --format --plan",
)
def compare_command(
    policies: tuple[str, ...] = repeatable("Only this policy.", "NAME", spelling="--policy"),
    across_seeds: bool = flag("Pair by initial state alone, for the same states run with other seeds, or several."),
    across_versions: bool = flag("Compare episodes of several physics versions too; the output is marked."),
    unpaired: bool = flag("Take the episodes as independent, task by task."),
    sequential: bool = flag(
        "Use p-values and intervals of these tasks that hold however often you compare growing runs."
    ),
    allow_crashed: bool = flag("Let verdicts stand that episodes without a value could change."),
    margin: float | None = option(
        "Say where a policy is not worse by so many points (hundredths of VSI), or both are equivalent.",
        "POINTS",
        type=options.Range(0, 100, min_open=True),
    ),
    metrics: tuple[str, ...] = option(
        "Only this metric. Repeatable; all by default.", spelling="--metric", multiple=True, type=click.Choice(COMPARED)
    ),
    confidence: float = option(
        "Of intervals; tests are made at its complement.", "PERCENT", type=options.PERCENT, default=95.0
    ),
    by_change: bool = flag(
        "Compare each suite with itself changed, such as libero-goal-swap, policy by policy.", spelling="--changes"
    ),
    full: bool = flag("Show every suite and metric, with tests and notes."),
    form: TableFormat = options.format_option("md", "csv", "tex", "html"),
    plan: float | None = option(
        "Plan how many episodes of each policy it takes to see a difference of so many percentage points; needs no "
        "SOURCE.",
        "POINTS",
        section=options.PLANNING,
        type=options.PERCENT,
    ),
    assumed: tuple[str, ...] = repeatable(
        "What the plan supposes: baseline=0.8, the rate of one policy; power=0.8, the chance of seeing the difference; "
        "discordant=SHARE, of pairs in which the policies differ, from a pilot run, else as if outcomes were "
        "unrelated; tasks=10; task_spread=SHARE, the standard deviation of the difference between tasks; episodes=N: "
        "say what N of each task can show, not how many it takes.",
        "NAME=VALUE",
        spelling="--assume",
        section=options.PLANNING,
    ),
    sources: rules.JudgedSources = rules.judged_sources(options.OPTIONAL_SOURCES),
) -> None:
    """Compare the policies of archives or run folders; of one source that holds several, those.

    Sources of one policy that have no suite in common, such as runs on two simulators, count as one run of it.
    Episodes are paired by suite, task, initial state and seed. Sources that did not run the same episodes, or not with
    the same environment seed, horizon and protocol, are refused; --unpaired takes them as independent samples of the
    tasks that both ran, which needs more episodes for the same answer. Pairs that crashed on one side are left out and
    counted. If episodes that crashed, were cut short or have no verdict could change a verdict, it is undecided unless
    --allow-crashed is given. Episodes of several physics versions (MuJoCo, robosuite, the benchmark's package) are
    refused unless --across-versions is given.

    Policies are told apart on tasks like these (sign flips of the tasks' differences) where there is more than one
    task; that takes six tasks or more. Safety over all suites is the primary verdict; the others are exploratory.

    --plan says how many episodes of each task it takes to tell two rates apart, or what --assume episodes=N can show.
    The difference is taken to that side of the baseline which needs more episodes. Pairs need fewer, the fewer of them
    differ; a comparison of a pilot run shows that share (only A + only B, over the pairs).

    --changes pairs episodes of a suite with those of the same suite with a change (SUITE-CHANGE, as of LIBERO-PRO) by
    task, initial state and seed. A suite that two sources hold is the control: nothing is changed.

    A SOURCE paper:NAME, such as paper:pi0.5, is what the paper prints for a policy. One policy of a run is shown beside
    it on the suites of both: exploratory, unpaired, without a verdict.
    """
    if assumed and plan is None:
        raise click.UsageError("--assume is for a plan: pass --plan POINTS with it.")
    if plan is not None:
        if sources.paths:
            raise click.UsageError("--plan plans what is not yet run and takes no SOURCE.")
        if sequential:
            raise click.UsageError("--plan plans a fixed number; `safevla eval --until` looks as it comes.")
        if form not in ("text", "json"):
            raise click.UsageError(f"--plan has no --format {form}.")
        _print_plan({"difference": plan / 100, "confidence": confidence / 100}, assumed, form)
        return
    options.require_sources(sources.paths)
    printed = [path for path in sources.paths if str(path).startswith(PREFIX) and not path.exists()]
    if printed:
        _compare_with_paper(sources, printed, policies, metrics or COMPARED_RATES, form, full=full)
        return
    paths, ruleset = sources.paths, sources.ruleset
    if by_change:
        _compare_changes(sources, policies, confidence, form)
        return
    how = ComparisonOptions(
        metrics=metrics or COMPARED,
        confidence=confidence / 100,
        margin=None if margin is None else margin / 100,
        sequential=sequential,
        allow_crashed=allow_crashed,
    )
    with show_status("comparing"):
        entrants = load_policy_results(paths, ruleset, policies=policies, skip_invalid=sources.skip_invalid)
        comparison_report = compare_policies(
            entrants, how, paired=not unpaired, across_seeds=across_seeds, across_versions=across_versions
        )
    if form == "json":
        options.print_json({**msgspec.to_builtins(comparison_report), **_describe_origin(entrants, paths, ruleset)})
        return
    tables = comparison_tables(comparison_report, entrants, paths, ruleset, full=full)
    _print_tables(describe_comparison(comparison_report), tables, form)
    if form == "text" and not full:
        click.echo("Suites, further metrics, tests and their notes: --full.")


def _compare_changes(
    sources: rules.JudgedSources, policies: Sequence[str], confidence: float, form: TableFormat
) -> None:
    paths, ruleset, context = sources.paths, sources.ruleset, click.get_current_context()
    others = [name for name in _OF_EPISODES if name != "confidence"]
    if given := next((name for name in [*others, "metrics", "full"] if options.is_given(context, name)), None):
        name = given.replace("_", "-").replace("metrics", "metric")
        raise click.UsageError(f"--{name} has no meaning beside --changes, which compares SR and Safety in pairs.")
    with show_status("comparing"):
        results = load_policy_results(paths, ruleset, policies=policies, skip_invalid=sources.skip_invalid, join=False)
        report = compare_changes(results, confidence / 100)
    if form == "json":
        options.print_json({**msgspec.to_builtins(report), **_describe_origin(results, paths, ruleset)})
        return
    notes = dict.fromkeys(comparison_warnings(results, 0, paired=True))
    table = change_table(report, (*notes, ruleset.provenance().to_sentence()))
    _print_tables(describe_changes(report), [table], form)


_OF_EPISODES = ("across_seeds", "across_versions", "unpaired", "sequential", "allow_crashed", "margin", "confidence")
"""Options of `compare` that need the episodes of both sides."""


def _compare_with_paper(
    sources: rules.JudgedSources,
    printed: Sequence[Path],
    policies: Sequence[str],
    metrics: Sequence[str],
    form: TableFormat,
    *,
    full: bool,
) -> None:
    context, own = click.get_current_context(), tuple(path for path in sources.paths if path not in printed)
    if given := next((name for name in _OF_EPISODES if options.is_given(context, name)), None):
        raise click.UsageError(f"--{given.replace('_', '-')} is about episodes, and {printed[0]} has no records.")
    if len(printed) > 1 or not own:
        raise click.UsageError(f"One {PREFIX}NAME, and a SOURCE of yours: safevla compare SOURCE {printed[0]}.")
    find_paper_cells(str(printed[0]))
    with show_status("comparing"):
        judged = replace(sources, paths=own).judge()
        compared = compare_with_paper(judged, str(printed[0]), policies, metrics)
    if form == "json":
        options.print_json({**compared.to_document(), "judged_by": judged.provenance})
        return
    _print_tables(describe_published(compared), [published_table(compared, full=full)], form)
    if form == "text" and not full and any(len(row.suites) > 1 for row in compared.rows):
        click.echo("By suite: --full.")


def _print_tables(answer: str, tables: Sequence[Table], form: TableFormat) -> None:
    """Print the answer, then the tables; in LaTeX as a comment, in HTML as the title, and not in CSV."""
    if form == "csv" and len(tables) > 1:
        raise RunError(f"{len(tables)} tables do not fit into one CSV file", remedy="Leave --full out.")
    if form == "html":
        click.echo(render_html(tables, answer), nl=False)
        return
    if form != "csv":
        click.echo(f"{'% ' if form == 'tex' else ''}{escape_controls(answer)}\n")
    click.echo(render_tables(tables, form), nl=False)


def _print_plan(rates: Mapping[str, float], assumed: Sequence[str], form: str) -> None:
    plan = sample_size.plan_sample_size(
        options.parse_settings("--assume", assumed, sample_size.SampleSizeRequest, **rates)
    )
    options.print_json(plan) if form == "json" else click.echo(plan.to_text())


def _describe_origin(entrants: Sequence[PolicyResults], sources: Sequence[Path], ruleset: Ruleset) -> dict[str, object]:
    provenance = ruleset.provenance()
    checks = check_registrations(open_sources(sources), provenance)
    simulators = {entrant.name: entrant.simulator_by_suite for entrant in entrants}
    return {"simulators": simulators, "judged_by": provenance, **({REGISTERED: checks} if checks else {})}


@options.command("sensitivity")
def sensitivity_command(
    sources: rules.JudgedSources = rules.judged_sources(),
    sweeps: tuple[str, ...] = repeatable(
        "Move one threshold: NAME is a specification, a family or `force`; GRID is LOW:HIGH:COUNT or A,B,C in the "
        "specification's unit.",
        "NAME=GRID",
        spelling="--sweep",
    ),
    readings: bool = flag("Judge by every reading of the paper, and tell what changes."),
    physics: bool = flag("Replay a run's episodes under varied physics, and tell which verdicts are firm."),
    episodes: int | None = option(
        "--physics: so many episodes, chosen by their names; else all.", "N", type=options.POSITIVE
    ),
    workers: int = option(
        "--physics: processes that replay. Results do not depend on it.", "N", default=1, type=options.POSITIVE
    ),
    full: bool = flag("Show every suite and variant, means of hosts, and the ranking."),
    form: str = options.format_option(),
) -> None:
    """Show how far Safety, SBU and VSI depend on the thresholds, or on how the paper is read.

    Without --sweep these are the nine variants of the paper's Table 9, with the means of each host beside the paper's;
    with it, one threshold after another over its grid. The numbers come from the worst values that were recorded, and
    equal a full re-score. With several policies the last table says whether their ranking by Safety changes, with
    paired intervals of the differences. Auxiliary entries (robocasa-pnp) have means of their own.

    With --readings every record is judged by each of the libraries default, paper-text, paper-as-run and net-force, and
    with the depth of the paper's prose; docs/fidelity.md says where they differ and why.

    With --physics the recorded actions are played again in the simulator, under the recorded physics, which must give
    the record bit for bit, and then under small changes of it: docs/firmness.md. The replays are kept in the run folder
    as they end; the same command goes on where it was broken off.

    \b
    For instance:
      safevla sensitivity runs/mine --sweep non_target_max_disp=0.002:0.05:25
      safevla sensitivity runs/mine --readings
      safevla sensitivity runs/mine --physics --episodes 50 --workers 4
    """  # noqa: D301  (click wants the character itself)
    if readings + bool(sweeps) + physics > 1:
        raise click.UsageError("--readings, --sweep and --physics are different analyses: choose one.")
    given = [name for name in ("episodes", "workers") if options.is_given(click.get_current_context(), name)]
    if given and not physics:
        raise click.UsageError(f"--{given[0]} is about replays: pass --physics with it.")
    if physics:
        _vary_physics(sources, episodes, workers, form, full=full)
        return
    requests = [parse_sweep(sweep, sources.ruleset.library) for sweep in sweeps]
    with show_status("judging"):
        judged = sources.judge()
        document: object
        if readings:
            rescore, has_net = make_rescorer(judged), judged.has_net_forces
            document = compare_readings(judged.scores, judged.library, rescore, has_net_forces=has_net)
            answer = describe_readings(document)
            tables = [reading_table(document) if full else reading_summary_table(document)]
        elif sweeps:
            document, answer, tables = _sweep_thresholds(judged, requests, full=full)
        else:
            roster = Roster(privileged=judged.privileged)
            document, answer, tables = _ablate_thresholds(judged, roster, full=full)
    if form == "json":
        options.print_json(document)
        return
    echo(f"{answer}\n")
    click.echo("\n".join(render_text(table) for table in tables), nl=False)
    rules.print_missing(judged)
    for sentence in [
        *judged.describe_policies(),
        *judged.describe_limits(),
        *judged.describe_forces(),
        *judged.describe_simulators(),
        judged.provenance.to_sentence(),
    ]:
        click.echo(escape_controls(sentence))
    if not full:
        other = "" if readings or sweeps else " One threshold: --sweep NAME=LOW:HIGH:COUNT."
        what = "suite and metric" if readings else "suite, variant and pair of policies"
        click.echo(f"Next: --full shows every {what}.{other}")


def _vary_physics(sources: rules.JudgedSources, episodes: int | None, workers: int, form: str, *, full: bool) -> None:
    """Print how firm the verdicts of a run are; the replays that its file lacks are made."""
    from safevla_bench.jobs.physics import vary_physics

    with show_status("judging"):
        judged = sources.judge()
    with show_status("replaying") as update:
        observer = partial(_show_replays, update)
        file = vary_physics(judged, workers=workers, episodes=episodes, observer=observer)
    if form == "json":
        options.print_json(file)
        return
    echo(f"{describe_firmness(file.episodes())}\n")
    tables = firmness_tables(file, judged.scores.specs, full=full)
    click.echo("\n".join(render_text(table) for table in tables), nl=False)
    for sentence in (*judged.describe_simulators(), judged.provenance.to_sentence()):
        click.echo(escape_controls(sentence))
    run = sources.paths[0]
    echo(f"Next: safevla score {run} puts the marks on its page{'' if full else '; --full shows every suite'}")


def _show_replays(update: Callable[[str], None], done: int, name: str) -> None:
    update(f"{done} replays done, {name}")


def _sweep_thresholds(
    judged: Judged, requests: Sequence[SweepRequest], *, full: bool
) -> tuple[object, str, list[Table]]:
    """Return the sweeps with the policies' ranking along each, for JSON; a sentence on each; and their tables."""
    rescore = make_rescorer(judged)
    swept = [sweep_threshold(judged.scores, judged.library, request, rescore) for request in requests]
    rankings = [_rank_policies(judged, sweep_variants(judged.library, request), is_sweep=True) for request in requests]
    document = [
        {**msgspec.to_builtins(result), "ranking": msgspec.to_builtins(ranking)}
        for result, ranking in zip(swept, rankings, strict=True)
    ]
    as_it_stands = cell_curves(judged.scores, [judged.scores])
    variants = [varying.name_variants(result, as_it_stands) for result in swept]
    answers = [f"{result.name}: " if len(swept) > 1 else "" for result in swept]
    answers = [
        f"{name}{describe_sensitivity(of_sweep, ranking)}"
        for name, of_sweep, ranking in zip(answers, variants, rankings, strict=True)
    ]
    if full:
        tables = [varying.sweep_table(result) for result in swept]
        return document, "\n".join(answers), [*tables, *(varying.ranking_table(rank) for rank in rankings if rank)]
    pooled = zip(variants, swept, strict=True)
    return document, "\n".join(answers), [varying.sweep_summary_table(of_it, result.name) for of_it, result in pooled]


def _rank_policies(
    judged: Judged, variants: Sequence[ThresholdVariant], *, is_sweep: bool = False
) -> RankingSensitivity | None:
    """Return the ranking of the policies under each variant; None where they cannot be ranked, as a single policy."""
    as_it_stands = [ThresholdVariant("as it stands", {})] if is_sweep else []
    return rank_under_variants(
        judged.scores,
        judged.headers,
        judged.library,
        [*as_it_stands, *variants],
        make_rescorer(judged),
        protocols=judged.protocols,
    )


def _ablate_thresholds(judged: Judged, roster: Roster, *, full: bool) -> tuple[object, str, list[Table]]:
    """Return the paper's nine variants with means of each host and the ranking, for JSON; a sentence; and tables."""
    ablated = ablate_thresholds(judged.scores, judged.library, make_rescorer(judged))
    means = host_means(ablated, judged.ruleset.registry, roster)
    ranking = _rank_policies(judged, ablated.variants)
    document = {
        **msgspec.to_builtins(ablated),
        "means": mean_documents(means),
        "ranking": msgspec.to_builtins(ranking),
    }
    answer = describe_sensitivity(ablated, ranking)
    if not full:
        return document, answer, [range_table(ablated)]
    of_means = [host_mean_table(means, ablated, roster)] if means else []
    return (
        document,
        answer,
        [
            varying.variant_table(ablated),
            *of_means,
            *([varying.ranking_table(ranking)] if ranking else []),
        ],
    )
