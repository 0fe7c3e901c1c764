"""Commands and options: sections of the help, ranges, and the options that several commands share.

A command is a function whose parameters declare options by their defaults. An option that several commands take is
declared here, once.
"""

from __future__ import annotations

import json
import secrets
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from inspect import signature
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec
from click.core import ParameterSource

from safevla_bench import archive
from safevla_bench.files import own_path
from safevla_bench.plugins import trusting
from safevla_bench.sources.logs import find_log
from safevla_bench.sources.runs.folder import RUN
from safevla_bench.sources.runs.policy_names import NamedSource
from safevla_bench.sources.runs.sources import open_source
from safevla_bench.text import escape_controls

if TYPE_CHECKING:
    from safevla_bench.jobs.evaluation.request import Request
    from safevla_bench.jobs.verify import AuditPlan

GENERAL, JUDGING = "Options", "Judging"  # headings of the help


class Option(click.Option):
    """An option that stands in a section of the help."""

    def __init__(self, names: Sequence[str], *, section: str = GENERAL, **settings: Any):
        super().__init__(names, **settings)
        self.section = section


ALL_OPTIONS = "safevla.all_options"  # set in a context's `meta` by --help-all


class Command(click.Command):
    """A command whose help shows its common options; --help-all shows all, shared ones under headings of their own."""

    def __init__(self, *args: Any, common: str = "", starts_host: bool = False, **settings: Any):
        """Make the command; `common` names the options of --help by their first spelling, all without it.

        A command that `starts_host` has --trust, for the run.json and other files that name what the host uses.
        """
        super().__init__(*args, **settings)
        self.params += declare_options({"trusted": TRUST} if starts_host else {})
        self.common = frozenset(common.split())
        self.params.append(click.Option(["--help-all"], is_flag=True, is_eager=True, hidden=True, expose_value=False,
                                        callback=_show_all_options))  # fmt: skip

    def option_sections(self, ctx: click.Context, *, common: bool = False) -> dict[str, list[tuple[str, str]]]:
        """Return heading -> (names, help) of the options below it, in the command's order; `Options` comes first.

        `common`: only those that --help shows.
        """
        sections: dict[str, list[tuple[str, str]]] = {GENERAL: []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is None or not isinstance(param, click.Option) or (common and not self._is_common(param)):
                continue
            sections.setdefault(GENERAL if common else _section(param), []).append(record)
        return sections

    def _is_common(self, param: click.Option) -> bool:
        is_named = bool(self.common.intersection(param.opts))
        return is_named or "--help" in param.opts or (not self.common and _section(param) == GENERAL)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections of all options, or the common ones and where the others are."""
        everything = self.option_sections(ctx)
        shown = everything if ctx.meta.get(ALL_OPTIONS) else self.option_sections(ctx, common=True)
        for heading, records in shown.items():
            with formatter.section(heading):
                formatter.write_dl(records)
        hidden = sum(map(len, everything.values())) - sum(map(len, shown.values()))
        if hidden:
            formatter.write_paragraph()
            if JUDGING in everything:
                formatter.write_text("Judging (--library, --rules, --set): safevla help judging")
            formatter.write_text(f"{hidden} more options: {ctx.command_path} --help-all")


def _section(param: click.Option) -> str:
    return str(getattr(param, "section", GENERAL))


def _show_all_options(ctx: click.Context, param: click.Parameter, is_asked: bool) -> None:
    if is_asked and not ctx.resilient_parsing:
        ctx.meta[ALL_OPTIONS] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


def option(
    help: str, metavar: str | None = None, *, spelling: str = "", section: str = GENERAL, **settings: Any
) -> Any:
    """Declare an option as the default of a parameter: its help, and what stands there for its value.

    The parameter `max_steps` is spelled `--max-steps`, unless `spelling` says otherwise. A default other than 0 and the
    empty text is shown, unless `show_default` says otherwise.
    """
    settings.setdefault("show_default", bool(settings.get("default")))

    def declare(name: str) -> click.Parameter:
        names = [spelling or f"--{name.replace('_', '-')}", name]
        return Option(names, section=section, help=help, metavar=metavar, **settings)

    return declare


def flag(help: str, **settings: Any) -> Any:
    """Declare an option without a value."""
    return option(help, is_flag=True, **settings)


def repeatable(help: str, metavar: str | None = None, **settings: Any) -> Any:
    """Declare an option that can be given several times, and says so."""
    return option(f"{help} Repeatable.", metavar, multiple=True, **settings)


def parsed(parse: Callable[[Any], object]) -> Callable[[click.Context, click.Parameter, Any], object]:
    """Return click's callback for an option whose value is what `parse` makes of it."""
    return lambda context, parameter, value: parse(value)


def argument(metavar: str, **settings: Any) -> Any:
    """Declare an argument as the default of a parameter."""
    return lambda name: click.Argument([name], metavar=metavar, **settings)


def declare_options(declared: Mapping[str, Any]) -> list[click.Parameter]:
    """Return what click reads for parameters with such defaults, in their order."""
    return [declare(name) for name, declare in declared.items()]


def group(
    options: Mapping[str, Any], parse: Callable[[click.Context, dict[str, Any]], Any] = lambda context, values: values
) -> Any:
    """Declare options by name as the default of one parameter; `parse` makes its value, else it is name -> value."""
    return _Group(options, parse)


@dataclass(frozen=True)
class _Group:
    options: Mapping[str, Any]
    parse: Callable[[click.Context, dict[str, Any]], Any]

    def read(self, context: click.Context, values: Mapping[str, Any]) -> Any:
        return self.parse(context, {name: values[name] for name in self.options if name in values})


def command(name: str, **settings: Any) -> Callable[[Callable[..., None]], Command]:
    """Return the decorator that makes a command of a function whose parameters declare what it takes.

    A parameter `context` is click's.
    """

    def decorate(function: Callable[..., None]) -> Command:
        parameters = signature(function).parameters
        groups: dict[str, _Group] = {}
        declared: dict[str, Any] = {}
        for key, parameter in parameters.items():
            if isinstance(parameter.default, _Group):
                groups[key] = parameter.default
                declared |= parameter.default.options
            elif parameter.default is not parameter.empty:
                declared[key] = parameter.default

        def run(**values: Any) -> None:
            context = click.get_current_context()
            trusted = [place for file in values.get("trusted", ()) for place in (file, file / RUN)]
            with trusting(trusted, str(context.info_name)):
                read = {key: group.read(context, values) for key, group in groups.items()}
                values |= {"context": context, **read}
                function(**{key: values[key] for key in parameters})

        return Command(name, callback=run, params=declare_options(declared), help=function.__doc__, **settings)

    return decorate


class Range(click.FloatRange):
    """A number in a range. NaN, which every range of click's lets pass, is refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; raise click's error for NaN and for a number outside the range."""
        number = super().convert(value, param, ctx)
        if isnan(number):
            self.fail("nan is not a number", param, ctx)
        return float(number)


PERCENT = Range(0, 100, min_open=True, max_open=True)
NATURAL, POSITIVE, PORT = click.IntRange(min=0), click.IntRange(min=1), click.IntRange(0, 65535)
FILE = click.Path(path_type=Path)


def is_given(context: click.Context, name: str) -> bool:
    """Return whether an option stands on the command line or in the file of --config; by its parameter's name."""
    return context.get_parameter_source(name) in (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP)


def refuse_given(names: Collection[str | None], why: str) -> None:
    """Raise click's error, with the option's spelling and the reason, if one of these parameters is given."""
    context = click.get_current_context()
    for param in context.command.params:
        if param.name in names and is_given(context, str(param.name)):
            raise click.UsageError(f"{param.opts[0]} {why}")


# Options of one meaning


TRUST = repeatable("Use the code and files that this run.json, found starts, registration or --config file names.",
                   "FILE", spelling="--trust", type=FILE)  # fmt: skip

out_option = partial(option, type=FILE)  # declares `--out`, where a command writes


sweep_option = partial(repeatable, metavar="NAME=GRID", spelling="--sweep")  # declares `--sweep`, thresholds to move
policy_arguments_option = partial(repeatable, metavar="KEY=VALUE", spelling="--policy-arg")
"""Declares `--policy-arg`, arguments of one policy."""


def format_option(*forms: str, help: str = "How to print.") -> Any:
    """Declare `--format`: text, json, and more forms."""
    return option(help, spelling="--format", type=click.Choice(["text", "json", *forms]), default="text")


PAPER_FORMAT = format_option(
    "paper", help="How to print; paper: JSON rows of the paper's Appendix B, for other evaluators and to be read back."
)


class SourceType(click.Path):
    """A run folder or an archive, with a name for its policy where `NAME=` stands before it."""

    name = "source"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path, as a `NamedSource` where `NAME=` stands before it; a path stays as it is."""
        return value if isinstance(value, Path) else NamedSource.parse(value)


SOURCES = argument("[NAME=]SOURCE...", nargs=-1, required=True, type=SourceType())
OPTIONAL_SOURCES = argument("[[NAME=]SOURCE...]", nargs=-1, type=SourceType())


def _parse_audit(text: str | None) -> AuditPlan | None:
    from safevla_bench.jobs.verify import AuditPlan

    count, _, seed = (text or "0").partition(":")
    if not (count.isdecimal() and (seed or "0").isdecimal()):
        raise click.UsageError(f"--audit {text!r} is neither K nor K:SEED, such as 24 or 24:7.")
    return AuditPlan(int(count), int(seed) if seed else secrets.randbelow(10**15)) if int(count) else None


AUDIT = option("Play K episodes of each policy again. SEED chooses them, with the archive's digest; else it is drawn.",
               "K[:SEED]", callback=parsed(_parse_audit))  # fmt: skip


S = TypeVar("S", bound=msgspec.Struct)


def parse_settings(option: str, texts: Sequence[str], kind: type[S], **fixed: object) -> S:
    """Return the struct of the texts NAME=VALUE of an option; raise click's error for a name or value it cannot have.

    Fields that are `fixed` have this value, and are none of the names.
    """
    given = dict(text.partition("=")[::2] for text in texts)
    names = [name for name in kind.__struct_fields__ if name not in fixed]
    if unknown := next((name for name in given if name not in names), None):
        raise click.UsageError(f"{option} {unknown!r} is not one of {', '.join(names)}.")
    try:
        return msgspec.convert({**given, **fixed}, kind, strict=False)
    except msgspec.ValidationError as error:
        raise click.UsageError(f"{option} {' '.join(texts)}: {error}.") from None


def require_sources(sources: Sequence[Path]) -> None:
    """Raise click's error of a missing argument if `sources` is empty."""
    if not sources:
        raise click.UsageError("Missing argument 'SOURCE...'.")


def choose_output(out: Path | None, sources: Sequence[Path], *names: str) -> Path:
    """Return where to write: `out`, else the path `names` within the one run folder that is the only source.

    Raises what `open_source` raises of a source that cannot be read, else click's error if it cannot be left out.
    """
    if out is not None:
        return out
    if len(sources) == 1 and (sources[0] / RUN).is_file() and not isinstance(sources[0], NamedSource):
        return own_path(sources[0], *names)
    for source in sources:
        open_source(source)
        if source.is_file() and not find_log(source):
            archive.detect_suffix(source)
    raise click.UsageError("Missing option '--out'. It may be left out where one run folder is given.")


def list_given_words(context: click.Context, names: Collection[str]) -> list[str]:
    """Return the words that repeat those of these parameters that are given."""
    words: list[str] = []
    for param in context.command.params:
        if param.name in names and is_given(context, str(param.name)):
            value = context.params[str(param.name)]
            for item in value if isinstance(value, tuple) else (value,):
                words += [max(param.opts, key=len), *([] if item is True else [str(item)])]
    return words


def quote_paths(*paths: object) -> str:
    """Return paths, or other words, as a shell takes them."""
    return shlex.join(map(str, paths))


def format_trust(request: Request, file: Path) -> str:
    """Return the option that a printed command on a request's file needs; "" if it needs none."""
    return f" --trust {quote_paths(file)}" if request.list_calls() else ""


def print_json(document: object) -> None:
    """Print a document, with msgspec's structs as objects; NaN and infinity, which JSON lacks, are errors."""
    click.echo(json.dumps(msgspec.to_builtins(document), indent=2, allow_nan=False))


def print_columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows of texts below their heads, in columns as wide as their widest text."""
    lines = [[escape_controls(text) for text in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        click.echo("  ".join(f"{text:<{width}}" for text, width in zip(line, widths, strict=True)).rstrip())
