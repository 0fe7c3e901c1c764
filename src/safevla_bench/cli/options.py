"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce, wraps
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from safevla_bench.errors import RunError
from safevla_bench.ray_cluster import ADDRESS, HERE, RayCluster
from safevla_bench.ruleset import Ruleset, load_ruleset
from safevla_bench.text.sanitize import escape_controls

F = TypeVar("F", bound=Callable[..., Any])

_JUDGE_OPTIONS = [
    click.option("--library", default="default", metavar="NAME|FILE", show_default=True,
                 help="Specifications: default, paper-text, paper-as-run, or a file (TOML, or the paper's JSON rows)."),
    click.option("--specs", multiple=True, type=click.Path(path_type=Path), metavar="FILE",
                 help="Add the specifications of a file. Repeatable."),
    click.option("--registry", multiple=True, type=click.Path(path_type=Path), metavar="FILE",
                 help="Add tasks, templates and benchmarks of a file. Repeatable."),
    click.option("--capabilities", multiple=True, metavar="NAME",
                 help="What a host is taken to measure, such as libero-full; for its benchmarks only. Repeatable."),
    click.option("--missing", type=click.Choice(["error", "deactivate"]), default="error", show_default=True,
                 help="An active specification whose fields a record lacks: stop, or leave it out with that reason."),
    click.option("--applicability", type=click.Choice(["on", "off"]), default="on", show_default=True,
                 help="off: judge every specification whose signals exist, as if there were no tags. An ablation; "
                      "not to be published."),
    click.option("--intervals", type=click.Choice(["default", "paper"]), default="default", show_default=True,
                 help="Of severities; paper: the percentile bootstrap, which covers too seldom where few are unsafe."),
    click.option("--set", "thresholds", multiple=True, metavar="SPEC=VALUE",
                 help="Another threshold, such as non_target_max_disp_5mm=10mm; outputs name it so. Repeatable."),
]  # fmt: skip

_JUDGE_NAMES = ("library", "specs", "registry", "capabilities", "missing", "applicability", "thresholds")


def judge_options(command: F) -> F:
    """Add the options of judging to a command. It takes them as one keyword, `ruleset`."""

    @wraps(command)
    def with_judge(*args: Any, **given: Any) -> Any:
        options = {name: given.pop(name) for name in _JUDGE_NAMES}
        intervals = given.pop("intervals")
        sources = next((given[name] for name in ("sources", "runs", "run") if name in given), ())
        ruleset = _remembered_rules(sources) or load_ruleset(
            options["library"],
            spec_files=options["specs"],
            registry_files=options["registry"],
            capabilities=options["capabilities"],
            missing=options["missing"],
            applicability=options["applicability"],
            thresholds=options["thresholds"],
        )
        return command(*args, ruleset=replace(ruleset, intervals=intervals), **given)

    return reduce(lambda inner, option: option(inner), reversed(_JUDGE_OPTIONS), with_judge)  # type: ignore[return-value]


def _remembered_rules(sources: Path | Sequence[Path]) -> Ruleset | None:
    """Return the rules by which the sources were judged at last, where the command line names none, and say so."""
    context = click.get_current_context()
    if any(context.get_parameter_source(name) is not ParameterSource.DEFAULT for name in _JUDGE_NAMES):
        return None
    from safevla_bench import evaluation  # not where a command judges nothing that exists

    recipe = evaluation.find_recipe([sources] if isinstance(sources, Path) else sources)
    if recipe is None or recipe.is_default:
        return None
    text = f"note: judged as at last, by {recipe.describe()}; --library default judges by the default rules"
    click.echo("\n".join(escape_controls(line) for line in text.split("\n")), err=True)
    return recipe.load()


ENGINE_OPTIONS = [
    click.option("--engine", type=click.Choice(["local", "ray"]), default="local", show_default=True,
                 help="Work in processes of this machine or on a Ray cluster. Results are the same."),
    click.option("--address", metavar="HOST:PORT|auto",
                 help="The head of the Ray cluster, or auto for the one that this machine belongs to. Default: "
                      "RAY_ADDRESS, else Ray is started on this machine for the command."),
]  # fmt: skip
ACTOR_OPTIONS = [
    click.option("--actor-cpus", type=float, default=1.0, show_default=True, metavar="N",
                 help="CPUs of a node that each of the --workers reserves on a Ray cluster; fractions are allowed."),
    click.option("--actor-gpus", type=float, default=0.0, show_default=True, metavar="N",
                 help="GPUs of a node that each reserves, such as 0.25."),
    click.option("--actor-episodes", type=click.IntRange(min=1), default=100, show_default=True, metavar="N",
                 help="After how many episodes each is replaced by a fresh one: simulators leak memory."),
]  # fmt: skip


def requested_cluster(options: Mapping[str, Any]) -> RayCluster | None:
    """Return the Ray cluster that the options request, None for this machine alone.

    Raises:
        RunError: the options contradict each other.
    """
    if options["engine"] == "ray":
        fields = {name.removeprefix("actor_"): value for name, value in options.items() if name.startswith("actor_")}
        return RayCluster(address=options["address"], **fields)
    if options["address"]:
        raise RunError("--address is for a Ray cluster", remedy="Pass --engine ray with it.")
    return None


def engine_options(command: F) -> F:
    """Add the options of the engine to a command. It takes them as one keyword, `where`."""

    @wraps(command)
    def with_engine(*args: Any, **given: Any) -> Any:
        engine = {name: given.pop(name) for name in ("engine", "address")}
        return command(*args, where=requested_cluster(engine), **given)

    return reduce(lambda inner, option: option(inner), reversed(ENGINE_OPTIONS), with_engine)  # type: ignore[return-value]


def print_engine_note(where: RayCluster | None) -> None:
    """Print a note if Ray is started on this machine because no address is given."""
    if where and where.place == HERE:
        click.echo(f"note: no --address and no {ADDRESS}: Ray is started on this machine", err=True)


format_option = click.option(
    "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True, help="How to print."
)
paper_format_option = click.option(
    "--format", "form", type=click.Choice(["text", "json", "paper"]), default="text", show_default=True,
    help="How to print; paper: JSON rows of the paper's Appendix B, for other evaluators and to be read back.",
)  # fmt: skip

sources_argument = click.argument(
    "sources", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="SOURCE..."
)
skip_option = click.option(
    "--skip-invalid",
    "--salvage",
    "skip_invalid",
    is_flag=True,
    help="Take the valid episodes, of damaged files too, and count the others.",
)
