"""`safevla tags`: proposals for tasks that the registry does not have."""

from __future__ import annotations

import json
from pathlib import Path

import click

from safevla_bench import tasks
from safevla_bench.hosts.libero.tasks import bddl_files, name_of
from safevla_bench.tasks import bddl, proposal, proposal_file


@click.group("tags")
def tags_command() -> None:
    """What is known of tasks: their templates and tags. `safevla tasks` lists them."""


@tags_command.command("propose")
@click.option("--bddl", "paths", required=True, multiple=True, type=click.Path(path_type=Path), metavar="FILE|DIR",
              help="A task file of LIBERO's kind, or a folder of them. Repeatable.")  # fmt: skip
@click.option("--format", "form", type=click.Choice(["toml", "json"]), default="toml", show_default=True,
              help="toml is what --registry reads.")  # fmt: skip
def propose_command(paths: tuple[Path, ...], form: str) -> None:
    r"""Propose template and tags for tasks of your own, from what their BDDL files say; no simulator is needed.

    Every choice comes with its reason, and with questions for a person where something had to be assumed: could it
    spill? must the drawer be opened first? Answer them before the numbers count.

    \b
    safevla tags propose --bddl my_tasks > my_tags.toml
    safevla eval --host libero --suite my_tasks --registry my_tags.toml --max-steps 300 \
        --policy NAME --out runs/mine
    """
    files = [file for path in paths for file in bddl_files(path)]
    proposals = [proposal.propose(bddl.read(file), *name_of(file)) for file in files]
    if form == "json":
        click.echo(json.dumps(proposal_file.as_rows(proposals), indent=2))
        return
    click.echo(proposal_file.as_toml(proposals, tasks.registry(), host="libero", capabilities="libero"), nl=False)
    questions = sum(len(one.audit) for one in proposals)
    click.echo(
        f"{len(proposals)} tasks, {questions} lines to audit. Next: answer them, then pass --registry.", err=True
    )
