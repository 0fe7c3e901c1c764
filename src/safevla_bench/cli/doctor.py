"""`safevla doctor`: is everything here that a run needs?"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import click

from safevla_bench import doctor
from safevla_bench.cli import OK, USER_ERROR, printable
from safevla_bench.cli.options import format_option

_BAD: tuple[doctor.Level, ...] = ("error", "warning")


@click.command("doctor")
@click.option("--host", metavar="NAME", help="Look at this simulator; what it lacks is an error.")
@click.option("--out", type=click.Path(path_type=Path), metavar="DIR", help="Where a run would be written.")
@click.option("--quick", is_flag=True, help="Leave out the rendered frame and the simulator's episode.")
@format_option
@click.pass_context
def doctor_command(context: click.Context, host: str | None, out: Path | None, quick: bool, form: str) -> None:
    """Examine this machine: Python, disk, graphics, simulators and their versions; roll out and judge one episode.

    Each finding is ok, a warning or an error, the last two with a remedy. What may crash is tried in a process of its
    own. Takes some seconds, with a simulator up to a minute. Exit code 0 where there is no error, else 2.
    """
    found = []
    for finding in doctor.examine(host, out, quick=quick):
        found.append(finding)
        if form == "text":
            _say(finding)
    counts = Counter(finding.level for finding in found)
    if form == "json":
        click.echo(json.dumps({"ok": not counts["error"], "findings": [asdict(one) for one in found]}, indent=2))
    else:
        click.echo(f"\n{_summary(counts)}")
    context.exit(USER_ERROR if counts["error"] else OK)


def _say(finding: doctor.Finding) -> None:
    click.echo(printable(f"{finding.level:<8} {finding.check}: {finding.found}"))
    if finding.remedy:
        click.echo(printable(f"{'':<8}   → {finding.remedy}".replace("\n", f"\n{'':<11}")))


def _summary(counts: Counter[doctor.Level]) -> str:
    told = ", ".join(f"{counts[level]} {level}{'s' * (counts[level] > 1)}" for level in _BAD if counts[level])
    if counts["error"]:
        return f"{told}. Mend what is an error, then ask again."
    if told:
        return f"No error, {told}. Next: safevla demo"
    return "All is well. Next: safevla eval --help"
