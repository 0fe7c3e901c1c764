"""Writes evidence/reconstruction.md from the published tables and the task registry: python docs/tools/reconstruct.py

With --check nothing is written: the exit code is 1 where the page is out of date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from math import comb, log10, prod
from pathlib import Path

from made_page import format_table, run_script

from safevla_bench import tasks
from safevla_bench.report.published import PAPER, PublishedCell, PublishedVariant, load_published, matching_counts
from safevla_bench.specs.loader import load_library
from safevla_bench.tasks import loader
from safevla_bench.text import format_fixed
from safevla_bench.trajectory.header import find_robot

PAGE = Path(__file__).parents[1] / "evidence" / "reconstruction.md"
V1 = load_published(PAPER)
LIBERO = [cell for cell in V1.cells if cell.benchmark.startswith("libero") and cell.violations]
ROBOCASA = [cell for cell in V1.cells if cell.benchmark == "robocasa-365"]
FORCE, ARM, TILT = "max_contact_force_under_200N", "arm_furniture_force_under_200N", "held_object_tilt_world_15deg"
SLIP, TORQUE, SELF, DISP = (
    "stable_grasp_maintained_2cm",
    "joint_torque",
    "self_collision_free",
    "non_target_max_disp_5mm",
)
PERCENT_ROUNDING, VSI_ROUNDING = Fraction(1, 20), Fraction(1, 2000)
"""How far a printed percentage and a printed VSI may lie from the exact value."""


# Counts behind printed rates


def unique_count(printed: float, n: int) -> int | None:
    """Return the one count of n that prints as this percentage; None if there is none, or several."""
    counts = matching_counts(printed, n)
    return counts[0] if len(counts) == 1 else None


def violations(cell: PublishedCell, spec_id: str) -> int:
    """Return in how many episodes of a cell a specification was violated."""
    count = unique_count((cell.violations or {})[spec_id], cell.n)
    assert count is not None
    return count


def successes(cell: PublishedCell) -> int:
    """Return how many episodes of a cell succeeded."""
    count = unique_count(cell.sr, cell.n)
    assert count is not None
    return count


def unsafe(cell: PublishedCell) -> int:
    """Return in how many episodes of a cell any specification was violated."""
    safe = unique_count(cell.safety, cell.n)
    assert safe is not None
    return cell.n - safe


def active_tasks(suite: str, spec_id: str) -> int:
    """Return in how many tasks of a suite a specification is active, by this project's registry."""
    registry = loader.load_registry()
    entries = [entry for entry in registry.list_entries(suite)]
    tags = [registry.task_tags(suite, entry.task_id) for entry in entries]
    return sum(spec_id in {spec.spec_id for spec in tasks.active_specs(load_library(), given)} for given in tags)


# Self-collision


def chance_in_failures(cells: Iterable[PublishedCell]) -> float:
    """Return log10 of the chance that all self-collisions fall on failures if all episodes were equally likely."""
    shares = [
        Fraction(comb(cell.n - successes(cell), count), comb(cell.n, count))
        for cell in cells
        for count in [violations(cell, SELF)]
    ]
    chance = prod(shares, start=Fraction(1))
    return log10(chance.numerator) - log10(chance.denominator)


# Tilt and thresholds, from Table 9


@dataclass(frozen=True, slots=True)
class Bounds:
    """The least and the greatest value that printed digits, or a reading of the clauses, allow."""

    low: Fraction
    high: Fraction


def variant(host: str, name: str) -> PublishedVariant:
    """Return a row of Table 9."""
    return next(row for row in V1.variants if (row.host, row.name) == (host, name))


def printed_safety(host: str, name: str) -> Bounds:
    """Return the share of safe episodes that a printed percentage allows."""
    value = Fraction(repr(variant(host, name).safety))
    return Bounds((value - PERCENT_ROUNDING) / 100, (value + PERCENT_ROUNDING) / 100)


def printed_vsi(host: str, name: str) -> Bounds:
    """Return the severity that a printed VSI allows."""
    value = Fraction(repr(variant(host, name).vsi))
    return Bounds(value - VSI_ROUNDING, value + VSI_ROUNDING)


def printed_drop(host: str, before: str, after: str) -> Bounds:
    """Return by how much VSI fell from one row to another."""
    first, second = printed_vsi(host, before), printed_vsi(host, after)
    return Bounds(max(Fraction(0), first.low - second.high), first.high - second.low)


def least_uncapped_tilt_drop() -> Fraction:
    """Return the least fall of VSI on RoboCasa-365 from 15° to 30° if a tilt violation has the tilt's own depth.

    The episodes that 30° frees and 20° does not were unsafe by tilt alone, at 20° or more: a depth of (20 - 15)/30 at
    least. They fall to 0, and no depth of any other episode rises.
    """
    spec = load_library()[TILT]
    assert spec.severe is not None
    freed_late = printed_safety("robocasa", "Tilt 30°").low - printed_safety("robocasa", "Tilt 20°").high
    return freed_late * (Fraction(20) - Fraction(spec.threshold)) / Fraction(spec.severe)


def greatest_capped_tilt_drop() -> Fraction:
    """Return the greatest fall of VSI from 15° to 30° if no tilt violation has a margin below -0.5 degrees.

    Every episode that violates tilt loses the depth 0.5/30 at most.
    """
    spec = load_library("paper-text")[TILT]
    assert spec.severe is not None
    rates = [Fraction(violations(cell, TILT), cell.n) for cell in ROBOCASA]
    return sum(rates, Fraction(0)) / len(rates) * Fraction(1, 2) / Fraction(spec.severe)


def greatest_vsi_at_100_newton(severe: int) -> Fraction:
    """Return the greatest VSI on RoboCasa-365 with force limits of 100 N and this severe magnitude.

    Newly unsafe episodes exceed 100 N by 100 N at most. If `severe` is as at 200 N, every other depth rises by the
    100 N that the limit fell, at most; else it may be anything up to 1.
    """
    default = load_library()[FORCE]
    newly = Fraction(100, severe)
    unsafe_before = 1 - printed_safety("robocasa", "Default").low
    newly_unsafe = (1 - printed_safety("robocasa", "Force 100 N").low) - (
        1 - printed_safety("robocasa", "Default").high
    )
    if severe == default.severe:
        return printed_vsi("robocasa", "Default").high + newly * (unsafe_before + newly_unsafe)
    return unsafe_before + newly * newly_unsafe


# The page


def percent(share: Fraction, digits: int = 1) -> str:
    """Return a share in percent."""
    return format_fixed(100 * share, digits)


def build_page() -> str:
    """Return the whole page."""
    parts = [
        INTRODUCTION,
        self_collision_section(),
        torque_section(),
        arm_furniture_section(),
        goal_section(),
        tilt_section(),
        anchors_section(),
        slip_section(),
        auxiliary_section(),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


INTRODUCTION = """\
# What the published numbers tell about the authors' code

The authors' code is not public; their tables are. Some numbers imply what the text does not say. Our choices are in
[fidelity](../explanation/fidelity.md); `safevla sensitivity --readings` judges your runs by the readings named here.

Made by `python docs/tools/reconstruct.py`; do not edit.
"""


def self_collision_section() -> str:
    """Self-collisions on LIBERO happen in failures alone."""
    hit = [cell for cell in LIBERO if violations(cell, SELF)]
    assert not any(SELF in (cell.composition or {}) for cell in LIBERO)
    total = sum(violations(cell, SELF) for cell in hit)
    counts = [(cell.n - successes(cell), violations(cell, SELF)) for cell in hit]
    rows = [
        (policy, *(sum(row[k] for cell, row in zip(hit, counts, strict=True) if cell.policy == policy) for k in (0, 1)))
        for policy in dict.fromkeys(cell.policy for cell in hit)
    ]
    shares = [(cell.policy, int((cell.composition or {}).get(SELF, 0))) for cell in ROBOCASA]
    casa = ", ".join(f"{share} % of {policy}'s" for policy, share in shares if share)
    return f"""\
## On LIBERO the arm touches itself in failures only
**Printed.** Table 7 has self-collisions in {len(hit)} of {len(LIBERO)} cells, {total} episodes. Table 10, on unsafe
successes, has none.

{format_table(("Policy", "Failures in these cells", "Self-collisions"), rows)}

**It follows** that all {total} fell on failures. If success did not matter, the chance of that would be
10^{chance_in_failures(hit):.0f}. On RoboCasa-365 it is {casa} violations in unsafe successes.

**Possible causes.** What makes an episode fail also makes links touch. Or fingers that close on nothing are counted;
but then successes of LIBERO-Goal 5 and 7, done with a closed gripper, would show it.

**Here** fingers of one gripper, and links that touch in record 0, do not count. The published VSI of policies with
many failures depends on this."""


def torque_section() -> str:
    """The torque rate is zero everywhere."""
    cells = [*LIBERO, *ROBOCASA]
    episodes, count = sum(cell.n for cell in cells), sum(violations(cell, TORQUE) for cell in cells)
    assert all(_same_numbers(host, "Default", "Torque 176 N·m") for host in ("libero", "robocasa"))
    robot = find_robot("Panda")
    assert robot is not None
    limits = ", ".join(f"{limit:g}" for limit in robot.limits_nm)
    return f"""\
## Torque is never violated
**Printed.** {count} violations in all {len(cells)} cells of Tables 7 and 8, {episodes} episodes. In Table 9 the row
with 176 N·m equals the default's. The heads of these tables say "@87Nm"; Table 17 gives {limits} N·m.

**Possible cause.** A flat limit of 87 N·m, which cannot be exceeded on LIBERO: the actuators stop at ±80 N·m (joints 1
to 5) and ±12 N·m (6 and 7).

**Here** only `paper-as-run` has the flat limit. Published torque rates do not compare."""


def _same_numbers(host: str, first: str, second: str) -> bool:
    one, other = variant(host, first), variant(host, second)
    names = ("safety", "sbu", "p_unsafe_given_success", "vsi")
    return all(getattr(one, name) == getattr(other, name) for name in names)


def arm_furniture_section() -> str:
    """Two policies never strike furniture with the arm."""
    rows = [
        (cell.policy, violations(cell, FORCE), violations(cell, ARM), percent(Fraction(violations(cell, ARM), cell.n)))
        for cell in ROBOCASA
    ]
    silent = [cell for cell in ROBOCASA if not violations(cell, ARM)]
    others = [cell for cell in ROBOCASA if violations(cell, ARM)]
    share = Fraction(sum(violations(cell, ARM) for cell in others), sum(violations(cell, FORCE) for cell in others))
    hard, active = sum(violations(cell, FORCE) for cell in silent), active_tasks("robocasa-365", ARM)
    names, like = " and ".join(cell.policy for cell in silent), format_fixed(share * hard, 0)
    return f"""\
## {names} never strike furniture with the arm
**Printed.** Table 8, RoboCasa-365, 900 episodes each:

{format_table(("Policy", "Above 200 N: any contact", "Arm and furniture", "%"), rows)}

**It follows** that in none of {hard} hard episodes of {names} the arm strikes furniture. In the proportion of the
other two policies, {percent(share, 0)} %, it would in about {like}. The clause is active in {active} of 18 tasks.

**Possible causes.** The channel was not recorded and read as zero; or both policies press only objects above 200 N.

**Here** a channel that is not recorded makes the clause inactive. Safety and SBU do not depend on it: "any contact"
includes such contacts."""


def goal_section() -> str:
    """Goal cells hold three specifications."""
    goal = [cell for cell in LIBERO if cell.benchmark == "libero-goal"]
    rows = []
    for cell in goal:
        assert set(cell.violations or {}) == {FORCE, TORQUE, SELF}
        counts = [violations(cell, spec_id) for spec_id in (FORCE, TORQUE, SELF)]
        rows.append((cell.policy, unsafe(cell), counts[0], counts[2], unsafe(cell) - max(counts)))
    most, episodes = sum(unsafe(cell) - violations(cell, FORCE) for cell in goal), sum(cell.n for cell in goal)
    disp, grasp = (active_tasks("libero-goal", spec_id) for spec_id in (DISP, SLIP))
    elsewhere = [rates[DISP] for cell in LIBERO if DISP in (rates := cell.violations or {})]
    low, high = min(elsewhere), max(elsewhere)
    mean, tasks_of_ten = V1.active["libero-goal"], f"displacement on {disp} and grasp on {grasp} of its ten tasks"
    heads = ("Policy", "Unsafe of 200", "Max force", "Self-collision", "Others, at most")
    return f"""\
## LIBERO-Goal is scored by three specifications
**Printed.** Table 7's Goal rows have values for three clauses. Appendix D gives Goal {mean} active clauses on average,
which takes {tasks_of_ten}. On other suites displacement is {low} to {high} %.

{format_table(heads, rows)}

**It follows** that of {episodes} episodes at most {most} are unsafe by another clause, and no success is (Table 10).

**Possible causes.** Displacement and grasp were not evaluated on Goal; or things moved by 5 mm, in {disp * 20} episodes
a policy, only where force was unsafe, too.

**Here** both are evaluated. Published Goal cells and LIBERO means do not compare."""


def tilt_section() -> str:
    """Tilt margins are capped."""
    names = ("Default", "Tilt 20°", "Tilt 30°")
    safety = ", ".join(f"{variant('robocasa', name).safety}" for name in names)
    vsi = ", ".join(f"{variant('robocasa', name).vsi:.3f}" for name in names)
    drop = format_fixed(printed_drop("robocasa", "Default", "Tilt 30°").high, 4)
    late = percent(printed_safety("robocasa", "Tilt 30°").low - printed_safety("robocasa", "Tilt 20°").high)
    least, greatest = (format_fixed(fall, 4) for fall in (least_uncapped_tilt_drop(), greatest_capped_tilt_drop()))
    return f"""\
## Tilt has no depth
**Printed.** Table 9, RoboCasa-365, limits of 15°, 20° and 30°: Safety {safety} %, VSI {vsi}.

**It follows** that VSI fell by less than {drop} from 15° to 30°. At least {late} % of all episodes were unsafe by tilt
alone, beyond 20°. By Eq. 1 each had a depth of (20 − 15)/30 or more, and VSI would fall by {least} at least.

**Possible cause.** The gate is compared to 0.5 as a number (Appendix C as written): no margin is below −0.5°, and VSI
falls by {greatest} at most.

**Here** `default` has no cap. Verdicts are the same; published VSI hardly sees tilt and slip."""


def anchors_section() -> str:
    """Variants without a registered anchor keep K."""
    row = variant("robocasa", "Force 100 N")
    fixed, kept = (format_fixed(greatest_vsi_at_100_newton(severe), 3) for severe in (500, 250))
    return f"""\
## A limit without a registered anchor keeps K
**Printed.** Table 17 has no severe magnitude for some limits of Table 9. On RoboCasa-365 100 N gives a Safety of
{row.safety} % and a VSI of {row.vsi:.3f}.

**It follows** that the severe magnitude did not stay at 500 N: VSI could not exceed {fixed}. With K = 2.5 it is 250 N,
and VSI may reach {kept}.

**Here** such limits keep K, too."""


def slip_section() -> str:
    """Slip is not height above the start."""
    row = next(task for task in V1.tasks if (task["task_id"], task["benchmark"]) == ("task_9", "libero-spatial"))
    succeeded = unique_count(row["sr"], row["n"])
    assert succeeded is not None
    scored = [cell for cell in LIBERO if SLIP in (cell.violations or {})]
    slips = sum(violations(cell, SLIP) for cell in scored)
    cell = next(cell for cell in scored if (cell.policy, cell.benchmark) == (row["policy"], row["benchmark"]))
    share = percent(Fraction(succeeded, cell.n))
    return f"""\
## Slip is not height above the start
**Printed.** {slips} grasp slips in all {len(scored)} cells of Table 7 that have the clause. Table 12: {row["policy"]}
succeeds in {succeeded} of {row["n"]} episodes of LIBERO-Spatial task 9, a bowl from a cabinet's top down to a plate.

**It follows** that height was not counted from the start: z falls by 16 to 18 cm, and these {succeeded} successes alone
would print {share} %.

**Possible causes.** Table 15's "lift baseline" is later than record 0, or the gate is closed while an object is
lowered.

**Here** only `paper-text` and `paper-as-run` take the height above the start."""


def auxiliary_section() -> str:
    """Every episode of an auxiliary entry is violated as deeply as can be."""
    cell = next(cell for cell in V1.cells if cell.auxiliary and cell.vsi == 1)
    rest = format_fixed(VSI_ROUNDING * cell.n, 2)
    return f"""\
## One auxiliary entry is at the end of every scale
**Printed.** Table 6: {cell.policy}, {cell.n} episodes of five tasks, Safety {cell.safety} %, VSI {cell.vsi:.3f}.

**It follows** that all are unsafe, with a depth of 1: all shortfalls together are {rest} at most.

**Possible cause.** A static contact that was not filtered.

**Here** run `noop`, too: reports then name the limits that a scene violates by itself."""


if __name__ == "__main__":
    sys.exit(run_script(sys.argv[1:], PAGE, build_page))
