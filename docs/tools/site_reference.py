"""Makes the pages of docs/reference from the code: commands, the Python API, the record, files, folders, exit codes.

docs/tools/reference_keys.toml says what each key of a file means.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_type_hints

import click
import msgspec
from made_page import format_table

from safevla_bench.cli import GROUPS, safevla
from safevla_bench.cli.options import Command

DOCS = Path(__file__).parents[1]
UNEXPLAINED: set[str] = set()
"""Keys of files that docs/tools/reference_keys.toml does not explain; a test holds that there are none."""
KEYS = tomllib.loads((DOCS / "tools" / "reference_keys.toml").read_text(encoding="utf-8"))


def build_pages() -> dict[str, str]:
    """Return page -> its Markdown, by the path below docs/reference."""
    commands = {f"commands/{name}": page for name, page in command_pages().items()}
    return {
        "commands": _command_index(),
        **commands,
        "api": api_page(),
        "record": record_page(),
        "files": files_page(),
        "run-folder": run_folder_page(),
        "exit-codes": exit_code_page(),
    }


# Commands


def command_pages() -> dict[str, str]:
    """Return one page for each command of `safevla`."""
    group, context = _command_line()
    return {name: _command_page(command, name, context) for name, command in _visible(group, context)}


def _command_line() -> tuple[click.Group, click.Context]:
    return safevla, click.Context(safevla, info_name="safevla")


def _visible(group: click.Group, context: click.Context) -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is not None and not command.hidden:
            yield name, command


def _command_index() -> str:
    group, context = _command_line()
    names = [(name, command.get_short_help_str(200)) for name, command in _visible(group, context)]
    lines = dict(names)
    tables = [
        f"## {heading}\n\n| Command | |\n|---|---|\n"
        + "\n".join(f"| [`safevla {name}`](commands/{name}.md) | {escape_markdown(lines[name])} |" for name in commands)
        for heading, commands in GROUPS.items()
    ]
    tree = "\n".join(f"commands/{name}" for name, _ in names)
    return "\n".join(
        ["# Commands", "", _help_markdown(group.help or ""), "",
         "Every command prints this with `--help-all`. What a command's exit code means: [exit codes](exit-codes.md). "
         "The Tab key completes all of them: [running](../howto/running.md#completion-in-the-shell).", "",
         "\n\n".join(tables), "",
         f"```{{toctree}}\n:hidden:\n\n{tree}\n```", ""]
    )  # fmt: skip


def _command_page(command: click.Command, name: str, parent: click.Context, depth: int = 1) -> str:
    context = click.Context(command, info_name=name, parent=parent)
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    parts = [f"{'#' * depth} {context.command_path}", f"```text\n{usage}\n```", _help_markdown(command.help or "")]
    assert isinstance(command, Command)
    for heading, options in command.option_sections(context).items():
        listed = "\n\n".join(f"`{names}`\n: {escape_markdown(text) or '—'}" for names, text in options)
        parts.append(f"{'#' * (depth + 1)} {heading}\n\n{listed}")
    if command.epilog:
        parts.append(_help_markdown(command.epilog))
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _help_markdown(text: str) -> str:
    """Return a command's help as Markdown; paragraphs that keep their lines (`\\b`) are blocks of code."""
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(text.partition("\f")[0]))
    kept = [
        f"```text\n{paragraph.removeprefix(chr(8)).strip(chr(10))}\n```" if paragraph.startswith("\b")
        else escape_markdown(" ".join(paragraph.split()))
        for paragraph in paragraphs
    ]  # fmt: skip
    return "\n\n".join(kept)


def escape_markdown(text: str) -> str:
    """Return plain text so that Markdown shows it as it is; what stands in backticks is code already."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([\\*<\[_|])", r"\\\1", part) for part in parts)


# Python


API = {
    "Whole jobs": ("evaluate", "load", "judge", "Evaluation", "Request", "roll_out"),
    "Judge": ("open_archive", "load_ruleset", "Ruleset", "score", "Scores", "EpisodeScore"),
    "Sum up": ("aggregate", "cells", "Summary", "measure_exposure", "summarize_exposure"),
    "Record and watch": ("record", "record_until_closed", "Monitor"),
    "Write a policy": ("Policy", "Wants", "Observation"),
    "Records": ("Batch", "iterate_records", "append_episodes", "record_schema"),
    "Specifications and tasks": ("load_library", "Library", "Spec", "load_registry", "Registry", "parse_formula"),
    "Errors": ("SafevlaError",),
}
"""Heading -> the public names below it."""


def api_page() -> str:
    """Return the page of the Python API; what no heading lists stands under *More*."""
    import safevla_bench

    listed = {name for names in API.values() for name in names}
    rest = tuple(name for name in safevla_bench.__all__ if name not in listed | {"__version__"})
    parts = [
        "# Python API",
        "All names are imported from `safevla_bench`. [From Python](../howto/python.md) shows how they go together.",
    ]
    for heading, names in (*API.items(), *([("More", rest)] if rest else [])):
        blocks = "\n".join(_directive(name, getattr(safevla_bench, name)) for name in names)
        parts.append(f"## {heading}\n\n```{{eval-rst}}\n{blocks}```")
    return "\n\n".join(parts) + "\n"


def _directive(name: str, value: object) -> str:
    kind = "autoclass" if inspect.isclass(value) else "autofunction"
    members = "   :members:\n" if inspect.isclass(value) else ""
    return f".. {kind}:: safevla_bench.{name}\n{members}\n"


# The record


def record_page() -> str:
    """Return the page of the record's schema: the fields of an episode, of a step and of a contact."""
    import safevla_bench as sb
    from safevla_recorder.channels import CHANNELS

    schema = sb.record_schema()
    parts = [
        "# The record",
        "One episode is one JSON object: in `.jsonl` one per line. `safevla validate --schema` prints this as JSON "
        "Schema, `safevla validate` checks files against it. Archives in Parquet and raw "
        "episodes in `.npz` hold the same fields.",
    ]
    for name, text in (("Trajectory", "An episode"), ("Step", "A step"), ("Contact", "A contact")):
        block = schema["$defs"][name]
        rows = [
            (f"`{key}`", _schema_type(value), "yes" if key in block.get("required", ()) else "", _meaning(name, key))
            for key, value in block["properties"].items()
        ]
        parts += [f"## {text}", block["description"], format_table(("Field", "Type", "Required", "Meaning"), rows)]
    rows = [(f"`{spec.name}`", f"[{', '.join(map(str, spec.shape))}]", spec.unit or "—") for spec in CHANNELS]
    parts += [
        "## Channels",
        "The same values as arrays, in memory and in `.npz`. n records, P and Q bodies with positions and "
        "orientations, V bodies whose tracking can fail, J joints, A numbers of an action, S numbers of a simulator "
        "state, C contacts.",
        format_table(("Channel", "Shape", "Unit"), rows),
        "## As JSON Schema",
        f"```json\n{json.dumps(schema, indent=1)}\n```",
    ]
    return "\n\n".join(parts) + "\n"


def _schema_type(value: Mapping[str, Any]) -> str:
    if "anyOf" in value:
        return " or ".join(dict.fromkeys(_schema_type(choice) for choice in value["anyOf"]))
    if "$ref" in value:
        return f"a {value['$ref'].rpartition('/')[2].lower()}"
    if "enum" in value:
        return " ".join(f"`{choice}`" for choice in value["enum"])
    match value.get("type"):
        case "array":
            inner = _schema_type(value.get("items") or (value.get("prefixItems") or [{}])[0])
            count = value.get("minItems") if value.get("minItems") == value.get("maxItems") else None
            return f"{count} × {inner}" if count else f"list of {inner}"
        case "object":
            return f"name → {_schema_type(value.get('additionalProperties', {}))}"
        case str(kind):
            return {"integer": "int", "boolean": "true or false", "number": "number", "string": "text"}.get(kind, kind)
    return "any"


# Files


def files_page() -> str:
    """Return the page of the TOML files."""
    from safevla_bench.hosts.protocols import EvaluationProtocol, Inference
    from safevla_bench.policies.servers import dialects, entries
    from safevla_bench.specs import file_formats as spec_files
    from safevla_bench.tasks import file_formats as task_files
    from safevla_bench.tasks.entries import Benchmark, CapabilitySet, GoalBodies, TaskTemplate

    tables: dict[str, Iterable[type]] = {
        "Specifications: `--library`, `--rules`": (
            spec_files.LibraryFile, spec_files.SpecRow, spec_files.AlternateRow, spec_files.LimitRow,
            spec_files.PersonTable,
        ),
        "Tasks and tags: `--rules`": (
            task_files.RegistryFile, Benchmark, CapabilitySet, TaskTemplate,
            task_files.TaskRow, task_files.ComponentRow, task_files.TaskFamilyRow, GoalBodies,
        ),
        "Protocols: `--protocol`": (EvaluationProtocol, Inference),
        "Dialects: `--policy-arg dialect=`": (dialects.DialectFile, dialects.RequestEntry, dialects.ReplyArray),
        "The paper's entries: `--entry`": (entries.PaperEntry,),
    }  # fmt: skip
    parts = ["# Files and their keys", KEYS["introduction"]]
    for heading, structs in tables.items():
        parts.append(f"## {heading}")
        if heading in KEYS:
            parts.append(KEYS[heading])
        for struct in structs:
            parts += [f"### {KEYS[struct.__name__]['title']}", struct_table(struct)]
    return "\n\n".join(parts) + "\n"


def struct_table(struct: type) -> str:
    """Return the keys of a file's table: name, type, default, meaning."""
    fields = msgspec.structs.fields(struct)
    rows = [
        (
            f"`{field.encode_name}`",
            _type_name(field.type),
            _default(field),
            _meaning(struct.__name__, field.encode_name),
        )
        for field in fields
        if (field.encode_name, field.default) != ("name", "")  # the head of the table says it
    ]
    return format_table(("Key", "Type", "Default", "Meaning"), rows)


def _as_struct(row: type) -> type:
    """Return a dataclass as a struct of the same fields."""
    kinds = get_type_hints(row)
    fields = [(part.name, kinds[part.name], part.default) for part in dataclasses.fields(row)]
    return msgspec.defstruct(row.__name__, [each[: 2 + (each[2] is not dataclasses.MISSING)] for each in fields])


def _type_name(kind: Any) -> str:
    text = kind.__name__ if isinstance(kind, type) and not hasattr(kind, "__args__") else str(kind)
    text = re.sub(r"(typing|safevla_bench)(\.\w+)*\.(?=\w)", "", text)
    text = re.sub(r"Annotated\[(.+?), (msgspec\.)?Meta\(.*?\)\]", r"\1", text)
    text = text.replace("dict[str, object]", "table").replace("NoneType", "None").replace("frozenset[str]", "list[str]")
    text = re.sub(r"tuple\[([\w\[\], ]+), \.\.\.\]", r"list[\1]", text)
    return f"`{text}`"


def _default(field: Any) -> str:
    if field.default is not msgspec.NODEFAULT:
        return "—" if field.default in (None, (), msgspec.UNSET) else f"`{json.dumps(field.default)}`"
    return "required" if field.default_factory is msgspec.NODEFAULT else "—"


def _meaning(owner: str, key: str) -> str:
    from safevla_bench.hosts.protocols import FIELDS

    described = {
        "EvaluationProtocol": FIELDS,
        "Inference": {k.removeprefix("inference."): v for k, v in FIELDS.items()},
    }
    meaning = KEYS.get(owner, {}).get(key) or described.get(owner, {}).get(key)
    if meaning is None:
        UNEXPLAINED.add(f"{owner}.{key}")
        return "—"
    return meaning


# The run folder


def run_folder_page() -> str:
    """Return the page of the run folder: its files, and the keys of each."""
    from safevla_bench.judging.scores import EpisodeScore
    from safevla_bench.sources.runs.folder import EpisodeRow, Frame, Latency, PolicyGreeting
    from safevla_bench.tasks.reasons import CODES

    known = KEYS["run_folder"]
    parts = ["# The run folder", known["introduction"], "## Files"]
    parts.append(format_table(("File", "Content"), [(f"`{name}`", text) for name, text in known["files"].items()]))
    parts += [
        "A folder of `safevla_recorder`, by `record` or `RunWriter`, has `run.json` and `raw/` alone. There NNNNNN "
        "counts the episodes in the order in which they ended, and the files stay.",
        "## `run.json`",
        _key_table("run_json"),
        f"### `volatile`\n\n{known['volatile']}",
        _key_table("run_json_volatile"),
        "## `manifest.json`",
        _key_table("manifest_json"),
        "## `episodes.parquet`",
        struct_table(_as_struct(EpisodeRow)),
    ]
    for struct in (EpisodeScore, Frame, Latency, PolicyGreeting):
        parts += [f"## {KEYS[struct.__name__]['title']}", struct_table(struct)]
    rows = [(f"`{code}`", text.format("…")) for code, text in CODES.items()]
    parts += ["## Reasons", known["reasons"], format_table(("Code", "Text"), rows)]
    return "\n\n".join(parts) + "\n"


def _key_table(name: str) -> str:
    return format_table(("Key", "Meaning"), [(f"`{key}`", text) for key, text in KEYS[name].items()])


# Exit codes


def exit_code_page() -> str:
    """Return the page of exit codes."""
    from safevla_bench import cli

    codes = {
        name: getattr(cli, name) for name in ("OK", "GATE_FAILED", "USER_ERROR", "UNDECIDED", "CRASHED", "INTERRUPTED")
    }
    rows = [(str(code), KEYS["exit_codes"][name]) for name, code in codes.items()]
    return f"# Exit codes\n\n{KEYS['exit_codes']['introduction']}\n\n{format_table(('Code', 'Meaning'), rows)}\n"
