"""Random episodes as JSON records: families come and go, values lie about the thresholds and at them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np

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
        more = zip(steps, self.tracking(steps[0]), self.handling(), strict=True)
        rows = [row | tracked | handled for row, tracked, handled in more]
        self.impulses(rows)
        return self.header() | limits | self.storage(rows) | self.geometry(rows) | {"steps": rows}

    def geometry(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """The parts of short episodes, some of which move, and their shapes; drawn apart from the rest."""
        rng = Random(f"geometry {self.number}")
        if self.n > 12 or rng.random() < 0.4:
            return {}
        turned = rows[0].get("body_quat_wxyz", {})
        parts: list[dict[str, Any]] = []
        shapes = {name: [self.box(rng) for _ in range(count)] for name, count in (("one", 1), ("two", 2))}
        shapes["plane"] = [[*self.box(rng)[:2], -0.5, *self.box(rng)[3:7]]]
        for body in self.roles:
            if rng.random() < 0.1:
                continue
            part: dict[str, Any] = {"body": body, "parent": -1, "motion": [], "pose": self.box(rng)[:7]}
            if body in turned and body in rows[0].get("body_pos_m", {}) and rng.random() < 0.8:
                part.update(parent=-2, pose=[])
            elif parts and rng.random() < 0.5:
                part["parent"] = rng.randrange(len(parts))
            if part["parent"] != -2 and rng.random() < 0.5:
                part["motion"] = rng.sample(range(6), rng.choice([1, 1, 2, 6]))
            if rng.random() < 0.9:
                part["shape"] = "plane" if part["parent"] == -1 and rng.random() < 0.1 else rng.choice(["one", "two"])
            parts.append(part)
        columns = sum(len(part["motion"]) for part in parts)
        if columns and rng.random() < 0.9:
            rate = [rng.choice([0.0, 0.02, 0.2]) for _ in range(columns)]
            for k, row in enumerate(rows):
                row["link_motion"] = [k * step for step in rate]
        hand = [k for k, part in enumerate(parts) if part["body"] == "hand"]
        return {"geometry": json.dumps({"parts": parts, "hand": hand, "shapes": shapes})}

    def box(self, rng: Random) -> list[float]:
        turn = unit([rng.gauss(0, 1) for _ in range(4)]) if rng.random() < 0.6 else [1.0, 0.0, 0.0, 0.0]
        return [*(rng.uniform(-0.4, 0.4) for _ in range(3)), *turn, *(rng.uniform(0.01, 0.15) for _ in range(3))]

    def impulses(self, rows: list[dict[str, Any]]) -> None:
        """Net impulses of all contacts, in some episodes of none, or of all but one; drawn apart from the rest."""
        rng = Random(f"impulses {self.number}")
        listed = [contact for row in rows[1:] for contact in row.get("contacts", ())]
        if rng.random() < 0.8:
            for contact in listed:
                contact["net_impulse_ns"] = rng.choice([0.0, 0.5, rng.uniform(0, 3)])
            if listed and rng.random() < 0.1:
                del rng.choice(listed)["net_impulse_ns"]

    def storage(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Channels that were stored as float32, whose numbers are rounded in the rows; drawn apart from the rest."""
        rng = Random(f"storage {self.number}")
        if rng.random() < 0.8:
            return {}
        stored = [name for name in ("body_pos_m", "eef_pos_m", "joint_torque_nm") if rng.random() < 0.6]
        for row in rows:
            row |= {name: rounded(row[name]) for name in stored if name in row}
        return {"float32_channels": stored}

    def handling(self) -> list[dict[str, Any]]:
        """What is supported, and doors that open, in runs of any length; drawn apart from the rest."""
        rng = Random(f"handling {self.number}")
        rows: list[dict[str, Any]] = [{} for _ in range(self.n)]

        def runs(values: Sequence[Any], keep: float) -> list[Any]:
            drawn = [rng.choice(values)]
            while len(drawn) < self.n:
                drawn.append(drawn[-1] if rng.random() < keep else rng.choice(values))
            return drawn

        if rng.random() < 0.9:
            bodies = [b for b, r in self.roles.items() if r in ("target", "bystander") and rng.random() < 0.97]
            paths = {body: runs([True, False], rng.choice([0.5, 0.8, 0.95])) for body in bodies}
            rows = [row | {"supported": {b: path[k] for b, path in paths.items()}} for k, row in enumerate(rows)]
        if rng.random() < 0.9:
            doors = [body for body, role in self.roles.items() if role == "furniture"]
            opening = {body: runs([0.0, 0.3, 0.5, 0.7, 1.0], 0.8) for body in doors if rng.random() < 0.9}
            inside = {b: runs([True, False, False], 0.8) for b in doors if rng.random() < 0.8}
            for k, row in enumerate(rows):
                row |= {
                    name: {b: path[k] for b, path in paths.items()}
                    for name, paths in (("opening", opening), ("entered", inside))
                }
        return rows

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


def rounded(values: Any) -> Any:
    if isinstance(values, dict):
        return {body: rounded(place) for body, place in values.items()}
    return [float(np.float32(value)) for value in values]


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


# Several arms


def add_arm(tree: dict[str, Any], seed: int | None) -> dict[str, Any]:
    """The record with a second arm: at rest, without torque or contact (seed None), or drawn.

    A drawn arm comes before or after the first. It takes over what the first lets go of,
    holds the same, another or nothing.
    """
    rng = Random(f"arm {tree['episode_id']} {seed}")
    steps, targets = tree["steps"], [body for body, role in tree["body_roles"].items() if role == "target"]
    count, joints = len(steps), max(len(steps[0].get(name, ())) for name in TORQUE_FIELDS)
    arm = idle_arm(steps[0], joints, count) if seed is None else drawn_arm(rng, steps, targets, tree["target_object"])
    order = [0, 1] if seed is None or rng.random() < 0.5 else [1, 0]
    rows = [{**step, **join_arms(step, arm[t], order)} for t, step in enumerate(steps)]
    limits = tree.get("joint_torque_limit_nm")
    robots = [body for body, role in tree["body_roles"].items() if role == "robot"]
    return {
        **tree,
        "schema_version": 2,
        "arms": ["left", "right"],
        "arm_bodies": {body: ("left", "right")[k % 2] for k, body in enumerate(robots)},
        **({"arm_joints": [joints, joints]} if joints else {}),
        **({"joint_torque_limit_nm": [*limits, *limits]} if limits else {}),
        "steps": rows,
    }


def idle_arm(first: dict[str, Any], joints: int, count: int) -> list[dict[str, Any]]:
    still = {"eef_pos_m": [0.3, -0.2, 0.9], "eef_quat_wxyz": [0.0, 2.0, 0.0, 0.0], "wrist_force_n": [0.0, 0.0, 0.0]}
    still |= dict.fromkeys(("joint_torque_nm", "joint_torque_peak_nm"), [0.0] * joints)
    return [{**still, "gripper_contact": False, "gripped_body": None}] * count


def drawn_arm(
    rng: Random, steps: Sequence[dict[str, Any]], targets: Sequence[str], target: str | None
) -> list[dict[str, Any]]:
    style, slip, shift = rng.choice(["over", "same", "apart", "never"]), rng.choice(SLIPS), rng.uniform(-0.5, 0.5)
    overlap, begin = rng.choice([0, 0, 1, 4]), rng.randrange(len(steps))
    body, rows = rng.choice([*targets, target]), []
    for t, step in enumerate(steps):
        x, y, z = step.get("eef_pos_m", (0.0, 0.0, 0.0))
        later = steps[min(t + overlap, len(steps) - 1)]
        grips = {
            "over": not later.get("gripper_contact"),
            "same": rng.random() < 0.8,
            "apart": t >= begin and rng.random() < 0.95,
            "never": False,
        }[style]
        holds = step.get("gripped_body") if style == "same" else body if grips else None
        rows.append({
            "eef_pos_m": [x + shift, y, z - (slip if t > begin else 0.0)],
            "eef_quat_wxyz": step.get("eef_quat_wxyz", [1.0, 0.0, 0.0, 0.0]) if t % 7 else [0.0, 0.0, -1.0, 0.0],
            "wrist_force_n": [rng.gauss(0, 9) for _ in range(3)],
            **{name: [rng.choice([0.0, 0.9, -1.2]) * v for v in step.get(name, ())] for name in TORQUE_FIELDS},
            "gripper_contact": grips,
            "gripped_body": holds,
        })  # fmt: skip
    return rows


TORQUE_FIELDS = ("joint_torque_nm", "joint_torque_peak_nm")


def join_arms(first: dict[str, Any], second: dict[str, Any], order: Sequence[int]) -> dict[str, Any]:
    both = [(first, second)[k] for k in order]
    lists = ("eef_pos_m", "eef_quat_wxyz", "wrist_force_n", *TORQUE_FIELDS)
    joined = {name: [*both[0][name], *both[1][name]] for name in lists if name in first}
    return joined | {name: [arm[name] for arm in both] for name in ("gripper_contact", "gripped_body") if name in first}
