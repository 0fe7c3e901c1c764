"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce, wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from safevla_bench.errors import RunError
from safevla_bench.evaluate import Judge
from safevla_bench.ray_cluster import ADDRESS, HERE, Cluster

F = TypeVar("F", bound=Callable[..., Any])

_JUDGE = [
    click.option("--library", default="default", metavar="NAME|FILE", show_default=True,
                 help="Specifications: default, paper-literal, or a file (TOML, or the paper's JSON rows)."),
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
]  # fmt: skip


def judge_options(command: F) -> F:
    """Options that say with what to judge; the command takes them as one keyword, `judge`."""

    @wraps(command)
    def wrapped(*args: Any, **given: Any) -> Any:
        judge = Judge(
            library=given.pop("library"),
            specs=given.pop("specs"),
            registry=given.pop("registry"),
            capabilities=given.pop("capabilities"),
            missing=given.pop("missing"),
            applicability=given.pop("applicability"),
        )
        return command(*args, judge=judge, **given)

    return reduce(lambda inner, option: option(inner), reversed(_JUDGE), wrapped)  # type: ignore[return-value]


ENGINE = [
    click.option("--engine", type=click.Choice(["local", "ray"]), default="local", show_default=True,
                 help="Where to work: in processes of this machine or on a Ray cluster. Results are the same."),
    click.option("--address", metavar="HOST:PORT|auto",
                 help="The Ray cluster: its head, or auto for the one that this machine belongs to; else what "
                      "RAY_ADDRESS says, else Ray is started here for the while."),
]  # fmt: skip
ACTORS = [
    click.option("--actor-cpus", type=float, default=1.0, show_default=True, metavar="N",
                 help="CPUs of a node that each of the --workers reserves on a Ray cluster; fractions are allowed."),
    click.option("--actor-gpus", type=float, default=0.0, show_default=True, metavar="N",
                 help="GPUs of a node that each reserves, such as 0.25."),
    click.option("--actor-episodes", type=click.IntRange(min=1), default=100, show_default=True, metavar="N",
                 help="After how many episodes each is replaced by a fresh one: simulators leak memory."),
]  # fmt: skip


def cluster(given: Mapping[str, Any]) -> Cluster | None:
    """The Ray cluster that options ask for, None for this machine alone; `RunError` where they do not fit."""
    if given["engine"] == "ray":
        fields = {name.removeprefix("actor_"): value for name, value in given.items() if name.startswith("actor_")}
        return Cluster(address=given["address"], **fields)
    if given["address"]:
        raise RunError("--address is for a Ray cluster", remedy="Pass --engine ray with it.")
    return None


def engine_options(command: F) -> F:
    """Options that say where to judge; the command takes them as one keyword, `where`."""

    @wraps(command)
    def wrapped(*args: Any, **given: Any) -> Any:
        asked = {name: given.pop(name) for name in ("engine", "address")}
        return command(*args, where=cluster(asked), **given)

    return reduce(lambda inner, option: option(inner), reversed(ENGINE), wrapped)  # type: ignore[return-value]


def say_where(where: Cluster | None) -> None:
    """Say that Ray is started here, where a cluster might have been meant."""
    if where and where.place == HERE:
        click.echo(f"note: no --address and no {ADDRESS}: Ray is started on this machine", err=True)


format_option = click.option(
    "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True, help="How to print."
)

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
