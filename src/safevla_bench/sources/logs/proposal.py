"""Proposes a mapping for a log, as text that the user saves and completes.

`FILL IN` marks a value that the user must enter; until then, the mapping is rejected. `CHECK` marks a guess.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from safevla_bench.sources.logs.mappings import OF_ARMS
from safevla_bench.sources.logs.names import FILL_IN, decide_forces, find_arms, find_positions, has_word, suggest_pose
from safevla_bench.text import quote_toml
from safevla_bench.trajectory.header import find_robot


class FoundSource(NamedTuple):
    """A feature of a dataset or a topic of a recording: name, type of the messages (`kind`), and the names and count of
    its numbers (`names`, `size`). Unknown values are "", [] and 0.
    """

    name: str
    kind: str
    names: Sequence[str]
    size: int


_NAME_PATTERNS = {  # part of the mapping -> pattern for names of sources; the first pattern that matches counts
    "wrench": r"wrench|force|(^|\W|_)ft(\W|_|$)",
    "torque": r"torque|effort|joint_?state|(^|\W|_)tau(\W|_|$)",
    "gripper": r"grip|finger",
    "action": r"action",
    "eef": r"(^|\W|_)(ee|eef|tcp|hand|flange)(\W|_|$)|end_?effector|cartesian|eepose",
}
_OTHER_TYPE = re.compile(r"image|cloud|camera|compressed|marker|diagnostic|rosout|log(\W|$)|clock|video", re.IGNORECASE)
_POSE_TYPE = re.compile(r"pose|transformstamped|odometry", re.IGNORECASE)


def propose_mapping(sources: Sequence[FoundSource], says_success: bool, robot: str | None) -> str:
    """Return the text of a mapping of the sources. `says_success`: the log says how episodes ended."""
    # `robot` is the robot's name in the log, None = unknown. Parts that stay unmapped get no table.
    lines = [
        "# Maps the log's sources to a record (docs/howto/real-robots.md). Replace FILL IN; check lines with CHECK.",
        "[episode]",
    ]
    if not says_success:
        lines.append(f"success = {FILL_IN}  # true, false, or the name of a feature")
    if robot is None:
        lines.append('# embodiment = "franka"')
    lines += ['# policy = "mine"', '# template = "pnp-basic"  # kind of task, for clauses on objects']
    mapped_parts: set[str] = set()
    arms: tuple[str, ...] = ()  # names of arms, from the first source that has any
    for source in sources:
        arms = arms or find_arms(source.names)
    # Map sources that are named like a hand first. If there are none, map the first pose to the hand.
    for source in sorted(sources, key=lambda candidate: not _is_named_like_hand(candidate)):
        part = _guess_part(source, mapped_parts)
        if part:
            mapped_parts.add(part)
            is_guess = part == "eef" and not _is_named_like_hand(source)
            # If no source is named like a hand, the first pose of the log is only a guess.
            question = "  # CHECK: is this the pose of the hand?" if is_guess else ""
            for table, arm_source, number_lines in _split_by_arm(part, source, arms):
                head = ["", f"[{table}]", f"from = {quote_toml(source.name)}{question}"]
                lines += [*head, *number_lines, *_suggest_lines(part.partition(".")[0], arm_source, robot)]
    return "\n".join([*lines, ""])


def _is_named_like_hand(source: FoundSource) -> bool:
    # Returns whether the source has the name of a hand's pose, such as `tcp_pose` or `end_effector`.
    return re.search(_NAME_PATTERNS["eef"], source.name.lower()) is not None


def _split_by_arm(
    part: str, source: FoundSource, arms: Sequence[str]
) -> Iterator[tuple[str, FoundSource, Sequence[str]]]:
    # Yields for each arm: (name of its table, source with only the arm's numbers, lines that select these numbers).
    # Without arms, yields the part itself, such as `eef`. `arms` are words in names, such as `left`.
    if part not in OF_ARMS or not arms:
        yield part, source, ()
        return
    for arm in arms:
        names = [name for name in source.names if has_word(name, arm)]
        if not names:
            # No number has the arm's word in its name, so the user must choose the numbers.
            yield f"{part}.{arm}", source, [f"index = {FILL_IN}  # numbers of {arm}"]
            continue
        # `suggest_pose` lists the numbers of a hand's position and orientation, so `names` is not needed.
        number_lines = [] if part == "eef" else [f"names = [{', '.join(map(quote_toml, names))}]"]
        yield f"{part}.{arm}", source._replace(names=names, size=len(names)), number_lines


def _guess_part(source: FoundSource, mapped_parts: set[str]) -> str:
    # Returns the part of the mapping that the type and name of a source suggest; "" = none.
    # Each part is mapped once. Further poses become `bodies.NAME`. `mapped_parts` are already mapped.
    if _OTHER_TYPE.search(source.kind) or _OTHER_TYPE.search(source.name):
        return ""
    # Topics have a message type (`kind`). Features of datasets have no type, but may have names of their numbers.
    is_pose = bool(_POSE_TYPE.search(source.kind)) or (not source.kind and bool(find_positions(source.names)))
    guess = next((part for part, pattern in _NAME_PATTERNS.items() if re.search(pattern, source.name.lower())), "")
    # The ROS types JointState and Wrench are more reliable than the name of the topic.
    if "JointState" in source.kind or "Wrench" in source.kind:
        guess = "wrench" if "Wrench" in source.kind else "torque"
    # A list of transforms counts as a pose, since it may contain any frame.
    # A pose belongs to the hand if the source's name means a hand, or if it is the first pose.
    if "TFMessage" in source.kind or (is_pose and guess != "action"):
        guess = "eef" if guess == "eef" or (is_pose and "eef" not in mapped_parts) else "bodies"
    # Three or seven unnamed numbers of a dataset may be a position or a pose.
    may_be_pose = not source.kind and not source.names and source.size in (3, 7)
    if guess == "bodies" or (not guess and may_be_pose):
        return f"bodies.{re.sub('[^A-Za-z0-9]+', '_', source.name).strip('_') or 'body'}"
    return "" if guess in mapped_parts else guess


def _suggest_lines(part: str, source: FoundSource, robot: str | None) -> Iterator[str]:
    # Yields the lines that follow `from` in the table of a part, with values to fill in or check.
    match part:
        case "eef" | "bodies":
            if part == "bodies":
                yield f"role = {FILL_IN}  # target, bystander, furniture or robot; delete this table if none applies"
            yield '# unit = "mm"  # CHECK: "m", "cm" or "mm"; without this line, the unit in the names, else m'
            if "TFMessage" in source.kind:
                yield f"frame = {FILL_IN}  # name of the child frame"
            yield from suggest_pose(source.names, source.size) if source.size else ()
        case "torque":
            known_robot = find_robot(robot or "")
            if source.kind or source.size == 0:  # the joints of a topic are unknown before messages are decoded
                yield '# names = ["joint1", "joint2"]  # CHECK: without names, all joints are read, even the gripper'
            yield "scale = 1.0  # CHECK: factor to N m"
            # For a known robot, the default is the published limits, unless the robot publishes currents as efforts.
            if known_robot is None or not known_robot.limits_nm or known_robot.effort_is_current:
                yield f"limits_nm = {FILL_IN}  # one for each joint"
            if known_robot is not None and known_robot.effort_is_current:
                yield f'unit = {FILL_IN}  # "N m" if these are torques, not motor currents'
        case "gripper":
            if source.size != 1:
                yield f"index = {FILL_IN}  # [k]: which number, counted from 0"
            yield f"holds_above = {FILL_IN}  # the gripper holds something above this value; or write holds_below"
        case "wrench":
            yield "scale = 1.0  # CHECK: factor to N"
            yield "tare_s = 1.0  # CHECK: the hand is still and touches nothing for this long"
            yield "# mass_kg = 0.7  # mass of the tool"
            if not source.kind and not _are_forces_known(source):
                yield f"index = {FILL_IN}  # [x, y, z] of the force, counted from 0"


def _are_forces_known(source: FoundSource) -> bool:
    # Returns whether the names of the numbers, or the count of numbers, determine the forces x, y, z.
    try:
        return bool(decide_forces(source.names, source.size))
    except ValueError:
        return False
