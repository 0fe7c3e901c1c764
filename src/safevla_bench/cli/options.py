"""Declarations of commands and options: sections of the help, types of values, and options that commands share.

A command is a function, and the defaults of its parameters declare the command's options.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from inspect import signature
from math import isnan
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec
from click.core import ParameterSource

from safevla_bench import archive, errors, plugins
from safevla_bench.files import own_path
from safevla_bench.sources.logs import find_log
from safevla_bench.sources.runs.folder import RUN
from safevla_bench.sources.runs.policy_names import NamedSource
from safevla_bench.sources.runs.sources import open_source
from safevla_bench.text import explain_mismatch

if TYPE_CHECKING:
    from safevla_bench.jobs.evaluation.request import Request
    from safevla_bench.jobs.verify import AuditPlan
    from safevla_bench.rollout.ray import RayCluster

GENERAL, JUDGING = "Options", "Judging"  # headings of sections in the help


class Option(click.Option):
    """An option that is listed in a section of the help."""

    def __init__(self, names: Sequence[str], *, section: str = GENERAL, **settings: Any):
        # `names` are the option's spellings and its parameter's name. `settings` are further arguments for click.
        # `section` is the heading under which --help-all lists the option.
        super().__init__(names, **settings)
        self.section = section


ALL_OPTIONS = "safevla.all_options"  # key in the `meta` of click's context, set by --help-all


class Command(click.Command):
    """A command whose --help shows only the common options. --help-all shows all options, grouped under headings."""

    def __init__(self, *args: Any, common: str = "", starts_host: bool = False, **settings: Any):
        """Make the command. --help lists the options in `common`, such as `--out --task`, or all general options.

        With `starts_host`, the command also has the option --trust, for files such as run.json that name a host's code.
        """
        super().__init__(*args, **settings)
        self.params += declare_options({"trusted": TRUST} if starts_host else {})
        self.common = frozenset(common.split())  # empty = --help lists all general options
        self.params.append(click.Option(["--help-all"], is_flag=True, is_eager=True, hidden=True, expose_value=False,
                                        callback=_show_all_options))  # fmt: skip

    def option_sections(self, ctx: click.Context, *, common: bool = False) -> dict[str, list[tuple[str, str]]]:
        """Return heading -> (names, help) of each option; with `common`, only of the options that --help shows."""
        # `self.common` contains the spellings of options that --help shows; empty = all options in the general section.
        sections: dict[str, list[tuple[str, str]]] = {GENERAL: []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)  # (names, help); None for a hidden option
            if record is None or not isinstance(param, click.Option):
                continue
            section = str(getattr(param, "section", GENERAL))  # click's own option --help has no section
            is_listed = bool(self.common.intersection(param.opts)) if self.common else section == GENERAL
            if not common:
                sections.setdefault(section, []).append(record)
            elif is_listed or "--help" in param.opts:  # the short help contains only the section of general options
                sections[GENERAL].append(record)
        return sections

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # Write the options into the help, and say how many options the short help leaves out.
        # --help-all sets the key `ALL_OPTIONS`.
        everything = self.option_sections(ctx)
        shown = everything if ctx.meta.get(ALL_OPTIONS) else self.option_sections(ctx, common=True)
        for heading, records in shown.items():
            with formatter.section(heading):
                formatter.write_dl(records)
        hidden_count = sum(map(len, everything.values())) - sum(map(len, shown.values()))
        if hidden_count:
            formatter.write_paragraph()
            if JUDGING in everything:
                formatter.write_text("Options for judging (--library, --rules, --set): safevla help judging")
            formatter.write_text(f"{hidden_count} more options: {ctx.command_path} --help-all")


def _show_all_options(ctx: click.Context, param: click.Parameter, is_asked: bool) -> None:
    # Callback of --help-all: print the help with all options, and end the command.
    if is_asked and not ctx.resilient_parsing:  # not during shell completion
        ctx.meta[ALL_OPTIONS] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


def option(
    help: str, metavar: str | None = None, *, spelling: str = "", section: str = GENERAL, **settings: Any
) -> Any:
    """Declare an option, as the default of a parameter. `metavar` is the placeholder of its value in the help.

    A parameter such as `max_steps` is spelled `--max-steps` unless `spelling` is given. The help shows the default
    value if it is neither 0 nor empty; `show_default` overrides this.
    """
    settings.setdefault("show_default", bool(settings.get("default")))

    def declare(name: str) -> click.Parameter:
        # Return the option for the parameter `name`. This name is known only when the command is made.
        names = [spelling or f"--{name.replace('_', '-')}", name]
        return Option(names, section=section, help=help, metavar=metavar, **settings)

    return declare


def flag(help: str, **settings: Any) -> Any:
    """Declare an option without a value."""
    # The parameter's value is true if the option is given, else false.
    return option(help, is_flag=True, **settings)


def repeatable(help: str, metavar: str | None = None, **settings: Any) -> Any:
    """Declare an option that can be given several times. The option's help says that it can be repeated."""
    # The parameter's value is a tuple with the values in the given order; () if the option is not given.
    return option(f"{help} Repeatable.", metavar, multiple=True, **settings)


def parsed(parse: Callable[[Any], object]) -> Callable[[click.Context, click.Parameter, Any], object]:
    """Return a click callback that converts an option's value with `parse`, which returns the new value."""
    return lambda context, parameter, value: parse(value)


def argument(metavar: str, **settings: Any) -> Any:
    """Declare a positional argument, as the default of a parameter."""
    # As in `option`, the parameter's name becomes known only when the command is made.
    # So return a function that creates the argument from this name.
    # `metavar` is the placeholder of the argument in the help.
    return lambda name: click.Argument([name], metavar=metavar, **settings)


def declare_options(declared: Mapping[str, Any]) -> list[click.Parameter]:
    """Return click's parameters in order. `declared` maps their names to declarations by `option` or `argument`."""
    return [declare(name) for name, declare in declared.items()]


def group(
    options: Mapping[str, Any], parse: Callable[[click.Context, dict[str, Any]], Any] = lambda context, values: values
) -> Any:
    """Declare several options as one parameter. The parameter's value is the result of `parse`, by default a dict."""
    # `options` maps names to click's option decorators.
    # `parse` receives click's context and the values of the options by name.
    return _Group(options, parse)


@dataclass(frozen=True)
class _Group:
    """The options that a parameter declares, and the function that computes the parameter's value from the options."""

    options: Mapping[str, Any]
    parse: Callable[[click.Context, dict[str, Any]], Any]

    def read(self, context: click.Context, values: Mapping[str, Any]) -> Any:
        # Return the value of the parameter, which `parse` computes from the values of the group's options.
        # click passes no value for options that are not exposed, such as --config.
        return self.parse(context, {name: values[name] for name in self.options if name in values})


def command(name: str, **settings: Any) -> Callable[[Callable[..., None]], Command]:
    """Return a decorator that turns a function into a command. A parameter `context` receives click's context."""
    # `settings` are further arguments of `Command`, such as `common`.

    def decorate(function: Callable[..., None]) -> Command:
        # Return the command that calls the function.
        # The defaults of the function's parameters are declarations: by `option` or `argument`, or by `group`.
        # A parameter without a default, such as `context`, is not an option.
        parameters = signature(function).parameters
        groups: dict[str, _Group] = {}
        declared: dict[str, Any] = {}
        for parameter_name, parameter in parameters.items():
            if isinstance(parameter.default, _Group):
                groups[parameter_name] = parameter.default
                declared |= parameter.default.options
            elif parameter.default is not parameter.empty:
                declared[parameter_name] = parameter.default

        def run(**values: Any) -> None:
            # click calls this with the values of all options. Compute the values of groups, and call the function.
            context = click.get_current_context()
            # Trust in a run folder (--trust FOLDER) includes the folder's run.json.
            trusted = [place for file in values.get("trusted", ()) for place in (file, file / RUN)]
            with plugins.trusting(trusted, str(context.info_name)):
                group_values = {key: group.read(context, values) for key, group in groups.items()}
                values |= {"context": context, **group_values}
                function(**{key: values[key] for key in parameters})

        return Command(name, callback=run, params=declare_options(declared), help=function.__doc__, **settings)

    return decorate


class WholeNumber(click.IntRange):
    """A whole number in a range. Messages say "whole number", not click's "integer range"."""

    name = "whole number"


class Range(click.FloatRange):
    """A number in a range. Unlike click's ranges, this type refuses NaN."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; raise click's error for NaN or a number outside the range."""
        number = super().convert(value, param, ctx)
        if isnan(number):
            self.fail("nan is not a number", param, ctx)
        return float(number)


class Share(Range):
    """A share from -1 to 1. The error for a number that seems to be a percentage says how to write it as a share."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; raise click's error for NaN or a number outside the range."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            # `80` and `80%` are probably meant as 0.8. Other wrong values keep the error of `Range`.
            text = str(value).strip()
            percent_text = text.removesuffix("%")
            with suppress(ValueError):  # raised if the text is not a number
                percent = float(percent_text)
                if abs(percent) <= 100 and (text.endswith("%") or abs(percent) > 1):
                    problem = f"{value} is not a number from -1 to 1; write {percent / 100:g} for {percent_text} %"
                    self.fail(problem, param, ctx)
            raise


class Confidence(Range):
    """A confidence in percent. The error for a number below 1, which seems to be a share, says how to write it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; raise click's error for NaN or a number outside the range or below 1."""
        number = super().convert(value, param, ctx)
        if number < 1:  # such as 0.95, which is written here as 95
            percent = f"{100 * number:g}"
            self.fail(f"{value} is below 1 %, and seems to be a share: for {percent} % write {percent}", param, ctx)
        return number


class PathText(click.Path):
    """A path. Refuses an empty text, which results from a shell variable that is not set."""

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> Any:
        """Return the path, or raise click's error."""
        if not str(value):
            self.fail("no path is given.", param, context)
        return super().convert(value, param, context)


PERCENT, CONFIDENCE = (kind(0, 100, min_open=True, max_open=True) for kind in (Range, Confidence))
_LARGEST = 2**31 - 1  # larger numbers do not fit into the integers of records and of multiprocessing
NATURAL, POSITIVE = WholeNumber(0, _LARGEST), WholeNumber(1, _LARGEST)
WORKERS, PORT = WholeNumber(1, 9999), WholeNumber(0, 65535)
FILE = PathText(path_type=Path)


def is_given(context: click.Context, name: str) -> bool:
    """Return whether the option with this parameter name is given on the command line or in the --config file."""
    # The source `DEFAULT_MAP` is the --config file.
    return context.get_parameter_source(name) in (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP)


def refuse_given(names: Collection[str | None], why: str) -> None:
    """Raise click's error with the reason `why` if an option with one of these parameter names is given."""
    # `why` completes a sentence that begins with the option, such as "needs --server."
    context = click.get_current_context()
    for param in context.command.params:
        if param.name in names and is_given(context, str(param.name)):
            raise click.UsageError(f"{param.opts[0]} {why}")


# Shared options


TRUST = repeatable("Allow the use of code and files that FILE names.", "FILE", spelling="--trust", type=FILE)

out_option = partial(option, type=FILE)  # declares `--out`, the output path


sweep_option = partial(repeatable, metavar="NAME=GRID", spelling="--sweep")  # declares `--sweep`, thresholds to vary
policy_arguments_option = partial(repeatable, metavar="KEY=VALUE", spelling="--policy-arg")
"""Declares `--policy-arg` for commands with a single policy."""


def format_option(*forms: str, help: str = "Format of the output.") -> Any:
    """Declare `--format`, with the choices text, json, and all choices in `forms`."""
    return option(help, spelling="--format", type=click.Choice(["text", "json", *forms]), default="text")


PAPER_FORMAT = format_option(
    "paper",
    help="Format of the output; paper: JSON rows as in the paper's Appendix B, for other evaluators and --rules.",
)


class SourceType(click.Path):
    """A run folder or an archive, optionally prefixed with a policy name as `NAME=`."""

    name = "source"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        # For NAME=PATH, return a `NamedSource` (a path with a policy name). For any other text, return a plain path.
        source = value if isinstance(value, Path) else NamedSource.parse(value)
        is_empty_path = not value or (str(value).endswith("=") and not source.exists())
        if is_empty_path:  # such as `NAME=$RUN` if the shell variable is not set
            self.fail("no path is given.", param, ctx)
        return source


SOURCES = argument("[NAME=]SOURCE...", nargs=-1, required=True, type=SourceType())
OPTIONAL_SOURCES = argument("[[NAME=]SOURCE...]", nargs=-1, type=SourceType())


def _parse_audit(text: str | None) -> AuditPlan | None:
    # Return the audit that K or K:SEED describes; None if no audit is requested (no text, or K = 0).
    # Raise click's error for any other text. Without SEED, the seed is random.
    from safevla_bench.jobs.verify import AuditPlan

    count, _, seed = (text or "0").partition(":")
    # Without SEED, the choice of episodes must be unpredictable. The seed is printed, so that it can be reused.
    seed = seed or str(secrets.randbelow(10**15))
    if not (count.isdecimal() and seed.isdecimal()):
        raise click.UsageError(f"--audit {text!r} is neither K nor K:SEED, such as `24` or `24:7`.")
    return AuditPlan(int(count), int(seed)) if int(count) else None  # no audit if K is 0


AUDIT = option(
    "Replay K random episodes of each policy; the same SEED repeats the choice.",
    "K[:SEED]",
    callback=parsed(_parse_audit),
)


ENGINE = option(
    "Where the workers run. local: processes of this machine. ray:HOST:PORT: the Ray cluster with this head node. "
    "ray:auto: the cluster that runs on this machine. ray: the cluster in RAY_ADDRESS, else a new one.",
    "local|ray|ray:ADDRESS",
    default="local",
)


def request_cluster(engine: str, **shares: Any) -> RayCluster | None:
    """Return the Ray cluster that --engine names; None for `local`. Raises `RunError` for an unknown engine."""
    # `shares` are further fields of `RayCluster`, such as the CPUs of each worker.
    kind, _, address = engine.partition(":")  # an empty address means the address in RAY_ADDRESS
    if kind != "ray" and engine != "local":
        raise errors.RunError(f"unknown engine {engine!r}", remedy="Write local, ray, ray:auto, or ray:HOST:PORT.")
    if kind != "ray":
        return None
    from safevla_bench.rollout.ray import RayCluster

    return RayCluster(address=address or None, **shares)


S = TypeVar("S", bound=msgspec.Struct)


def parse_settings(option: str, texts: Sequence[str], kind: type[S], **fixed: object) -> S:
    """Return an instance of `kind`, with fields from NAME=VALUE texts and `fixed`. An invalid text is a click error."""
    # `option` is the option's name for messages. `fixed` contains the values of fields that the user cannot set.
    names = [name for name in kind.__struct_fields__ if name not in fixed]
    given = {name: value for name, _, value in (text.partition("=") for text in texts)}
    unknown = [name for name in given if name not in names]
    if unknown:
        raise click.UsageError(f"{option} {unknown[0]!r} is not one of {', '.join(names)}.")
    if len(given) < len(texts):  # a later text would silently replace an earlier one
        raise click.UsageError(f"{option} {' '.join(texts)}: give each name once.")
    try:
        return msgspec.convert({**given, **fixed}, kind, strict=False)  # not strict: texts become numbers
    except msgspec.ValidationError as error:
        problem, path = explain_mismatch(error)
        # The parts of the message: the option with its texts, the invalid name (may be ""), and the problem.
        parts = (" ".join([option, *texts]), path.removeprefix("$."), problem.removesuffix(", not text"))
        raise click.UsageError(f"{': '.join(filter(None, parts))}.") from None


def require_sources(sources: Sequence[Path]) -> None:
    """Raise click's error for a missing argument if `sources` is empty."""
    if not sources:
        raise click.UsageError("Missing argument 'SOURCE...'.")


def choose_output(out: Path | None, sources: Sequence[Path], *names: str) -> Path:
    """Return `out`, if given. Otherwise, if the only source is a run folder, return the path FOLDER/NAMES.
    In all other cases, raise the first error found in the sources, or else the error that --out is missing.
    """
    if out is not None:
        return out
    # A source that renames its policy (NAME=PATH) always needs --out.
    if len(sources) == 1 and (sources[0] / RUN).is_file() and not isinstance(sources[0], NamedSource):
        return own_path(sources[0], *names)
    # --out is missing. An error in a source is more helpful to the user, so the sources are checked first.
    for source in sources:
        open_source(source)
        if source.is_file() and not find_log(source):
            archive.detect_suffix(source)  # raises an error for a file that is not an archive
            first = next(archive.read_episodes([source], {0}), None)
            if isinstance(first, errors.RecordError):
                raise first
    raise click.UsageError("Missing option '--out'. It may be left out if the only source is a run folder.")


def list_given_words(context: click.Context, names: Collection[str]) -> list[str]:
    """Return the options with these parameter names that the user gave, as words of a command line."""
    words: list[str] = []
    for param in context.command.params:
        if param.name in names and is_given(context, str(param.name)):
            value = context.params[str(param.name)]
            values = value if isinstance(value, tuple) else (value,)  # a repeatable option's value is a tuple
            for single_value in values:
                words.append(max(param.opts, key=len))  # the option's longest spelling
                if single_value is not True:  # a flag is written without a value
                    words.append(str(single_value))
    return words


def quote_paths(*paths: object) -> str:
    """Return paths or other words, quoted for a shell. Only bash and zsh can read words that are not valid UTF-8."""
    return " ".join(map(_quote_word, map(str, paths)))


def _quote_word(word: str) -> str:
    # Return one word, quoted for a shell.
    if not re.search(r"[\udc80-\udcff]", word):  # Python's substitutes for bytes that are not valid UTF-8
        return shlex.quote(word)
    # bash and zsh read $'\xNN' as a byte. All characters except letters, digits and `_/.=-` are written so.
    escaped = re.sub(rb"[^\w/.=-]", lambda byte: b"\\x%02x" % ord(byte[0]), os.fsencode(word))
    return f"$'{escaped.decode()}'"


def format_trust(request: Request, file: Path) -> str:
    """Return the option `--trust FILE` that a command needs to run the request in this file; "" if none is needed."""
    # A request describes a run. `list_calls` returns the code and files that the request names, which need trust.
    return f" --trust {quote_paths(file)}" if request.list_calls() else ""


def print_json(document: object) -> None:
    """Print a document as JSON, with msgspec structs as objects. Raises `ValueError` for NaN and infinity."""
    click.echo(json.dumps(msgspec.to_builtins(document), indent=2, allow_nan=False))


def print_columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table of texts with headings."""
    # `head` lists the headings of the columns. Each row in `rows` lists one text per column.
    from safevla_bench.report.render.text import render_text
    from safevla_bench.report.tables.table import tabulate, text_column

    columns = [text_column(name, itemgetter(index)) for index, name in enumerate(head)]
    # Without a title, the rendered table begins with an empty line, which is removed.
    click.echo(render_text(tabulate("", rows, *columns)).lstrip("\n"), nl=False)
