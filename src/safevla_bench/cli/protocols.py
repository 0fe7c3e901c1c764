"""`safevla protocols` and `serve`: evaluation protocols, dialects, and the paper's entries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import click
import msgspec

from safevla_bench.cli import echo, options
from safevla_bench.cli.options import command, flag, option, print_columns, print_json
from safevla_bench.cli.run_options import policy_arguments
from safevla_bench.hosts import protocols
from safevla_bench.policies import make_policy, split_name
from safevla_bench.policies.servers import dialects, endpoint, entries, require_library, serve
from safevla_bench.report.published import PAPER, load_published
from safevla_bench.text import count_noun


@command("protocols")
def protocols_command(
    names: tuple[str, ...] = options.argument("[A [B]]", nargs=-1),
    of_paper: bool = flag("List the paper's entries instead, or show all about the one named A.", spelling="--entries"),
    form: str = options.format_option(),
) -> None:
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
    show = _show_dialects if dialect_names else _show_protocols if names else _list_names
    show(names, form)


def _show_entries(names: tuple[str, ...], form: str) -> None:
    if len(names) > 1:
        raise click.UsageError("Name one entry, or none for the list of them.")
    shown = tuple(map(entries.find_entry, names)) or entries.paper_entries()
    if form == "json":
        print_json(shown[0] if names else shown)
    elif names:
        _print_entry(shown[0])
    else:
        rows = [
            (entry.name, entry.policy, entry.training or "—", ", ".join(entry.suites), entry.transport, entry.protocol)
            for entry in shown
        ]
        print_columns(("entry", "policy", "training", "suites", "asked as", "protocol"), rows)
        hint = "safevla protocols --entries NAME shows its checkpoints, its server's command and what is unknown."
        click.echo(f"\nNext: {hint}")


def _print_entry(entry: entries.PaperEntry) -> None:
    """Print all about an entry, a line per fact, with the published numbers of its suites."""
    cells = [c for c in load_published(PAPER).cells if c.policy == entry.policy and c.benchmark in entry.suites]
    printed = {c.benchmark: f"SR {c.sr} %, Safety {c.safety} %, SBU {c.sbu} %, n = {c.n}" for c in cells}
    for name, value in {**msgspec.to_builtins(entry), "published": printed}.items():
        items = [f"{key}: {item}" for key, item in value.items()] if isinstance(value, Mapping) else value
        for line in items if isinstance(items, list | tuple) else [_format_value(items)]:
            echo(f"{name:<14}  {line}")


def _list_names(names: tuple[str, ...], form: str) -> None:
    every_protocol = [(name, protocols.load_protocol(name).about) for name in protocols.protocol_names()]
    files = {name: dialects.load_dialect_file(name) for name in dialects.dialect_names()}
    if form == "json":
        rows = [{"kind": "protocol", "name": name, "about": about} for name, about in every_protocol]
        of_dialects = [{"kind": "dialect", "name": name, **_about_dialect(file)} for name, file in files.items()]
        print_json([*rows, *of_dialects])
        return
    every_dialect = [(name, file.transport, _format_hosts(file), file.about) for name, file in files.items()]
    click.echo(f"{len(every_protocol)} evaluation protocols, and {len(every_dialect)} dialects to ask servers in.\n")
    print_columns(("protocol", "what it is"), every_protocol)
    click.echo()
    print_columns(("dialect", "asked over", "hosts", "what it is"), every_dialect)
    click.echo("\nHosts without a word are those on which the server's project evaluates.")
    click.echo("\nNext: safevla protocols NAME shows one; safevla protocols openpi openvla shows where two differ.")


def _format_hosts(file: dialects.DialectFile) -> str:
    return ", ".join(host if whose == "upstream" else f"{host} ({whose})" for host, whose in file.hosts.items())


def _show_protocols(names: tuple[str, ...], form: str) -> None:
    rows = [
        row for row in protocols.protocol_rows(*map(protocols.load_protocol, names)) if row.differs or len(names) == 1
    ]
    if form == "json":
        print_json([_row_document(row, names) for row in rows])
        return
    width = max(map(len, names))
    for row in rows:
        echo(f"{row.field}: {protocols.describe_field(row.field)}")
        for name, value, source in zip(names, row.values, row.sources, strict=True):
            echo(f"  {name:<{width}}  {_format_value(value)}  [{source}]")
    if not rows:
        click.echo("They say the same.")


def _row_document(row: protocols.ProtocolRow, names: Sequence[str]) -> dict[str, object]:
    pairs = zip(row.values, row.sources, strict=True)
    values = {name: {"value": value, "source": source} for name, (value, source) in zip(names, pairs, strict=True)}
    return {"field": row.field, "about": protocols.describe_field(row.field), **values}


def _show_dialects(names: tuple[str, ...], form: str) -> None:
    """Show all of one dialect, or the fields in which two differ, names and descriptions aside."""
    columns = [dict(_flatten_values(name)) for name in names]
    rows = [(key, *(values.get(key, "—") for values in columns)) for key in {k: 0 for c in columns for k in c}]
    rows = [row for row in rows if len(names) == 1 or row[1] != row[2]]
    if form == "json":
        differing = [dict(zip(("field", *names), row, strict=True)) for row in rows]
        print_json(_dialect_fields(names[0]) if len(names) == 1 else differing)
    elif rows:
        print_columns(("", *names), rows)
    else:
        click.echo("They say the same.")


def _about_dialect(file: dialects.DialectFile) -> dict[str, object]:
    return {"about": file.about, "asked_over": file.transport, "hosts": file.hosts}


def _dialect_fields(name: str) -> Mapping[str, object]:
    about = _about_dialect(dialects.load_dialect_file(name))
    return {**about, **dialects.dialect_values(dialects.load_dialect(name))}


def _flatten_values(name: str) -> Iterator[tuple[str, str]]:
    for key, value in _dialect_fields(name).items():
        if isinstance(value, Mapping):
            yield from ((f"{key} {inner}", _format_value(item)) for inner, item in value.items())
        elif key not in ("about", "name"):
            yield key, _format_value(value)


def _format_value(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "—", True: "yes", False: "no"}[value]
    if isinstance(value, tuple | list):
        return (" x " if all(isinstance(item, int) for item in value) else " + ").join(map(str, value))
    return str(value)


# A policy behind a server


_OWN = ("127.0.0.1", "::1", "localhost")


@command("serve")
def serve_command(
    policy: str = option("What acts, such as python:module:factory.", "[NAME=]POLICY", required=True),
    arguments: tuple[str, ...] = options.policy_arguments_option("An argument for it."),
    port: int = option("0 = any that is free.", default=8000, type=options.PORT),
    bind: str = option(
        "Where to listen; 0.0.0.0 lets other machines in, who should then need a key.", "ADDRESS", default="127.0.0.1"
    ),
    seed: int = option("Of the policy's randomness, in every episode.", default=0, show_default=True),
    copies: int = option(
        "How often to load the policy: so many episodes have one at a time, and others wait.",
        "N",
        default=1,
        type=click.IntRange(1, serve.MAX_CONNECTIONS),
    ),
    key_file: str | None = option(f"A file with the key that clients need; else that of {endpoint.KEY}.", "FILE"),
) -> None:
    """Serve a policy over openpi's protocol until Ctrl-C: one that needs an environment of its own, or to try a client.

    A connection is an episode. Policies that see the simulator's own state cannot be served.
    """
    require_library("websockets", "openpi")
    own_name, spec = split_name(policy)
    name = own_name or spec
    policy_settings = policy_arguments(arguments, name)
    served = serve.ServedPolicy(name, lambda: make_policy(spec, policy_settings), seed, policy_settings, copies)
    key = endpoint.read_key(key_file)
    server = serve.start_server(served, bind, port, key)
    host, chosen = server.socket.getsockname()[:2]
    host = f"[{host}]" if ":" in host else host
    click.echo(f"Serving {name} on ws://{host}:{chosen} (GET /healthz says OK). Ctrl-C ends it.")
    click.echo(f"{count_noun(copies, 'episode')} at a time; those of more connections wait (--copies).")
    click.echo(f"To look at it: safevla doctor --server openpi:ws://{host}:{chosen}")
    click.echo(f"Next: safevla eval --policy openpi:ws://{host}:{chosen} ...")
    if key is None and bind not in _OWN:
        click.echo(f"Anyone who can reach {bind} may use it: set a key in {endpoint.KEY}.", err=True)
    try:
        server.serve_forever()
    finally:
        server.shutdown()
        served.close()
