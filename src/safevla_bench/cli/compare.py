"""`safevla compare` and `sensitivity`: differences between policies and the influence of thresholds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click
import msgspec

from safevla_bench.cli import echo, options, rules
from safevla_bench.cli.options import flag, option, repeatable
from safevla_bench.cli.progress import show_run_progress, show_status
from safevla_bench.compare import decisions, difference, perturbation, sample_size, series
from safevla_bench.compare.comparison import compare_policies
from safevla_bench.compare.policy_results import PolicyResults, comparison_warnings, simulator_cells
from safevla_bench.errors import RunError
from safevla_bench.jobs.evaluation.judgement import describe_uncounted, load_policy_results, make_rescorer
from safevla_bench.jobs.evaluation.outputs import compare_with_paper, comparison_tables
from safevla_bench.judging.judged import Judged
from safevla_bench.judging.provenance_marks import Cell, describe_simulators
from safevla_bench.judging.registration import REGISTERED, check_registrations
from safevla_bench.report.published import PREFIX, find_paper_cells
from safevla_bench.report.render import TableFormat, render_html, render_tables
from safevla_bench.report.tables import cells, comparison_answer, firmness, published, sensitivity
from safevla_bench.report.tables.comparison import change_table, describe_changes
from safevla_bench.report.tables.series import describe_trends
from safevla_bench.report.tables.table import Table
from safevla_bench.sensitivity import curves
from safevla_bench.sources.runs.sources import open_sources

_ASSUME_HELP = (
    "Assumptions of --plan: baseline=0.8, the rate of one policy; power=0.8, the probability of detecting the "
    "difference; discordant=SHARE, the share of episode pairs with different results; tasks=10, the number of tasks; "
    "task_spread=SHARE, the standard deviation of the difference between tasks."
)


@options.command("compare", common="--policy --across --unpaired --allow-crashed --confidence --full --format --plan")
def compare_command(
    policies: tuple[str, ...] = repeatable("Compare only this policy.", "NAME", spelling="--policy"),
    across: tuple[str, ...] = repeatable(
        "seeds: pair episodes by initial state, even if their seeds differ. versions: also compare runs with different "
        "physics versions or code, and say so in the output.",
        type=click.Choice(["seeds", "versions"]),
    ),
    unpaired: bool = flag("Compare independent samples of each task instead of pairs."),
    allow_crashed: bool = flag("Draw conclusions even if episodes with unknown values could change them."),
    confidence: float = option("Confidence of intervals and tests.", "PERCENT", type=options.CONFIDENCE, default=95.0),
    by_change: bool = flag(
        "Compare each suite with its changed versions, such as `libero-goal-swap`.", spelling="--changes"
    ),
    full: bool = flag("Show every suite and metric, with tests and notes."),
    form: TableFormat = options.format_option("md", "csv", "tex", "html"),
    plan: float | None = option(
        "Estimate how many episodes detect a difference of POINTS percentage points.", "POINTS", type=options.PERCENT
    ),
    assumed: tuple[str, ...] = repeatable(_ASSUME_HELP, "NAME=VALUE", spelling="--assume"),
    sources: rules.JudgedSources = rules.judged_sources(options.OPTIONAL_SOURCES),
) -> None:
    """Compare the policies in archives or run folders; a single source may also hold several policies.

    Sources of one policy that have no suite in common, such as runs on two simulators, count as one run. Episodes are
    paired by suite, task, initial state and seed. Sources that ran different episodes, or used different environment
    seeds, horizons or protocols, are refused; --unpaired compares them as independent samples of their common tasks.
    Pairs with a crashed episode are left out and counted. If episodes that crashed, were cut short or have no verdict
    could change the conclusion, it is undecided. --allow-crashed draws a conclusion anyway.

    The first test compares policies on these tasks. If they differ, a second test (exact sign flips of the per-task
    differences) asks whether the result extends to similar tasks. Safety over all suites is the primary result; all
    others are exploratory.

    --plan estimates how many episodes per task detect a difference between two rates, without a SOURCE. Fewer episodes
    suffice if the two policies rarely have different results; a pilot run shows how often results differ.

    --changes pairs episodes of a suite with episodes of a changed version (SUITE-CHANGE, as in LIBERO-PRO) by
    task, initial state and seed. A suite that appears unchanged in both sources is the control.

    A SOURCE paper:NAME, such as paper:pi0.5, means the results of a policy as printed in the paper. They are compared
    with one policy of a run on the common suites. This comparison is exploratory and unpaired, and has no verdict.
    """
    if assumed and plan is None:
        raise click.UsageError("--assume is only for a plan: pass --plan POINTS.")
    if plan is not None:
        if sources.paths:
            raise click.UsageError("--plan is for a comparison whose runs do not exist yet, so it takes no SOURCE.")
        if form not in ("text", "json"):
            raise click.UsageError(f"--plan does not support --format {form}.")
        _print_plan({"difference": plan / 100, "confidence": confidence / 100}, assumed, form)
        return
    options.require_sources(sources.paths)
    # A source such as `paper:pi0.5` refers to results printed in the paper, unless there is a file with this name.
    paper_sources = [path for path in sources.paths if str(path).startswith(PREFIX) and not path.exists()]
    if paper_sources:
        report = _compare_with_paper(sources, paper_sources, policies)
    elif by_change:
        report = _compare_changes(sources, policies, confidence / 100)
    else:
        settings = difference.ComparisonOptions(confidence=confidence / 100, allow_crashed=allow_crashed)
        pairing = {"paired": not unpaired, "across_seeds": "seeds" in across, "across_versions": "versions" in across}
        report = _compare_sources(sources, policies, settings, pairing, full=full)
    report.print(form)
    if form == "text" and not full and report.hint:
        echo(report.hint)


@dataclass(frozen=True)
class _Report:
    document: object  # what --format json prints
    answers: Sequence[str]  # sentences with the main results
    tables: Sequence[Table]
    hint: str = ""  # text about what the option --full adds; "" if this option is not offered

    def print(self, form: TableFormat) -> None:
        """Print the tables and the answers. Answers are lines, LaTeX comments or the HTML title; CSV has no answers."""
        # `answers` are sentences with the main results; `document` is what the form `json` prints instead.
        # Several tables as CSV raise `RunError`.
        if form == "csv" and len(self.tables) > 1:
            raise RunError(f"{len(self.tables)} tables do not fit into one CSV file", remedy="Leave --full out.")
        if form == "json":
            options.print_json(self.document)
            return
        if form == "html":
            click.echo(render_html(self.tables, " ".join(self.answers)), nl=False)
            return
        if form != "csv":
            echo(*(f"% {answer}" if form == "tex" else answer for answer in self.answers), "")
        click.echo(render_tables(self.tables, form), nl=False)


_MOST_POLICIES = 200  # comparing all pairs takes 15 s for 200 policies, and a minute for 400 policies


def _compare_sources(
    sources: rules.JudgedSources,
    policies: Sequence[str],
    settings: difference.ComparisonOptions,
    pairing: Mapping[str, bool],
    *,
    full: bool,
) -> _Report:
    # Return a report that compares all pairs of the policies in the sources, or of the named `policies`.
    # `pairing` contains keyword arguments of `compare_policies`, such as `paired`.
    # With `full`, the report contains the tables of all suites and metrics.
    results = _load_results(sources, policies)
    if len(results) > _MOST_POLICIES:
        remedy = f"Name at most {_MOST_POLICIES} policies, each by --policy NAME."
        raise RunError(f"{len(results)} policies are too many to compare all pairs", remedy=remedy)
    comparison = compare_policies(results, settings, **pairing)
    # `trends` is [] unless all policies are checkpoints of one training run.
    trends = series.measure_order(results) if comparison.paired else []
    tables = comparison_tables(comparison, results, sources.paths, sources.ruleset, full=full)
    trend_fields = {"trends": trends} if trends else {}
    document = {**msgspec.to_builtins(comparison), **trend_fields, **_describe_origin(results, sources)}
    hint = "Next: --full also shows suites, further metrics, tests and notes."
    answer = " ".join([*describe_trends(trends), comparison_answer.describe_comparison(comparison)])
    return _Report(document, [answer], tables, hint)


def _load_results(sources: rules.JudgedSources, policies: Sequence[str], *, join: bool = True) -> list[PolicyResults]:
    # Judge the sources and return the results of each policy, or only of the named `policies`.
    # With `join`, sources of one policy that have no suite in common become one result.
    skip = sources.skip_invalid
    with show_status("judging"):
        return load_policy_results(sources.paths, sources.ruleset, policies=policies, skip_invalid=skip, join=join)


def _compare_changes(sources: rules.JudgedSources, policies: Sequence[str], confidence: float) -> _Report:
    # Return a report that compares each suite with its changed versions. `confidence` is a share, such as 0.95.
    reason = "cannot be combined with --changes, which compares SR and Safety in pairs."
    options.refuse_given(["across", "unpaired", "allow_crashed", "full"], reason)
    results = _load_results(sources, policies, join=False)  # `compare_changes` needs each source separately
    changes = perturbation.compare_changes(results, confidence)
    notes = list(dict.fromkeys(comparison_warnings(results, left_out=0, paired=True)))
    simulator_note = describe_simulators(dict(_list_simulators(results)))
    notes += [simulator_note] if simulator_note else []
    table = change_table(changes, (*notes, sources.ruleset.provenance().to_sentence()))
    document = {**msgspec.to_builtins(changes), **_describe_origin(results, sources)}
    return _Report(document, [describe_changes(changes)], [table])


# Options of `compare` that work only if both sources contain episodes.
_EPISODE_OPTIONS = ("across", "unpaired", "allow_crashed", "confidence")


def _compare_with_paper(sources: rules.JudgedSources, papers: Sequence[Path], policies: Sequence[str]) -> _Report:
    # Return a report that compares a policy of the user's runs with printed results.
    # `papers` are the sources of the form `paper:NAME`; there must be exactly one.
    own_paths = tuple(path for path in sources.paths if path not in papers)
    options.refuse_given(_EPISODE_OPTIONS, f"needs records of episodes, but there are none in {papers[0]}.")
    options.refuse_given(["full"], f"is not needed: the output always contains all results of {papers[0]}.")
    if len(papers) > 1 or not own_paths:
        need = f"Pass at least one run of your own, and one {PREFIX}NAME"
        raise click.UsageError(f"{need}: safevla compare SOURCE {papers[0]}.")
    find_paper_cells(str(papers[0]))  # raises an error for an unknown name before the run is judged
    judged = replace(sources, paths=own_paths).judge()
    compared = compare_with_paper(judged, str(papers[0]), policies)
    document = {**compared.to_document(), "judged_by": judged.provenance}
    return _Report(document, [published.describe_published(compared)], [published.published_table(compared)])


def _print_plan(rates: Mapping[str, float], assumed: Sequence[str], form: str) -> None:
    # Print the number of episodes that a comparison needs. `rates` contains two shares: `difference`, `confidence`.
    # `assumed` lists the texts NAME=VALUE of --assume.
    request = options.parse_settings("--assume", assumed, sample_size.SampleSizeRequest, **rates)
    plan = sample_size.plan_sample_size(request)
    if form == "json":
        options.print_json(plan)
    else:
        echo(*plan.to_text().split("\n"))
    if rates["difference"] < 0.01:  # the user probably wrote a share instead of percentage points
        points = 100 * rates["difference"]
        share = f"to plan for this share, write --plan {100 * points:g}."
        echo(f"note: --plan takes percentage points, but its value is less than one: {points:g}; {share}", err=True)


def _describe_origin(results: Sequence[PolicyResults], sources: rules.JudgedSources) -> dict[str, object]:
    # Return facts for the JSON document. `simulators` maps policy -> suite -> package -> versions.
    # `judged_by` names the rules. The value of `REGISTERED` compares registered runs with their registrations.
    provenance = sources.ruleset.provenance()
    checks = check_registrations(open_sources(sources.paths), provenance)
    simulators: dict[str | None, dict[str, object]] = {}
    for (policy, suite), versions in _list_simulators(results):
        simulators.setdefault(policy, {})[suite] = versions
    return {"simulators": simulators, "judged_by": provenance, **({REGISTERED: checks} if checks else {})}


def _list_simulators(results: Sequence[PolicyResults]) -> Iterator[tuple[Cell, dict[str, tuple[str, ...]]]]:
    # Yield each cell (policy, suite) with the versions of its simulators' packages.
    # The entry `results-version` is omitted, because it is a version of this project.
    for cell, versions in simulator_cells(results).items():
        yield cell, {package: numbers for package, numbers in versions.items() if package != "results-version"}


@options.command("sensitivity", starts_host=True)
def sensitivity_command(
    sources: rules.JudgedSources = rules.judged_sources(),
    sweeps: tuple[str, ...] = options.sweep_option(
        "Vary a threshold, or a family of thresholds such as `force`. The values are LOW:HIGH:COUNT or A,B,C."
    ),
    readings: bool = flag("Judge by every interpretation of the paper."),
    physics: bool = flag("Replay a run's episodes under varied physics."),
    episodes: int | None = option("With --physics: number of episodes; default: all.", "N", type=options.POSITIVE),
    workers: int = option("With --physics: number of processes.", "N", default=1, type=options.WORKERS),
    full: bool = flag("Show every suite, variant and mean, and the ranking."),
    form: TableFormat = options.format_option(),
) -> None:
    """Show how Safety, SBU and VSI depend on the thresholds, or on the interpretation of the paper.

    Without --sweep, this scores the nine variants of the paper's Table 9, and compares each host's means with the means
    in the paper. With --sweep, this varies one threshold after the other, and judges the episodes at each value of the
    threshold. With several policies, the last table says whether their ranking by Safety changes.

    --readings judges every record by four libraries: default, paper-text, paper-as-run and net-force. A further result
    uses the depth that the paper's text defines: see docs/explanation/fidelity.md.

    --physics plays the recorded actions again, first in unchanged physics, which must reproduce the record bit for bit,
    then in slightly changed physics. This shows which verdicts are firm: see docs/howto/firmness.md. The same command
    continues an interrupted analysis.

    \b
    For instance:
      safevla sensitivity runs/mine --sweep non_target_max_disp=0.002:0.05:25
      safevla sensitivity runs/mine --readings
      safevla sensitivity runs/mine --physics --episodes 50 --workers 4
    """  # noqa: D301  (click needs the control character)
    if [readings, bool(sweeps), physics].count(True) > 1:  # more than one analysis is requested
        raise click.UsageError("--readings, --sweep and --physics are different analyses: choose one.")
    if not physics:
        options.refuse_given(["episodes", "workers"], "is only for replays: pass --physics.")
    # Errors in --sweep are found before the episodes are judged.
    requests = [curves.parse_sweep(sweep, sources.ruleset.library) for sweep in sweeps]
    judged = sources.judge()
    if physics:
        report = _vary_physics(judged, episodes, workers, full=full)
    elif readings:
        report = _compare_readings(judged, full=full)
    elif sweeps:
        report = _sweep_thresholds(judged, requests, full=full)
    else:
        report = _score_paper_variants(judged, full=full)
    report.print(form)
    if form == "json":
        return
    rules.print_missing(judged)
    origin = [*judged.describe_policies(), *judged.describe_limits(), *judged.describe_forces()]
    for sentence in [*origin, *judged.describe_simulators(), judged.provenance.to_sentence(digests=full)]:
        echo(sentence)
    if not full:
        echo(f"Next: --full shows every {report.hint}")  # `hint` says what --full adds
    if physics:
        echo(f"Next: write a report that marks firm verdicts: {sources.format_command('score')}")


def _vary_physics(judged: Judged, episodes: int | None, workers: int, *, full: bool) -> _Report:
    # Replay the episodes in unchanged and in varied physics. Return a report on which verdicts are firm.
    # A verdict is firm if no replay changes it.
    # `episodes` is the number of episodes (None = all), and `workers` the number of processes.
    from safevla_bench.jobs.physics import vary_physics
    from safevla_bench.publishing.tracking import OutcomeScorer

    with show_run_progress(OutcomeScorer(judged.ruleset)) as observer:
        firmness_file = vary_physics(judged, workers=workers, episodes=episodes, observer=observer)
    tables = firmness.firmness_tables(firmness_file, judged.scores.specs, full=full)
    return _Report(firmness_file, firmness.describe_firmness(firmness_file.episodes()), tables, "suite.")


def _compare_readings(judged: Judged, *, full: bool) -> _Report:
    # Return a report on how the results differ between interpretations (readings) of the paper's text.
    # With `full`, the table shows all suites and metrics. The last argument of `_Report` says what --full adds.
    rescore, has_net_forces = make_rescorer(judged), judged.has_net_forces
    compared = curves.compare_readings(judged.scores, judged.ruleset, rescore, has_net_forces=has_net_forces)
    make_table = sensitivity.reading_table if full else sensitivity.pooled_reading_table
    return _Report(compared, [sensitivity.describe_readings(compared)], [make_table(compared)], "suite and metric.")


def _sweep_thresholds(judged: Judged, requests: Sequence[curves.SweepRequest], *, full: bool) -> _Report:
    # Judge the episodes at each value of the swept thresholds, and return a report on the results.
    # Each request is one threshold, or one family of thresholds, and the values to try.
    # With `full`, the tables show all suites, and ranking tables are added.
    current_curves = curves.cell_curves(judged.scores, [judged.scores])  # one point per curve: the current thresholds
    document: list[object] = []
    answers: list[str] = []
    tables: list[Table] = []
    rankings: list[Table] = []
    for request in requests:
        result = curves.sweep_threshold(judged.scores, judged.library, request, make_rescorer(judged))
        unchanged = curves.ThresholdVariant("as in the library", settings={})
        # The ranking counts only suites to which a swept specification applies.
        limited = judged.select_cells(suites=curves.swept_suites(judged.scores, judged.library, request))
        ranking = _rank_policies(limited, [unchanged, *curves.sweep_variants(judged.library, request)])
        # The result in the form of a list of variants, with the current thresholds as the first variant.
        ablation = sensitivity.name_variants(result, current_curves)
        document.append({**msgspec.to_builtins(result), "ranking": msgspec.to_builtins(ranking)})
        name = f"{result.name}: " if len(requests) > 1 else ""
        answers.append(f"{name}{sensitivity.describe_sensitivity(ablation, ranking)}")
        make_table = sensitivity.variant_table if full else sensitivity.pooled_table
        tables.append(make_table(ablation, f"Safety % over the sweep of {result.name}"))
        rankings += [sensitivity.ranking_table(ranking)] if full and ranking else []
    return _Report(document, answers, [*tables, *rankings], _VARIANTS_HINT)


_VARIANTS_HINT = "suite, variant and pair of policies."


def _rank_policies(judged: Judged, variants: Sequence[curves.ThresholdVariant]) -> decisions.RankingSensitivity | None:
    # Return how the ranking by Safety differs between the variants of the thresholds; None if there is no ranking.
    # The rescorer judges the same records by other thresholds.
    # If the protocols of the sources differ, episodes are not paired.
    # If planned episodes have no scores, there is no verdict.
    return decisions.rank_under_variants(
        judged.scores,
        judged.headers,
        judged.library,
        variants,
        make_rescorer(judged),
        judged.protocols,
        describe_uncounted(judged),
    )


def _score_paper_variants(judged: Judged, *, full: bool) -> _Report:
    # Return a report on the scores under the nine variants of the thresholds in the paper's Table 9.
    # With `full`, the tables show all suites. Tables of means, and a table of the ranking, are added.
    roster = cells.Roster(privileged=judged.privileged)
    ablated = curves.ablate_thresholds(judged.scores, judged.library, make_rescorer(judged))
    means = sensitivity.host_means(ablated, judged.ruleset.registry, roster)
    ranking = _rank_policies(judged, ablated.variants)
    document = {
        **msgspec.to_builtins(ablated),
        "means": msgspec.to_builtins(means, enc_hook=float),  # the means are `Fraction`s
        "ranking": msgspec.to_builtins(ranking),
    }
    tables = [sensitivity.pooled_table(ablated, "Safety % under the variants of the paper's Table 9")]
    if full:
        tables = [sensitivity.variant_table(ablated)]
        tables += [sensitivity.host_mean_table(means, ablated)] if means else []
        tables += [sensitivity.ranking_table(ranking)] if ranking else []
    hint = f"{_VARIANTS_HINT} To vary one threshold: --sweep NAME=LOW:HIGH:COUNT."
    return _Report(document, [sensitivity.describe_sensitivity(ablated, ranking)], tables, hint)
