"""`safevla verify`: can this run be believed?"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import click
from rich.console import Console

from safevla_bench import verify
from safevla_bench.cli import GATE_FAILED, OK, USER_ERROR, printable
from safevla_bench.cli.options import format_option
from safevla_bench.text.sanitize import inert

_PATH = click.Path(path_type=Path)


@click.command("verify")
@click.argument("run", type=_PATH, metavar="RUN")
@click.option("--replay", type=click.IntRange(min=0), default=0, metavar="K", help="Play K episodes again in the host.")
@click.option("--library", metavar="NAME|FILE", help="The library that judged, where it was a file.")
@click.option("--specs", multiple=True, type=_PATH, metavar="FILE", help="Specifications that were added. Repeatable.")
@click.option("--registry", multiple=True, type=_PATH, metavar="FILE", help="Tasks that were added. Repeatable.")
@format_option
@click.pass_context
def verify_command(
    context: click.Context,
    run: Path,
    replay: int,
    library: str | None,
    specs: tuple[Path, ...],
    registry: tuple[Path, ...],
    form: str,
) -> None:
    r"""Check that a run folder is what it says.

    The parts of the archive have the digests that the manifest gives. The table of episodes and the archive hold the
    same episodes. Library, registry and version are those that judged. The records, judged again, give scores.json and
    scores.parquet byte for byte. With --replay the recorded actions of K episodes, chosen by their names, are played
    again in the simulator from the same start, and every state is compared bit for bit.

    What could not be checked is said, and why. Digests find damage; whoever changes a record and its digest is
    found by a replay of it only.

    \b
    Exit codes: 0 all agrees, 1 something differs, 2 the run cannot be read, or something that was asked for could not
    be checked, such as a replay where the host is not installed.

    \b
    For instance:
      safevla verify runs/mine --replay 3
    """
    files = verify.Files(library=library, specs=specs, registry=registry)
    with _watching(replay) as observer:
        found = verify.verify(run, files, replay=replay, observer=observer)
    if form == "json":
        findings = [asdict(one) for one in found.findings]
        click.echo(json.dumps({"agrees": found.agrees, "open": found.open, "findings": findings}, indent=2))
    else:
        for finding in found.findings:
            said = finding.said.replace("\n", f"\n{'':<11}")
            click.echo(printable(f"{finding.verdict:<10} {finding.check}: {said}"))
        click.echo(printable(f"\n{_summary(found, run)}"))
    context.exit(GATE_FAILED if not found.agrees else USER_ERROR if found.open else OK)


def _summary(found: verify.Verification, run: Path) -> str:
    counts = Counter(finding.verdict for finding in found.findings)
    told = ", ".join(f"{counts[verdict]} {said}" for verdict, said in _SAID.items() if counts[verdict])
    if found.agrees and found.open:
        return f"{run}: {told}. What was checked agrees, and something that was asked for could not be."
    if found.agrees:
        return f"{run}: {told}. All that was checked agrees."
    return f"{run}: {told}. Each line above that differs says what and where."


_SAID: dict[verify.Verdict, str] = {"agrees": "agree", "differs": "differ", "unchecked": "not checked"}


@contextmanager
def _watching(total: int) -> Iterator[verify.Observer]:
    """What is under way, on a terminal; nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda done, what: None
        return
    with Console(stderr=True).status("checking digests, episodes and scores") as status:
        yield lambda done, what: status.update(inert(f"replay {done + 1} of {total}: {what}"))
