"""`--config FILE`: options of `safevla eval` from a TOML file.

Every option is a key of the same name, and a list where it can be repeated. The options of judging are in the table
`[judge]`. The command line takes precedence over the file.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from safevla_bench.cli.options import FILE, option
from safevla_bench.cli.rules import AS_JUDGED, JUDGE_OPTIONS
from safevla_bench.errors import Place, RunError
from safevla_bench.specs.file_formats import BUILT_IN

JUDGE = "judge"
_NO_KEYS = ("config", "help", "trust")
CONFIG = "safevla_bench.config"
"""Key of click's context: the path of the --config file."""


def option_key(option: click.Parameter) -> str:
    """Return an option's longest spelling without its dashes: `max-steps` for `--max-steps`."""
    return max(option.opts, key=len).lstrip("-")


def config_keys(command: click.Command) -> tuple[dict[str, click.Option], dict[str, click.Option]]:
    """Return key -> option of the keys that a command's file may hold, at the top and in the table `[judge]`."""
    options = {
        option_key(option): option
        for option in command.params
        if isinstance(option, click.Option) and option.expose_value
    }
    judging = {name: option for name, option in options.items() if option.name in JUDGE_OPTIONS}
    return {name: option for name, option in options.items() if name not in (*judging, *_NO_KEYS)}, judging


def read_config(path: Path, context: click.Context) -> dict[str, object]:
    """Return the values of a TOML file by the command's parameter names, those of `[judge]` among them.

    Raises:
        RunError: the file cannot be read, has an unknown key (the nearest key is named), a value of a wrong type or
            one that its option does not take, or a `judge` that is not a table.
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
    return {
        **dict(_parse_table(document, running, "", path, context)),
        **dict(_parse_table(judge, judging, f"{JUDGE}.", path, context)),
    }


def _load_config(context: click.Context, option: click.Parameter, path: Path | None) -> None:
    if path is not None:
        context.default_map = {**(context.default_map or {}), **read_config(path, context)}
        context.meta[CONFIG] = path


CONFIG_OPTION = option(
    "Take options from a TOML file: max-steps = 50, and [judge] for those of judging. Options on the command line "
    "take precedence.",
    "FILE",
    type=FILE,
    is_eager=True,
    expose_value=False,
    callback=_load_config,
)
"""`--config FILE`, whose values become the defaults of the command's other options; a bad file is a `RunError`."""


def _parse_table(
    values: Mapping[str, object], options: Mapping[str, click.Option], table: str, path: Path, context: click.Context
) -> Iterator[tuple[str, object]]:
    """Yield (parameter name, value) of each key of a TOML table, `table` in error messages, such as "judge."."""
    for name, value in values.items():
        place = Place(file=str(path), field=f"{table}{name}")
        if name not in options:
            near = difflib.get_close_matches(name, options, n=1)
            remedy = f"Did you mean {near[0]!r}?" if near else f"Keys here: {', '.join(options)}."
            raise RunError("there is no such key", remedy=remedy, place=place)
        option = options[name]
        assert option.name is not None
        if option.multiple:
            items = value if isinstance(value, list) else [value]
            yield option.name, [_parse_value(item, option, place, context) for item in items]
        else:
            yield option.name, _parse_value(value, option, place, context)


def _parse_value(value: object, option: click.Option, place: Place, context: click.Context) -> object:
    """Return a single value for the option, as it is in TOML."""
    expected_type, name = _option_type(option)
    if expected_type is float and type(value) is int:
        value = float(value)
    if type(value) is not expected_type:
        remedy = f"Write {name}{', or a list of them' if option.multiple else ''}."
        raise RunError(f"{value!r} is not {name}", remedy=remedy, place=place)
    assert place.file is not None
    if isinstance(value, str) and _names_file(option, value):
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


def _names_file(option: click.Option, value: str) -> bool:
    if option.name == "library":
        return value not in BUILT_IN
    return isinstance(option.type, click.Path) and value != AS_JUDGED
