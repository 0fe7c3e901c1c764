"""Commands and options: sections of the help, ranges, the options that several commands share, and the rules they make.

An option that several commands take is declared here, once.
"""

from __future__ import annotations

import json
import secrets
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce, wraps
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click
import msgspec
from click.core import ParameterSource

from safevla_bench.errors import RunError
from safevla_bench.jobs.evaluation import judgement
from safevla_bench.jobs.evaluation.judgement import (
    add_host_registries,
    find_recipe,
    read_host_registry,
    recorded_suites,
)
from safevla_bench.jobs.verify import AuditPlan
from safevla_bench.judging.ruleset import ApplicabilityMode, MissingFields, Ruleset, choose_library, load_ruleset
from safevla_bench.judging.scores import IntervalMethod
from safevla_bench.rollout.ray_cluster import ADDRESS, HERE, RayCluster
from safevla_bench.sources.runs.folder import RUN
from safevla_bench.sources.runs.policy_names import NamedSource
from safevla_bench.sources.runs.sources import require_source
from safevla_bench.specs.file_formats import DEFAULT_LIBRARY
from safevla_bench.tasks.file_formats import RegistryFile
from safevla_bench.text import escape_controls

if TYPE_CHECKING:
    from safevla_bench.judging.judged import Judged
    from safevla_bench.judging.registration import Registration

F = TypeVar("F", bound=Callable[..., Any])

GENERAL, JUDGING, RAY, PLANNING = "Options", "Judging", "Ray", "Planning"
"""Headings of the help."""


class Option(click.Option):
    """An option that stands in a section of the help."""

    def __init__(self, names: Sequence[str], *, section: str = GENERAL, **settings: Any):
        super().__init__(names, **settings)
        self.section = section


class Command(click.Command):
    """A command whose help shows its own options first, and shared ones under headings of their own."""

    def option_sections(self, ctx: click.Context) -> dict[str, list[tuple[str, str]]]:
        """Return heading -> (names, help) of the options below it, in the command's order; `Options` comes first."""
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


def command(name: str, **settings: Any) -> Callable[[Callable[..., Any]], Command]:
    """Return the decorator of `click.command` for a `Command`."""
    return click.command(name, cls=Command, **settings)


def add_options(command: Callable[..., Any], options: Sequence[Callable[..., Any]]) -> Any:
    """Return the command with the options that decorators add, in their order."""
    return reduce(lambda inner, option: option(inner), reversed(options), command)


def click_options(decorators: Sequence[Callable[..., Any]]) -> tuple[click.Option, ...]:
    """Return the click options that decorators add to a command, in the order of the decorators."""

    def command() -> None: ...

    return tuple(reversed(add_options(command, decorators).__click_params__))


def option_group(
    options: Sequence[Callable[..., Any]], keyword: str, parse: Callable[[click.Context, dict[str, Any]], Any]
) -> Callable[[F], F]:
    """Return the decorator of a command that adds options and hands what `parse` makes of their values to `keyword`."""
    names = [str(option.name) for option in click_options(options)]

    def decorate(command: F) -> F:
        @wraps(command)
        def with_group(*args: Any, **settings: Any) -> Any:
            values = {name: settings.pop(name) for name in names}
            return command(*args, **{keyword: parse(click.get_current_context(), values)}, **settings)

        return add_options(with_group, options)  # type: ignore[no-any-return]

    return decorate


class Range(click.FloatRange):
    """A number in a range. NaN, which every range of click's lets pass, is refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number; raise click's error for NaN and for a number outside the range."""
        number = super().convert(value, param, ctx)
        if isnan(number):
            self.fail("nan is no number", param, ctx)
        return float(number)


SHARE, PERCENT, POSITIVE = Range(0, 1), Range(0, 100, min_open=True, max_open=True), click.IntRange(min=1)
FILE = click.Path(path_type=Path)

# Rules to judge by


AS_JUDGED = "as-judged"
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "missing": get_args(MissingFields),
    "applicability": get_args(ApplicabilityMode),
    "intervals": get_args(IntervalMethod),
}
_CAPABILITIES = "capabilities"
"""What --set takes beside thresholds."""
library_option = partial(click.option, "--library", metavar="NAME|FILE")
rules_option = partial(click.option, "--rules", "rule_files", multiple=True, type=FILE)
_JUDGE_OPTIONS = [
    library_option(
        cls=Option, section=JUDGING, default=DEFAULT_LIBRARY, show_default=True,
        help="Specifications: default, paper-text, paper-as-run, or a file (TOML, or the paper's JSON rows); "
             "metaworld: limits made for that host, which its suites get where none is named.",
    ),
    rules_option(
        cls=Option, section=JUDGING, metavar="FILE|as-judged",
        help="Add the specifications, or the tasks, templates and benchmarks, of a file. as-judged: judge by the rules "
             "that a run folder itself holds, and its tags of tasks that nobody else knows, as its maker did; other "
             "options replace the rules. Else they are shown and not taken. Repeatable.",
    ),
    click.option(
        "--set", "changes", cls=Option, section=JUDGING, multiple=True, metavar="NAME=VALUE",
        help="Another threshold, such as non_target_max_disp_5mm=10mm; outputs name it so. Or missing=deactivate: "
             "leave an active specification out, with that reason, where a record lacks its fields. applicability=off: "
             "judge every specification whose signals exist, as if there were no tags; an ablation, not to be "
             "published. capabilities=NAME: what a host is taken to measure, such as libero-full; for its benchmarks "
             "only. intervals=paper: the percentile bootstrap for severities, which covers too seldom where few are "
             "unsafe. Repeatable.",
    ),
]  # fmt: skip


@dataclass(frozen=True)
class JudgedSources:
    """Run folders and archives, and how they are to be judged."""

    paths: tuple[Path, ...]
    ruleset: Ruleset
    skip_invalid: bool

    def judge(self) -> Judged:
        """Judge them as `judgement.judge` does, and say on stderr which were judged otherwise by their makers."""
        judged = judgement.judge(self.paths, self.ruleset, skip_invalid=self.skip_invalid)
        for line in judged.makers:
            click.echo(escape_controls(f"note: {line}"), err=True)
        return judged


def judge_options(command: F) -> F:
    """Add the options of judging to a command, which takes the rules that they make as the keyword `ruleset`.

    Where none is given (--set intervals= aside), the rules are those of --registered FILE, else the library with limits
    made for the suites, else the default; with --rules as-judged first those by which the sources were judged last, or
    are registered to be. A note on stderr names these, and a library of the suites' own. Tags of hosts are added.
    """

    @wraps(command)
    def with_judge(*args: Any, **settings: Any) -> Any:
        library, files, changes = (settings.pop(name) for name in ("library", "rule_files", "changes"))
        run_command = settings.get("run_command")
        sources = list(settings.get("sources", ())) if run_command is None else [run_command.out]
        as_judged = is_as_judged(files)
        own = _find_own_rules(sources) if as_judged and settings.get("formula") is None else None
        options = parse_changes(changes)
        ruleset = own or _registered_rules(run_command) or _load_rules(library, files, options, run_command, sources)
        ruleset = replace(ruleset, intervals=options.get("intervals", "default"))
        if sources and run_command is not None:
            ruleset = ruleset.with_host_registry(read_host_registry(run_command.request.host))
        elif sources:
            ruleset = add_host_registries(ruleset, sources, as_judged=as_judged)
        return command(*args, ruleset=ruleset, **settings)

    return add_options(with_judge, _JUDGE_OPTIONS)  # type: ignore[no-any-return]


def judged_sources(command: F) -> F:
    """Add the options of judging and --skip-invalid to a command with an argument `sources`, which becomes its value.

    The command takes it as `sources: JudgedSources`.
    """

    @wraps(command)
    def with_sources(*args: Any, **settings: Any) -> Any:
        names = ("sources", "ruleset", "skip_invalid")
        return command(*args, sources=JudgedSources(*(settings.pop(name) for name in names)), **settings)

    return judge_options(skip_option(with_sources))  # type: ignore[return-value]


def is_as_judged(files: Sequence[Path]) -> bool:
    """Return whether --rules asks for the rules that the run folders themselves hold."""
    return Path(AS_JUDGED) in files


def sort_rules(files: Sequence[Path]) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Return the files of --rules that hold specifications, and those that hold tasks.

    The tables of a file, or the first row of a JSON file, tell; a file that cannot be read counts as one of
    specifications, whose reader says why.
    """
    named = [path for path in files if path != Path(AS_JUDGED)]
    of_tasks = tuple(filter(_holds_tasks, named))
    return tuple(path for path in named if path not in of_tasks), of_tasks


def _holds_tasks(path: Path) -> bool:
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".toml":
            return not {*RegistryFile.__struct_fields__}.difference({"tags"}).isdisjoint(tomllib.loads(text))
        row, _ = json.JSONDecoder().raw_decode(text.lstrip().removeprefix("[").lstrip())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(row, Mapping) and "task_id" in row


def parse_changes(texts: Sequence[str]) -> dict[str, Any]:
    """Return the keywords of `load_ruleset` for the texts of --set; raise `RunError` for a value that is none of its.

    A NAME that is no setting is a specification, whose threshold changes.
    """
    settings: dict[str, Any] = {"thresholds": [], _CAPABILITIES: []}
    for text in texts:
        name, _, value = text.partition("=")
        if name == _CAPABILITIES:
            settings[name].append(value)
        elif name not in _CHOICES:
            settings["thresholds"].append(text)
        elif value in _CHOICES[name]:
            settings[name] = value
        else:
            remedy = f"Write {' or '.join(f'{name}={choice}' for choice in _CHOICES[name])}."
            raise RunError(f"--set {text!r} says nothing", remedy=remedy)
    return settings


def _load_rules(
    library: str, files: Sequence[Path], options: Mapping[str, Any], run_command: Any, sources: Sequence[Path]
) -> Ruleset:
    suites: tuple[str, ...] = ()
    if sources and not is_given(click.get_current_context(), "library"):
        suites = tuple(run_command.request.suites) if run_command is not None else recorded_suites(sources)
    specs, registry = sort_rules(files)
    loaded = load_ruleset(_own_library(suites) or library, spec_files=specs, registry_files=registry, **options)
    return replace(loaded, suites=suites)


def _own_library(suites: Sequence[str]) -> str | None:
    """Return the name of the library with limits made for the suites that are run or judged, and say so on stderr."""
    library = choose_library(suites)
    if library == DEFAULT_LIBRARY:
        return None
    text = f"note: judged by the library {library}, with limits made for {', '.join(suites)}; --library default judges"
    click.echo(escape_controls(f"{text} by the paper's"), err=True)
    return library


def _registered_rules(run_command: Any) -> Ruleset | None:
    if run_command is None or not is_given(click.get_current_context(), "registered") or given_judge_options():
        return None
    registration: Registration = run_command.request.registration
    return registration.load_rules()


def is_given(context: click.Context, name: str) -> bool:
    """Return whether an option stands on the command line or in the file of --config; by its parameter's name."""
    return context.get_parameter_source(name) in (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP)


def given_judge_options() -> list[str]:
    """Return the options of judging that the command line or the --config file gives, by name without dashes.

    --rules as-judged and --set intervals=, which name no rules, are never among them. Needs click's current context.
    """
    context = click.get_current_context()
    named = {
        "library": is_given(context, "library"),
        "rules": any(path != Path(AS_JUDGED) for path in context.params["rule_files"]),
        "set": any(not text.startswith("intervals=") for text in context.params["changes"]),
    }
    return [name for name, is_named in named.items() if is_named]


def _find_own_rules(sources: Sequence[Path]) -> Ruleset | None:
    """Return the rules by which the sources were judged last, else are registered to be judged; say so on stderr."""
    recipe = None if given_judge_options() else find_recipe(sources)
    if recipe is None or recipe.is_default:
        return None
    text = f"note: judged as by its maker, by {recipe.describe()}"
    click.echo("\n".join(escape_controls(line) for line in text.split("\n")), err=True)
    return recipe.load()


# Options of one meaning


def out_option(metavar: str, help: str, **settings: Any) -> Callable[[F], F]:
    """Return the decorator of `--out`, where a command writes."""
    return click.option("--out", type=FILE, metavar=metavar, help=help, **settings)


def policy_arguments_option(help: str) -> Callable[[F], F]:
    """Return the decorator of `--policy-arg`, arguments of one policy."""
    return click.option("--policy-arg", "arguments", multiple=True, metavar="KEY=VALUE", help=f"{help} Repeatable.")


def format_option(*forms: str, help: str = "How to print.") -> Callable[[F], F]:
    """Return the decorator of `--format`: text, json, and more forms."""
    choice = click.Choice(["text", "json", *forms])
    return click.option("--format", "form", type=choice, default="text", show_default=True, help=help)


paper_format_option = format_option(
    "paper", help="How to print; paper: JSON rows of the paper's Appendix B, for other evaluators and to be read back."
)
skip_option = click.option(
    "--skip-invalid", is_flag=True, help="Take the valid episodes, of damaged files too, and count the others."
)
auxiliary_option = click.option(
    "--auxiliary", multiple=True, metavar="POLICY", help="Keep a policy out of means and bests. Repeatable."
)
log_option = click.option(
    "--log",
    "trackers",
    multiple=True,
    type=click.Choice(["wandb", "trackio", "tensorboard"]),
    help="Send the numbers of each episode, and the final ones, to this tracker; needs the extra of its name. "
    "Repeatable.",
)
"""Trackers of experiments, by the names in `tracking.TRACKERS`."""
engine_option = click.option(
    "--engine", cls=Option, section=RAY, default="local", show_default=True, metavar="local|ray|ray:ADDRESS",
    help="Work in processes of this machine or on a Ray cluster: ray:HOST:PORT of its head, or ray:auto for the one "
         "that this machine belongs to. ray alone: that of RAY_ADDRESS, else Ray is started on this machine for the "
         "command. Results are the same.",
)  # fmt: skip


def requested_cluster(engine: str, **shares: Any) -> RayCluster | None:
    """Return the Ray cluster that --engine requests, None for this machine; `shares` are fields of `RayCluster`.

    Raises `RunError` for another engine, and for shares that are none.
    """
    kind, _, address = engine.partition(":")
    if kind == "ray":
        return RayCluster(address=address or None, **shares)
    if engine != "local":
        raise RunError(f"there is no engine {engine!r}", remedy="Write local, ray, ray:auto or ray:HOST:PORT.")
    return None


def print_engine_note(where: RayCluster | None) -> None:
    """Print a note on stderr if Ray is to be started on this machine because no address is given."""
    if where and where.place == HERE:
        click.echo(f"note: no ray:ADDRESS and no {ADDRESS}: Ray is started on this machine", err=True)


class SourceType(click.Path):
    """A run folder or an archive, with a name for its policy where `NAME=` stands before it."""

    name = "source"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path, as a `NamedSource` where `NAME=` stands before it; a path stays as it is."""
        return value if isinstance(value, Path) else NamedSource.parse(value)


sources_argument = click.argument("sources", nargs=-1, required=True, type=SourceType(), metavar="[NAME=]SOURCE...")
optional_sources_argument = click.argument("sources", nargs=-1, type=SourceType(), metavar="[[NAME=]SOURCE...]")


audit_options = option_group(
    [
        click.option("--audit", type=click.IntRange(min=0), default=0, metavar="K",
                     help="Play K episodes of each policy again, chosen when the archive is finished."),
        click.option("--audit-seed", type=click.IntRange(min=0), default=lambda: secrets.randbelow(10**15), metavar="N",
                     help="The number that chooses the episodes, with the archive's digest; drawn and shown if not "
                          "given."),
    ],
    "audit",
    lambda context, values: AuditPlan(values["audit"], values["audit_seed"]) if values["audit"] else None,
)  # fmt: skip
"""The options of `AuditPlan`; None where no episode is to be played."""


def require_sources(sources: Sequence[Path]) -> None:
    """Raise click's error of a missing argument where there are no sources."""
    if not sources:
        raise click.UsageError("Missing argument 'SOURCE...'.")


def choose_output(out: Path | None, sources: Sequence[Path], *names: str) -> Path:
    """Return where to write: `out`, else the path `names` within the one run folder that is the only source.

    Raises:
        RunError: a source does not exist, which is said before what is missing.
        click.UsageError: there is no `out`, and the sources are not a single run folder without a `NAME=`.
    """
    if out is not None:
        return out
    if len(sources) == 1 and (sources[0] / RUN).is_file() and not isinstance(sources[0], NamedSource):
        return sources[0].joinpath(*names)
    for source in sources:
        require_source(source)
    raise click.UsageError("Missing option '--out'. It may be left out where one run folder is given.")


def print_json(document: object) -> None:
    """Print a document, with msgspec's structs as objects; NaN and infinity, which JSON lacks, are errors."""
    click.echo(json.dumps(msgspec.to_builtins(document), indent=2, allow_nan=False))


def print_columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows of texts below their heads, in columns as wide as their widest text."""
    lines = [[escape_controls(text) for text in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        click.echo("  ".join(f"{text:<{width}}" for text, width in zip(line, widths, strict=True)).rstrip())
