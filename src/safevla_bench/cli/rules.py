"""The options for judging, and the rules that these options select."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, get_args

import click
import pyarrow as pa

from safevla_bench import errors, memory
from safevla_bench.cli import completion, echo, options
from safevla_bench.cli.options import is_given, option, repeatable
from safevla_bench.cli.progress import show_status
from safevla_bench.files import parse_toml, read_text
from safevla_bench.jobs.evaluation import judgement, stopping_rule
from safevla_bench.judging.judged import INTERRUPTED, Judged
from safevla_bench.judging.ruleset import ApplicabilityMode, MissingFields, Ruleset, load_ruleset
from safevla_bench.judging.scores import IntervalMethod
from safevla_bench.sources.runs.policy_names import NamedSource
from safevla_bench.specs.file_formats import DEFAULT_LIBRARY
from safevla_bench.tasks.file_formats import RegistryFile

if TYPE_CHECKING:
    from safevla_bench.judging.registration import Registration

AS_JUDGED, _TOPIC = "as-judged", options.JUDGING.lower()
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "missing": get_args(MissingFields),
    "applicability": get_args(ApplicabilityMode),
    "intervals": get_args(IntervalMethod),
    "invalid": ("skip",),
}
# This name in --set takes any value and can be repeated. The names in _CHOICES take only certain values.
_CAPABILITIES = "capabilities"
library_option = partial(option, metavar="NAME|FILE", shell_complete=completion.LIBRARIES)
rules_option = partial(repeatable, metavar="FILE|as-judged", spelling="--rules", type=options.FILE)
JUDGE_OPTIONS = {
    "library": library_option("The specifications: default, paper-text, paper-as-run, net-force, metaworld (limits "
                              "from a script's successes), or a file.", section=options.JUDGING,
                              default=DEFAULT_LIBRARY),
    "rule_files": rules_option("Add the specifications, or the tasks, templates and benchmarks, in a file. as-judged: "
                               "judge by the rules and tags stored in the run folder.", section=options.JUDGING),
    "changes": repeatable("Set a threshold, such as `non_target_max_disp_5mm=10mm`. `missing=deactivate`: leave out "
                          "specifications whose fields a record lacks. applicability=phased: judge composite tasks "
                          "phase by phase. applicability=off: judge as if tasks had no tags (an ablation). "
                          "capabilities=NAME: the signals that a host is assumed to measure. intervals=paper: the "
                          "paper's percentile bootstrap for severities. invalid=skip: judge only the valid episodes.",
                          "NAME=VALUE", spelling="--set", section=options.JUDGING,
                          shell_complete=completion.THRESHOLDS),
}  # fmt: skip


@dataclass(frozen=True)
class JudgedSources:
    """Run folders and archives, and the rules for judging them."""

    paths: tuple[Path, ...]
    ruleset: Ruleset
    skip_invalid: bool
    judging_words: tuple[str, ...] = ()  # the judging options that were given, as words of a command line

    def format_command(self, name: str, *words: str) -> str:
        # Return the command `safevla NAME` for the same sources (`paths`, with the policies' new names).
        # `words` follow the sources, and the judging options (`judging_words`) come last.
        paths = [f"{path.policy}={path}" if isinstance(path, NamedSource) else str(path) for path in self.paths]
        return shlex.join(["safevla", name, *paths, *words, *self.judging_words])

    def judge(self, *, mixes_starts: bool = False) -> Judged:
        """Return the verdicts on the sources. Print a note on stderr on each source that other rules judged before."""
        # Invalid episodes raise an error, or are left out if `skip_invalid` is set. `makers` lists the notes.
        # `mixes_starts`: the sources may contain both benchmarks and suites of chosen start states.
        with show_status("judging"):
            skip = self.skip_invalid
            judged = judgement.judge(self.paths, self.ruleset, skip_invalid=skip, mixes_starts=mixes_starts)
        for line in judged.makers:
            echo(f"note: {line}", err=True)
        return judged


def judged_sources(argument: Any = options.SOURCES) -> Any:
    """Declare the argument `sources` and the options for judging; the command receives both as `JudgedSources`.

    Without judging options, or with only --set intervals=, the default rules apply. --rules as-judged selects the rules
    that last judged the sources, or the rules in their registrations; a note names the rules. Hosts' tags are added.
    """
    return options.group({"sources": argument, **JUDGE_OPTIONS}, _read_sources)


def _read_sources(context: click.Context, values: Mapping[str, Any]) -> JudgedSources:
    # Return the sources of a command, and the rules for judging. `values` maps the names of options to their values.
    sources = values["sources"]
    # With `safevla show --formula`, nothing is judged, so the rules that judged the sources before are not needed.
    ruleset, skip_invalid = _read_rules(values, () if context.params.get("formula") else sources)
    ruleset = judgement.add_host_registries(ruleset, sources, as_judged=is_as_judged(values["rule_files"]))
    return JudgedSources(sources, ruleset, skip_invalid, tuple(options.list_given_words(context, JUDGE_OPTIONS)))


def read_new_rules(
    values: Mapping[str, Any], host: str, out: Sequence[Path] = (), registration: Registration | None = None
) -> Ruleset:
    """Return the rules for new episodes in a host. Without judging options, the rules of the `registration` apply."""
    # `values` contains the values of the judging options. `out` may contain a run folder, for --rules as-judged.
    # --set invalid=skip raises click's error, because it only applies to recorded episodes.
    ruleset, skip_invalid = _read_rules(values, out, registration)
    if skip_invalid:
        raise click.UsageError("--set invalid=skip applies to recorded episodes, not to new ones.")
    return ruleset.with_host_registry(judgement.read_host_registry(host))


def _read_rules(
    values: Mapping[str, Any], sources: Sequence[Path], registration: Registration | None = None
) -> tuple[Ruleset, bool]:
    # Return the rules that the judging options select, and whether to skip invalid episodes.
    _load_pyarrow_without_pandas()  # must precede the first use of pyarrow
    stored_rules = _find_earlier_rules(sources) if is_as_judged(values["rule_files"]) else None
    settings = parse_changes(values["changes"])  # from --set
    skip_invalid = settings.pop("invalid", None) == "skip"  # not an argument of `load_ruleset`
    # A registered run is judged by the rules in its registration, unless other rules are requested.
    if stored_rules is None and registration is not None and not given_judge_options():
        stored_rules = registration.load_rules()
    # The method for intervals changes no verdict, so it also applies to stored rules.
    ruleset = stored_rules or load_rules(values["library"], values["rule_files"], settings)
    return replace(ruleset, intervals=settings.get("intervals", "default")), skip_invalid


def _load_pyarrow_without_pandas() -> None:
    # Block imports of pandas while pyarrow makes its first array, which saves 0.5 s. Then remove the block.
    # Python asks the finders in `sys.meta_path` in order. The finder that is added here comes first and refuses pandas.
    finder: Any = SimpleNamespace(find_spec=_refuse_pandas)
    sys.meta_path.insert(0, finder)
    try:
        pa.array([])
    finally:
        sys.meta_path.remove(finder)


def _refuse_pandas(name: str, *where: object) -> None:
    # Act as a finder's method `find_spec`. Its result None leaves all other modules to other finders.
    if name == "pandas":
        raise ImportError(name)


def is_as_judged(files: Sequence[Path]) -> bool:
    """Return whether --rules as-judged is given; `files` are the values of --rules."""
    return Path(AS_JUDGED) in files


def sort_rules(files: Sequence[Path]) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    """Split the files of --rules into files with specifications and files with tasks. The tables of a TOML file, or the
    first row of a JSON file, decide. Unreadable files count as specifications; the error appears when they are read.
    """
    rule_files = [path for path in files if path != Path(AS_JUDGED)]
    task_files = tuple(path for path in rule_files if _holds_tasks(path))
    return tuple(path for path in rule_files if path not in task_files), task_files


def _holds_tasks(path: Path) -> bool:
    # Return whether a file of --rules defines tasks, templates or benchmarks. Return false for an unreadable file.
    try:
        with memory.limit_memory(path):
            text = read_text(path)
            if path.suffix == ".toml":
                # The table `tags` may occur in both kinds of files, so it is ignored here.
                task_tables = set(RegistryFile.__struct_fields__) - {"tags"}
                return any(name in task_tables for name in parse_toml(text))
            # Decode only the first row of a JSON array, or the single row of the file.
            row, _ = json.JSONDecoder().raw_decode(text.lstrip().removeprefix("[").lstrip())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(row, Mapping) and "task_id" in row


def parse_changes(texts: Sequence[str]) -> dict[str, Any]:
    """Return the settings in the values of --set, as arguments of `load_ruleset`; `RunError` for an invalid value."""
    # For example, `force_50N=40N` and `missing=deactivate` give thresholds=["force_50N=40N"] and missing="deactivate".
    settings: dict[str, Any] = {"thresholds": [], _CAPABILITIES: []}
    for text in texts:
        name, _, value = text.partition("=")
        if name == _CAPABILITIES:
            settings[name].append(value)
        elif name not in _CHOICES:  # the name of a specification or family; `load_ruleset` checks it
            settings["thresholds"].append(text)
        elif value in _CHOICES[name]:
            settings[name] = value
        else:
            remedy = f"Write {' or '.join(f'{name}={choice}' for choice in _CHOICES[name])}."
            raise errors.RunError(f"--set {text!r} has an invalid value", remedy=remedy)
    return settings


def load_rules(library: str, files: Sequence[Path], settings: Mapping[str, Any]) -> Ruleset:
    """Return the rules from a library, the files of --rules, and other keyword arguments of `load_ruleset`."""
    specs, registry = sort_rules(files)
    return load_ruleset(library, spec_files=specs, registry_files=registry, **settings)


def given_judge_options() -> list[str]:
    """Return the names, without dashes, of the judging options that are given on the command line or in the --config
    file. --rules as-judged, --set intervals= and --set invalid= do not count, because they select no rules.
    """
    context = click.get_current_context()
    # Name of each judging option -> whether it is given in a way that selects rules.
    selects_rules = {
        "library": is_given(context, "library"),
        "rules": any(path != Path(AS_JUDGED) for path in context.params["rule_files"]),
        "set": any(not text.startswith(("intervals=", "invalid=")) for text in context.params["changes"]),
    }
    return [name for name, is_selecting in selects_rules.items() if is_selecting]


def _find_earlier_rules(sources: Sequence[Path]) -> Ruleset | None:
    # Return the rules that last judged the sources or, for unjudged runs, the rules in their registrations.
    # Print a note on stderr that names the rules.
    # Return None if there are no earlier rules, if they are the default rules, or if judging options are given.
    # A recipe names the library, the files and the options from which rules are loaded.
    recipe = None if given_judge_options() else judgement.find_recipe(sources)
    if recipe is None or recipe.is_default:
        return None
    echo(f"note: judged by the source's original rules: {recipe.describe()}", err=True)
    return judgement.load_recipe(recipe, sources)


def print_missing(judged: Judged) -> None:
    """Print which parts of the sources were not judged, and any differences of runs from their registrations."""
    if judged.interrupted_run_count:
        echo(INTERRUPTED)
    if stopping_rule.was_stopped_early(judged):
        echo(stopping_rule.STOPPED_EARLY)
    for sentence in judged.describe_registrations():  # sentences about registered runs
        echo(sentence)
    if judged.left_out:
        echo(f"{'; '.join(judged.left_out.describe_kinds())}. The report lists them.")


@options.command("help")
def help_command(
    context: click.Context,
    topic: str = options.argument(
        "[TOPIC]", default=_TOPIC, shell_complete=completion.complete(lambda context: [_TOPIC])
    ),
) -> None:
    """Explain the options that all judging commands share. For all options of a command: safevla COMMAND --help-all."""
    if topic.lower() != _TOPIC:
        problem = f"there is no topic {topic!r}; the only topic is {_TOPIC}"
        raise click.UsageError(f"{problem}; for the options of a command, use its --help-all")
    formatter = context.make_formatter()
    # Names and help text of each option. click returns None for hidden options, of which there are none here.
    records = [declared.get_help_record(context) for declared in options.declare_options(JUDGE_OPTIONS)]
    with formatter.section(options.JUDGING):
        formatter.write_dl([record for record in records if record is not None])
    click.echo(formatter.getvalue(), nl=False)
