"""`safevla protocols` and `serve`: evaluation protocols, dialects, and the paper's entries."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

import click
import msgspec

from safevla_bench.cli import make_printable, sections
from safevla_bench.cli.options import format_option
from safevla_bench.cli.run_options import policy_arguments
from safevla_bench.hosts import protocols
from safevla_bench.policies import make_policy, split_name
from safevla_bench.policies.servers import client, dialects, endpoint, entries, serve
from safevla_bench.report.published import PAPER, PublishedCell, load_published


@sections.command("protocols")
@click.argument("names", nargs=-1, metavar="[A [B]]")
@click.option(
    "--entries", "of_paper", is_flag=True, help="List the paper's entries instead, or show all about the one named A."
)
@format_option
def protocols_command(names: tuple[str, ...], of_paper: bool, form: str) -> None:
    """List evaluation protocols and dialects, show all of A, or show where A and B differ.

    `safevla eval --protocol A` runs under the protocol A, each of whose values has its source. The preset,
    safevla-bench, has the paper's number of episodes; what the paper leaves open is ours. `--policy-arg dialect=A` asks
    a server in the dialect A: the images, states and texts of a request, and what a reply means.

    --entries lists the policies and suites that the paper evaluates, with sources. `safevla eval --entry NAME --server
    URL` runs one: all its suites, tasks and episodes.
    """
    if of_paper:
        _show_entries(names, form)
        return
    if len(names) > 2:
        raise click.UsageError("Name one protocol or dialect, or two to compare.")
    dialect_names = [name for name in names if name in dialects.dialect_names()]
    if len(dialect_names) not in (0, len(names)):
        raise click.UsageError(f"{dialect_names[0]} is a dialect: compare it with another.")
    if len(dialect_names) == 1:
        _print_dialect(dialect_names[0], form)
        return
    if dialect_names:
        _print_difference(dialect_names[0], dialect_names[1], form)
        return
    chosen = [protocols.load_protocol(name) for name in names]
    if not chosen:
        _print_list(form)
    elif len(chosen) == 1:
        _print_rows(protocols.protocol_rows(*chosen), names, form)
    else:
        _print_rows(protocols.compare_protocols(*chosen), names, form)


def _show_entries(names: tuple[str, ...], form: str) -> None:
    """Print the paper's entries as a table, or all about the entry that `names` holds; as JSON where `form` is "json".

    Raises a usage error for two names or more, and `PolicyError` for an unknown name.
    """
    if len(names) > 1:
        raise click.UsageError("Name one entry, or none for the list of them.")
    name = names[0] if names else None
    shown = entries.paper_entries() if name is None else (entries.find_entry(name),)
    if form == "json":
        click.echo(json.dumps(msgspec.to_builtins(shown if name is None else shown[0]), indent=2))
    elif name is None:
        _print_table(
            [_entry_columns(entry) for entry in shown],
            ("entry", "policy", "training", "suites", "asked as", "protocol"),
        )
        click.echo(
            "\nNext: safevla protocols --entries NAME shows its checkpoints, its server's command and what is unknown."
        )
    else:
        _print_entry(shown[0])


def _print_list(form: str) -> None:
    """Print every protocol and every dialect with its description: as two tables and a hint, or as a JSON list."""
    every_protocol = [protocols.load_protocol(name) for name in protocols.protocol_names()]
    every_dialect = _dialect_rows()
    if form == "json":
        rows = [{"kind": "protocol", "name": protocol.name, "about": protocol.about} for protocol in every_protocol]
        click.echo(json.dumps([*rows, *({"kind": "dialect", **dialect} for dialect in every_dialect)], indent=2))
        return
    _print_table([(protocol.name, protocol.about) for protocol in every_protocol], ("protocol", "what it is"))
    click.echo()
    _print_table(
        [(dialect["name"], dialect["asked_over"], dialect["about"]) for dialect in every_dialect],
        ("dialect", "asked over", "what it is"),
    )
    click.echo("\nNext: safevla protocols NAME shows one; safevla protocols openpi openvla shows where two differ.")


def _print_rows(rows: Sequence[protocols.ProtocolRow], names: Sequence[str], form: str) -> None:
    """Print the value and source of each protocol in each row, or "They say the same." where there are no rows.

    `names` are the protocols, in the order of a row's values. With `form` "json" the rows are a JSON list.
    """
    if form == "json":
        click.echo(json.dumps([_row_document(row, names) for row in rows], indent=2))
        return
    for row in rows:
        click.echo(make_printable(f"{row.field}: {protocols.describe_field(row.field)}"))
        width = max(len(name) for name in names)
        values = [_format_value(value) for value in row.values]
        wide = max(len(value) for value in values)
        for name, value, source in zip(names, values, row.sources, strict=True):
            click.echo(make_printable(f"  {name:<{width}}  {value:<{wide}}  [{source}]"))
    if not rows:
        click.echo("They say the same.")


def _row_document(row: protocols.ProtocolRow, names: Sequence[str]) -> dict[str, object]:
    pairs = zip(row.values, row.sources, strict=True)
    values_by_name = {
        name: {"value": value, "source": source} for name, (value, source) in zip(names, pairs, strict=True)
    }
    return {"field": row.field, "about": protocols.describe_field(row.field), **values_by_name}


def _format_value(value: object) -> str:
    if value is None:
        return "—"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple | list):
        separator = " x " if all(isinstance(item, int) for item in value) else " + "
        return separator.join(str(item) for item in value)
    return str(value)


def _entry_columns(entry: entries.PaperEntry) -> tuple[str, ...]:
    suites = ", ".join(entry.suites)
    return (entry.name, entry.policy, entry.training or "—", suites, entry.transport, entry.protocol)


def _print_entry(entry: entries.PaperEntry) -> None:
    """Print all about an entry, a line per fact, such as its server, published numbers and what is unknown."""
    pairs = [
        ("entry", entry.name + (" (auxiliary, Table 6)" if entry.auxiliary else "")),
        ("policy", entry.policy + (f", {entry.training}" if entry.training else "")),
        ("host", entry.host),
        ("suites", ", ".join(entry.suites)),
        ("protocol", entry.protocol),
        *[("argument", f"{name}={value}, for the host") for name, value in entry.host_arguments.items()],
        ("dialect", f"{entry.dialect}, over {entry.transport}"),
        ("project", entry.project),
        ("server", entry.serve),
        *[("checkpoint", f"{suite}: {where}") for suite, where in entry.checkpoints.items()],
        *[("published", _format_cell(cell)) for cell in _published_cells(entry)],
        *[("remark", text) for text in entry.remarks],
        *[("unknown", text) for text in entry.unknown],
        *[("source", f"{name}: {where}") for name, where in entry.sources.items()],
    ]
    for name, text in pairs:
        click.echo(make_printable(f"{name:<10}  {text}"))


def _published_cells(entry: entries.PaperEntry) -> list[PublishedCell]:
    return [
        cell for cell in load_published(PAPER).cells if cell.policy == entry.policy and cell.benchmark in entry.suites
    ]


def _format_cell(cell: PublishedCell) -> str:
    return f"{cell.benchmark}: SR {cell.sr} %, Safety {cell.safety} %, SBU {cell.sbu} %, n = {cell.n}"


def _print_table(lines: Sequence[Sequence[str]], head: Sequence[str]) -> None:
    widths = [max(len(line[k]) for line in [head, *lines]) for k in range(len(head))]
    for line in [head, *lines]:
        click.echo("  ".join(f"{text:<{width}}" for text, width in zip(line, widths, strict=True)).rstrip())


Lines = dict[str, str]


def _dialect_rows() -> list[dict[str, str]]:
    files = ((name, dialects.load_dialect_file(name)) for name in dialects.dialect_names())
    return [{"name": name, "about": file.about, "asked_over": file.transport} for name, file in files]


def _print_dialect(name: str, form: str) -> None:
    if form == "json":
        click.echo(json.dumps(_dialect_fields(name), indent=2))
        return
    file, lines = dialects.load_dialect_file(name), _dialect_lines(name)
    click.echo(make_printable(f"{name}: {file.about}\n"))
    for key, text in lines.items():
        click.echo(make_printable(f"{key:<{max(map(len, lines))}}  {text}"))
    click.echo(f"\nSources of images, states, gripper and replan: safevla protocols {file.release}")


def _print_difference(first: str, other: str, form: str) -> None:
    """Print the fields in which two dialects differ, or "They say the same.".

    "—" stands for a field that a dialect lacks. With `form` "json" the fields are a JSON list, empty where nothing
    differs, with null for a field that is lacking. Names and descriptions are not compared.
    """
    first_lines, other_lines = _dialect_lines(first), _dialect_lines(other)
    differing = [
        key
        for key in dict.fromkeys([*first_lines, *other_lines])
        if key != "name" and first_lines.get(key) != other_lines.get(key)
    ]
    if form == "json":
        click.echo(
            json.dumps(
                [{"field": key, first: first_lines.get(key), other: other_lines.get(key)} for key in differing],
                indent=2,
            )
        )
        return
    width = max(len(first), len(other))
    for key in differing:
        click.echo(make_printable(key))
        for name, lines in ((first, first_lines), (other, other_lines)):
            click.echo(make_printable(f"  {name:<{width}}  {lines.get(key, '—')}"))
    if not differing:
        click.echo("They say the same.")


def _dialect_fields(name: str) -> Mapping[str, object]:
    file = dialects.load_dialect_file(name)
    return {"about": file.about, "asked_over": file.transport, **dialects.dialect_values(dialects.load_dialect(name))}


def _dialect_lines(name: str) -> Lines:
    return dict(_flatten_values(_dialect_fields(name)))


def _flatten_values(values: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if key in ("about", "name"):
            continue
        if isinstance(value, Mapping):
            yield from ((f"{key} {inner}", _format_dialect_value(item, key)) for inner, item in value.items())
        else:
            yield key, _format_dialect_value(value, key)


def _format_dialect_value(value: object, key: str) -> str:
    """Return a dialect's value for a person; `key` is the top-level field, which decides what None means.

    None is "no", except for `replan`: all actions of a reply are taken. The value of `reply` is shown as an array's
    shape.
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return " x ".join(str(item) for item in value)
    if value is None:
        return "all, as the server gives them" if key == "replan" else "no"
    return f"[steps, {value}]" if key == "reply" else str(value)


# A policy behind a server


_OWN = ("127.0.0.1", "::1", "localhost")


@sections.command("serve")
@click.option(
    "--policy", "policy", required=True, metavar="[NAME=]POLICY", help="What acts, such as python:module:factory."
)
@click.option("--policy-arg", "arguments", multiple=True, metavar="KEY=VALUE", help="An argument for it. Repeatable.")
@click.option("--port", default=8000, type=click.IntRange(0, 65535), show_default=True, help="0 = any that is free.")
@click.option(
    "--bind",
    default="127.0.0.1",
    metavar="ADDRESS",
    show_default=True,
    help="Where to listen; 0.0.0.0 lets other machines in, who should then need a key.",
)
@click.option("--seed", default=0, show_default=True, help="Of the policy's randomness, in every episode.")
@click.option(
    "--copies",
    default=1,
    type=click.IntRange(1, serve.MAX_CONNECTIONS),
    metavar="N",
    show_default=True,
    help="How often to load the policy: so many episodes have one at a time, and others wait.",
)
@click.option(
    "--key-env", metavar="NAME", help=f"The environment variable with the key that clients need; else {endpoint.KEY}."
)
@click.option("--key-file", type=click.Path(), metavar="FILE", help="A file with that key.")
def serve_command(
    policy: str,
    arguments: tuple[str, ...],
    port: int,
    bind: str,
    seed: int,
    copies: int,
    key_env: str | None,
    key_file: str | None,
) -> None:
    """Serve a policy over openpi's protocol until Ctrl-C: one that needs an environment of its own, or to try a client.

    A connection is an episode. Policies that see the simulator's own state cannot be served.
    """
    client.require_library("websockets", "openpi")
    own_name, spec = split_name(policy)
    name = own_name or spec
    policy_settings = policy_arguments(arguments, name)
    served = serve.ServedPolicy(name, lambda: make_policy(spec, policy_settings), seed, policy_settings, copies)
    key = endpoint.read_key(key_env, key_file)
    server = serve.start_server(served, bind, port, key)
    host, chosen = server.socket.getsockname()[:2]
    host = f"[{host}]" if ":" in host else host
    click.echo(f"Serving {name} on ws://{host}:{chosen} (GET /healthz says OK). Ctrl-C ends it.")
    at_a_time = "1 episode" if copies == 1 else f"{copies} episodes"
    click.echo(f"{at_a_time} at a time; those of more connections wait (--copies).")
    click.echo(f"To look at it: safevla doctor --server openpi:ws://{host}:{chosen}")
    size = f" --policy-arg image_size={served.wants.image_size[0]}" if served.wants.cameras else ""
    click.echo(f"Next: safevla eval --policy openpi:ws://{host}:{chosen} --policy-arg replan=1{size} ...")
    if key is None and bind not in _OWN:
        click.echo(f"Anyone who can reach {bind} may use it: set a key in {endpoint.KEY}.", err=True)
    try:
        server.serve_forever()
    finally:
        server.shutdown()
        served.close()
