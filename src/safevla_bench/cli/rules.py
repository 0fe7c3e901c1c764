"""The options of judging, and the rules that they make."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, wraps
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click
import pyarrow as pa

from safevla_bench.cli import echo
from safevla_bench.cli.options import (
    FILE,
    JUDGING,
    add_options,
    click_options,
    command,
    is_given,
    option,
    repeatable,
)
from safevla_bench.errors import RunError
from safevla_bench.jobs.evaluation import judgement
from safevla_bench.jobs.evaluation.stopping_rule import STOPPED_EARLY, was_stopped_early
from safevla_bench.judging.judged import INTERRUPTED, Judged
from safevla_bench.judging.ruleset import ApplicabilityMode, MissingFields, Ruleset, load_ruleset
from safevla_bench.judging.scores import IntervalMethod
from safevla_bench.specs.file_formats import DEFAULT_LIBRARY
from safevla_bench.tasks.file_formats import RegistryFile
from safevla_bench.text import escape_controls

if TYPE_CHECKING:
    from safevla_bench.judging.registration import Registration

F = TypeVar("F", bound=Callable[..., Any])

AS_JUDGED = "as-judged"
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "missing": get_args(MissingFields),
    "applicability": get_args(ApplicabilityMode),
    "intervals": get_args(IntervalMethod),
    "invalid": ("skip",),
}
_CAPABILITIES = "capabilities"
"""What --set takes beside thresholds."""
library_option = partial(option, "--library NAME|FILE")
rules_option = partial(repeatable, "--rules FILE|as-judged", "rule_files", type=FILE)
_JUDGE_OPTIONS = [
    library_option(
        "Specifications: default, paper-text, paper-as-run, net-force, or a file (TOML, or the paper's JSON rows); "
        "metaworld: limits drawn from a script's successes.",
        section=JUDGING,
        default=DEFAULT_LIBRARY,
    ),
    rules_option(
        "Add the specifications, or the tasks, templates and benchmarks, of a file. as-judged: judge by the rules "
        "that a run folder itself holds, and its tags of tasks that nobody else knows, as its maker did; other "
        "options replace the rules. Else they are shown and not taken.",
        section=JUDGING,
    ),
    repeatable(
        "--set NAME=VALUE",
        "changes",
        "Another threshold, such as non_target_max_disp_5mm=10mm; outputs name it so. Or missing=deactivate: "
        "leave an active specification out, with that reason, where a record lacks its fields. applicability=off: "
        "judge every specification whose signals exist, as if there were no tags; an ablation, not to be "
        "published. capabilities=NAME: what a host is taken to measure, such as libero-full; for its benchmarks "
        "only. intervals=paper: the percentile bootstrap for severities, which covers too seldom where few are "
        "unsafe. invalid=skip: take the valid episodes, of damaged files too, and count the others.",
        section=JUDGING,
    ),
]


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

    Where none is given (--set intervals= aside), the rules are those of --registered FILE, else the default ones; with
    --rules as-judged first those by which the sources were judged last, or are registered to be. A note on stderr names
    these. Tags of hosts are added.
    """

    @wraps(command)
    def with_judge(*args: Any, **settings: Any) -> Any:
        _hide_pandas()
        library, files, changes = (settings.pop(name) for name in ("library", "rule_files", "changes"))
        run_command = settings.get("run_command")
        sources = list(settings.get("sources", ())) if run_command is None else [run_command.out]
        as_judged = is_as_judged(files)
        own = _find_own_rules(sources) if as_judged and settings.get("formula") is None else None
        options = parse_changes(changes)
        skip_invalid = options.pop("invalid", None) == "skip"
        if "sources" in settings:
            settings["skip_invalid"] = skip_invalid
        elif skip_invalid:
            raise click.UsageError("--set invalid=skip is for episodes that are there.")
        ruleset = own or _registered_rules(run_command) or load_rules(library, files, options)
        ruleset = replace(ruleset, intervals=options.get("intervals", "default"))
        if sources and run_command is not None:
            ruleset = ruleset.with_host_registry(judgement.read_host_registry(run_command.request.host))
        elif sources:
            ruleset = judgement.add_host_registries(ruleset, sources, as_judged=as_judged)
        return command(*args, ruleset=ruleset, **settings)

    return add_options(with_judge, _JUDGE_OPTIONS)  # type: ignore[no-any-return]


def _hide_pandas() -> None:
    """Have pyarrow take pandas for missing: it would import it for its first array, which takes half a second.

    Anybody may still import pandas, and pyarrow does where it makes a data frame.
    """
    finder: Any = SimpleNamespace(find_spec=_refuse_pandas)
    sys.meta_path.insert(0, finder)
    try:
        pa.array([])
    finally:
        sys.meta_path.remove(finder)


def _refuse_pandas(name: str, *where: object) -> None:
    if name == "pandas":
        raise ImportError(name)


def judged_sources(command: F) -> F:
    """Add the options of judging to a command with an argument `sources`, which becomes its value.

    The command takes it as `sources: JudgedSources`.
    """

    @wraps(command)
    def with_sources(*args: Any, **settings: Any) -> Any:
        names = ("sources", "ruleset", "skip_invalid")
        return command(*args, sources=JudgedSources(*(settings.pop(name) for name in names)), **settings)

    return judge_options(with_sources)  # type: ignore[return-value]


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

    A NAME that is not a setting is a specification, whose threshold changes.
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


def load_rules(library: str, files: Sequence[Path], options: Mapping[str, Any]) -> Ruleset:
    """Return the rules of a library, the files of --rules and further keywords of `load_ruleset`."""
    specs, registry = sort_rules(files)
    return load_ruleset(library, spec_files=specs, registry_files=registry, **options)


def _registered_rules(run_command: Any) -> Ruleset | None:
    if run_command is None or not is_given(click.get_current_context(), "registered") or given_judge_options():
        return None
    registration: Registration = run_command.request.registration
    return registration.load_rules()


def given_judge_options() -> list[str]:
    """Return the options of judging that the command line or the --config file gives, by name without dashes.

    --rules as-judged, --set intervals= and --set invalid=, which name no rules, are never among them. Needs click's
    current context.
    """
    context = click.get_current_context()
    named = {
        "library": is_given(context, "library"),
        "rules": any(path != Path(AS_JUDGED) for path in context.params["rule_files"]),
        "set": any(not text.startswith(("intervals=", "invalid=")) for text in context.params["changes"]),
    }
    return [name for name, is_named in named.items() if is_named]


def _find_own_rules(sources: Sequence[Path]) -> Ruleset | None:
    """Return the rules by which the sources were judged last, else are registered to be judged; say so on stderr."""
    recipe = None if given_judge_options() else judgement.find_recipe(sources)
    if recipe is None or recipe.is_default:
        return None
    text = f"note: judged as by its maker, by {recipe.describe()}"
    click.echo("\n".join(escape_controls(line) for line in text.split("\n")), err=True)
    return recipe.load()


def print_missing(judged: Judged) -> None:
    """Print which parts of the sources are not among the judged episodes, and what registrations say of the runs.

    Nothing where all was judged and nothing is registered.
    """
    if judged.interrupted_run_count:
        click.echo(INTERRUPTED)
    if was_stopped_early(judged):
        click.echo(STOPPED_EARLY)
    for sentence in judged.describe_registrations():
        echo(sentence)
    if judged.left_out:
        click.echo(f"{'; '.join(judged.left_out.describe_kinds())}. The report lists what.")


@command("help")
@click.argument("topic", default=JUDGING.lower())
@click.pass_context
def help_command(context: click.Context, topic: str) -> None:
    """Say what the options mean by which every command judges. All options of a command: safevla COMMAND --help-all."""
    if topic.lower() != JUDGING.lower():
        raise click.UsageError(f"there is no topic {topic!r}: {JUDGING.lower()} is one; or: safevla {topic} --help-all")
    formatter = context.make_formatter()
    records = [option.get_help_record(context) for option in click_options(_JUDGE_OPTIONS)]
    with formatter.section(JUDGING):
        formatter.write_dl([record for record in records if record is not None])
    click.echo(formatter.getvalue(), nl=False)
