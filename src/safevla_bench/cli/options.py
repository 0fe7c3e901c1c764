"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce, wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from safevla_bench.evaluate import Judge

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
