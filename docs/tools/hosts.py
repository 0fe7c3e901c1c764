"""Writes docs/reference/hosts.md, what each host supports, from the hosts' declarations: python docs/tools/hosts.py

With --check nothing is written: the exit code is 1 where the page is out of date.
"""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path

from made_page import format_table, run_script

from safevla_bench.hosts import make_host
from safevla_bench.interface.environment import HostSupport
from safevla_bench.interface.task import PhysicsChange

PAGE = Path(__file__).parents[1] / "reference" / "hosts.md"
HOSTS = ("libero", "robocasa", "robosuite", "metaworld", "maniskill", "fake")
NONE = "—"
ALL = {field.name for field in fields(PhysicsChange)}

INTRODUCTION = """\
# What each host supports

Made by `python docs/tools/hosts.py` from what the hosts declare in `supports`; do not edit. Conformance
tests compare the declarations with the hosts. A run that needs more than its host supports is refused before its first
episode, and in `--dry-run`. A [host of yours](../howto/adding-a-host.md) that declares nothing supports nothing here.
"""

NOTES = """
- [Search](../howto/searching.md) of chosen places needs a host that places objects; elsewhere a seed draws the start.
- `scripted:NAME`, `--filter distance-barrier` and policies that read `observation.privileged` need the poses of bodies.
- `safevla sensitivity --physics`, `show --without contact:A,B` and `body:NAME` need changed physics; `slow` and `hold`
  change the actions alone and work on every host. Changes are named as in `safevla_bench.interface.task.PhysicsChange`.
- Starts of tasks without initial states are always drawn by a seed.
"""


def _yes(is_supported: bool) -> str:
    return "yes" if is_supported else NONE


def _codes(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names) or NONE


def describe_support(supports: HostSupport) -> dict[str, str]:
    """Return what a host supports, by the names of the page's rows."""
    readings = (*supports.readings, *(f"{name} (privileged)" for name in supports.privileged_readings))
    return {
        "cameras": _codes(supports.cameras),
        "poses of bodies, for privileged policies and filters": _yes(supports.privileged),
        "further readings": ", ".join(readings) or NONE,
        "actions that are poses": _yes(supports.absolute),
        "motion of the hand by an action of 1": NONE if supports.unit_m is None else f"{100 * supports.unit_m:g} cm",
        "drawn starts besides initial states": _yes(supports.drawn),
        "starts from a recorded state": _yes(supports.states),
        "objects at chosen places": _yes(supports.placed),
        "changed physics": "all" if supports.changeable == ALL else ", ".join(sorted(supports.changeable)) or NONE,
        "pictures and films of recorded episodes": _yes(supports.pictures),
    }


def build_page() -> str:
    """Return the whole page."""
    columns = [describe_support(make_host(name).supports) for name in HOSTS]  # type: ignore[attr-defined]
    rows = [[ability, *(column[ability] for column in columns)] for ability in columns[0]]
    return f"{INTRODUCTION}\n{format_table(('', *HOSTS), rows)}\n{NOTES}"


if __name__ == "__main__":
    sys.exit(run_script(sys.argv[1:], PAGE, build_page))
