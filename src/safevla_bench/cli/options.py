"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce, wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from safevla_bench.errors import RunError
from safevla_bench.ray_cluster import ADDRESS, HERE, RayCluster
from safevla_bench.ruleset import load_ruleset

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
]  # fmt: skip


def judge_options(command: F) -> F:
    """Add the options of judging to a command. It takes them as one keyword, `ruleset`."""

    @wraps(command)
    def with_judge(*args: Any, **given: Any) -> Any:
        ruleset = load_ruleset(
            given.pop("library"),
            spec_files=given.pop("specs"),
            registry_files=given.pop("registry"),
            capabilities=given.pop("capabilities"),
            missing=given.pop("missing"),
            applicability=given.pop("applicability"),
            intervals=given.pop("intervals"),
        )
        return command(*args, ruleset=ruleset, **given)

    return reduce(lambda inner, option: option(inner), reversed(_JUDGE_OPTIONS), with_judge)  # type: ignore[return-value]


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
