"""`safevla episodes`, `show`, `open` and `frames`: list, explain, query and view recorded episodes."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import get_args

import click
import msgspec

from safevla_bench import hosts, plugins
from safevla_bench.cli import completion, echo, echo_message, options, rules
from safevla_bench.cli.options import flag, option, quote_paths, repeatable
from safevla_bench.cli.progress import show_frame_progress
from safevla_bench.errors import Place, RunError, SafevlaError, UnknownTaskError
from safevla_bench.explain import episode as explaining
from safevla_bench.explain import query
from safevla_bench.explain.bodies import BODY_KINDS, find_bodies
from safevla_bench.explain.places import collect_bodies, describe_unmatched, list_places
from safevla_bench.files import write_atomically
from safevla_bench.interface.environment import Host
from safevla_bench.jobs.evaluation.judgement import format_rescore_command
from safevla_bench.judging.judged import Judged
from safevla_bench.report import episode_list, terminal
from safevla_bench.report.render.text import render_rows_csv, render_text
from safevla_bench.report.tables import catalog, firmness
from safevla_bench.report.tables import episodes as episode_tables
from safevla_bench.sensitivity.firmness import find_firmness
from safevla_bench.sources.runs.episode_index import Scan
from safevla_bench.sources.runs.folder import FRAMES, REPORT, RUN, read_host
from safevla_bench.sources.runs.sources import require_run
from safevla_bench.specs.spec import Axis
from safevla_bench.text import count_noun

AXES, _ORDERS = get_args(Axis), click.Choice(get_args(episode_list.Order), case_sensitive=False)


@options.command(
    "episodes", common="--unsafe --success --spec --policy --suite --task --outcome --sort --bodies --why --format"
)
def episodes_command(
    sources: rules.JudgedSources = rules.judged_sources(),
    unsafe: bool | None = option(
        "List only unsafe episodes, worst first, or only safe episodes.", spelling="--unsafe/--safe", default=None
    ),
    success: bool | None = option(
        "List only successes, or only failures.", spelling="--success/--no-success", default=None
    ),
    spec: str | None = option(
        f"Show only this specification, or only episodes that violate a specification of this axis: {', '.join(AXES)}.",
        "ID|AXIS",
        shell_complete=completion.SPECS,
    ),
    policy: str | None = option("Only this policy's episodes.", "NAME"),
    suite: str | None = option("Only this suite's episodes.", "NAME", shell_complete=completion.SUITES),
    task: str | None = option("Only episodes of this task, such as `3`, `task_3` or `libero-goal/task_3`.", "TASK"),
    outcome: str | None = option("Only episodes with this outcome, such as `success`, `timeout` or `crashed`.", "NAME"),
    order: episode_list.Order | None = option(
        "Sort by greatest vsi, least rho, first violating step, id, or kind of body.", spelling="--sort", type=_ORDERS
    ),
    bodies: bool = flag("Name the bodies that violate limits on contact or displacement, with their kinds."),
    why: bool = flag("Explain the first violation by the recorded contacts and poses."),
    body_kind: str | None = option("Only violations with a body of this kind.", type=click.Choice(BODY_KINDS)),
    limit: int | None = option("Maximum number of episodes; default: 20 as text, else all.", type=options.POSITIVE),
    form: str = options.format_option("csv", help="Format of the output; csv: one row for each episode."),
) -> None:
    """List the episodes of archives or run folders with their verdicts.

    The margin is the robustness of the worst specification, in that specification's unit; it is negative if violated.
    An episode's number, which `safevla show` accepts, does not depend on filters and sorting.
    """
    judged = sources.judge()
    # --spec names an axis (a group of specifications) or one specification.
    axis = spec if spec in AXES else None
    spec_id = None if spec is None or axis else judged.library.canonical_id(spec)
    # A verdict is firm if replays under varied physics give the same verdict.
    rows = episode_list.add_firmness(_episode_rows(judged, spec_id), find_firmness(judged))
    # Filtering and sorting by kind of body need the lists of bodies, even without --bodies.
    if bodies or body_kind is not None or order == "kind":
        violations = find_bodies(judged.records.read_chunks(), judged.scores, judged.ruleset)
        rows = episode_list.add_violating_bodies(rows, violations, spec_id)
    if why:
        sentences = explaining.explain_first_violations(judged.records.read_chunks(), judged.scores, judged.ruleset)
        # `sentences` maps an episode's number to an explanation; episodes whose cause is unknown are left out.
        rows = [msgspec.structs.replace(row, why=sentences.get(row.number)) for row in rows]
    # The user may write the suite in another spelling than the records, also in a task such as `libero-goal/task_3`.
    recorded = dict.fromkeys(row.episode.benchmark for row in rows)
    task_suite, slash, name = (task or "").partition("/")
    find_recorded = judged.ruleset.registry.find_recorded
    spellings = {
        "suite": find_recorded(suite or "", recorded),
        "task": [f"{spelling}/{name}" for spelling in find_recorded(task_suite, recorded) if slash],
    }
    filters = {"policy": policy, "suite": suite, "task": task, "outcome": outcome, "body_kind": body_kind, "axis": axis}
    # `unsafe` is None if neither --unsafe nor --safe is given. Then safe and unsafe episodes are listed.
    shown = episode_list.filter_episodes(
        rows, violated=unsafe is True, safe=unsafe is False, success=success, spellings=spellings, **filters
    )
    default_order: episode_list.Order | None = "vsi" if unsafe else None  # None = in the order of the sources
    shown = episode_list.sort_episodes(shown, order or default_order)[:limit]
    if form == "json":
        options.print_json([row.to_document() for row in shown])
    elif form == "csv":
        click.echo(render_rows_csv(*episode_list.flatten_episodes(shown, judged.scores)), nl=False)
    else:
        # `absent` lists the planned episodes without a record, such as crashed episodes.
        total, max_rows = len(judged.scores) + len(judged.scores.absent), limit or _MAX_LISTED
        table = episode_tables.episode_list_table(shown, total, spec_id=spec_id, most=max_rows)
        click.echo(render_text(table), nl=False)
        for sentence in catalog.describe_reading(judged.ruleset):  # empty for the paper's setting
            echo(sentence)
        rules.print_missing(judged)
        if len(shown) > len(table.rows):
            advice = f"List all episodes by --limit {len(shown)}, or only unsafe ones by --unsafe."
            echo(f"This list contains only the first {len(table.rows)} episodes. {advice}")
        if shown:
            # `position` names an episode by its number, such as `:2`.
            worst = episode_list.sort_episodes(shown[:max_rows], "vsi")[0].position
            echo(f"Next: {sources.format_command('show', worst)}")


# Without --limit: maximum number of episodes that are listed as text.
_MAX_LISTED = 20


def _pop_episode(context: click.Context, parameter: click.Parameter, words: tuple[Path, ...]) -> tuple[Path, ...]:
    # Without --formula, the last positional argument is the episode's name. Return the words without this name.
    # click reads --formula first (`is_eager`). The parameter `episode` gets the name as its value; "" = no name.
    if context.params["formula"] is not None:
        context.params["episode"] = ""
        return words
    if len(words) < 2:
        raise click.UsageError("Missing argument 'EPISODE'.", context)
    *sources, episode = words
    context.params["episode"] = str(episode)
    return tuple(sources)


@options.command("show", starts_host=True)
def show_command(
    episode: str,
    sources: rules.JudgedSources = rules.judged_sources(
        options.argument(
            "[NAME=]SOURCE... [EPISODE]", nargs=-1, required=True, type=options.SourceType(), callback=_pop_episode
        )
    ),
    without: str | None = option(
        "Replay the episode without one possible cause: contact:A,B, body:NAME, hold:FROM-TO or slow.", "CAUSE"
    ),
    every: bool = flag("Plot every specification.", spelling="--all"),
    page: Path | None = options.out_option("Write an HTML page about the episode.", "FILE", spelling="--html"),
    formula: str | None = option("Evaluate this formula on every episode.", "FORMULA", is_eager=True),
    form: str = options.format_option(),
) -> None:
    """Explain one episode: which specification it violated or nearly violated, when, by which bodies and how much.

    EPISODE is an episode's id, a unique ending of an id, or :2 for the second episode in `safevla episodes` of these
    sources; put an extra colon before an id that begins with a colon.

    --without replays the episode twice. The first replay is unchanged and must reproduce the record bit for bit. The
    second replay omits one cause and shows whether the violation disappears. Name bodies as in the record; `robot`
    means all bodies of the robot. `slow` halves the speed; hold:FROM-TO stops the robot during these control steps.

    --formula evaluates a formula in signal temporal logic on every episode, for instance 'G[0,T](transport ->
    held_object_tilt < 20)', and judges nothing. `safevla specs` shows more formulas.
    """
    if formula is not None:
        _query_formula(formula, sources, form)
        return
    if without is not None:
        options.refuse_given(("every", "page"), "cannot be combined with --without, which replays the episode.")
        _replay_without(sources, episode, without, form)
        return
    judged = sources.judge()
    row = episode_list.find_episode(_episode_rows(judged), episode)
    index = row.number - 1  # numbers count from 1; the episodes without a record come last
    if index >= len(judged.records):  # the episode has no record
        if form == "json":
            options.print_json(row.to_document())
        else:
            click.echo(terminal.format_lost_episode(row), nl=False)
    elif page is not None:
        from safevla_bench.jobs.evaluation.outputs import render_episode_report

        write_atomically(page, render_episode_report(judged, index, page.parent))
        echo(f"Report: {page}")
    else:
        record = judged.records.read_episode(index)
        # `record` contains only this episode, so the episode's place in `record` is 0.
        explanation = explaining.explain_episode(judged.scores, record, judged.ruleset, index, place=0)
        if form == "json":
            options.print_json(explaining.to_document(explanation))
            return
        click.echo(terminal.format_explanation(explanation, plot_all=every))
        for sentence in catalog.describe_reading(judged.ruleset):  # empty for the paper's setting
            echo(sentence)
        command = sources.format_command("show", row.position, "--html", "page.html")
        echo(f"Next: draw the episode on a page: {command}")


def _replay_without(sources: rules.JudgedSources, episode: str, text: str, form: str) -> None:
    # Replay an episode without the cause that `text` names, such as `body:NAME`, and print the effect on the violation.
    # `episode` names the episode by its id or position. `form` is `json` or `text`.
    from safevla_bench.jobs.physics import Cause, replay_without

    cause, judged = Cause.parse(text), sources.judge()
    result = replay_without(judged, episode_list.find_recorded(judged, episode), cause)
    if form == "json":
        options.print_json(result)
        return
    echo(firmness.describe_counterfactual(result), "")
    click.echo(render_text(firmness.counterfactual_table(result, judged.scores.specs)), nl=False)


def _query_formula(formula: str, sources: rules.JudgedSources, form: str) -> None:
    # Print the verdict of the formula on every episode, and a command as the next step.
    # No rules judge the episodes, so options for judging are refused.
    reason = "is for judged episodes, and --formula judges nothing."
    options.refuse_given(("every", "page", "without"), reason)
    judge_options = rules.given_judge_options()
    if judge_options:
        raise click.UsageError(f"--{judge_options[0]} {reason}")
    parsed = query.parse_query(formula)
    scan = Scan(sources.paths)
    answers = query.answer_chunks(parsed, scan)  # reads all episodes, which completes the index of `scan`
    # Unless `skip_invalid`, invalid episodes raise an error. Planned episodes without a record (`absent`) come last.
    records = scan.index()
    records.require_valid(skip_invalid=sources.skip_invalid)
    answers += query.answers_without_record(records.absent, len(records))
    if form == "json":
        options.print_json(answers)
        return
    click.echo(render_text(episode_tables.answer_table(parsed, answers)), nl=False)
    for phrase in records.left_out.describe_kinds():
        echo(f"{phrase[0].upper()}{phrase[1:]}.")
    # A formula may be undefined because it names bodies that occur in no episode.
    if any(answer.verdict == "undefined" for answer in answers):
        for line in describe_unmatched(list_places([parsed]), collect_bodies(records.read_chunks())):
            echo(line)
    next_step = f"explain the first episode: {sources.format_command('show', ':1')}"
    try:  # an explanation needs rules for all tasks
        tasks = dict.fromkeys((header.benchmark, header.task_id) for header in records.headers)
        sources.ruleset.registry.require_entries(tasks)
    except UnknownTaskError:
        command = sources.format_command("score", "--rules", "FILE", "--out", "results")
        next_step = f"judge the episodes by a FILE that defines their tasks: {command}"
    echo(f"Next: {next_step}")


def _episode_rows(judged: Judged, spec_id: str | None = None) -> list[episode_list.ListedEpisode]:
    # Return a row per episode, about the specification `spec_id` or, without `spec_id`, about the worst specification.
    # The records contain the control steps `dt_s` and, if recorded, time stamps `stamps_s`.
    return episode_list.list_episodes(judged.scores, judged.records.dt_s, spec_id, judged.records.stamps_s)


@options.command("open")
def open_command(
    folder: Path = options.argument("RUN|FOLDER", type=options.FILE, default=Path()),
    no_browser: bool = flag("Print the page's path without opening the page."),
) -> None:
    """Open the report of a run in the browser, or an index of the runs in a folder.

    The index, FOLDER/safevla-runs.html, lists each run by policy and suite with n, SR, Safety and VSI. Each call of
    this command rewrites the index.
    """
    from safevla_bench.jobs.browse import describe_report, find_page

    page = find_page(folder)
    for line in describe_report(folder):
        echo(f"note: {line}", err=True)
    echo(str(page))
    if not no_browser:
        _open_browser(page)


def _open_browser(page: Path) -> None:
    # Open the page in the browser. If this is impossible, print the command that serves the page to another machine.
    import webbrowser

    with suppress(webbrowser.Error, OSError):
        has_display = not {"DISPLAY", "WAYLAND_DISPLAY"}.isdisjoint(os.environ) or sys.platform in ("darwin", "win32")
        is_script = not (sys.stdin.isatty() or sys.stdout.isatty())  # in a script, a text browser would wait for keys
        if has_display and not is_script and webbrowser.open(page.absolute().as_uri()):
            return
    command = f"python -m http.server --bind 127.0.0.1 --directory {quote_paths(page.parent)}"
    echo(f"No browser was opened. To view the page over ssh -L 8000:127.0.0.1:8000, run: {command}", err=True)


# Pictures


_PIXELS = options.WholeNumber(16, 9999)


@options.command("frames", starts_host=True)
def frames_command(
    sources: rules.JudgedSources = rules.judged_sources(
        # The callback makes a tuple of the single argument, as `JudgedSources` needs.
        options.argument("RUN", type=options.FILE, callback=lambda context, argument, run: (run,))
    ),
    names: tuple[str, ...] = repeatable(
        "The episode's id, the end of its id, or :2 for the second episode.", "EPISODE", spelling="--episode"
    ),
    worst: int = option("Without --episode: number of worst episodes to render.", type=options.POSITIVE, default=12),
    size: tuple[int, int] = option("Size in pixels.", "WIDTH HEIGHT", nargs=2, type=_PIXELS, default=(640, 480)),
    video: bool = flag("Also render a film of each whole episode, from both cameras; needs the extra `video`."),
    in_3d: bool = flag("Also write a 3-D replay for the report.", spelling="--3d"),
) -> None:
    """Render episodes of a run folder into RUN/frames, in the simulator that recorded them.

    Each episode gets a frame of the initial state, and a frame of the final state, with a green border after a success.
    Each violated specification gets a frame of its worst record, with a red border and outlines of the bodies involved.
    Frames of other episodes are kept. The command needs the host and off-screen OpenGL: see `safevla doctor`.
    """
    from safevla_bench.pictures.drawing import can_film
    from safevla_bench.pictures.rendering import FrameStyle, RecordedRun, render_frames, require_pictures

    (run,) = sources.paths  # the command takes one run folder
    host = _make_host(run)
    require_pictures(host)
    if video and not can_film():
        raise RunError("films need the extra `video`", remedy=plugins.install_command("video"))
    judged = sources.judge()
    if not len(judged.records):
        remedy = "A crashed episode cannot be shown."
        raise RunError("no episode of this run has a record", remedy=remedy, place=Place(file=str(run)))
    named = dict.fromkeys(episode_list.find_recorded(judged, name) for name in names)  # without duplicates
    # Indices of the episodes to render.
    chosen = list(named) or explaining.select_worst(judged.scores, worst)
    records = judged.records.read_sparsely(chosen)
    material = RecordedRun(run, host, records, judged.scores, judged.ruleset)
    width, height = size
    # `size` is (height, width), as the shape of an image array.
    style = FrameStyle(size=(height, width), video=video, replay3d=in_3d)
    with show_frame_progress(len(chosen)) as observer:
        frame_rows = render_frames(material, chosen, style, observer, report_skipped)
    episode_keys = {(row.policy, row.episode_id) for row in frame_rows}
    size_mb = sum((run / FRAMES / row.file).stat().st_size for row in frame_rows) / 1e6
    films = [row.file for row in frame_rows if row.kind == "video"]
    counts = [count_noun(sum(row.kind not in ("video", "replay3d") for row in frame_rows), "frame")]
    if films:
        counts.append(count_noun(len(films), "film"))
    echo(f"{' and '.join(counts)} of {count_noun(len(episode_keys), 'episode')}, {size_mb:.1f} MB: {run / FRAMES}")
    echo(*(f"Film: {run / FRAMES / name}" for name in films))
    if in_3d:
        echo(f"To add the 3-D replays to the report, write the report again: {run / REPORT}")
    # Without options for judging, the report is written by the rules that judged the run before.
    command = sources.format_command("score") if sources.judging_words else format_rescore_command(run)
    echo(f"Next: {command}")


def report_skipped(reason: SafevlaError) -> None:
    """Print on stderr the reason why an episode is skipped."""
    echo_message(f"left out: {reason}", err=True)


def _make_host(run: Path) -> Host:
    # Return the host that recorded the run, so that its episodes can be set up and rendered again.
    # Raise `RunError` if the run does not name its host.
    require_run(run)
    host, arguments = read_host(run)
    if host is None:
        remedy = f"Name a run folder of `safevla eval` that records the host in its {RUN}."
        raise RunError("the run names no host that can render it", remedy=remedy, place=Place(file=str(run)))
    return hosts.make_host(host, arguments, named_by=run / RUN)
