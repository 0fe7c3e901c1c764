"""`safevla tables` and `safevla export`: results for papers, for programs and for others."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

import click

from safevla_bench import evaluate, viewers
from safevla_bench.cli import printable
from safevla_bench.cli.options import judge_options, skip_option, sources_argument
from safevla_bench.errors import RunError
from safevla_bench.files import make_folder, write_atomically
from safevla_bench.report import authors_csv, episode_choice, episode_list, render, submission
from safevla_bench.report.tables import Roster, Table, catalog, without_intervals

_SUFFIX = {"text": "txt"}


@click.command("tables")
@click.argument("sources", nargs=-1, type=click.Path(path_type=Path), metavar="[SOURCE...]")
@click.option("--which", multiple=True, metavar="LIST",
              help="Names or the paper's numbers, such as main,7,12; else all there are. Repeatable.")  # fmt: skip
@click.option(
    "--format", "form", type=click.Choice(get_args(render.Form)), default="text", show_default=True, help="The form."
)
@click.option("--out", metavar="FILE|DIR/", help="Write there: one file, or a folder with a file for each table.")
@click.option("--training", multiple=True, metavar="POLICY=KIND", help="How a policy was trained. Repeatable.")
@click.option("--auxiliary", multiple=True, metavar="POLICY", help="Keep a policy out of means and bests. Repeatable.")
@click.option("--intervals/--no-intervals", default=True, show_default=True, help="Show 95 % intervals.")
@judge_options
@skip_option
def tables_command(
    sources: tuple[Path, ...],
    which: tuple[str, ...],
    form: render.Form,
    out: str | None,
    training: tuple[str, ...],
    auxiliary: tuple[str, ...],
    intervals: bool,
    judge: evaluate.Judge,
    skip_invalid: bool,
) -> None:
    """Judge archives or run folders and print the paper's result tables for them.

    \b
    main           4, 5    SR, Safety, SBU by suite with means; P[U|S], VSI
    severity               P[U|S], VSI, VSI|U by suite with means
    auxiliary      6       runs outside every mean
    violations     7, 8    violation rates by specification
    composition    10, 11  what unsafe successes violate
    tasks          12      SR, Safety, SBU by task
    active         23      which specifications apply to each task, and why not
    applicability          violations of successes that the registry removes
    beyond                 time in violation, impulse, phases of the task

    A number that the paper gives to LIBERO (4, 7, 10) or to RoboCasa-365 (5, 8, 11) takes that benchmark alone; a name
    takes all. `--which active` needs no source.
    """  # noqa: D301  (click wants the character itself)
    asked = tuple(part.strip() for text in which for part in text.split(","))
    material = _material(sources, asked, judge, skip_invalid)
    roster = Roster(_pairs(training), material.roster.privileged, auxiliary)
    found = catalog.build(replace(material, roster=roster), asked)
    found = found if intervals else [without_intervals(table) for table in found]
    if out is None:
        _print(found, form)
    elif out.endswith("/") or Path(out).is_dir():
        _write_each(found, form, Path(out))
    else:
        _single(found, form, f"--out {shlex.quote(out)}/")
        _save(Path(out), render.rendered(found, form))
        click.echo(printable(f"{_many(len(found))}: {out}"))


def _material(
    sources: Sequence[Path], asked: Sequence[str], judge: evaluate.Judge, skip_invalid: bool
) -> catalog.Material:
    if sources:
        return evaluate.material(evaluate.judge(sources, judge, skip_invalid=skip_invalid), judge)
    if not asked or any(one not in ("active", "23") for one in asked):
        raise click.UsageError("Missing argument 'SOURCE...'. Only --which active needs none.")
    library, registry = judge.load()
    return catalog.Material(scores=None, library=library, registry=registry, capabilities=judge.capabilities)


def _pairs(texts: Sequence[str]) -> dict[str, str]:
    found = dict(text.rpartition("=")[::2] for text in texts)
    if any(not policy or not kind for policy, kind in found.items()):
        raise RunError(f"--training {texts[0]!r} names no kind", remedy="Write POLICY=KIND, such as mine=SFT.")
    return found


def _print(found: Sequence[Table], form: render.Form) -> None:
    _single(found, form, "--out DIR/")
    click.echo(render.rendered(found, form), nl=False)


def _single(found: Sequence[Table], form: render.Form, folder: str) -> None:
    if form == "csv" and len(found) > 1:
        names = ", ".join(table.name for table in found)
        remedy = f"Choose one by --which, or write a file for each: {folder}. Here they are: {names}."
        raise RunError(f"{len(found)} tables do not fit into one CSV file", remedy=remedy)


def _write_each(found: Sequence[Table], form: render.Form, folder: Path) -> None:
    for table in found:
        path = folder / f"{table.name}.{_SUFFIX.get(form, form)}"
        _save(path, render.rendered([table], form))
        click.echo(printable(str(path)))


def _save(path: Path, content: str | bytes) -> None:
    make_folder(path.parent)
    write_atomically(path, content)


def _many(count: int) -> str:
    return "1 table" if count == 1 else f"{count} tables"


def _authors_csv(judged: evaluate.Judged, judge: evaluate.Judge, sources: tuple[Path, ...]) -> str:
    names = ";".join(path.resolve().name for path in sources)
    return authors_csv.authors_csv(judged.summaries()[0], judged.library, names)


def _submission(judged: evaluate.Judged, judge: evaluate.Judge, sources: tuple[Path, ...]) -> bytes:
    return submission.written(evaluate.submit(judged, judge, sources))


_EXPORTS: Mapping[str, Callable[[evaluate.Judged, evaluate.Judge, tuple[Path, ...]], str | bytes]] = {
    "safevla-csv": _authors_csv,
    "submission": _submission,
}
_VIEWED: Mapping[str, Callable[[viewers.Timeline], bytes]] = {"rerun": viewers.rrd, "mcap": viewers.mcap}


@click.command("export")
@sources_argument
@click.option("--format", "form", type=click.Choice([*_EXPORTS, *_VIEWED]), required=True, help="What to write.")
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="FILE", help="The file to write.")
@click.option("--episode", metavar="EPISODE", help="rerun, mcap: which, by its id, its number or how its id ends.")
@judge_options
@skip_option
def export_command(
    sources: tuple[Path, ...], form: str, out: Path, episode: str | None, judge: evaluate.Judge, skip_invalid: bool
) -> None:
    """Judge archives or run folders and write the results for others.

    \b
    safevla-csv  one row a policy and suite, in the columns and with the ids of the CSV that the authors publish
    submission   JSON: every episode's verdict, sha256 of the records, digests of library and registry, versions
    rerun        one episode for the viewer Rerun (.rrd): poses, contacts, signals, limits, violations
    mcap         the same for Foxglove

    An ablation (--applicability off) is not exported.
    """  # noqa: D301  (click wants the character itself)
    if judge.applicability == "off":
        remedy = "Export with --applicability on; `safevla tables --which applicability` shows the ablation."
        raise RunError("an ablation is no result to publish", remedy=remedy)
    if episode is not None and form not in _VIEWED:
        raise click.UsageError(f"--episode is for {' and '.join(_VIEWED)}; {form} takes all episodes.")
    judged = evaluate.judge(sources, judge, skip_invalid=skip_invalid)
    content = _viewed(judged, form, episode) if form in _VIEWED else _EXPORTS[form](judged, judge, sources)
    _save(out, content)
    if judged.interrupted or judged.left_out:
        click.echo(printable(f"Not complete: {', '.join(evaluate.lost(judged))}."), err=True)
    click.echo(printable(f"{form}: {out}"))


def _viewed(judged: evaluate.Judged, form: str, episode: str | None) -> bytes:
    """One episode's timeline as a viewer's file."""
    rows = episode_list.rows(judged.scores, judged.records.dt_s, None)
    if episode is None and len(rows) != 1:
        remedy = "Choose one by --episode; `safevla episodes` lists them."
        raise RunError(f"a file of this form holds one episode, and here are {len(rows)}", remedy=remedy)
    row = rows[0] if episode is None else episode_choice.find(rows, episode)
    if row.number > len(judged.records):
        raise RunError(f"{row.episode_id} crashed and left no record", remedy="Choose another by --episode.")
    return _VIEWED[form](
        viewers.timeline(judged.scores, judged.records.some([row.number - 1]), judged.library, row.number - 1)
    )
