"""Shell completion of option values and commands, without importing simulators or plug-ins."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class, split_arg_string

VARIABLE = "_SAFEVLA_COMPLETE"  # the shell's script sets it when it requests completions

Lister = Callable[[click.Context], Iterable[str]]
Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def complete(list_values: Lister, *, or_file: bool = False) -> Completer:
    """Return click's `shell_complete` for an option: the values that start with the text, also after `NAME=`."""

    def items(context: click.Context, param: click.Parameter, start: str) -> list[CompletionItem]:
        name, equals, rest = start.partition("=")
        before, rest = (name + equals, rest) if equals and ":" not in name else ("", start)
        found = [CompletionItem(before + value) for value in list_values(context) if value.startswith(rest)]
        return found or ([CompletionItem(start, type="file")] if or_file else [])

    return items


def _list_hosts(context: click.Context) -> Iterable[str]:
    from safevla_bench.hosts import host_names

    return host_names()


def _list_suites(context: click.Context) -> Iterable[str]:
    from safevla_bench.tasks.loader import load_registry

    host = context.params.get("host")
    return [name for name, suite in load_registry().benchmarks.items() if host in (None, suite.host)]


def _list_policies(context: click.Context) -> Iterable[str]:
    from safevla_bench.policies import POLICIES

    known = {"noop": ["noop"], "random": ["random"], "scripted": ["scripted:careful", "scripted:hasty"]}
    return [text for name in POLICIES.names() for text in known.get(name, [f"{name}:"])]


def _list_servers(context: click.Context) -> Iterable[str]:
    from safevla_bench.policies.servers import KINDS

    return [f"{kind}:" for kind in KINDS]


def _list_entries(context: click.Context) -> Iterable[str]:
    from safevla_bench.policies.servers.entries import paper_entries

    return [entry.name for entry in paper_entries()]


def _list_filters(context: click.Context) -> Iterable[str]:
    from safevla_bench.policies.coupling import FILTERS

    return list(FILTERS)


def _list_protocols(context: click.Context) -> Iterable[str]:
    from safevla_bench.hosts.protocols import protocol_names

    return protocol_names()


def _list_protocols_and_dialects(context: click.Context) -> Iterable[str]:
    from safevla_bench.policies.servers.dialects import dialect_names

    return _list_entries(context) if context.params.get("of_paper") else [*_list_protocols(context), *dialect_names()]


def _list_libraries(context: click.Context) -> Iterable[str]:
    from safevla_bench.specs.file_formats import BUILT_IN

    return list(BUILT_IN)


def _list_specs(context: click.Context) -> Iterable[str]:
    from safevla_bench.specs.file_formats import BUILT_IN, DEFAULT_LIBRARY
    from safevla_bench.specs.loader import load_library

    named = str(context.params.get("library"))
    return [spec.spec_id for spec in load_library(named if named in BUILT_IN else DEFAULT_LIBRARY)]


def _list_thresholds(context: click.Context) -> Iterable[str]:
    return [f"{spec_id}=" for spec_id in _list_specs(context)]


def _list_tables(context: click.Context) -> Iterable[str]:
    from safevla_bench.report.tables.catalog import KINDS

    return ["all", *(kind.name for kind in KINDS)]


HOSTS, SUITES, POLICIES, SERVERS = map(complete, (_list_hosts, _list_suites, _list_policies, _list_servers))
ENTRIES, FILTERS, PROTOCOLS = map(complete, (_list_entries, _list_filters, _list_protocols))
PROTOCOLS_AND_DIALECTS, TABLES = complete(_list_protocols_and_dialects), complete(_list_tables)
SPECS, THRESHOLDS, LIBRARIES = (
    complete(_list_specs),
    complete(_list_thresholds),
    complete(_list_libraries, or_file=True),
)


class _BashCompletion(BashComplete):
    """Bash completion. Bash splits words at `:`, `=` and `@` and expects only what follows the last of them."""

    source_template = (
        BashComplete.source_template
        .replace("env COMP_WORDS", 'env COMP_LINE="${COMP_LINE:0:COMP_POINT}" COMP_WORDS')
        .replace("COMPREPLY+=($value)", "COMPREPLY+=($value)\n            [[ $value == *[:=] ]] && compopt -o nospace")
    )  # fmt: skip
    _kept = ""

    def get_completion_args(self) -> tuple[list[str], str]:
        line = os.environ["COMP_LINE"]
        words = split_arg_string(line)[1:]
        begun = words.pop() if words and not line[-1:].isspace() else ""
        value = begun.partition("=")[2] if begun.startswith("--") else begun
        self._kept = value[: max(map(value.rfind, ":=@")) + 1]
        return words, begun

    def format_completion(self, item: CompletionItem) -> str:
        return f"{item.type},{item.value.removeprefix(self._kept)}"


def answer(command: click.Group) -> int:
    """Print a shell's script or the completions of the words so far; print nothing if these words are invalid."""
    add_completion_class(_BashCompletion)
    with suppress(Exception):
        try:
            command.main(args=[], prog_name="safevla", standalone_mode=False)
        except SystemExit as error:
            return int(error.code or 0)
    return 0
