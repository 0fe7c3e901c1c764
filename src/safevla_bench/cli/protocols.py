"""`safevla protocols` and `safevla entries`: the evaluation protocols there are, and the paper's entries."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click
import msgspec

from safevla_bench import protocols
from safevla_bench.cli import dialects as speech
from safevla_bench.cli import printable
from safevla_bench.cli.options import format_option
from safevla_bench.policies.servers import dialects, entries
from safevla_bench.report.published import PAPER, PublishedCell, published


@click.command("protocols")
@click.argument("names", nargs=-1, metavar="[A [B]]")
@format_option
def protocols_command(names: tuple[str, ...], form: str) -> None:
    """List evaluation protocols and dialects; show all that A says; or show where A and B differ.

    `safevla eval --protocol A` runs under the protocol A, each of whose values has its source. The preset,
    safevla-bench, is the paper's own. `--policy-arg dialect=A` asks a server in the dialect A: the images, states and
    texts of a request, and what a reply means.
    """
    if len(names) > 2:
        raise click.UsageError("Name one protocol or dialect, or two to compare.")
    spoken = [name for name in names if name in dialects.names()]
    if len(spoken) not in (0, len(names)):
        raise click.UsageError(f"{spoken[0]} is a dialect: compare it with another.")
    if spoken:
        speech.show(spoken[0], form) if len(spoken) == 1 else speech.compare(spoken[0], spoken[1], form)
        return
    chosen = [protocols.protocol(name) for name in names]
    if not chosen:
        _list(form)
    elif len(chosen) == 1:
        _rows(protocols.rows(*chosen), names, form)
    else:
        _rows(protocols.compare(*chosen), names, form)


@click.command("entries")
@click.argument("name", required=False)
@format_option
def entries_command(name: str | None, form: str) -> None:
    """List the policies and suites that the paper evaluates; or all that is known of one, with sources.

    `safevla eval --entry NAME --server URL` runs one: all its suites, tasks and episodes.
    """
    shown = entries.entries() if name is None else (entries.entry(name),)
    if form == "json":
        click.echo(json.dumps(msgspec.to_builtins(shown if name is None else shown[0]), indent=2))
    elif name is None:
        _table([_entry_line(one) for one in shown], ("entry", "policy", "training", "suites", "asked as", "protocol"))
        click.echo("\nNext: safevla entries NAME shows its checkpoints, its server's command and what is unknown.")
    else:
        _entry(shown[0])


def _list(form: str) -> None:
    known = [protocols.protocol(name) for name in protocols.names()]
    spoken = speech.listed()
    if form == "json":
        rows = [{"kind": "protocol", "name": one.name, "about": one.about} for one in known]
        click.echo(json.dumps([*rows, *({"kind": "dialect", **one} for one in spoken)], indent=2))
        return
    _table([(one.name, one.about) for one in known], ("protocol", "what it is"))
    click.echo()
    _table([(one["name"], one["asked_over"], one["about"]) for one in spoken], ("dialect", "asked over", "what it is"))
    click.echo("\nNext: safevla protocols NAME shows one; safevla protocols openpi openvla shows where two differ.")


def _rows(rows: Sequence[protocols.Row], names: Sequence[str], form: str) -> None:
    if form == "json":
        click.echo(json.dumps([_row(row, names) for row in rows], indent=2))
        return
    for row in rows:
        click.echo(printable(f"{row.field}: {protocols.described(row.field)}"))
        width = max(len(name) for name in names)
        values = [_shown(value) for value in row.values]
        wide = max(len(value) for value in values)
        for name, value, source in zip(names, values, row.sources, strict=True):
            click.echo(printable(f"  {name:<{width}}  {value:<{wide}}  [{source}]"))
    if not rows:
        click.echo("They say the same.")


def _row(row: protocols.Row, names: Sequence[str]) -> dict[str, object]:
    pairs = zip(row.values, row.sources, strict=True)
    said = {name: {"value": value, "source": source} for name, (value, source) in zip(names, pairs, strict=True)}
    return {"field": row.field, "about": protocols.described(row.field), **said}


def _shown(value: object) -> str:
    if value is None:
        return "—"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple | list):
        separator = " x " if all(isinstance(one, int) for one in value) else " + "
        return separator.join(str(one) for one in value)
    return str(value)


def _entry_line(one: entries.Entry) -> tuple[str, ...]:
    suites = ", ".join(one.suites)
    return (one.name, one.policy, one.training or "—", suites, one.transport, one.protocol)


def _entry(one: entries.Entry) -> None:
    pairs = [
        ("entry", one.name + (" (auxiliary, Table 6)" if one.auxiliary else "")),
        ("policy", one.policy + (f", {one.training}" if one.training else "")),
        ("host", one.host),
        ("suites", ", ".join(one.suites)),
        ("protocol", one.protocol),
        ("dialect", f"{one.dialect}, over {one.transport}"),
        ("project", one.project),
        ("server", one.serve),
        *[("checkpoint", f"{suite}: {where}") for suite, where in one.checkpoints.items()],
        *[("published", _printed(cell)) for cell in _published(one)],
        *[("remark", text) for text in one.remarks],
        *[("unknown", text) for text in one.unknown],
        *[("source", f"{name}: {where}") for name, where in one.sources.items()],
    ]
    for name, text in pairs:
        click.echo(printable(f"{name:<10}  {text}"))


def _published(one: entries.Entry) -> list[PublishedCell]:
    """What the paper prints of it."""
    return [cell for cell in published(PAPER).cells if cell.policy == one.policy and cell.benchmark in one.suites]


def _printed(cell: PublishedCell) -> str:
    return f"{cell.benchmark}: SR {cell.sr} %, Safety {cell.safety} %, SBU {cell.sbu} %, n = {cell.n}"


def _table(lines: Sequence[Sequence[str]], head: Sequence[str]) -> None:
    widths = [max(len(line[k]) for line in [head, *lines]) for k in range(len(head))]
    for line in [head, *lines]:
        click.echo("  ".join(f"{text:<{width}}" for text, width in zip(line, widths, strict=True)).rstrip())
