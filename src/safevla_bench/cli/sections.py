"""Commands whose help has sections, and options whose former spellings still work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

GENERAL, JUDGING, RAY, PLANNING = "Options", "Judging", "Ray", "Planning"
"""Headings of the help."""


class Option(click.Option):
    """An option that stands in a section of the help; its former spellings work and are not shown."""

    def __init__(self, names: Sequence[str], *, section: str = GENERAL, former: Sequence[str] = (), **settings: Any):
        super().__init__(names, **settings)
        self.section = section
        self.former = tuple(former)


class Command(click.Command):
    """A command whose help shows its own options first, and shared ones under headings of their own."""

    def option_sections(self, ctx: click.Context) -> dict[str, list[tuple[str, str]]]:
        """Return heading -> (names, help) of the options below that heading.

        The options' own order, `Options` first.
        """
        sections: dict[str, list[tuple[str, str]]] = {GENERAL: []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                sections.setdefault(getattr(param, "section", GENERAL), []).append(record)
        return sections

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections."""
        for heading, records in self.option_sections(ctx).items():
            with formatter.section(heading):
                formatter.write_dl(records)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments into the context, with former spellings of options as today's.

        Return what click leaves over.
        """
        today = {name: option.opts[0] for option in self.params if isinstance(option, Option) for name in option.former}
        names = [arg.partition("=") for arg in args]
        return super().parse_args(ctx, [f"{today.get(name, name)}{rest}{value}" for name, rest, value in names])


def option(*names: str, section: str = GENERAL, former: Sequence[str] = (), **settings: Any) -> Callable[[F], F]:
    """Return the decorator of `click.option` for an `Option` with a section of the help and former spellings."""
    return click.option(*names, cls=Option, section=section, former=former, **settings)


def command(name: str, **settings: Any) -> Callable[[Callable[..., Any]], Command]:
    """Return the decorator of `click.command` for a `Command`."""
    return click.command(name, cls=Command, **settings)
