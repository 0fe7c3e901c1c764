"""`safevla tables`, `export` and `board`: results for papers, for other programs and for a website."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import click
import msgspec

from safevla_bench.cli import GATE_FAILED, OK, USER_ERROR, completion, echo, echo_message, options, rules
from safevla_bench.cli.inspect import report_skipped
from safevla_bench.cli.options import flag, option, repeatable
from safevla_bench.cli.progress import show_frame_progress, show_status
from safevla_bench.errors import RunError, SafevlaError
from safevla_bench.files import make_folder, write_atomically
from safevla_bench.jobs.evaluation.judgement import describe_losses, judge
from safevla_bench.jobs.evaluation.outputs import build_board, table_material
from safevla_bench.jobs.pairs import write_rollout_suites
from safevla_bench.jobs.verify import AuditPlan, audit_source
from safevla_bench.judging.judged import Judged
from safevla_bench.judging.ruleset import NOT_PHASED
from safevla_bench.pictures.viewers import Timeline, build_timeline, encode_mcap, encode_rrd
from safevla_bench.publishing import result_files, submission, tracking
from safevla_bench.report import episode_list, headline, render
from safevla_bench.report.render.text import render_summary
from safevla_bench.report.tables import catalog, cells
from safevla_bench.report.tables.columns import drop_intervals, has_column, select_columns
from safevla_bench.report.tables.published import paper_policies
from safevla_bench.report.tables.table import UNNAMED, Table
from safevla_bench.sources.runs.folder import REPORT, archive_digest, dump_json
from safevla_bench.text import count_noun


class _TableStyle(msgspec.Struct, frozen=True):
    intervals: Literal["yes", "no"] = "yes"
    notes: Literal["yes", "no"] = "yes"
    published: Literal["yes", "no"] = "no"


_FILE_SUFFIXES = {"text": "txt"}
_TABLE_FORMS = click.Choice(get_args(render.TableFormat))
# Names of the tables to print if --which is not given.
_DEFAULT_TABLES = ("main", "violations")


_KINDS = (f"  {kind.name:13}  {', '.join(kind.numbers):6}  {kind.meaning}" for kind in catalog.KINDS)
_EPILOG = "\n".join(["\b", "Tables:", *_KINDS])


@options.command("tables", epilog=_EPILOG)
def tables_command(
    sources: rules.JudgedSources = rules.judged_sources(options.OPTIONAL_SOURCES),
    which: tuple[str, ...] = repeatable(
        "Names of tables, or their numbers in the paper, such as `main,7,12`; or `all`.",
        "LIST",
        shell_complete=completion.TABLES,
    ),
    form: render.TableFormat = option("The form.", spelling="--format", type=_TABLE_FORMS, default="text"),
    out: str | None = option("The file to write, or a folder for one file per table.", "FILE|DIR/"),
    training: tuple[str, ...] = repeatable("How a policy was trained.", "POLICY=KIND"),
    auxiliary: tuple[str, ...] = repeatable("Exclude a policy from means and from the best values.", "POLICY"),
    columns: str | None = option(
        "Only these columns or groups of columns, in this order, such as 'SR,Safety'.", "LIST"
    ),
    styles: tuple[str, ...] = repeatable(
        "intervals=no: omit intervals. notes=no: omit notes. published=yes: add marked rows with the paper's results.",
        "NAME=VALUE",
        spelling="--style",
    ),
) -> None:
    """Judge archives or run folders and print the paper's result tables for them.

    By default, these are the tables main and violations, without notes. The paper has separate tables for LIBERO (4, 7,
    10) and RoboCasa-365 (5, 8, 11); their numbers select only that benchmark. `--which active` needs no source.
    """
    # --which can be repeated, and each value may list several names.
    requested = tuple(part.strip() for text in which for part in text.split(","))
    names = requested or _DEFAULT_TABLES
    if names == ("all",):
        names = ()  # without names, `build_tables` returns all tables
    # By default, print only a summary in which digests of the rules are left out.
    is_short = out is None and form == "text" and bool(sources.paths) and not requested
    style = options.parse_settings("--style", styles, _TableStyle)
    shows_published = style.published == "yes"
    if shows_published:
        # Raises an error for applicability=phased, because the paper did not judge phase by phase.
        sources.ruleset.require_whole(NOT_PHASED, "Leave out --style published=yes.")
    judged, material = _load_inputs(sources, names, digests=not is_short)
    published = paper_policies() if shows_published else {}
    # What is known about the policies: training, privileged observations, exclusion from means, published results.
    roster = cells.Roster(_parse_training(training), material.roster.privileged, auxiliary, published)
    if material.scores is not None:
        roster.check_names(material.scores)  # raises an error for an option that names an unknown policy
    tables = catalog.build_tables(replace(material, roster=roster), names)
    if style.intervals == "no":
        tables = list(map(drop_intervals, tables))
    if style.notes == "no":
        tables = [replace(table, notes=()) for table in tables]
    if columns is not None:
        tables = _choose_columns(tables, columns)
    if judged and is_short:
        echo(headline.build_headline(*judged.summarize_scores()).answer, "")
        click.echo(render_summary(tables), nl=False)
        command = sources.format_command("tables", "--which", "all")
        echo(f"Next: print all tables, with the meaning of each number: {command}")
    elif out is None:
        click.echo(_render_tables(tables, form), nl=False)
    elif out.endswith("/") or Path(out).is_dir():  # a folder with one file per table
        for table in tables:
            path = Path(out) / f"{table.name}.{_FILE_SUFFIXES.get(form, form)}"
            _save_file(path, render.render_tables([table], form))
            echo(str(path))
    else:
        _save_file(Path(out), _render_tables(tables, form))
        echo(f"{count_noun(len(tables), 'table')}: {out}")


def _load_inputs(
    sources: rules.JudgedSources, names: Sequence[str], *, digests: bool
) -> tuple[Judged | None, catalog.TableInputs]:
    # Judge the sources. Return the results (None without sources) and the data of the tables.
    # Without sources, any table but `active` (23 in the paper) raises click's error.
    # The table `active` shows to which tasks specifications apply.
    if sources.paths:
        judged = judge(sources.paths, sources.ruleset, skip_invalid=sources.skip_invalid)
        return judged, table_material(judged, digests=digests)
    if not names or any(name not in ("active", "23") for name in names):
        raise click.UsageError("Missing argument 'SOURCE...'. Only --which active needs no source.")
    return None, catalog.TableInputs(scores=None, ruleset=sources.ruleset)


def _parse_training(texts: Sequence[str]) -> dict[str, str]:
    # Return policy -> kind of training from texts POLICY=KIND. A policy's name may contain `=`, a kind may not.
    # Raise `RunError` if a policy or a kind is missing, or if a policy is repeated.
    kind_by_policy = {policy: kind for policy, _, kind in (text.rpartition("=") for text in texts)}
    is_repeated = len(kind_by_policy) < len(texts)
    if is_repeated or "" in kind_by_policy or "" in kind_by_policy.values():
        raise RunError(f"--training {' '.join(texts)}", remedy="Write POLICY=KIND, as in `mine=SFT`, each policy once.")
    return kind_by_policy


def _choose_columns(tables: Sequence[Table], text: str) -> list[Table]:
    # `text` lists names of columns, or of groups of columns. Return the tables that contain any of the named columns.
    # Omit all other columns, except each table's first text columns and its counts of lost episodes.
    # Raise `RunError` if a name occurs in no table.
    names = [part.strip() for part in text.split(",")]
    unknown = [name for name in names if not any(has_column(table, name) for table in tables)]
    if unknown:
        choices = dict.fromkeys(column.group or column.name for table in tables for column in table.columns)
        raise RunError(f"there is no column {unknown[0]!r}", remedy=f"Choose from: {', '.join(choices)}.")
    return [select_columns(table, names) for table in tables if any(has_column(table, name) for name in names)]


def _render_tables(tables: Sequence[Table], form: render.TableFormat) -> str:
    # Return the tables as text. Raise `RunError` for several tables as CSV, because a CSV file can hold only one table.
    if form == "csv" and len(tables) > 1:
        names = ", ".join(table.name for table in tables)
        remedy = f"Choose one by --which, or write one file per table by --out DIR/. The tables are: {names}."
        raise RunError(f"{len(tables)} tables do not fit into one CSV file", remedy=remedy)
    return render.render_tables(tables, form)


def _save_file(path: Path, content: str | bytes) -> None:
    # Write a file atomically, and first make its folder if it does not exist.
    make_folder(path.parent)
    write_atomically(path, content)


@dataclass(frozen=True)
class _ExportChoice:
    out: Path
    sources: tuple[Path, ...]
    episode: str | None
    facts: result_files.ModelFacts
    cameras: tuple[str, ...]
    image_size: int
    video: bool
    settings: _FormSettings


class _FormSettings(msgspec.Struct, frozen=True):
    # The lower limit keeps the weights of frames below exp(1 / 0.02) = 5e21.
    temperature: Annotated[float, msgspec.Meta(ge=0.02, le=1e6)] = 1.0
    discount: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.99


class _PairSettings(_FormSettings, frozen=True):
    most: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 8
    failures: Literal["yes", "no"] = "no"


def _encode_authors_csv(judged: Judged, choice: _ExportChoice) -> str:
    # Return a CSV with a row for each policy and suite of each source, in the form of the authors' published file.
    reason = "the authors' CSV holds only results that are judged as in the paper"
    judged.ruleset.require_whole(reason, "Judge without applicability=phased.")
    paths = [path.resolve() for path in choice.sources]
    names = [path.name for path in paths]
    if len(set(names)) < len(names):  # if some names are equal, prefix each with the parent folder
        names = [f"{path.parent.name}/{path.name}" for path in paths]
    # Each source's name, with its pairs (policy, suite).
    run_dirs = list(zip(names, judged.cells_by_source(), strict=True))
    cells, _ = judged.summarize_scores()
    return result_files.format_authors_csv(cells, judged.library, run_dirs)


def _encode_timeline(encode: Callable[[Timeline], bytes], judged: Judged, choice: _ExportChoice) -> bytes:
    # Return a viewer's file with one episode: the chosen or the only episode. `encode` makes the bytes of the file.
    # Raise `RunError` if no episode is chosen, unless there is exactly one.
    if choice.episode is None and len(judged.records) != 1:
        remedy = "Choose an episode by --episode; `safevla episodes` lists all."
        raise RunError(f"a file of this format holds one episode, but there are {len(judged.records)}", remedy=remedy)
    index = 0 if choice.episode is None else episode_list.find_recorded(judged, choice.episode)
    # The name of the source that contains the episode.
    run = next(source.path.resolve().name for source, indices in judged.records.by_source() if index in indices)
    return encode(build_timeline(judged.scores, judged.records.read_sparsely([index]), judged.ruleset, index, run))


def _write_dataset(judged: Judged, choice: _ExportChoice, pairs: bytes | None = None) -> None:
    # Write a LeRobot dataset into `choice.out`, with pictures of the cameras in `choice.cameras` (may be empty).
    # `pairs` is the content of the dataset's index of pairs; None = no index of pairs.
    from safevla_bench.training.export import CameraChoice, FrameWeighting, export_dataset

    def refuse(reason: SafevlaError) -> None:
        # Used instead of `report_skipped`, which only prints the reason why an episode is left out.
        raise reason  # an omitted episode would make the index of pairs wrong

    names, size = choice.cameras, (choice.image_size, choice.image_size)
    cameras = CameraChoice(names, size, choice.video) if names else None
    with show_frame_progress(len(judged.records)) as observer:
        summary = export_dataset(
            judged,
            choice.out,
            cameras,
            observer,
            report_skipped if pairs is None else refuse,
            msgspec.to_builtins(choice.facts),
            FrameWeighting(choice.settings.temperature, choice.settings.discount),
            pairs,
        )
    shown = f"pictures of {', '.join(names)}" if names else "no pictures, because --cameras is not given"
    echo(f"{count_noun(summary.episodes, 'episode')}, {summary.frames} frames, {shown}")


def _write_pairs(judged: Judged, choice: _ExportChoice) -> bytes | None:
    # A pair is a safe and an unsafe success from the same start state. `choice.out` is a .jsonl file or a folder.
    # Return the content of the JSON lines file, or write a data set and return None.
    # Also write suites of the start states without a pair. Raise `RunError` if there is no pair.
    from safevla_bench.training.pairs import choose_pairs, encode_pairs, list_candidates, list_members

    settings, is_json_lines = choice.settings, choice.out.suffix == ".jsonl"
    if is_json_lines and choice.cameras:
        raise RunError("JSON lines hold no pictures", remedy="Leave --cameras out, or name a folder.")
    assert isinstance(settings, _PairSettings)
    candidates, unusable = list_candidates(judged)  # comparable episodes, and the number of all other episodes
    states = choose_pairs(candidates, settings.most, failures=settings.failures == "yes")
    # Start states without a pair are written as suites, from which more episodes can be run.
    suite_files = write_rollout_suites(judged, states, choice.out.with_name(f"{choice.out.stem}-found"))
    with_pairs = [state for state in states if state.pairs]
    pair_text = count_noun(sum(len(state.pairs) for state in states), "pair")
    others = f"{len(states) - len(with_pairs)} other start states have no pair"
    echo(f"{pair_text} of {len(with_pairs)} start states; {others}; {unusable} episodes were not compared")
    benchmark_count = sum(state.is_of_benchmark for state in with_pairs)
    if benchmark_count:
        advice = "Do not evaluate a policy on the start states from which it learned."
        states_text = count_noun(benchmark_count, "state")
        echo(f"{advice} Some pairs use start states of the benchmark: {states_text}", err=True)
    for file in suite_files:
        echo(f"Start states without a pair: {file}")
    if not with_pairs:
        command = f"safevla eval --suite found:{suite_files[0] if suite_files else 'FILE'} --policy POLICY --out DIR"
        remedy = f"Run the policy from these start states again, with other seeds: {command}"
        raise RunError("no start state has both a safe and an unsafe success", remedy=remedy)
    # In JSON lines, a pair contains actions (`is_whole`). In a dataset, a pair contains the indices of its episodes.
    index = encode_pairs(judged, states, unusable, msgspec.to_builtins(settings), is_whole=is_json_lines)
    if is_json_lines:
        return index
    _write_dataset(judged.select_episodes(list_members(states)), choice, index)
    return None


def _send_results(name: str, judged: Judged, choice: _ExportChoice) -> None:
    # Send the results to the experiment tracker `name`. The tracker's run is named after the folder `choice.out`.
    tracking.require_trackers([name], "--format")
    report = choice.out / REPORT
    tracking.send_results(name, choice.out, judged, report if report.exists() else None)


def _encode_card(judged: Judged, choice: _ExportChoice) -> str:
    # Return the model-index block of a model card, with remarks on how the results were made.
    # `choice.facts` are facts about the model that the user gives.
    return result_files.build_card(judged, choice.facts, table_material(judged).remarks)


def _encode_robocasa(judged: Judged, choice: _ExportChoice) -> bytes:
    # Return the entry for RoboCasa's leaderboard as the bytes of a JSON file.
    # `choice.facts` are facts about the model that the user gives.
    return dump_json(result_files.build_leaderboard_entry(judged, choice.facts))


@dataclass(frozen=True)
class _ExportForm:
    file: str
    # `encode` returns the content of the file, or None if `encode` itself has written the file or sent the results.
    encode: Callable[[Judged, _ExportChoice], str | bytes | None]
    options: tuple[str, ...] = ("policy", "suite")
    settings: type[_FormSettings] | None = None


_WITH_FACTS = ("policy", "suite", "meta")
_OF_DATASET = (*_WITH_FACTS, "cameras", "image_size", "video")
_EXPORTS: Mapping[str, _ExportForm] = {
    "safevla-csv": _ExportForm("safevla.csv", _encode_authors_csv),
    "submission": _ExportForm(
        "submission.json", lambda judged, choice: dump_json(submission.build_submission(judged, choice.sources))
    ),
    "rerun": _ExportForm("episode.rrd", partial(_encode_timeline, encode_rrd), ("episode",)),
    "mcap": _ExportForm("episode.mcap", partial(_encode_timeline, encode_mcap), ("episode",)),
    "hub": _ExportForm("model_card.md", _encode_card, _WITH_FACTS),
    "eval-results": _ExportForm(
        "eval_results.yaml", lambda judged, choice: result_files.format_eval_results(judged, choice.facts), _WITH_FACTS
    ),
    "robocasa": _ExportForm("robocasa.json", _encode_robocasa, _WITH_FACTS),
    "lerobot": _ExportForm("lerobot", _write_dataset, _OF_DATASET, _FormSettings),
    "pairs": _ExportForm("pairs", _write_pairs, _OF_DATASET, _PairSettings),
    "lerobot-results": _ExportForm("eval_info.json", lambda judged, _: result_files.encode_lerobot_results(judged)),
    "vla-eval-results": _ExportForm("vla_eval.json", lambda judged, _: result_files.encode_harness_results(judged)),
    **{name: _ExportForm("", partial(_send_results, name)) for name in tracking.TRACKERS},
}


class _FormChoice(click.Choice[str]):
    """Type of an option's value: the name of a format, and optional settings after colons."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        # Return the text NAME or NAME:SETTINGS with a valid name of a format. The command checks the settings later.
        name, colon, settings = str(value).partition(":")
        return f"{super().convert(name, param, ctx)}{colon}{settings}"


@options.command("export", starts_host=True)
def export_command(
    sources: rules.JudgedSources = rules.judged_sources(),
    form: str = option(
        "One of the formats above.", "FORMAT", spelling="--format", type=_FormChoice(list(_EXPORTS)), required=True
    ),
    out: Path | None = options.out_option(
        "The file or folder to write; default: one in SOURCE, if that is one run folder.", "FILE|DIR"
    ),
    episode: str | None = option("rerun, mcap: an episode's id, the end of its id, or :2 for the second.", "EPISODE"),
    policy: str | None = option("Only this policy's episodes.", "NAME"),
    suite: str | None = option("Only this suite's episodes.", "NAME", shell_complete=completion.SUITES),
    meta: Path | None = option("TOML file with facts that are not in the records.", "FILE", type=options.FILE),
    cameras: str | None = option("lerobot: include pictures of these cameras.", "LIST"),
    image_size: int = option(
        "lerobot: size of the pictures in pixels.", type=options.WholeNumber(16, 1024), default=128
    ),
    video: bool = flag("lerobot: write videos instead of images."),
) -> None:
    """Judge archives or run folders and write the results for other programs.

    \b
    safevla-csv   the authors' published CSV: a row per policy and suite
    submission    JSON with each episode's verdict, digests and versions
    rerun, mcap   one episode for the viewers Rerun and Foxglove
    hub           a model-index block for a model card on the hub
    eval-results  .eval_results/*.yaml of a model's repository on the hub
    robocasa      JSON for RoboCasa's leaderboard; unknown values are N/A
    lerobot       a LeRobot dataset v3 with safety labels of frames and episodes;
                  lerobot:temperature=1:discount=0.99 sets weights of frames
    pairs         pairs of a safe and an unsafe success from the same start, as a
                  LeRobot dataset v3 with an index, or JSON lines if FILE ends in
                  .jsonl; settings as for lerobot, or pairs:most=8:failures=no
    lerobot-results, vla-eval-results
                  lerobot-eval's or vla-evaluation-harness's JSON, with verdicts
    wandb, trackio, mlflow, tensorboard
                  a new run of the tracker; --out is the run folder

    An ablation (--set applicability=off) cannot be exported.
    """  # noqa: D301  (click needs the control character)
    if sources.ruleset.is_ablation:
        remedy = "Export without --set applicability=off; `safevla tables --which applicability` shows the ablation."
        raise RunError("an ablation is not a result to publish", remedy=remedy)
    form, *setting_texts = form.split(":")  # such as `lerobot:discount=0.99`
    if setting_texts and _EXPORTS[form].settings is None:
        raise click.UsageError(f"--format {form} has no settings.")
    settings = options.parse_settings(f"--format {form}", setting_texts, _EXPORTS[form].settings or _FormSettings)
    # Refuse options that apply only to other formats.
    all_options = {name for kind in _EXPORTS.values() for name in kind.options}
    options.refuse_given(sorted(all_options - {*_EXPORTS[form].options}), f"does not apply to {form}.")
    if video and cameras is None:
        raise click.UsageError("--video needs --cameras.")
    camera_names = [name.strip() for name in (cameras or "").split(",")]
    camera_names = [name for name in dict.fromkeys(camera_names) if name]
    if cameras is not None and not camera_names:
        raise click.UsageError("--cameras names no camera.")
    file = options.choose_output(out, sources.paths, _EXPORTS[form].file)
    facts = result_files.read_facts(meta)
    choice = _ExportChoice(file, sources.paths, episode, facts, tuple(camera_names), image_size, video, settings)
    if form == "pairs":  # sorted so that the order of the sources does not change the output
        sources = replace(sources, paths=tuple(sorted(sources.paths, key=lambda path: archive_digest(path) or "")))
    # Empty lists select all policies or suites. In records, a policy without a name is None.
    policies = [] if policy is None else [None if policy == UNNAMED else policy]
    suites = [] if suite is None else [suite]
    judged = sources.judge(mixes_starts=form == "pairs").select_cells(policies, suites)
    content = _EXPORTS[form].encode(judged, choice)
    if content is not None:  # None = `encode` has already written or sent the results
        _save_file(file, content)
    if not judged.is_complete:
        echo(f"The export is incomplete: {', '.join(describe_losses(judged))}.", err=True)
    echo(f"{form}: {file}")


@options.command("board", starts_host=True)
def board_command(
    context: click.Context,
    sources: rules.JudgedSources = rules.judged_sources(options.OPTIONAL_SOURCES),
    out: Path | None = options.out_option(
        "The folder of the site; default: board/ in SOURCE, if that is one run folder.", "DIR"
    ),
    reports: bool = option("Add a full report of each policy.", spelling="--reports/--no-reports", default=True),
    audit: AuditPlan | None = options.AUDIT,
) -> None:
    """Write a static site that ranks policies by Safety, with their rank by SR and a report of each policy.

    All run folders and archives are judged again by the same rules. Policies that ran the same tasks share a table. The
    paper's entries and the authors' leaderboard have separate tables; without a source, the site has only these tables.
    Its pages fetch nothing and run no script. A new site replaces the board in DIR.

    --audit plays K recorded episodes of each policy of each run again in the simulator, and adds the result to the
    policy's row. The exit code is then 1 if a replay differs from its record, and 2 if a policy could not be audited.
    """
    from safevla_bench.publishing.board import INDEX, check_folder, write_folder

    runs, ruleset = sources.paths, sources.ruleset
    folder = options.choose_output(out, runs, "board")
    check_folder(folder)
    with show_status("replaying, judging and drawing"):
        # For each run: policy -> result of the policy's audit. The list is None without --audit.
        audits = [audit_source(run, audit) for run in runs] if audit else None
        files = build_board(runs, ruleset, reports=reports, skip_invalid=sources.skip_invalid, audits=audits)
        write_folder(files, folder)
    echo(f"Board: {folder / INDEX}   (open it in a browser; {len(files)} pages)")
    # `mark` is the result of a policy's audit: a verdict, a short text (`badge`), and lines on differing replays.
    verdicts = set()
    for mark_by_policy in audits or ():
        for policy, mark in mark_by_policy.items():
            verdicts.add(mark.verdict)
            echo(f"{policy or UNNAMED}: {mark.badge}")
            for line in mark.differing:
                echo_message(f"  {line}", "    ")
    if audit:
        echo(f"To audit the same episodes again, use --audit {audit.count}:{audit.seed}.")
    echo("Next: put the folder on any web server, or add runs and write the board again.")
    if "differs" in verdicts:
        context.exit(GATE_FAILED)
    context.exit(USER_ERROR if "unchecked" in verdicts else OK)
