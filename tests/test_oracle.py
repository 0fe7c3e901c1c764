"""The judge agrees with an independent one (oracle.py) on thousands of random episodes, alone and in batches.

Episodes are made at the level of the JSON record, so that decoding, signals, applicability, formulas, scores and
metrics are all between the two. What each specification met is counted: agreement on cases that never came up is none.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

import oracle
from oracle import Judgement, Spec, Verdict
from safevla_bench.archive.decoding import decode
from safevla_bench.scores import EpisodeScore
from safevla_bench.trajectory import Batch

PACKAGE = Path(str(files("safevla_bench")))
LIBRARY = PACKAGE / "specs" / "library"
DEFAULT = tuple(LIBRARY / f"{name}.toml" for name in ("scene_interaction", "object_handling", "execution", "diagnostics"))
REGISTRY = oracle.Registry(PACKAGE / "tasks" / "registry")

EPISODES = 3200
BATCH = 160


# Random episodes


TASKS = [
    *((f"libero-{suite}", f"task_{k}") for suite in ("spatial", "object", "goal", "10", "long") for k in range(10)),
    *(("libero-goal", f"task_{k}") for k in (0, 3, 5, 7, 9)),
    *(("libero-90", f"task_{k}") for k in (0, 1, 8, 20, 27, 34, 73, 89)),
    *(("robocasa-365", name) for name in ("OpenDrawer", "NavigateKitchen", "TurnOnMicrowave", "CoffeeSetupMug")),
    *(("robocasa-365", name) for name in ("PickPlaceCounterToStove", "CloseAnyOtherThing", "PickPlaceHereToThere")),
    ("robocasa-pnp", "PickPlaceSinkToCounter"),
    *(("fake", f"task_{k}") for k in range(3)),
] + 4 * [("libero-10", f"task_{k}") for k in (4, 6, 8)]
POLICIES = ("alpha", "beta", None)
DTS = (0.05, 0.02, 0.1, 0.25, 0.5)
ROBOTS, TARGETS, BYSTANDERS, FURNITURE = (
    ("link5", "hand", "base"),
    ("bowl", "mug", "can"),
    ("plate", "box", "jar"),
    ("table", "drawer"),
)


def length(rng: Random) -> int:
    """Number of records: often at the edges of a stencil."""
    return rng.randint(1, 10) if rng.random() < 0.35 else rng.randint(11, 40)


class Scene:
    """Draws one episode; each method one family of its record."""

    def __init__(self, rng: Random, number: int, dts: Sequence[float] = DTS) -> None:
        self.rng = rng
        self.number = number
        self.n = length(rng)
        self.dt = rng.choice(dts)
        self.roles = self.bodies()
        targets = [body for body, role in self.roles.items() if role == "target"]
        self.targets = targets
        self.target = rng.choice(targets) if targets and rng.random() < 0.94 else None
        self.positioned = [b for b, r in self.roles.items() if rng.random() < (0.15 if r == "robot" else 0.96)]

    def some(self, probability: float) -> bool:
        return self.rng.random() < probability

    def bodies(self) -> dict[str, str]:
        rng = self.rng
        kinds = (("robot", ROBOTS, 2), ("target", TARGETS, 1), ("bystander", BYSTANDERS, 0), ("furniture", FURNITURE, 0))
        chosen = [(b, role) for role, names, low in kinds for b in names[: rng.randint(low, len(names))]]
        rng.shuffle(chosen)
        return dict(chosen)

    def path(self, reaches: Sequence[float]) -> list[float]:
        """Zero for some records, then a ramp to one of the reaches, then maybe back."""
        reach, start = self.rng.choice(reaches), self.rng.randrange(self.n)
        ramp = self.rng.choice([1, 1, 2, 5])
        back = self.rng.choice([self.n, self.n, self.rng.randrange(self.n)])
        return [0.0 if k < start or k >= back else reach * min(1.0, (k - start + 1) / ramp) for k in range(self.n)]

    def positions(self) -> dict[str, list[list[float]]]:
        return {body: self.movement(self.roles[body]) for body in self.positioned}

    def movement(self, role: str) -> list[list[float]]:
        rng = self.rng
        # From zero, so that a path that reaches a threshold reaches it exactly.
        start = [0.0 if self.some(0.3) else rng.uniform(-0.5, 1.0) for _ in range(3)]
        shake = rng.choice([0.0, 0.0, 1e-4, 2e-3])
        if role == "target":
            axes = [self.path([0.0, 0.1, 0.5]), self.path([0.0, 0.3]), self.path(LIFTS)]
        else:
            axes = [self.path(PUSHES), self.path([0.0]), self.path([0.0, 0.0, 0.0, 0.001])]
            rng.shuffle(axes)
        return [[start[i] + axes[i][k] + rng.gauss(0, 1) * shake for i in range(3)] for k in range(self.n)]

    def turns(self, reaches: Sequence[float]) -> list[list[float]]:
        """Quaternions of any length and sign: a fixed start, turned about one axis."""
        rng = self.rng
        start = normal([rng.gauss(0, 1) for _ in range(4)]) if self.some(0.7) else [1.0, 0.0, 0.0, 0.0]
        axis = normal([rng.gauss(0, 1) for _ in range(3)]) if self.some(0.7) else [0.0, 0.0, 1.0]
        turned = [product(rotation(axis, angle), start) for angle in self.path(reaches)]
        size = [rng.choice([1.0, -1.0, rng.uniform(0.1, 9.0)]) for _ in turned]
        return [[s * x for x in q] for s, q in zip(size, turned, strict=True)]

    def grips(self) -> list[bool]:
        keep, now = self.rng.choice([0.0, 0.5, 0.9, 0.97]), self.some(0.4)
        values = []
        for _ in range(self.n):
            now = now if self.some(keep) else self.some(0.5)
            values.append(now)
        return values if self.some(0.9) else [self.some(0.0)] * self.n

    def gripped(self) -> list[dict[str, str | None]]:
        """The key that each record has, or has not: what is said may be null, the target, another or no target."""
        style = self.rng.choice(["absent", "absent", "null", "target", "changing", "anything"])
        if style == "absent" or not self.targets:
            return [{} for _ in range(self.n)]
        other = [b for b, r in self.roles.items() if r in ("bystander", "furniture")]
        options: list[str | None] = {
            "null": [None],
            "target": [self.target],
            "changing": [*self.targets, self.target],
            "anything": [None, *self.targets, *other],
        }[style]
        now, values = self.rng.choice(options), []
        for _ in range(self.n):
            now = self.rng.choice(options) if self.some(0.15) else now
            values.append({} if style == "anything" and self.some(0.1) else {"gripped_body": now})
        return values

    def hand(self, places: dict[str, list[list[float]]]) -> list[list[float]]:
        """Beside what it carries, sinking or not, or on a path of its own."""
        rng = self.rng
        followed = places.get(self.target or "", [[0.0, 0.0, 0.0]] * self.n)
        offset = [0.0 if self.some(0.3) else rng.uniform(-0.1, 0.1) for _ in range(3)]
        slip, shake = self.path(SLIPS), rng.choice([0.0, 1e-5, 1e-4, 5e-3])
        sink = [0.0, 0.0, 1.0]
        return [
            [followed[k][i] + offset[i] + sink[i] * slip[k] + rng.gauss(0, 1) * shake for i in range(3)]
            for k in range(self.n)
        ]

    def contacts(self) -> list[list[dict[str, Any]]]:
        rng = self.rng
        pairs = [(a, b) for a in self.roles for b in self.roles if a != b]
        if self.some(0.7):
            pairs = [pair for pair in pairs if {self.roles[b] for b in pair} != {"robot"}]
        force = rng.choice([calm_force, calm_force, edge_force, hard_force])
        busy = rng.choice([0.0, 0.1, 0.5, 0.9])
        return [[self.contact(rng.choice(pairs), force) for _ in range(4) if self.some(busy)] for _ in range(self.n)]

    def contact(self, pair: tuple[str, str], force: Any) -> dict[str, Any]:
        impulse = {"impulse_ns": self.rng.uniform(0, 3)} if self.some(0.5) else {}
        return {"a": pair[0], "b": pair[1], "force_n": force(self.rng), **impulse}

    def torques(self) -> tuple[list[list[float]], dict[str, Any]]:
        rng = self.rng
        own = [rng.choice([12.0, 87.0, rng.uniform(1, 100)]) for _ in range(rng.choice([6, 7]))]
        given, limits = rng.choice(
            [
                *2 * [({}, oracle.PANDA)],
                ({"embodiment": "Panda"}, oracle.PANDA),
                ({"embodiment": "PandaOmron"}, oracle.PANDA),
                ({"joint_torque_limit_nm": own}, own),
                ({"joint_torque_limit_nm": own, "embodiment": "Other"}, own),
            ]
        )
        ratio = rng.choice([calm_ratio, calm_ratio, edge_ratio, hard_ratio])
        return [[ratio(rng) * limit for limit in limits] for _ in range(self.n)], given

    def header(self) -> dict[str, Any]:
        rng = self.rng
        benchmark, task = rng.choice(TASKS)
        success = self.some(0.6)
        outcome = "success" if success else rng.choice(["timeout", "invalid_action", "failure", "stopped"])
        fields = {
            "episode_id": f"{benchmark}/{task}/ep_{self.number:05d}",
            "benchmark": benchmark,
            "task_id": task,
            "success": success,
            "dt": self.dt,
            "target_object": self.target,
            "body_roles": self.roles,
        }
        optional = {
            "schema_version": 1,
            "policy": rng.choice(POLICIES),
            "outcome": outcome,
            "seed": rng.randrange(10**6),
            "horizon": rng.randrange(40, 600),
            "instruction": "put it there",
            "raw_host_field": {"anything": [1, 2]},
        }
        return fields | {key: value for key, value in optional.items() if self.some(0.7)}

    def steps(self) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        places = self.positions()
        turned = {body: self.turns(TILTS) for body in self.positioned if self.some(0.93)}
        torques, limits = self.torques()
        families = {
            "eef_pos_m": self.hand(places),
            "eef_quat_wxyz": self.turns([0.0, 5.0, 40.0]),
            "body_pos_m": [{body: path[k] for body, path in places.items()} for k in range(self.n)],
            "body_quat_wxyz": [{body: path[k] for body, path in turned.items()} for k in range(self.n)],
            "contacts": self.contacts(),
            "joint_torque_nm": torques,
            "gripper_contact": self.grips(),
        }
        present = {name for name in families if self.some(0.6 if name == "eef_quat_wxyz" else 0.93)}
        if "body_pos_m" not in present:
            present.discard("body_quat_wxyz")
        gripped = self.gripped()
        rows = [{"t": k, **{name: families[name][k] for name in families if name in present}} for k in range(self.n)]
        acted = self.some(0.3)
        actions = [{"action": [0.1 * k, -1.0]} if acted and k else {} for k in range(self.n)]
        return [row | gripped[k] | actions[k] for k, row in enumerate(rows)], limits

    def tree(self) -> dict[str, Any]:
        steps, limits = self.steps()
        return self.header() | limits | {"steps": steps}


LIFTS = (0.0, 0.005, 0.01, 0.03, 0.05, 0.051, 0.1, 0.1, 0.2, 0.3, -0.1)
PUSHES = (0.0, 0.0, 0.0, 0.004, 0.005, 0.006, 0.01, 0.02, 0.03, 0.05, 0.2)
SLIPS = (0.0, 0.0, 0.01, 0.02, 0.021, 0.03, 0.05, 0.1, -0.1)
TILTS = (0.0, 5.0, 14.0, 15.0, 16.0, 20.0, 25.0, 31.0, 50.0, 90.0, 180.0)


def calm_force(rng: Random) -> float:
    return rng.uniform(0, 48)


def edge_force(rng: Random) -> float:
    return rng.choice([0.0, 0.49, 0.5, 0.51, 50.0, 50.1, 199.9, 200.0, 200.0])


def hard_force(rng: Random) -> float:
    return rng.expovariate(1 / 200)


def calm_ratio(rng: Random) -> float:
    return rng.uniform(-0.9, 0.9)


def edge_ratio(rng: Random) -> float:
    return rng.choice([0.0, 0.5, -0.99, 1.0, -1.0])


def hard_ratio(rng: Random) -> float:
    return rng.gauss(0, 1.5)


def normal(vector: Sequence[float]) -> list[float]:
    size = math.sqrt(sum(x * x for x in vector))
    return [x / size for x in vector]


def rotation(axis: Sequence[float], degrees: float) -> list[float]:
    half = math.radians(degrees) / 2
    return [math.cos(half), *(math.sin(half) * x for x in axis)]


def product(p: Sequence[float], q: Sequence[float]) -> list[float]:
    (a, b, c, d), (w, x, y, z) = p, q
    return [
        a * w - b * x - c * y - d * z,
        a * x + b * w + c * z - d * y,
        a * y - b * z + c * w + d * x,
        a * z + b * y - c * x + d * w,
    ]


def make(seed: int, count: int, dts: Sequence[float] = DTS) -> list[dict[str, Any]]:
    rng = Random(seed)
    return [Scene(rng, number, dts).tree() for number in range(count)]


# Comparison


def read(tree: Any) -> Batch:
    return decode(json.dumps(tree).encode())


def judged(trees: Iterable[Any], library: Sequence[Spec], capabilities: Sequence[str] = ()) -> list[Judgement]:
    return [
        oracle.judge(tree, library, REGISTRY.tags(tree["benchmark"], tree["task_id"], capabilities)) for tree in trees
    ]


TILT = ("held_object_tilt", "held_object_tilt_body")


def slack(spec: Spec, value: float) -> float:
    """How far a robustness or an extreme may lie from the oracle's.

    A tilt is an arccos: near 0 and 180 degrees an error of e in the cosine is one of sqrt(2 e) in the angle, so that
    1e-14, some tens of roundings, is already 8e-6 degrees; in between it is e / sin(angle).
    """
    rounding = 1e-9 * max(1.0, abs(value))
    if not any(f"{name} " in spec.stl for name in TILT):
        return rounding
    angle = min(abs(value - spec.threshold), abs(value), key=lambda a: abs(math.sin(math.radians(a))))
    return rounding + 2 * math.degrees(1e-14 / max(abs(math.sin(math.radians(angle))), 0.7e-7))


@dataclass
class Comparison:
    """Differences found, what each specification met, and how often a difference was excused.

    `flips`: another verdict where a margin is within 1e-9 of zero without being zero, where the order of rounding
    decides. `ties`: another worst specification where two are equally bad but for rounding.
    """

    library: Sequence[Spec]
    differences: list[str] = field(default_factory=list)
    seen: Counter[tuple[str, str]] = field(default_factory=Counter)
    flips: int = 0
    ties: int = 0

    def batch(self, expected: Sequence[Judgement], got: Sequence[EpisodeScore]) -> None:
        assert len(expected) == len(got)
        for judgement, episode in zip(expected, got, strict=True):
            self.count(judgement)
            self.episode(judgement, episode)

    def count(self, expected: Judgement) -> None:
        for spec_id, v in expected.verdicts.items():
            state = v.state if v.state != "judged" else "violated" if v.violated else "satisfied"
            self.seen[spec_id, state] += 1
            self.seen[spec_id, "at the threshold"] += v.rho == 0

    def episode(self, expected: Judgement, got: EpisodeScore) -> None:
        score = msgspec.to_builtins(got)
        assert score.keys() == expected.score.keys()
        wrong = [*self.values(expected, score), *self.verdicts(expected, score)]
        self.differences += [f"{got.episode_id}: {line}" for line in wrong]

    def values(self, expected: Judgement, got: dict[str, Any]) -> Iterator[str]:
        """What does not hang on a sign: identity, activity, and numbers to their slack."""
        want = expected.score
        for name in ("episode_id", "benchmark", "task_id", "policy", "success", "outcome"):
            yield from unequal(name, want[name], got[name])
        for name in ("active_specs", "vacuous_specs"):
            yield from unequal(name, want[name], list(got[name]))
        yield from unequal("inactive_specs", list(want["inactive_specs"]), list(got["inactive_specs"]))
        for spec_id, reason in got["inactive_specs"].items():
            yield from unreasonable(spec_id, expected.verdicts[spec_id], reason)
        yield from unequal("diagnostics", set(want["diagnostics"]), set(got["diagnostics"]))
        by_id = {spec.spec_id: spec for spec in self.library}
        for name in ("robustness", "extreme", "depth"):
            yield from unequal(f"{name} of", list(want[name]), list(got[name]))
            for spec_id, value in want[name].items():
                if not (by_id[spec_id].binary and name != "extreme"):
                    yield from unlike(f"{name} {spec_id}", value, got[name][spec_id], by_id[spec_id])
        for spec_id, row in want["diagnostics"].items():
            for name in ("robustness", "extreme") if not by_id[spec_id].binary else ("extreme",):
                found = got["diagnostics"].get(spec_id, {}).get(name)
                yield from unlike(f"diagnostics {spec_id} {name}", row[name], found, by_id[spec_id])

    def verdicts(self, expected: Judgement, got: dict[str, Any]) -> Iterator[str]:
        """What hangs on a sign. One difference among them is excused where a margin is next to zero."""
        wrong = list(self.signs(expected, got))
        if wrong and any(v.near for v in expected.verdicts.values()):
            self.flips += 1; (globals().get("SHOW") or (lambda *a: None))(wrong)
        else:
            yield from wrong

    def signs(self, expected: Judgement, got: dict[str, Any]) -> Iterator[str]:
        want = expected.score
        for name in ("safe", "sbu", "first_violation_step", "first_violation_spec"):
            yield from unequal(name, want[name], got[name])
        for spec in self.library:
            if spec.binary and spec.tier == "safe":
                for name in ("robustness", "depth"):
                    yield from unequal(f"{name} {spec.spec_id}", want[name][spec.spec_id], got[name][spec.spec_id])
        for spec_id, row in want["diagnostics"].items():
            found = got["diagnostics"].get(spec_id, {})
            names = ("violated", "robustness") if self.binary(spec_id) else ("violated",)
            for name in names:
                yield from unequal(f"diagnostics {spec_id} {name}", row[name], found.get(name))
        lowest = next((s for s in self.library if want["robustness"].get(s.spec_id) == want["rho_min"]), self.library[0])
        yield from unlike("rho_min", want["rho_min"], got["rho_min"], lowest)
        yield from unlike("vsi", want["vsi"], got["vsi"], lowest)
        yield from self.worst(expected, got["worst_spec"])

    def binary(self, spec_id: str) -> bool:
        return next(spec.binary for spec in self.library if spec.spec_id == spec_id)

    def worst(self, expected: Judgement, got: str | None) -> Iterator[str]:
        want = expected.score["worst_spec"]
        if got == want or want is None or got not in expected.ratios:
            yield from unequal("worst_spec", want, got)
        elif expected.ratios[got] != expected.ratios[want] and expected.ratios[got] == pytest.approx(
            expected.ratios[want], rel=1e-9, abs=1e-9
        ):
            self.ties += 1
        else:
            yield f"worst_spec: expected {want}, got {got}: {expected.ratios}"


def unequal(name: str, want: Any, got: Any) -> Iterator[str]:
    if want != got or type(want) is not type(got):
        yield f"{name}: expected {want!r}, got {got!r}"


def unlike(name: str, want: float | None, got: float | None, spec: Spec) -> Iterator[str]:
    if want is None or got is None:
        yield from unequal(name, want, got)
    elif not abs(want - got) <= slack(spec, want):
        yield f"{name}: expected {want!r}, got {got!r}"


def unreasonable(spec_id: str, v: Verdict, reason: str) -> Iterator[str]:
    """A reason names a tag or a field that is to blame."""
    if v.state == "no verdict":
        if "no verdict" not in reason:
            yield f"{spec_id} has no verdict, but is said to be inactive for: {reason}"
    elif not any(word in reason for word in v.why):
        yield f"{spec_id} is inactive for one of {sorted(v.why)}, not: {reason}"
