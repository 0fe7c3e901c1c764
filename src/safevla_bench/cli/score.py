"""`safevla score` and `demo` judge recorded episodes; `validate`, `convert` and `merge` check and rewrite them."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import click

from safevla_bench import archive
from safevla_bench.archive.record_schema import record_schema
from safevla_bench.cli import OK, USER_ERROR, echo, echo_message, options, progress, rules
from safevla_bench.cli.options import flag, option
from safevla_bench.errors import Place, RunError, UnknownTaskError
from safevla_bench.explain.places import collect_bodies, describe_places, list_places
from safevla_bench.files import own_path
from safevla_bench.jobs import demo
from safevla_bench.jobs.evaluation import outputs
from safevla_bench.jobs.evaluation.judgement import add_host_registries, judge
from safevla_bench.jobs.evaluation.survey import Survey
from safevla_bench.judging import metrics, provenance_marks
from safevla_bench.judging.judged import Judged, is_judged_by
from safevla_bench.judging.ruleset import Ruleset, load_ruleset
from safevla_bench.report import headline, render
from safevla_bench.report.render.text import render_text
from safevla_bench.report.tables import catalog, notices
from safevla_bench.report.tables import episodes as episode_tables
from safevla_bench.report.tables.cells import headline_table
from safevla_bench.report.tables.table import Table
from safevla_bench.sources import foreign, logs
from safevla_bench.sources.runs import episode_index, policy_names, writer
from safevla_bench.sources.runs.folder import EXPERIMENTS, REPORT, RUN, SCORES
from safevla_bench.sources.runs.sources import LeftOut
from safevla_bench.text import count_noun
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.header import Header


@options.command("score")
def score_command(
    sources: rules.JudgedSources = rules.judged_sources(),
    out: Path | None = options.out_option("The folder to write; default: SOURCE, if that is one run folder.", "DIR"),
    workers: int = option("Processes that judge in parallel.", "N", default=1, type=options.WORKERS),
    engine: str = options.ENGINE,
    combine: bool = flag("Join the scores of judged folders as they are, without reading records."),
    form: str = options.format_option(),
) -> None:
    """Judge archives, run folders or logs; write scores.json, scores.parquet and report.html.

    A changed threshold, tag or specification needs no new rollout: score again. If --library, --rules or --set change
    the rules of a run folder that is already judged, the results go into RUN/experiments/NAME, or into the folder of
    --out. If any episode is invalid, nothing is written; --set invalid=skip leaves out invalid episodes.

    Logs of real robots are LeRobot datasets (version 3) and MCAP files, with a small file that maps their features or
    topics to channels: see docs/howto/real-robots.md.

    Results of other tools that record only successes (LeRobot's eval_info.json, a recording of vla-evaluation-harness
    or its output folder) are printed as SR with intervals. Their Safety, SBU and VSI are unknown, never zero.
    """
    if combine:
        _combine(sources, out, form)
        return
    # For each source: the result files of other tools, which record only successes and failures; [] = none.
    results_by_source = [foreign.find_results(path) for path in sources.paths]
    if results_by_source and all(results_by_source):
        if out is not None:
            remedy = "Leave out --out to print the success rates."
            raise RunError("there is nothing to judge", remedy=remedy, place=Place(file=str(results_by_source[0][0])))
        _print_foreign_results([file for files in results_by_source for file in files], form)
        return
    from safevla_bench.jobs.evaluation.parallel import open_judge

    if out is None:
        for robot_log in map(logs.find_log, sources.paths):
            if robot_log:
                robot_log.require_mapping()  # raises an error with a template if the log has no mapping
    folder = options.choose_output(out, sources.paths)
    kept_note = ""  # set if the run folder's own scores stay as they are
    is_only_source = [os.path.realpath(path) for path in sources.paths] == [os.path.realpath(folder)]
    if (folder / RUN).is_file() and not is_only_source:
        command = options.quote_paths("safevla", "score", folder)
        remedy = f"Name a new folder. The scores in this run folder are written only by: {command}"
        raise RunError("--out is a run folder, but not the only source", remedy=remedy, place=Place(file=str(folder)))
    with progress.show_status("judging"), open_judge(workers, options.request_cluster(engine)) as parallel_judge:
        # `survey` collects data for the report while the records are judged.
        survey, skip = Survey(), sources.skip_invalid
        judged = judge(sources.paths, sources.ruleset, skip_invalid=skip, elsewhere=parallel_judge, survey=survey)
        if parallel_judge is not None and not parallel_judge.can_judge(judged.records.sources):
            echo("note: judged in one process: only Parquet archives are judged in parallel", err=True)
        # Scores by changed rules do not replace the scores of a run folder that is judged already.
        is_judged = out is None and (folder / SCORES).exists()
        if is_judged and rules.given_judge_options() and not is_judged_by(folder, judged.provenance):
            folder = own_path(folder, EXPERIMENTS, _name_experiment_folder(sources.ruleset))
            kept_note = "; the scores in the run folder stay as they are (--out RUN replaces them)"
        outputs.write_outputs(judged, folder, survey)
    if form == "json":
        click.echo(render.render_json([_cells_table(judged)]), nl=False)
    else:
        print_scores(judged)
    if kept_note or form == "text":
        # With JSON on stdout, the note is printed on stderr.
        echo(f"Scores and report: {folder / REPORT}{kept_note}", err=form == "json")


def _combine(sources: rules.JudgedSources, out: Path | None, form: str) -> None:
    # Join the scores of judged folders in the folder `out`, without judging again, and print the result as `form`.
    from safevla_bench.jobs.evaluation.combination import combine_scores

    options.refuse_given(["workers", "engine", *rules.JUDGE_OPTIONS], "affects judging, and --combine does not judge.")
    if out is None or len(sources.paths) < 2:
        raise click.UsageError("--combine needs several judged folders, and --out.")
    for path in sources.paths:
        if isinstance(path, policy_names.NamedSource):
            remedy = f"Judge the folder by `safevla score NAME=RUN --out DIR`, with the name {path.policy}."
            raise RunError("--combine cannot rename policies", remedy=remedy, place=Place(file=str(path)))
    with progress.show_status("combining"):
        combined = combine_scores(sources.paths, out)
    if form == "json":
        click.echo(render.render_json([combined.table]), nl=False)
        return
    echo(combined.answer, "")
    click.echo(render_text(combined.table))
    echo(f"Report with the scores of {count_noun(combined.episodes, 'episode')}: {out / REPORT}")


def _name_experiment_folder(ruleset: Ruleset) -> str:
    # Return a folder name made from the options that select the rules, such as `--set joint_torque=1.5`.
    options_text = ruleset.recipe.describe() if ruleset.recipe else ruleset.library.name
    name = re.sub(r"[^A-Za-z0-9_.]+", "-", options_text).strip("-.")
    if len(name) <= _LONGEST_NAME:
        return name
    # `surrogatepass`: paths in the text may contain bytes that are not valid UTF-8.
    digest = hashlib.sha256(options_text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{name[: _LONGEST_NAME - 9]}-{digest}"  # the digest distinguishes names with the same beginning


# Limit on the number of characters in the name of an experiment's folder.
_LONGEST_NAME = 80


def _print_foreign_results(files: Sequence[Path], form: str) -> None:
    # Print the success rates of result files of other tools, with one table per file.
    tables = [episode_tables.foreign_results_table(foreign.read_results(path), path.name) for path in files]
    if form == "json":
        click.echo(render.render_json(tables), nl=False)
        return
    echo("These results only contain successes and failures. Therefore, Safety, SBU and VSI are unknown.", "")
    click.echo("\n".join(render_text(table) for table in tables))
    echo("Next: record rollouts, so that safety can be judged: safevla eval --help")


# Limit on the number of added or changed specifications that are printed.
_MAX_CHANGED = 8


def print_scores(judged: Judged) -> None:
    """Print the headline, changed limits, the table of cells (policy × suite), warnings, and what was not scored."""
    changes, answer = judged.ruleset.describe_changes(), headline.build_headline(*judged.summarize_scores()).answer
    echo(f"Judged with {changes}. {answer}" if changes else answer)
    changed = list(judged.describe_changed_specs())
    for line in changed[:_MAX_CHANGED]:
        echo(f"  {line}")
    if len(changed) > _MAX_CHANGED:
        echo(f"  The report lists {len(changed) - _MAX_CHANGED} more added or changed specifications.")
    places = list_places(spec.formula for spec in judged.ruleset.own_specs())
    if places:  # the user's own specifications name bodies
        for line in describe_places(places, collect_bodies(judged.records.read_chunks())):
            echo(f"  {line}")
    click.echo()
    click.echo(render_text(_cells_table(judged)))
    # `makers` contains one sentence per run folder that other rules judged before.
    facts = [*judged.describe_limits(), *judged.describe_forces(), *judged.describe_activity()]
    for sentence in [*judged.describe_vacuous(), *judged.describe_policies(), *facts, *judged.makers]:
        echo(sentence)
    print_warnings(judged)
    for sentence in catalog.describe_reading(judged.ruleset):  # empty for the paper's setting
        echo(sentence)
    rules.print_missing(judged)


def _cells_table(judged: Judged) -> Table:
    # Return the table with a row for each cell (policy × suite).
    # If a single policy has several cells, a row of totals follows.
    cells, total = judged.summarize_scores()
    return headline_table(cells, total, privileged=judged.privileged)


def print_warnings(judged: Judged) -> None:
    """Print warnings about the records, such as unknown poses, and about violations and successes of `noop`."""
    # If the policy `noop`, which does nothing, violates a limit, any policy may violate this limit.
    baseline = notices.baseline_warnings(metrics.measure_baseline(judged.scores))
    for line in [*provenance_marks.warn_of_records(judged.scores), *baseline]:
        echo(f"warning: {line}")


# The demo


@options.command("demo")
def demo_command(
    out: Path = options.out_option("The folder to write, made if missing.", "DIR", default=Path("safevla-demo")),
) -> None:
    """Judge recorded rollouts that ship with the package and write a report; needs no simulator.

    Two built-in scripted policies, one careful and one hasty, were rolled out on real LIBERO tasks. Their records are
    copied into DIR, so that you can try every command that reads an archive.
    """
    path = demo.unpack_archive(out)
    survey = Survey()
    judged = judge([path], load_ruleset(), survey=survey)
    outputs.write_outputs(judged, out, survey)
    print_scores(judged)
    echo("These are recorded rollouts of two scripted policies on real LIBERO; this command simulated nothing.")
    echo("The episodes were chosen to show every kind of outcome, not to measure a policy.", "")
    echo(f"Records: {path}", f"Report:  {out / REPORT}")
    source, folder = options.quote_paths(path), options.quote_paths(path.parent)
    # The most severe unsafe success, if there is one.
    worst = max(judged.scores.episodes(), key=lambda episode: (episode.sbu is True, episode.vsi or 0.0))
    echo("Next:", f"  safevla open {folder}", f"  safevla episodes {source} --unsafe --sort vsi")
    click.echo(f"  safevla show {source} {options.quote_paths(worst.episode_id)}")


# Archives and run folders


@options.command("validate")
def validate_command(
    context: click.Context,
    sources: tuple[Path, ...] = options.OPTIONAL_SOURCES,
    wants_schema: bool = flag("Print the JSON Schema of an episode.", spelling="--schema"),
    wants_bodies: bool = flag(
        "List the bodies of each suite, with their roles and recorded channels.", spelling="--bodies"
    ),
) -> None:
    """Check archives, run folders or logs against the rules of the format.

    For a log, each channel is shown with source, time base, rate, extremes and warnings about impossible values. Every
    invalid episode is listed with its place and a remedy; the exit code is then 2. --schema needs no SOURCE.
    """
    if wants_schema:
        if sources:
            raise click.UsageError("--schema only prints the schema, and takes no SOURCE.")
        options.print_json(record_schema())
        return
    options.require_sources(sources)
    checked = {source: episode_index.scan([source]) for source in sources}
    has_problems = any(records.problems for records in checked.values())
    for source, records in checked.items():
        for problem in records.problems:
            echo_message(f"error: {problem}", err=True)
        # Counts of invalid episodes, of damaged places and of lost episodes. `unknown`: further episodes may be lost.
        left_out = LeftOut.from_problems(records.problems)
        counts = f"{_count_episodes(records, 'valid episode')}, {left_out.invalid} bad"
        if left_out.damaged or left_out.lost:
            counts += f", {'at least ' if left_out.unknown else ''}{left_out.lost} lost"
        echo(f"{source}: {counts}")
        if not (source / RUN).exists():  # a run folder is not a log
            for line in logs.describe_log(source):
                echo(line)
        bodies_by_suite = collect_bodies(records.read_chunks()) if wants_bodies else {}  # suite -> body -> facts
        for suite, bodies in bodies_by_suite.items():
            echo(f"{suite}:")
            for name, facts in bodies.items():
                echo(f"  {name}: {facts.describe()}")
    if not has_problems:
        headers = (header for records in checked.values() for header in records.headers)
        echo(*_next_steps(headers, sources, sources))
    context.exit(USER_ERROR if has_problems else OK)


@options.command("convert")
def convert_command(
    sources: tuple[Path, ...] = options.SOURCES,
    destination: str = options.argument("DESTINATION"),
    change: str | None = option(
        "Write only the valid episodes.", spelling="--set", type=click.Choice(["invalid=skip"])
    ),
) -> None:
    """Write the episodes of archives, run folders or logs as one archive, bit for bit.

    The suffix of DESTINATION selects the format: .jsonl, .jsonl.gz, .jsonl.zst, .parquet, or .json and .npz for a
    single episode. Existing files are not overwritten. Memory holds only a few episodes at a time.
    """
    target = Path(destination)
    if target.exists() or target.is_symlink():
        remedy = "Choose another destination, or remove the file first."
        raise RunError("exists already", remedy=remedy, place=Place(file=destination))
    archive.detect_suffix(target)
    # The episodes are written while the scan reads them; afterwards, the scan's index is complete.
    scan = episode_index.Scan(sources)
    archive.write_batches(target, _read_valid_episodes(scan, skip_invalid=change is not None))
    records = scan.index()
    left_out = f"; {', '.join(records.left_out.describe_kinds())}" if records.left_out else ""
    echo(f"{destination}: {_count_episodes(records, 'episode')}{left_out}")
    echo(*_next_steps(records.headers, sources, [destination]))


def _count_episodes(records: episode_index.EpisodeIndex, noun: str) -> str:
    # Return the number of episodes, called `noun`, and the number of their records, such as `2 episodes (9 records)`.
    return f"{count_noun(len(records), noun)} ({count_noun(int(records.lengths.sum()), 'record')})"


def _read_valid_episodes(scan: episode_index.Scan, *, skip_invalid: bool) -> Iterator[Batch]:
    # Yield the valid episodes in batches while `scan` reads them.
    # At the end, raise an error if any episode is invalid (unless `skip_invalid`), or if there is no episode.
    # After an error, `write_batches` keeps no file.
    yield from scan
    records = scan.index()
    records.require_valid(skip_invalid=skip_invalid)
    if not len(records):
        raise RunError("there are no episodes to convert", remedy="Name sources that hold valid episodes.")


@options.command("merge")
def merge_command(
    context: click.Context,
    shards: tuple[Path, ...] = options.argument("SHARD...", nargs=-1, required=True, type=options.FILE),
    out: Path | None = options.out_option("The run folder to make.", "DIR"),
    status: bool = flag("List missing, unfinished and duplicate shards, with commands that complete them."),
    other_code: bool = flag("Join shards even if their code differs; the result is marked."),
) -> None:
    """Join run folders made with --shard into one.

    The result has the same bytes as a single run of the whole plan. The shards must therefore belong to one plan, be
    complete and be recorded by the same code. Give each shard once, in any order. If an equal result already
    exists, its files stay unchanged.
    """
    if status:
        findings = list(writer.list_shard_states(shards, _format_continuation))
        lines = []
        for finding, command in findings:
            lines += [finding, f"  {command}"] if command else [finding]
        echo(*lines)
        echo(f"{count_noun(len(findings), 'finding')}." if findings else "Every shard is present and complete.")
        context.exit(USER_ERROR if findings else OK)
    if out is None:
        raise click.UsageError("Missing option '--out'.")
    # `_format_continuation` returns the commands that the errors about unfinished shards suggest.
    rows = writer.merge_shards(shards, out, _format_continuation, other_code=other_code)
    crashed = sum(row.outcome == "crashed" for row in rows)
    left_out = f"; {crashed} crashed, excluded from all rates" if crashed else ""
    echo(f"Run folder: {out} ({count_noun(len(rows), 'episode')}{left_out})")
    echo(f"Next: safevla score {options.quote_paths(out)}")


def _next_steps(headers: Iterable[Header], sources: Sequence[Path], paths_to_judge: Sequence[object]) -> list[str]:
    # Return lines that suggest a command to judge the episodes with these headers.
    # If the rules contain no tags for a task, the user must first define the task in a file for --rules.
    registry = add_host_registries(load_ruleset(), sources).registry
    command = f"safevla score {options.quote_paths(*paths_to_judge)}"
    for benchmark, task_id in dict.fromkeys((header.benchmark, header.task_id) for header in headers):
        try:
            registry.find_entry(benchmark, task_id)
        except UnknownTaskError:
            note = "without --rules, the command prints a template of FILE."
            next_step = f"Next: {command} --rules FILE --out results"
            return [next_step, f"FILE defines the task {benchmark}/{task_id}; {note}"]
    return [f"Next: {command} --out results"]


def _format_continuation(shard: Path) -> str:
    # Return the command that continues a shard (the run folder of a part of a plan).
    # If the shard's run.json contains no usable request, return a simpler command.
    from safevla_bench.jobs.evaluation import request  # loads slowly: it needs hosts and policies

    with suppress(RunError):  # raised if run.json contains no usable request
        return request.Request.from_run(shard).format_resume_command(shard, "--record-only")
    return writer.format_resume_command(shard)
