"""What `safevla protocols` says of dialects: how servers are asked, entry by entry of the request."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

import click

from safevla_bench.cli import printable
from safevla_bench.policies.servers import dialects

Lines = dict[str, str]


def listed() -> list[dict[str, str]]:
    """Every dialect: its name, the clients that speak it, and what it is."""
    held = ((name, dialects.file(name)) for name in dialects.names())
    return [{"name": name, "about": one.about, "asked_over": one.transport} for name, one in held]


def show(name: str, form: str) -> None:
    """Print one dialect."""
    if form == "json":
        click.echo(json.dumps(_values(name), indent=2))
        return
    held, lines = dialects.file(name), _lines(name)
    click.echo(printable(f"{name}: {held.about}\n"))
    for key, text in lines.items():
        click.echo(printable(f"{key:<{max(map(len, lines))}}  {text}"))
    click.echo(f"\nSources of images, states, gripper and replan: safevla protocols {held.release}")


def compare(first: str, other: str, form: str) -> None:
    """Print where two dialects differ."""
    one, two = _lines(first), _lines(other)
    differing = [key for key in dict.fromkeys([*one, *two]) if key != "name" and one.get(key) != two.get(key)]
    if form == "json":
        click.echo(
            json.dumps([{"field": key, first: one.get(key), other: two.get(key)} for key in differing], indent=2)
        )
        return
    width = max(len(first), len(other))
    for key in differing:
        click.echo(printable(key))
        for name, lines in ((first, one), (other, two)):
            click.echo(printable(f"  {name:<{width}}  {lines.get(key, '—')}"))
    if not differing:
        click.echo("They say the same.")


def _values(name: str) -> Mapping[str, object]:
    held = dialects.file(name)
    return {"about": held.about, "asked_over": held.transport, **dialects.values(dialects.dialect(name))}


def _lines(name: str) -> Lines:
    return dict(_flat(_values(name)))


def _flat(values: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if key in ("about", "name"):
            continue
        if isinstance(value, Mapping):
            yield from ((f"{key} {inner}", _shown(item, key)) for inner, item in value.items())
        else:
            yield key, _shown(value, key)


def _shown(value: object, key: str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return " x ".join(str(one) for one in value)
    if value is None:
        return "all, as the server gives them" if key == "replan" else "no"
    return f"[steps, {value}]" if key == "reply" else str(value)
