"""Random episodes as JSON records: families come and go, values lie about the thresholds and at them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Any

from judging.oracle import PANDA, unit

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
    return rng.randint(1, 10) if rng.random() < 0.45 else rng.randint(11, 40)


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
        kinds = (
            ("robot", ROBOTS, 2),
            ("target", TARGETS, 1),
            ("bystander", BYSTANDERS, 0),
            ("furniture", FURNITURE, 0),
        )
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
        shake = rng.choice([None, None, 1e-4, 2e-3])
        if role == "target":
            axes = [self.path([0.0, 0.1, 0.5]), self.path([0.0, 0.3]), self.path(LIFTS)]
        else:
            axes = [self.path(PUSHES), self.path([0.0]), self.path([0.0, 0.0, 0.0, 0.001])]
            rng.shuffle(axes)
        return [[start[i] + axes[i][k] + self.noise(shake) for i in range(3)] for k in range(self.n)]

    def noise(self, size: float | None) -> float:
        return self.rng.gauss(0, size) if size else 0.0

    def turns(self, reaches: Sequence[float]) -> list[list[float]]:
        """Quaternions of any length and sign: a fixed start, turned about one axis."""
        rng = self.rng
        start = unit([rng.gauss(0, 1) for _ in range(4)]) if self.some(0.7) else [1.0, 0.0, 0.0, 0.0]
        axis = unit([rng.gauss(0, 1) for _ in range(3)]) if self.some(0.7) else [0.0, 0.0, 1.0]
        path = self.path(reaches)
        at = {angle: product(rotation(axis, angle), start) for angle in set(path)}
        turned = [at[angle] for angle in path]
        size = [rng.choice([1.0, -1.0, rng.uniform(0.1, 9.0)]) for _ in turned]
        return [[s * x for x in q] for s, q in zip(size, turned, strict=True)]

    def grips(self) -> list[bool]:
        keep, now = self.rng.choice([0.0, 0.5, 0.9, 0.97]), self.some(0.4)
        values = []
        for _ in range(self.n):
            now = now if self.some(keep) else self.some(0.5)
            values.append(now)
        return values if self.some(0.7) else [self.some(0.8)] * self.n

    def gripped(self) -> list[dict[str, str | None]]:
        """The key that each record has, or has not: what is said may be null, the target, another or no target."""
        style = self.rng.choice(["absent", "absent", "null", "target", "changing", "anything"])
        if style == "absent" or not self.targets:
            return [{} for _ in range(self.n)]
        obstacles = [b for b, r in self.roles.items() if r in ("bystander", "furniture")]
        options: list[str | None] = {
            "null": [None],
            "target": [self.target],
            "changing": [*self.targets, self.target],
            "anything": [None, *self.targets, *obstacles],
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
        slip, shake = self.path(SLIPS), rng.choice([None, 1e-5, 1e-4, 5e-3])
        sink = [0.0, 0.0, 1.0]
        return [
            [followed[k][i] + offset[i] + sink[i] * slip[k] + self.noise(shake) for i in range(3)]
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
        fields, limits = rng.choice(
            [
                ({}, PANDA),
                *2 * [({"embodiment": "Panda"}, PANDA)],
                ({"embodiment": "PandaOmron"}, PANDA),
                ({"joint_torque_limit_nm": own}, own),
                ({"joint_torque_limit_nm": own, "embodiment": "Other"}, own),
            ]
        )
        ratio = rng.choice([calm_ratio, calm_ratio, edge_ratio, hard_ratio])
        return [[ratio(rng) * limit for limit in limits] for _ in range(self.n)], fields

    def torque_peaks(self, torques: list[list[float]]) -> list[list[float]]:
        """At least the magnitude at the end of each control step."""
        further = self.rng.choice([1.0, 1.5, 3.0])
        return [[abs(torque) * further for torque in row] for row in torques]

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
        marks: dict[str, Any] = {"stopped_on_violation": True} if outcome == "stopped" and self.number % 3 == 0 else {}
        marks |= {"versions": {"mujoco": f"3.{self.number % 4}", "numpy": "2.0"}} if self.number % 2 else {}
        return fields | {key: value for key, value in optional.items() if self.some(0.7)} | marks

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
            "joint_torque_peak_nm": self.torque_peaks(torques),
            "gripper_contact": self.grips(),
        }
        present = {name for name in families if self.some(0.6 if name == "eef_quat_wxyz" else 0.93)}
        gripped = self.gripped()
        rows = [{"t": k, **{name: families[name][k] for name in families if name in present}} for k in range(self.n)]
        acted = self.some(0.3)
        actions = [{"action": [0.1 * k, -1.0]} if acted and k else {} for k in range(self.n)]
        return [row | gripped[k] | actions[k] for k, row in enumerate(rows)], limits

    def tree(self) -> dict[str, Any]:
        steps, limits = self.steps()
        return (
            self.header()
            | limits
            | {"steps": [row | more for row, more in zip(steps, self.tracking(steps[0]), strict=True)]}
        )

    def tracking(self, first: dict[str, Any]) -> list[dict[str, Any]]:
        """Bodies that are lost for a while or at random, and stamps of an uneven clock; drawn apart from the rest."""
        rng = Random(f"tracking {self.number}")
        rows: list[dict[str, Any]] = [{} for _ in range(self.n)]
        posed = sorted({*first.get("body_pos_m", ()), *first.get("body_quat_wxyz", ())})
        if posed and rng.random() < 0.3:
            rate, begin, end = rng.choice([0.0, 0.05, 0.3]), rng.randrange(self.n), rng.randrange(self.n + 1)
            for body in rng.sample(posed, rng.randint(1, len(posed))):
                for k, row in enumerate(rows):
                    is_seen = not begin <= k < end and rng.random() >= rate
                    row.setdefault("pose_valid", {})[body] = is_seen
        if rng.random() < 0.15:
            even, now = rng.random() < 0.3, rng.uniform(-5, 5)
            for row in rows:
                row["time_s"] = now
                now += self.dt * (1.0 if even else rng.choice([1.0, 1.0, 0.5, 1.3, 4.0]))
        return rows


# How far paths go: about the thresholds and at them, but for tilts, whose rounding no path hits.
LIFTS = (0.0, 0.005, 0.01, 0.03, 0.05, 0.051, 0.1, 0.1, 0.1, 0.2, 0.3, -0.1)
PUSHES = (0.0, 0.0, 0.0, 0.004, 0.005, 0.006, 0.01, 0.02, 0.03, 0.05, 0.2)
SLIPS = (0.0, 0.0, 0.01, 0.02, 0.021, 0.03, 0.05, 0.1, -0.1)
TILTS = (0.0, 5.0, 14.99, 15.01, 19.0, 21.0, 31.0, 50.0, 90.0, 150.0, 180.0)


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
