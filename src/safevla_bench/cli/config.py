"""`--config FILE`: the options of a command, from a TOML file.

Every option is a key by its own name, a list where it can be repeated; the options that say with what to judge are in
the table `[judge]`. The command's own options are the only list there is, so that a file can say what the command line
can, and the command line goes before the file.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, TypeVar

import click

from safevla_bench.cli.options import judge_options
from safevla_bench.errors import Place, RunError
from safevla_bench.specs.file_formats import BUILT_IN

F = TypeVar("F", bound=Callable[..., Any])

JUDGE = "judge"
_NO_KEYS = ("config", "help")


def options_of(decorators: Sequence[Callable[..., Any]]) -> tuple[click.Option, ...]:
    """The options that decorators add to a command."""

    def command() -> None: ...

    decorated = reduce(lambda inner, decorate: decorate(inner), reversed(decorators), command)
    return tuple(reversed(decorated.__click_params__))  # type: ignore[attr-defined]


JUDGE_OPTIONS = options_of([judge_options])


def key(option: click.Parameter) -> str:
    """An option's name without its dashes, `--max-steps` as `max-steps`."""
    return max(option.opts, key=len).lstrip("-")


def keys(command: click.Command) -> tuple[dict[str, click.Option], dict[str, click.Option]]:
    """The keys that a file for a command may hold: at the top, and in the table `[judge]`.

    A command that does not judge takes that table too, and leaves it alone, so that one file serves both.
    """
    judging = {key(option): option for option in JUDGE_OPTIONS}
    options = {key(one): one for one in command.params if isinstance(one, click.Option)}
    return {name: one for name, one in options.items() if name not in (*judging, *_NO_KEYS)}, judging


def read(path: Path, context: click.Context) -> dict[str, object]:
    """A file's values by the command's parameter names, as if they had been typed.

    Raises `RunError` where it cannot be read, has an unknown key (naming the nearest), or a value of another type.
    """
    place = Place(file=str(path))
    try:
        held = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise RunError(f"cannot be read: {reason}", remedy="Name a TOML file.", place=place) from None
    running, judging = keys(context.command)
    judge = held.pop(JUDGE, {})
    if not isinstance(judge, dict):
        raise RunError("is no table", remedy="Write [judge] and its keys below.", place=Place(str(path), field=JUDGE))
    values = dict(_taken(held, running, "", path, context))
    judged = dict(_taken(judge, judging, f"{JUDGE}.", path, context))
    return {**values, **judged}


def config_option(command: F) -> F:
    """Adds `--config FILE` to a command of options."""
    return click.option(
        "--config",
        type=click.Path(path_type=Path),
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=_load,
        help="Take options from a TOML file: max-steps = 50, and [judge] for those of judging. Options given here "
        "go before it.",
    )(command)


def _load(context: click.Context, option: click.Parameter, path: Path | None) -> None:
    if path is not None:
        context.default_map = {**(context.default_map or {}), **read(path, context)}


def _taken(
    held: Mapping[str, object], options: Mapping[str, click.Option], table: str, path: Path, context: click.Context
) -> Iterator[tuple[str, object]]:
    for name, value in held.items():
        place = Place(file=str(path), field=f"{table}{name}")
        if name not in options:
            near = difflib.get_close_matches(name, options, n=1)
            remedy = f"Did you mean {near[0]!r}?" if near else f"Keys here: {', '.join(options)}."
            raise RunError("there is no such key", remedy=remedy, place=place)
        option = options[name]
        assert option.name is not None
        yield option.name, _value(value, option, place, context)


def _value(value: object, option: click.Option, place: Place, context: click.Context) -> object:
    """A value as the option takes it from the command line; paths are relative to the file."""
    if not option.multiple:
        return _single(value, option, place, context)
    values = value if isinstance(value, list) else [value]
    return [_single(one, option, place, context) for one in values]


def _single(value: object, option: click.Option, place: Place, context: click.Context) -> object:
    wanted, name = _wanted(option)
    if wanted is float and type(value) is int:
        value = float(value)
    if type(value) is not wanted:
        remedy = f"Write {name}{', or a list of them' if option.multiple else ''}."
        raise RunError(f"{value!r} is not {name}", remedy=remedy, place=place)
    assert place.file is not None
    if isinstance(value, str) and (isinstance(option.type, click.Path) or _is_library_file(option, value)):
        value = os.path.join(os.path.dirname(place.file), value)
    try:
        option.type.convert(value, option, context)
    except click.BadParameter as error:
        raise RunError(error.message, remedy="The command's --help says what it takes.", place=place) from None
    return value


def _wanted(option: click.Option) -> tuple[type, str]:
    if option.is_flag:
        return bool, "true or false"
    if isinstance(option.type, click.types.IntParamType):
        return int, "a whole number"
    if isinstance(option.type, click.types.FloatParamType):
        return float, "a number"
    return str, "a text"


def _is_library_file(option: click.Option, value: str) -> bool:
    return option.name == "library" and value not in BUILT_IN
