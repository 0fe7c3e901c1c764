"""Whether a record is one, by the rules in howto/recording.md, in plain Python over JSON: no code of the package."""

from __future__ import annotations

from typing import Any

from fuzz.grammar import depth, numbers, walk
from judging.oracle import robot_limits

ROLES = ("robot", "target", "bystander", "furniture")
LARGEST = 1e100
TORQUES = ("joint_torque_nm", "joint_torque_peak_nm")
FAMILIES = {
    **{"eef_pos_m": 3, "eef_quat_wxyz": 4, "body_pos_m": 3, "body_quat_wxyz": 4},
    **dict.fromkeys(("contacts", *TORQUES, "gripper_contact", "sim_state", "supported", "opening", "entered")),
}
OUTCOMES = ("success", "failure", "timeout", "invalid_action", "stopped")
TEXTS = ("policy", "instruction", "outcome", "embodiment")
INTEGERS = ("seed", "env_seed", "init_state_index", "horizon")


class Unlawful(Exception):
    """A rule that is broken."""


class Unsure(Exception):
    """A rule that the documents leave open, such as 1.0 for an integer."""


def find_fault(tree: Any) -> str | None:
    """What is wrong; None if nothing is. Raises `Unsure`."""
    try:
        _check(tree)
    except Unlawful as error:
        return str(error)
    return None


def need(holds: object, rule: str) -> None:
    if not holds:
        raise Unlawful(rule)


def text(value: Any, rule: str, *, empty: bool = True) -> None:
    need(isinstance(value, str) and (empty or value), rule)


def integer(value: Any, rule: str) -> None:
    if isinstance(value, float) and value.is_integer():
        raise Unsure(rule)
    need(isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63, rule)


def number(value: Any, rule: str, largest: float = 1.8e308) -> float:
    need(isinstance(value, int | float) and not isinstance(value, bool), rule)
    if isinstance(value, int) and abs(value) >= 2**63:
        raise Unsure("an integer of more than 64 bits as a number")
    need(abs(float(value)) <= largest, rule)
    return float(value)


def row(value: Any, rule: str, width: int | None = None, largest: float = 1.8e308) -> int:
    need(isinstance(value, list) and (width is None or len(value) == width), rule)
    for item in value:
        number(item, rule, largest)
    return len(value)


def _check(tree: Any) -> None:
    need(isinstance(tree, dict), "an object")
    if depth(tree) > 60:
        raise Unsure("nesting")
    texts = [value for value in walk(tree) if isinstance(value, str)]
    need(not any("\ud800" <= c <= "\udfff" for text in texts for c in text), "half a surrogate pair")
    need(all(abs(value) != float("inf") and value == value for value in numbers(tree)), "finite numbers")
    for name in ("episode_id", "benchmark", "task_id"):
        text(tree.get(name), name, empty=False)
    need(isinstance(tree.get("success"), bool), "success")
    need(number(tree.get("dt"), "dt", LARGEST) >= 1e-9, "dt")
    need(tree.get("schema_version", 1) is not None, "schema_version")
    integer(tree.get("schema_version", 1), "schema_version")
    if tree.get("schema_version", 1) == 2:
        raise Unsure("a record of several arms")
    need(tree.get("schema_version", 1) == 1, "schema_version")
    for name in TEXTS:
        need(tree.get(name) is None or isinstance(tree[name], str), name)
    for name in INTEGERS:
        if tree.get(name) is not None:
            integer(tree[name], name)
    outcome = tree.get("outcome")
    need(outcome is None or outcome in OUTCOMES, "outcome")
    need(outcome is None or (outcome == "success") == tree["success"], "outcome")
    versions = tree.get("versions")
    need(versions is None or isinstance(versions, dict), "versions")
    for version in (versions or {}).values():
        text(version, "versions")
    _pairs(tree.get("dropped_pairs"))
    roles = tree.get("body_roles")
    need(isinstance(roles, dict) and "" not in roles, "body_roles")
    need(all(isinstance(role, str) and role in ROLES for role in roles.values()), "roles")
    need("target_object" in tree, "target_object")
    target = tree["target_object"]
    need(target is None or (isinstance(target, str) and roles.get(target) == "target"), "target_object")
    _steps(tree, tree.get("steps"), roles)


def _pairs(pairs: Any) -> None:
    need(pairs is None or isinstance(pairs, list), "dropped_pairs")
    for pair in pairs or ():
        need(isinstance(pair, list) and len(pair) == 2 and all(isinstance(name, str) for name in pair), "dropped_pairs")


def _steps(tree: Any, steps: Any, roles: Any) -> None:
    need(isinstance(steps, list) and steps and all(isinstance(step, dict) for step in steps), "steps")
    for t, step in enumerate(steps):
        integer(step.get("t"), "t")
        need(step["t"] == t, "t")
        need(step.get("gripped_body") is None or isinstance(step["gripped_body"], str), "gripped_body")
        need(step.get("gripped_body") is None or step["gripped_body"] in roles, "gripped_body")
    for name in FAMILIES:
        count = sum(name in step for step in steps)
        need(count in (0, len(steps)), f"{name} in every step or in none")
        if count:
            _family(name, [step[name] for step in steps], roles)
    need("action" not in steps[0], "no action in record 0")
    acted = [step["action"] for step in steps[1:] if "action" in step]
    need(len(acted) in (0, len(steps) - 1), "action in every step or in none")
    need(len({row(action, "action") for action in acted}) <= 1, "actions of one length")
    limits = tree.get("joint_torque_limit_nm")
    known = robot_limits(str(tree.get("embodiment") or ""))
    joints = len(known) if known else None  # None: limits unknown
    if limits is not None:
        joints = row(limits, "limits", None, LARGEST)
        need(all(limit >= 1e-100 for limit in limits), "limits")
    for name in TORQUES:
        if name in steps[0]:
            need(joints in (None, len(steps[0][name])), "as many torques as limits")


def _family(name: str, values: list[Any], roles: Any) -> None:
    width = FAMILIES[name]
    if name in ("supported", "opening", "entered"):
        for bodies in values:
            need(isinstance(bodies, dict) and bodies.keys() == values[0].keys() <= roles.keys(), name)
            for value in bodies.values():
                need(name == "opening" or isinstance(value, bool), name)
                row([value] if name == "opening" else [], name, None, LARGEST)
        return
    if name == "gripper_contact":
        need(all(isinstance(value, bool) for value in values), name)
    elif name == "contacts":
        for contacts in values:
            need(isinstance(contacts, list), name)
            for contact in contacts:
                _contact(contact, roles)
    elif name.startswith("body"):
        for poses in values:
            need(isinstance(poses, dict) and poses.keys() == values[0].keys() <= roles.keys(), name)
            for pose in poses.values():
                _row(name, pose, width)
    else:
        need(len({_row(name, value, width) for value in values}) == 1, name)


def _row(name: str, value: Any, width: int | None) -> int:
    length = row(value, name, width, LARGEST if name in ("eef_pos_m", "body_pos_m", *TORQUES) else 1.8e308)
    need("quat" not in name or any(value), "norm zero")
    return length


def _contact(contact: Any, roles: Any) -> None:
    need(isinstance(contact, dict), "contact")
    for end in ("a", "b"):
        need(isinstance(contact.get(end), str) and contact[end] in roles, "a body of a contact")
    need(contact["a"] != contact["b"], "a contact with itself")
    need("force_n" in contact and number(contact["force_n"], "force", LARGEST) >= 0, "force")
    for name in ("impulse_ns", "net_impulse_ns"):
        need(name not in contact or number(contact[name], name) >= 0, "impulse")
