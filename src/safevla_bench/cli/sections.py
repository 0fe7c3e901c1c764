"""Commands whose help has sections, and former names: of options, and of commands that went into others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
        """Return heading -> (names, help) of the options below that heading, in the command's order.

        The heading `Options` comes first, and is there even if it is empty. Hidden options are left out.
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
        """Parse the arguments into the context and return the words left over; former spellings of options are today's.

        A word that equals a former spelling is replaced wherever it stands, as a value too.
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


# Former commands: their names work for one release, with a note on stderr

_Words = list[str]


@dataclass(frozen=True, slots=True)
class FormerCommand:
    """A former command: what does its work today, and its arguments as that command takes them."""

    today: str
    translate: Callable[[Sequence[str]], _Words]

    def note(self, name: str) -> str:
        """Return the note that says what the former command `name` is called now."""
        return f"note: `safevla {name}` is `safevla {self.today}` now; the old name goes with the next release"


def _spell(arguments: Sequence[str], names: Mapping[str, str]) -> _Words:
    parts = [argument.partition("=") for argument in arguments]
    return [f"{names.get(name, name)}{equals}{value}" for name, equals, value in parts]


def _translate_stl(arguments: Sequence[str]) -> _Words:
    words, place = [argument for argument in arguments if argument != "--"], 0
    while place < len(words) and words[place].startswith("--"):
        place += 2 if words[place] == "--format" else 1
    return ["show", *words[:place], *(["--formula"] if words[place:] else []), *words[place:]]


def _translate_tags(arguments: Sequence[str]) -> _Words:
    if arguments[:1] != ["propose"]:
        return ["tasks", "--help"]
    words = _spell(arguments[1:], {"--bddl": "--propose"}) or ["--propose"]
    return ["tasks", *(word.replace("toml", "text") if _is_form(words, k) else word for k, word in enumerate(words))]


def _is_form(words: Sequence[str], place: int) -> bool:
    return words[place] == "--format=toml" or (words[place] == "toml" and words[place - 1] == "--format")


FORMER_COMMANDS: Mapping[str, FormerCommand] = {
    "report": FormerCommand("score --report FILE", lambda words: ["score", *_spell(words, {"--out": "--report"})]),
    "stl": FormerCommand("show --formula FORMULA", _translate_stl),
    "samplesize": FormerCommand(
        "compare --plan POINTS", lambda words: ["compare", *_spell(words, {"--detect": "--plan"})]
    ),
    "entries": FormerCommand("protocols --entries", lambda words: ["protocols", "--entries", *words]),
    "tags": FormerCommand("tasks --propose FILE", _translate_tags),
    "schema": FormerCommand("validate --schema", lambda words: ["validate", "--schema", *words]),
    "import": FormerCommand("score", lambda words: ["score", *words]),
}
"""Former name -> what does its work today."""
