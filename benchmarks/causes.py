"""How many causes that are planted on LIBERO the chains of `--why` name, and whether without them a violation vanishes.

The closed hand is led through places of the task `put the cream cheese in the bowl`, so that one contact is the cause
of the first violation: it presses on the table, pushes a thing, or pushes a thing against another.
docs/evidence/firmness.md has the sums of what this prints, in two minutes of CPU time:

    python benchmarks/causes.py

tests/jobs/test_counterfactual.py has the fake host's.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import numpy as np
from page_tables import format_table, print_tables

from safevla_bench.explain.causes import CauseChain
from safevla_bench.explain.episode import explain_episode
from safevla_bench.hosts.libero.host import LiberoEnv, LiberoHost
from safevla_bench.interface.policy import Observation, Wants
from safevla_bench.interface.task import EpisodeSeed, PhysicsChange
from safevla_bench.jobs.verify.replays import replay_actions
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.sensitivity.firmness import read_clauses
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.header import ROBOT

HOST, RULES = LiberoHost(), load_ruleset()
TASK = HOST.tasks("libero-goal")[6]
SEEDS = 3
MOST_STEPS = 60
"""On the way to one place."""
Route = list[tuple[float, float, float]]
PRESS: Route = [(0.18, 0.12, 1.05), (0.18, 0.12, 0.87), (0.18, 0.12, 1.05)]
BOWL: Route = [(-0.2, 0.1, 0.96), (-0.1, 0.0, 0.93)]
APART = {"plate_1": (0.03, -0.09)}
"""So that the hand meets nothing where it would pass through the table."""
TABLE, BOTTLE = ("robot", "table"), ("robot", "wine_bottle_1")
PLANTS: dict[str, tuple[Route, tuple[str, str], dict[str, tuple[float, float]]]] = {
    "the hand presses on the table": (PRESS, TABLE, APART),
    "it pushes the bottle": ([(-0.2, 0.06, 1.02), (-0.2, -0.05, 1.0)], BOTTLE, {}),
    "it pushes the bowl": (BOWL, ("robot", "akita_black_bowl_1"), {}),
    "it pushes the cheese against the plate": (
        [(0.05, 0.22, 1.0), (0.05, 0.22, 0.915), (0.05, 0.08, 0.915)],
        ("cream_cheese_1", "plate_1"),
        {"cream_cheese_1": (0.05, 0.13)},
    ),
    "it presses, then pushes the bowl": ([*PRESS, *BOWL], TABLE, APART),
    "it pushes the bottle, then presses": ([(-0.2, 0.06, 1.02), (-0.2, -0.05, 1.0), *PRESS], BOTTLE, {}),
}
"""What happens: the hand's way [m], the contact that is the cause, and objects put elsewhere, x and y [m]."""


def play_route(env: LiberoEnv, start: EpisodeSeed, route: Route) -> Batch:
    """Return the record of an episode in which the closed hand goes from place to place, or until it is blocked."""
    seen: Observation = env.reset(start)
    for place in route:
        left_m = [np.inf]
        for step in range(MOST_STEPS):
            gap = place - seen.eef_pos_m
            left_m.append(float(np.linalg.norm(gap)))
            if left_m[-1] < 0.01 or (step > 5 and left_m[-2] - left_m[-1] < 0.0005):
                break
            seen, _ = env.step(np.concatenate([np.clip(10 * gap, -1, 1), np.zeros(3), [1.0]]))
    return env.recorded()


def first_cause(batch: Batch) -> tuple[str, CauseChain | None]:
    """Return the specification that is broken first, and the cause that the chains name."""
    clauses = explain_episode(score(batch, RULES), batch, RULES, 0).violated_clauses
    first = min(clauses, key=lambda clause: (clause.first.step if clause.first else -1, clause.spec.spec_id))
    return first.spec.spec_id, first.why


def name_contact(batch: Batch, cause: CauseChain | None) -> frozenset[str]:
    """Return the two bodies of a chain's last contact; all of the robot is `robot`."""
    roles = {batch.body_label(body): role for body, role in enumerate(batch.body_role)}
    ends = cause.bodies[-2:] if cause and cause.steps else ()
    return frozenset("robot" if roles[name] == ROBOT else name for name in ends)


def make_row(plant: str, seeds: int) -> tuple[str, int, int, int]:
    """Return how many episodes of a plant broke something, were named right, and did not break it without the cause."""
    route, contact, moved = PLANTS[plant]
    placed = tuple((f"{name}.{axis}", m) for name, place in moved.items() for axis, m in zip("xy", place, strict=True))
    broken = named = vanished = 0
    with closing(HOST.make(TASK, Wants())) as env:
        for seed in range(seeds):
            start = EpisodeSeed(seed, 7, wait_steps=10, placed=placed)
            batch = play_route(env, start, route)
            if not score(batch, RULES).unsafe[0]:
                print(f"{plant}, {seed}: nothing is broken", file=sys.stderr)
                continue
            spec_id, cause = first_cause(batch)
            broken, named = broken + 1, named + (name_contact(batch, cause) == frozenset(contact))
            without, _ = replay_actions(HOST, TASK, replace(start, change=PhysicsChange(apart=contact)), batch)
            clause = read_clauses(score(without, RULES), 0)[spec_id]
            vanished += clause.first is None
            print(
                f"{plant}, {seed}: {spec_id}: {cause and cause.sentence} Without: {clause}", file=sys.stderr, flush=True
            )
    return plant, broken, named, vanished


def make_rows(seeds: int) -> Iterator[tuple[str, ...]]:
    """Yield a row of the table for each plant, and their sum."""
    rows = []
    for plant in PLANTS:
        rows.append(make_row(plant, seeds))
        yield tuple(map(str, rows[-1]))
    yield "all", *(str(sum(counts)) for counts in list(zip(*rows, strict=True))[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    options = parser.parse_args()
    heads = ("Planted", "Episodes", "Named", "Vanished without")
    print_tables(format_table(heads, make_rows(options.seeds)), None, "")


if __name__ == "__main__":
    main()
