"""Options that several commands share, and options from a file.

Every option is a key of the same name, and a list where it can be repeated. The options of judging are in the table
`[judge]`. The keys are taken from the command's own options. The command line takes precedence over the file.
"""

from __future__ import annotations

import difflib
import os
import secrets
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce, wraps
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from safevla_bench.cli import sections
from safevla_bench.errors import Place, RunError
from safevla_bench.jobs.evaluation import judgement
from safevla_bench.jobs.evaluation.judgement import (
    add_host_registries,
    find_recipe,
    read_host_registry,
    recorded_suites,
)
from safevla_bench.judging.ruleset import Ruleset, choose_library, load_ruleset
from safevla_bench.rollout.ray_cluster import ADDRESS, HERE, RayCluster
from safevla_bench.sources.runs.folder import RUN
from safevla_bench.sources.runs.policy_names import NamedSource
from safevla_bench.sources.runs.sources import require_source
from safevla_bench.specs.file_formats import BUILT_IN, DEFAULT_LIBRARY
from safevla_bench.text import escape_controls

if TYPE_CHECKING:
    from safevla_bench.judging.judged import Judged
    from safevla_bench.judging.registration import Registration

F = TypeVar("F", bound=Callable[..., Any])

judge_option = partial(sections.option, section=sections.JUDGING)
_ray_option = partial(sections.option, section=sections.RAY)

_JUDGE_OPTIONS = [
    judge_option("--library", default="default", metavar="NAME|FILE", show_default=True,
                 help="Specifications: default, paper-text, paper-as-run, or a file (TOML, or the paper's JSON rows); "
                      "metaworld: limits made for that host, which its suites get where none is named."),
    judge_option("--specs", multiple=True, type=click.Path(path_type=Path), metavar="FILE",
                 help="Add the specifications of a file. Repeatable."),
    judge_option("--registry", multiple=True, type=click.Path(path_type=Path), metavar="FILE",
                 help="Add tasks, templates and benchmarks of a file. Repeatable."),
    judge_option("--capabilities", multiple=True, metavar="NAME",
                 help="What a host is taken to measure, such as libero-full; for its benchmarks only. Repeatable."),
    judge_option("--missing", type=click.Choice(["error", "deactivate"]), default="error", show_default=True,
                 help="An active specification whose fields a record lacks: stop, or leave it out with that reason."),
    judge_option("--applicability", type=click.Choice(["on", "off"]), default="on", show_default=True,
                 help="off: judge every specification whose signals exist, as if there were no tags. An ablation; "
                      "not to be published."),
    judge_option("--intervals", type=click.Choice(["default", "paper"]), default="default", show_default=True,
                 help="Of severities; paper: the percentile bootstrap, which covers too seldom where few are unsafe."),
    judge_option("--as-judged", is_flag=True,
                 help="Judge by the rules that a run folder itself holds, and its tags of tasks that nobody else "
                      "knows, as its maker did; other options replace the rules. Else they are shown and not taken."),
    judge_option("--set", "thresholds", multiple=True, metavar="SPEC=VALUE",
                 help="Another threshold, such as non_target_max_disp_5mm=10mm; outputs name it so. Repeatable."),
]  # fmt: skip

_JUDGE_NAMES = ("library", "specs", "registry", "capabilities", "missing", "applicability", "thresholds")


def judge_options(command: F) -> F:
    """Add the options of judging to a command, which takes the rules that they make as the keyword `ruleset`.

    Where none is given (--intervals aside), the rules are those of --registered FILE, else the library with limits made
    for the suites, else the default; with --as-judged first those by which the sources were judged last, or are
    registered to be. A note on stderr names these, and a library of the suites' own. Tags of hosts are added.
    """

    @wraps(command)
    def with_judge(*args: Any, **settings: Any) -> Any:
        options = {name: settings.pop(name) for name in _JUDGE_NAMES}
        intervals, as_judged = settings.pop("intervals"), settings.pop("as_judged")
        run_command, sources = settings.get("run_command"), _list_sources(settings)
        made = _made_rules(sources) if as_judged and settings.get("formula") is None else None
        ruleset = made or _registered_rules(run_command) or _load_rules(options, _find_suites(run_command, sources))
        ruleset = replace(ruleset, intervals=intervals)
        ruleset = _add_host_registry(ruleset, run_command, sources, as_judged=as_judged)
        return command(*args, ruleset=ruleset, **settings)

    return reduce(lambda inner, option: option(inner), reversed(_JUDGE_OPTIONS), with_judge)  # type: ignore[return-value]


def _load_rules(options: Mapping[str, Any], suites: tuple[str, ...]) -> Ruleset:
    """Return the rules that the options of judging make, with the library of the suites unless one is named."""
    loaded = load_ruleset(
        _own_library(suites) or options["library"],
        spec_files=options["specs"],
        registry_files=options["registry"],
        capabilities=options["capabilities"],
        missing=options["missing"],
        applicability=options["applicability"],
        thresholds=options["thresholds"],
    )
    return replace(loaded, suites=suites)


def judge_sources(sources: Sequence[Path], ruleset: Ruleset, *, skip_invalid: bool = False) -> Judged:
    """Judge the sources as `evaluation.judge` does, and say on stderr which were judged otherwise by their makers."""
    pass

    judged = judgement.judge(sources, ruleset, skip_invalid=skip_invalid)
    for line in judged.makers:
        click.echo(escape_controls(f"note: {line}"), err=True)
    return judged


def _list_sources(settings: Mapping[str, Any]) -> Sequence[Path]:
    if settings.get("run_command") is not None:
        return [settings["run_command"].out]
    sources = next((settings[name] for name in ("sources", "runs", "run") if name in settings), ())
    return [sources] if isinstance(sources, Path) else sources


def _add_host_registry(ruleset: Ruleset, run_command: Any, sources: Sequence[Path], *, as_judged: bool) -> Ruleset:
    if not sources:
        return ruleset

    if run_command is not None:
        return ruleset.with_host_registry(read_host_registry(run_command.request.host))
    return add_host_registries(ruleset, sources, as_judged=as_judged)


def _find_suites(run_command: Any, sources: Sequence[Path]) -> tuple[str, ...]:
    if is_given(click.get_current_context(), "library") or not sources:
        return ()
    if run_command is not None:
        return tuple(run_command.request.suites)

    return recorded_suites(sources)


def _own_library(suites: Sequence[str]) -> str | None:
    """Return the name of the library with limits made for the suites that are run or judged, and say so on stderr.

    None where the suites have no library of their own. Raises `RunError` if they have different libraries.
    """
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


def refuse_nan(_context: click.Context, _option: click.Parameter, value: float | None) -> float | None:
    """Return the value of an option; raise `click.BadParameter` for NaN, which every range of click's lets pass."""
    if value is not None and isnan(value):
        raise click.BadParameter("nan is no number")
    return value


def is_given(context: click.Context, name: str) -> bool:
    """Return whether an option stands on the command line or in the file of --config; by its parameter's name."""
    return context.get_parameter_source(name) in (ParameterSource.COMMANDLINE, ParameterSource.DEFAULT_MAP)


def given_judge_options() -> list[str]:
    """Return the options of judging that the command line or the --config file gives, by name without dashes.

    --intervals, which changes no verdict, is never among them. Needs click's current context.
    """
    context = click.get_current_context()
    names = [name for name in _JUDGE_NAMES if is_given(context, name)]
    return ["set" if name == "thresholds" else name for name in names]


def _made_rules(sources: Sequence[Path]) -> Ruleset | None:
    """Return the rules by which the sources were judged last, else are registered to be judged; say so on stderr.

    None where neither is known, where these are the default rules, and where another option of judging is given, which
    replaces them. Raises `RunError` if the sources were judged by different rules.
    """
    if given_judge_options():
        return None

    recipe = find_recipe(sources)
    if recipe is None or recipe.is_default:
        return None
    text = f"note: judged as by its maker, by {recipe.describe()}"
    click.echo("\n".join(escape_controls(line) for line in text.split("\n")), err=True)
    return recipe.load()


log_option = click.option(
    "--log",
    "trackers",
    multiple=True,
    type=click.Choice(["wandb", "trackio", "tensorboard"]),
    help="Send the numbers of each episode, and the final ones, to this tracker; needs the extra of its name. "
    "Repeatable.",
)
"""Trackers of experiments, by the names in `tracking.TRACKERS`."""
ENGINE_OPTIONS = [
    _ray_option("--engine", type=click.Choice(["local", "ray"]), default="local", show_default=True,
                help="Work in processes of this machine or on a Ray cluster. Results are the same."),
    _ray_option("--address", metavar="HOST:PORT|auto",
                help="The head of the Ray cluster, or auto for the one that this machine belongs to. Default: "
                     "RAY_ADDRESS, else Ray is started on this machine for the command."),
]  # fmt: skip
ACTOR_OPTIONS = [
    _ray_option("--actor-cpus", type=float, default=1.0, show_default=True, metavar="N",
                help="CPUs of a node that each of the --workers reserves on a Ray cluster; fractions are allowed."),
    _ray_option("--actor-gpus", type=float, default=0.0, show_default=True, metavar="N",
                help="GPUs of a node that each reserves, such as 0.25."),
    _ray_option("--actor-episodes", type=click.IntRange(min=1), default=100, show_default=True, metavar="N",
                help="After how many episodes each is replaced by a fresh one: simulators leak memory."),
]  # fmt: skip


def requested_cluster(options: Mapping[str, Any]) -> RayCluster | None:
    """Return the Ray cluster that the options request; None for this machine alone.

    Raises:
        RunError: there is an --address without --engine ray, or the cluster's own values are wrong.
    """
    if options["engine"] == "ray":
        fields = {name.removeprefix("actor_"): value for name, value in options.items() if name.startswith("actor_")}
        return RayCluster(address=options["address"], **fields)
    if options["address"]:
        raise RunError("--address is for a Ray cluster", remedy="Pass --engine ray with it.")
    return None


def engine_options(command: F) -> F:
    """Add the options of the engine to a command.

    It takes them as one keyword, `where`: None for this machine alone.
    """

    @wraps(command)
    def with_engine(*args: Any, **settings: Any) -> Any:
        engine = {name: settings.pop(name) for name in ("engine", "address")}
        return command(*args, where=requested_cluster(engine), **settings)

    return reduce(lambda inner, option: option(inner), reversed(ENGINE_OPTIONS), with_engine)  # type: ignore[return-value]


def print_engine_note(where: RayCluster | None) -> None:
    """Print a note on stderr if Ray is to be started on this machine because no address is given."""
    if where and where.place == HERE:
        click.echo(f"note: no --address and no {ADDRESS}: Ray is started on this machine", err=True)


format_option = click.option(
    "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True, help="How to print."
)
paper_format_option = click.option(
    "--format", "form", type=click.Choice(["text", "json", "paper"]), default="text", show_default=True,
    help="How to print; paper: JSON rows of the paper's Appendix B, for other evaluators and to be read back.",
)  # fmt: skip


class SourceType(click.Path):
    """A run folder or an archive, with a name for its policy where `NAME=` stands before it."""

    name = "source"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """Return the path, as a `NamedSource` where `NAME=` stands before it.

        A value that is a path already stays as it is.
        """
        return value if isinstance(value, Path) else NamedSource.parse(value)


sources_argument = click.argument("sources", nargs=-1, required=True, type=SourceType(), metavar="[NAME=]SOURCE...")
optional_sources_argument = click.argument("sources", nargs=-1, type=SourceType(), metavar="[[NAME=]SOURCE...]")


def audit_options(command: F) -> F:
    """Add `--audit` and `--audit-seed`, which is drawn where it is not given."""
    draw = click.option(
        "--audit-seed",
        type=click.IntRange(min=0),
        default=lambda: secrets.randbelow(10**15),
        metavar="N",
        help="The number that chooses the episodes, with the archive's digest; drawn and shown if not given.",
    )
    count = click.option(
        "--audit",
        type=click.IntRange(min=0),
        default=0,
        metavar="K",
        help="Play K episodes of each policy again, chosen when the archive is finished.",
    )
    return count(draw(command))


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


skip_option = sections.option(
    "--skip-invalid",
    is_flag=True,
    former=("--salvage",),
    help="Take the valid episodes, of damaged files too, and count the others.",
)


# `--config FILE`: options of a command from a TOML file


JUDGE = "judge"
_NO_KEYS = ("config", "help", "trust")
CONFIG = "safevla_bench.config"
"""Key of click's context: the path of the --config file."""


def click_options(decorators: Sequence[Callable[..., Any]]) -> tuple[click.Option, ...]:
    """Return the click options that decorators add to a command, in the order of the decorators."""

    def command() -> None: ...

    decorated = reduce(lambda inner, decorate: decorate(inner), reversed(decorators), command)
    return tuple(reversed(decorated.__click_params__))  # type: ignore[attr-defined]


JUDGE_OPTIONS = click_options([judge_options])


def option_key(option: click.Parameter) -> str:
    """Return an option's longest spelling without its dashes: `max-steps` for `--max-steps`."""
    return max(option.opts, key=len).lstrip("-")


def config_keys(command: click.Command) -> tuple[dict[str, click.Option], dict[str, click.Option]]:
    """Return key -> option of the keys that a command's file may hold, at the top and in the table `[judge]`.

    A command that does not judge accepts that table too and ignores it, so that one file serves both.
    """
    judging = {option_key(option): option for option in JUDGE_OPTIONS}
    options = {option_key(option): option for option in command.params if isinstance(option, click.Option)}
    return {name: option for name, option in options.items() if name not in (*judging, *_NO_KEYS)}, judging


def read_config(path: Path, context: click.Context) -> dict[str, object]:
    """Return the values of a TOML file by the command's parameter names, those of `[judge]` among them.

    Raises:
        RunError: the file cannot be read, has an unknown key (the nearest key is named), a value of a wrong type or
            one that its option does not take, or a `judge` that is no table.
    """
    place = Place(file=str(path))
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise RunError(f"cannot be read: {reason}", remedy="Name a TOML file.", place=place) from None
    running, judging = config_keys(context.command)
    judge = document.pop(JUDGE, {})
    if not isinstance(judge, dict):
        raise RunError("is no table", remedy="Write [judge] and its keys below.", place=Place(str(path), field=JUDGE))
    values = dict(_parse_table(document, running, "", path, context))
    judged = dict(_parse_table(judge, judging, f"{JUDGE}.", path, context))
    return {**values, **judged}


def config_option(command: F) -> F:
    """Add `--config FILE` to a command. The file's values become the defaults of the command's other options.

    A bad file raises `RunError` when the command is parsed.
    """
    return click.option(
        "--config",
        type=click.Path(path_type=Path),
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=_load_config,
        help="Take options from a TOML file: max-steps = 50, and [judge] for those of judging. Options on the command "
        "line take precedence.",
    )(command)


def _load_config(context: click.Context, option: click.Parameter, path: Path | None) -> None:
    """Put the file's values into the context's defaults. Does nothing without a file.

    Raises `RunError` for a bad file.
    """
    if path is not None:
        context.default_map = {**(context.default_map or {}), **read_config(path, context)}
        context.meta[CONFIG] = path


def _parse_table(
    values: Mapping[str, object], options: Mapping[str, click.Option], table: str, path: Path, context: click.Context
) -> Iterator[tuple[str, object]]:
    """Yield (parameter name, value) of each key of a TOML table.

    `table` is the table's prefix in error messages, such as "judge.", and `path` the file. Keys may be former
    spellings. Raises `RunError` for an unknown key, and for a value of a wrong type or that its option does not take.
    """
    former = {
        former.lstrip("-"): option
        for option in options.values()
        if isinstance(option, sections.Option)
        for former in option.former
    }
    option_by_key = {**former, **options}
    for name, value in values.items():
        place = Place(file=str(path), field=f"{table}{name}")
        if name not in option_by_key:
            near = difflib.get_close_matches(name, options, n=1)
            remedy = f"Did you mean {near[0]!r}?" if near else f"Keys here: {', '.join(options)}."
            raise RunError("there is no such key", remedy=remedy, place=place)
        option = option_by_key[name]
        assert option.name is not None
        yield option.name, _parse_value(value, option, place, context)


def _parse_value(value: object, option: click.Option, place: Place, context: click.Context) -> object:
    """Return a value as the option takes it from the command line: a list where the option can be repeated.

    Relative paths become relative to the file's folder. Raises `RunError` for a value that the option does not take.
    """
    if not option.multiple:
        return _parse_single(value, option, place, context)
    values = value if isinstance(value, list) else [value]
    return [_parse_single(item, option, place, context) for item in values]


def _parse_single(value: object, option: click.Option, place: Place, context: click.Context) -> object:
    """Return a single value for the option, as it is in TOML.

    An integer for a float becomes a float, and a relative path is joined to the folder of the file, `place.file`.
    Raises `RunError` for a value of another type, or that the option does not take.
    """
    expected_type, name = _option_type(option)
    if expected_type is float and type(value) is int:
        value = float(value)
    if type(value) is not expected_type:
        remedy = f"Write {name}{', or a list of them' if option.multiple else ''}."
        raise RunError(f"{value!r} is not {name}", remedy=remedy, place=place)
    assert place.file is not None
    if isinstance(value, str) and (isinstance(option.type, click.Path) or _names_library_file(option, value)):
        value = os.path.join(os.path.dirname(place.file), value)
    try:
        option.type.convert(value, option, context)
    except click.BadParameter as error:
        raise RunError(error.message, remedy="The command's --help says what it takes.", place=place) from None
    return value


def _option_type(option: click.Option) -> tuple[type, str]:
    if option.is_flag:
        return bool, "true or false"
    if isinstance(option.type, click.types.IntParamType):
        return int, "a whole number"
    if isinstance(option.type, click.types.FloatParamType):
        return float, "a number"
    return str, "a text"


def _names_library_file(option: click.Option, value: str) -> bool:
    return option.name == "library" and value not in BUILT_IN
