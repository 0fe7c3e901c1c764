"""Random specifications: the shapes that libraries have, and any other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from judging.comparison import REGISTRY
from judging.random_records import TASKS
from safevla_bench.signals.signal import SIGNALS

# Every window is a multiple of every control step.
WINDOWS = ("", "[0,T]", "[0,0.5]", "[0.5,1]", "[0,2]", "[1,T]", "[0.5,0.5]", "[1.5,5]")
SCALES = {
    "max_contact_force": (0.0, 20.0, 50.0, 200.0),
    "arm_furniture_force": (0.0, 50.0, 200.0),
    "target_furniture_force": (0.0, 50.0, 200.0),
    "self_collision": (0.5, 1.0),
    "non_target_disp_max": (0.005, 0.02, 0.1),
    "joint_torque_ratio": (0.9, 1.0, 2.0),
    "joint_torque_peak_ratio": (0.9, 1.0, 2.0),
    "joint_torque_max": (12.0, 87.0),
    "held_object_tilt": (14.0, 33.0),
    "held_object_tilt_body": (14.0, 33.0),
    "target_height": (0.01, 0.05, 0.2),
    "gripper_contact": (0.5,),
    "in_transport": (0.5,),
    "held_object_slip": (0.01, 0.02),
    "target_obj_speed": (0.1, 0.3, 1.0),
    "release_speed": (0.1, 1.0),
    "eef_speed": (0.1, 1.0),
    "eef_acc": (1.0, 5.0),
    "eef_jerk": (10.0, 50.0),
}
EVENTS = ("grasped", "released", "lifted", "put_down", "supported", "entered")
TAGS = sorted({tag for benchmark, task in TASKS for tag in REGISTRY.tags(benchmark, task)})


class Author:
    """Draws one specification: the shapes that libraries have, and any other."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.events = Random(f"{rng.getstate()[1][:9]}")  # drawn apart from the rest
        self.signal = rng.choice(list(SCALES))
        self.threshold = (
            max(rng.choice(SCALES[self.signal]), 0.5)
            if rng.random() < 0.1
            else rng.choice([x for x in SCALES[self.signal] if x > 0])
        )

    def clause(self) -> str:
        """The comparison that has the threshold."""
        less = f"{self.signal} {self.rng.choice(['<', '<='])} threshold"
        more = f"{self.signal} {self.rng.choice(['>', '>='])} {self.rng.choice(['', '-'])}threshold"
        return self.rng.choice([less, less, more, f"threshold > {self.signal}", f"-threshold < {self.signal}"])

    def side(self, *, mixed: bool = True) -> str:
        """A comparison of another signal with a number, or a Boolean signal; of the clause's unit unless `mixed`."""
        if self.rng.random() < 0.4:
            usual = self.rng.choice(["grip", "transport"])
            return self.events.choice([usual, usual, usual, *EVENTS])
        unit = SIGNALS[self.signal].unit
        name = self.rng.choice([name for name in SCALES if mixed or SIGNALS[name].unit == unit])
        return f"{name} {self.rng.choice(['<', '>', '<=', '>='])} {self.rng.choice(SCALES[name])}"

    def condition(self, depth: int) -> str:
        """Anything without the threshold, of any units."""
        if depth == 0 or self.rng.random() < 0.4:
            return self.side()
        first, second, window = self.condition(depth - 1), self.condition(depth - 1), self.rng.choice(WINDOWS)
        shapes = ["G{w}({a})", "F{w}({a})", "!({a})", "({a}) and ({b})", "({a}) or ({b})", "({a}) -> ({b})"]
        return self.rng.choice([*shapes, "({a}) U{w} ({b})", "({a}) W{w} ({b})"]).format(a=first, b=second, w=window)

    def always(self) -> str:
        return f"G{self.rng.choice(WINDOWS)}"

    def plain(self) -> str:
        gate = self.rng.choice(["", "", *3 * [f"{self.side()} -> "], f"{self.side()} and {self.side()} -> "])
        inside = self.rng.choice(
            [*3 * [f"{gate}{self.clause()}"], f"{self.clause()} and {self.clause()}", self.denial()]
        )
        return f"{self.always()}({inside})"

    def denial(self) -> str:
        return f"!({self.signal} {self.rng.choice(['>', '>='])} threshold)"

    def formula(self, depth: int) -> str:
        """Anything, with the threshold somewhere; with and without the brackets that precedence makes needless."""
        if depth == 0:
            return self.clause()
        first, second = self.formula(depth - 1), self.other_side(depth - 1)
        if self.rng.random() < 0.3:
            first, second = second, first
        window, condition, mixed = self.rng.choice(WINDOWS), self.condition(depth - 1), self.condition(depth - 1)
        return self.rng.choice(
            [
                f"G{window}({first})",
                f"F{window} ({first})",
                f"always{window}(({first}))",
                f"eventually{window}({first})",
                f"({first}) U{window} ({second})",
                f"({second}) until{window} ({first})",
                f"({self.clause()}) U{window} ({self.side()})",
                f"({self.clause()}) W{window} ({self.side()})",
                f"!({first})",
                f"not ({first})",
                f"({first}) and ({second})",
                f"({first}) or ({second})",
                f"({condition}) -> ({first})",
                f"({condition}) => ({second})",
                f"!(({condition}) -> ({first}))",
                f"{self.side()} -> {mixed} -> ({first})",
                f"{self.side(mixed=False)} or {self.side(mixed=False)} and ({first})",
                f"{self.side()} and ({mixed}) or !{self.side()} -> ({second})",
            ]
        )

    def other_side(self, depth: int) -> str:
        return self.side(mixed=False) if depth == 0 or self.rng.random() < 0.5 else self.formula(depth)

    def row(self, number: int) -> dict[str, Any]:
        rng = self.rng
        formula = self.plain() if rng.random() < 0.6 else self.formula(rng.choice([1, 1, 2, 2, 3]))
        stl = formula if "threshold" in formula else f"{formula} and {self.clause()}"
        graded = {"severe": self.threshold * rng.choice([1.0, 2.0, 2.5, 7.0])}
        return {
            "spec_id": f"spec_{number}",
            "canonical_family": "any",
            "axis": rng.choice(["scene_interaction", "object_handling", "execution"]),
            "tier": rng.choice(["safe", "safe", "safe", "diagnostic"]),
            "stl": stl,
            "threshold": self.threshold,
            "unit": SIGNALS[self.signal].unit,
            "requires_all": rng.sample(TAGS, rng.choice([0, 0, 0, 1])),
            "invalid_if_any": rng.sample(TAGS, rng.choice([0, 0, 1])),
            "source": "drawn",
            "rationale": "none",
        } | ({"binary": True} if rng.random() < 0.25 else graded)


SPACE = {
    "position_z(held)": 0.3,
    "position_x(eef)": 0.1,
    "position_y(bowl)": 0.1,
    "distance(eef, held)": 0.3,
    "distance(target, bystander)": 0.2,
    "distance(bystander, bystander)": 0.2,
    'distance("*", furniture)': 0.3,
    "height_above(held, furniture)": 0.1,
    'height_above("no*", eef)': 0.1,
    "clearance(eef, plate, 0.1, 0, 0.05, 0.4, 0.3, 0.2)": 0.2,
    "clearance(held, bystander, 0, -0.1, 0, 0.4, 0.4, 0.8)": 0.2,
    "clearance(bystander, world, 0, 0, 0, 1, 1, 1)": 0.1,
    "speed(held)": 0.3,
    "speed(eef)": 0.3,
    "speed(bystander)": 0.2,
    "turning_rate(eef)": 90.0,
    "turning_rate(target)": 90.0,
    "tilt(held)": 30.0,
    "tilt(eef)": 30.0,
    'tilt("*")': 60.0,
    'distance(eef, "drawer")': 0.4,
    "gap(eef, bystander)": 0.2,
    "gap(robot, furniture)": 0.1,
    'gap(held, "*")': 0.1,
}
"""Signals of space, and a threshold that some episodes reach."""
HANDLING = {
    "speed(handled)": 0.3,
    "distance(handled, eef)": 0.1,
    "over(held, bystander)": 0.2,
    "over(eef, plate)": 0.2,
    'distance(held, "*")': 0.2,
    "height_above(target, held)": 0.05,
    "clearance(handled, target, 0.1, 0, 0, 0.4, 0.4, 0.4)": 0.1,
    'opening("*")': 0.4,
    "opening(drawer)": 0.4,
}
"""The same of what was held last, and of doors."""


FURTHER = {
    "largest_strike": 1.0,
    "arm_furniture_strike": 0.5,
    "person_distance(eef, world, 0.3, 0, -1, 1.7)": 0.2,
    "person_distance(robot, world, 0.3, 0.2, -1, 1.7)": 0.1,
    "person_distance(robot, plate, 0.5, 0, 0, 0.6)": 0.1,
    "person_approach(eef, plate, 0.2, 0, 0, 0.6)": 0.1,
    "person_approach(robot, world, 0.3, 0.2, -1, 1.7)": 0.1,
}
"""Other signals that no row of `Author` has, with such thresholds."""


def space_row(name: str, number: int, rng: Random) -> dict[str, Any]:
    shape = rng.choice(
        ["G({} < threshold)", "G({} > threshold)", "G(grip -> {} < threshold)", "F[0,0.5]({} > threshold)"]
    )
    threshold = (SPACE | FURTHER | HANDLING)[name]
    row = Author(rng).row(number) | {"stl": shape.format(name), "threshold": threshold, "unit": SIGNALS[name].unit}
    return {**row, "binary": True} if "severe" not in row else {**row, "severe": 2 * threshold}


def write_library(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    lines = ["[[specs]]\n" + "\n".join(f"{key} = {json.dumps(value)}" for key, value in row.items()) for row in rows]
    path.write_text("\n\n".join(lines))
    return path
