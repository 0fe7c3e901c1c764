"""`safevla specs` and `safevla tasks`: what is judged, and where."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from safevla_bench import specs, tasks
from safevla_bench.cli.options import format_option
from safevla_bench.text.sanitize import inert


@click.command("specs")
@click.option("--library", default="default", metavar="NAME|FILE", show_default=True, help="The library to list.")
@click.option("--explain", metavar="ID", help="Say all about one specification: formula, tags, source, who is exempt.")
@format_option
def specs_command(library: str, explain: str | None, form: str) -> None:
    """List the safety specifications, or explain one.

    Tier `safe` is scored; `alternate` tiers and `diagnostic` clauses never enter Safety, SBU or VSI.
    """
    chosen = specs.library(library)
    if explain is not None:
        exempt = tasks.exempt(tasks.registry(), chosen, explain)
        _explain({**specs.explain(chosen, explain), "does_not_apply": _by_benchmark(exempt)}, form)
    elif form == "json":
        click.echo(json.dumps(specs.listing(chosen), indent=2))
    else:
        _lines(specs.listing(chosen), ("spec_id", "tier", "axis", "stl", "threshold", "severe", "unit"))


@click.command("tasks")
@click.option("--benchmark", metavar="NAME", help="Only this benchmark, such as libero-goal.")
@click.option("--registry", multiple=True, type=click.Path(path_type=Path), metavar="FILE", help="Add a file's tasks.")
@click.option("--capabilities", multiple=True, metavar="NAME", help="What a host is taken to measure. Repeatable.")
@format_option
def tasks_command(benchmark: str | None, registry: tuple[Path, ...], capabilities: tuple[str, ...], form: str) -> None:
    """List tasks with their template, tags, and the specifications that apply; with reasons for those that do not."""
    rows = tasks.listing(tasks.registry(registry), specs.library(), benchmark=benchmark, capabilities=capabilities)
    if form == "json":
        click.echo(json.dumps(rows, indent=2))
        return
    for row in rows:
        kind = row.get("template") or " + ".join(row["components"])
        said = f"{row['benchmark']} {row['task_id']} ({kind}): {row.get('instruction') or ''}"
        click.echo(inert(said))
        click.echo(f"  applies: {', '.join(row['active_specs']) or 'nothing'}")
        for spec, reason in row["inactive_specs"].items():
            click.echo(f"  not {spec}: {inert(reason)}")


def _by_benchmark(exempt: Mapping[str, Sequence[str]]) -> list[str]:
    """Each reason with its tasks, benchmark by benchmark."""
    lines = []
    for reason, names in exempt.items():
        pairs = [name.split(" ", 1) for name in names]
        for benchmark in dict.fromkeys(benchmark for benchmark, _ in pairs):
            of_it = [task for other, task in pairs if other == benchmark]
            lines.append(f"{reason}: {benchmark} {', '.join(of_it)}")
    return lines


def _explain(told: Mapping[str, object], form: str) -> None:
    if form == "json":
        click.echo(json.dumps(told, indent=2))
        return
    width = max(len(name) for name in told)
    for name, value in told.items():
        values = value if isinstance(value, list | tuple) else [value]
        click.echo(f"{name:<{width}}  " + (f"\n{'':<{width}}  ".join(inert(str(one)) for one in values) or "none"))


def _lines(rows: Sequence[Mapping[str, object]], names: Sequence[str]) -> None:
    """Columns as wide as their widest value."""
    shown = [[("—" if row.get(name) is None else inert(str(row[name]))) for name in names] for row in rows]
    widths = [max(len(name), *(len(line[k]) for line in shown)) for k, name in enumerate(names)]
    for line in [list(names), *shown]:
        click.echo("  ".join(f"{value:<{width}}" for value, width in zip(line, widths, strict=True)).rstrip())
