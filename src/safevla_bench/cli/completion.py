"""Shell completion of option values and commands, without importing simulators or plug-ins."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import import_module
from typing import Any

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class, split_arg_string

VARIABLE = "_SAFEVLA_COMPLETE"  # environment variable by which a shell's completion script requests completions

Lister = Callable[[click.Context], Iterable[str]]
Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def complete(list_values: Lister, *, or_file: bool = False) -> Completer:
    """Return a `shell_complete` callback that completes the typed text, or only the part of this text after `=`."""
    # `list_values(context)` returns all values.
    # With `or_file`, a text is completed as a file's path if no value begins with the text.

    def complete_value(context: click.Context, param: click.Parameter, typed: str) -> list[CompletionItem]:
        # In `NAME=VALUE`, only VALUE is completed; the completions repeat `NAME=`.
        name, equals, _ = typed.partition("=")
        is_assignment = equals and ":" not in name  # after a colon, `=` is part of the value
        prefix = f"{name}=" if is_assignment else ""
        unfinished = typed.removeprefix(prefix)
        items = [CompletionItem(prefix + value) for value in list_values(context) if value.startswith(unfinished)]
        if not items and or_file:
            return [CompletionItem(typed, type="file")]  # the shell completes the name of a file
        return items

    return complete_value


def _load(module: str) -> Any:
    # Return a module of this package. It is imported only when needed, because most completions need few modules.
    return import_module(f"safevla_bench.{module}")


def _list_suites(context: click.Context) -> Iterable[str]:
    # Return the suites of the host that --host names on the same command line (`context`), or all suites.
    host = context.params.get("host")
    benchmarks = _load("tasks.loader").load_registry().benchmarks
    return [name for name, suite in benchmarks.items() if host in (None, suite.host)]


def _list_policies(context: click.Context) -> Iterable[str]:
    # Return the texts with which a value of --policy can begin, such as `noop` or `replay:`.
    # All policies that are not in `variants` take an argument after a colon.
    variants = {"noop": ["noop"], "random": ["random"], "scripted": ["scripted:careful", "scripted:hasty"]}
    return [text for name in _load("policies").POLICIES.names() for text in variants.get(name, [f"{name}:"])]


def _list_entries(context: click.Context) -> Iterable[str]:
    # Return the names of the paper's entries, such as `pi0.5@libero`.
    return [entry.name for entry in _load("policies.servers.entries").paper_entries()]


def _list_protocols(context: click.Context) -> Iterable[str]:
    # Return the names of the evaluation protocols.
    return list(_load("hosts.protocols").protocol_names())


def _list_protocols_and_dialects(context: click.Context) -> Iterable[str]:
    # Return the names that `safevla protocols` accepts: protocols and dialects.
    # With --entries (`of_paper`), return the names of the paper's entries instead.
    if context.params.get("of_paper"):
        return _list_entries(context)
    return [*_list_protocols(context), *_load("policies.servers.dialects").dialect_names()]


def _list_specs(context: click.Context) -> Iterable[str]:
    # Return the ids of the specifications in the built-in library that --library names.
    # If --library is missing or names a file, return the ids in the default library; the file is not read.
    formats, name = _load("specs.file_formats"), str(context.params.get("library"))
    library = _load("specs.loader").load_library(name if name in formats.BUILT_IN else formats.DEFAULT_LIBRARY)
    return [spec.spec_id for spec in library]


HOSTS = complete(lambda context: _load("hosts").host_names())
SUITES, POLICIES, ENTRIES = complete(_list_suites), complete(_list_policies), complete(_list_entries)
SERVERS = complete(lambda context: [f"{kind}:" for kind in _load("policies.servers").KINDS])
FILTERS = complete(lambda context: _load("policies.coupling").FILTERS)
PROTOCOLS, PROTOCOLS_AND_DIALECTS = complete(_list_protocols), complete(_list_protocols_and_dialects)
SPECS = complete(_list_specs)
THRESHOLDS = complete(lambda context: [f"{spec_id}=" for spec_id in _list_specs(context)])
LIBRARIES = complete(lambda context: _load("specs.file_formats").BUILT_IN, or_file=True)
TABLES = complete(lambda context: ["all", *(kind.name for kind in _load("report.tables.catalog").KINDS)])


class _BashCompletion(BashComplete):
    """Bash completion. Bash splits words at `:`, `=` and `@`, and expects only the part after the last separator."""

    source_template = (
        BashComplete.source_template
        .replace("env COMP_WORDS", 'env COMP_LINE="${COMP_LINE:0:COMP_POINT}" COMP_WORDS')
        .replace("COMPREPLY+=($value)", "COMPREPLY+=($value)\n            [[ $value == *[:=] ]] && compopt -o nospace")
    )  # fmt: skip
    _typed_prefix = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        # Return the complete words after the command's name, and the unfinished last word ("" = none).
        # click's method relies on bash's splitting of words at `:`, `=` and `@`; this method splits the line itself.
        line = os.environ["COMP_LINE"]  # the command line up to the cursor, see `source_template`
        words = split_arg_string(line)[1:]
        unfinished = words.pop() if words and not line[-1:].isspace() else ""
        # In `--option=VALUE`, only VALUE is completed.
        value = unfinished.partition("=")[2] if unfinished.startswith("--") else unfinished
        # On the command line, the text up to the last separator stays as it is, so completions omit this text.
        # `rfind` returns -1 for a missing separator; if all are missing, nothing is omitted.
        self._typed_prefix = value[: max(map(value.rfind, ":=@")) + 1]
        return words, unfinished

    def format_completion(self, item: CompletionItem) -> str:
        # Return a line for the completion script, as TYPE,VALUE. The type is, for example, `plain` or `file`.
        # The text `_typed_prefix` stays on the command line, so it is removed from the value.
        return f"{item.type},{item.value.removeprefix(self._typed_prefix)}"


def answer(command: click.Group) -> int:
    """Print a shell's completion script, or the completions of an unfinished command. On an error, print nothing."""
    add_completion_class(_BashCompletion)
    with suppress(Exception):  # a traceback would disturb the user's command line
        try:
            # click sees the environment variable `VARIABLE`, prints the answer and exits.
            command.main(args=[], prog_name="safevla", standalone_mode=False)
        except SystemExit as error:
            return int(error.code or 0)
    return 0
