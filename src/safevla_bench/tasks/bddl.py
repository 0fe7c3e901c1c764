"""The reader of BDDL, the format in which LIBERO describes a task: its objects, initial state and goal.

BDDL is nested lists of words in brackets. Case does not matter; `;` begins a comment. No simulator is needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from safevla_bench.errors import Place, RegistryError
from safevla_bench.files import read_input
from safevla_bench.tasks.entries import GoalBodies

Tree: TypeAlias = "str | list[Tree]"
Predicate = tuple[str, ...]
"""A predicate and its arguments, such as `("on", "plate_1", "table_stove_front_region")`."""
JOINT_MOVES = ("open", "close")
SWITCHES = ("turnon", "turnoff")
PLACINGS = ("in", "on")
_GROUNDS = ("table", "floor")
_DEEPEST = 50
_ANGLE = re.compile(r"[-+]?[\d.]+(?:e[-+]?\d+)?")
_REMEDY = "A BDDL file of LIBERO reads: (define (problem ...) (:language ...) (:objects ...) (:goal (And (On a b))))"


@dataclass(frozen=True, slots=True)
class BddlProblem:
    """One task file, in lower case, as LIBERO reads it."""

    language: str
    objects: Mapping[str, str]
    """Movable objects: name -> class."""
    fixtures: Mapping[str, str]
    """Fixtures, articulated or not: name -> class."""
    regions: Mapping[str, str]
    """Region -> the object or fixture that owns it. A region's name is its owner's and its own, joined by `_`."""
    init: tuple[Predicate, ...]
    goal: tuple[Predicate, ...]

    def owner_of(self, name: str) -> str:
        """Return the object or fixture that the region `name` belongs to; `name` itself if it is not a region."""
        return self.regions.get(name, name)

    def goal_bodies(self) -> GoalBodies:
        """Return the receptacles and the moved fixtures of the goal; the scene's own table or floor is neither."""
        placings = [arguments for verb, *arguments in self.goal if verb in PLACINGS and len(arguments) == 2]
        joint_goals = [arguments for verb, *arguments in self.goal if verb in (*JOINT_MOVES, *SWITCHES) and arguments]
        carried = {moved for moved, _ in placings}
        places = dict.fromkeys(self.owner_of(place) for _, place in placings)
        grounds = {name for name in places if self.fixtures.get(name, "").rpartition("_")[2] in _GROUNDS}
        return GoalBodies(
            receptacles=tuple(name for name in places if name not in carried | grounds),
            fixtures=tuple(dict.fromkeys(self.owner_of(arguments[0]) for arguments in joint_goals)),
        )

    def class_of(self, name: str) -> str | None:
        """Return the class of an object or fixture, or of a region's owner; None if the file does not declare it."""
        owner = self.owner_of(name)
        return self.objects.get(owner) or self.fixtures.get(owner)


def read_bddl(path: Path) -> BddlProblem:
    """Return the problem in a BDDL file; raises `RegistryError`, with the file, as `parse_bddl` does."""
    try:
        text = read_input(path).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) and error.strerror else "is not UTF-8 text"
        remedy = "Name a task file that LIBERO can read, such as bddl_files/libero_goal/turn_on_the_stove.bddl."
        raise RegistryError(problem, remedy=remedy, place=Place(file=str(path))) from None
    try:
        return parse_bddl(text)
    except RegistryError as error:
        raise error.with_place(Place(file=str(path))) from None


def parse_bddl(text: str) -> BddlProblem:
    """Return the problem in a text.

    Raises `RegistryError` for a text without a problem or a goal, and for a goal or initial state of another form than
    predicates joined by `and`.
    """
    tree = _parse_tree(text)
    if not isinstance(tree, list) or tree[:1] != ["define"]:
        raise RegistryError("is no BDDL problem: it does not begin with (define", remedy=_REMEDY)
    parts = {str(part[0]): part[1:] for part in tree[1:] if isinstance(part, list) and part}
    _check_angles(parts.get(":regions", []))
    goal = tuple(_flatten_predicates(parts.get(":goal", [])))
    if not goal:
        raise RegistryError("the task has no goal", remedy=_REMEDY)
    return BddlProblem(
        language=" ".join(word for word in parts.get(":language", []) if isinstance(word, str)),
        objects=_parse_typed_list(parts.get(":objects", [])),
        fixtures=_parse_typed_list(parts.get(":fixtures", [])),
        regions=dict(_region_owners(parts.get(":regions", []))),
        init=tuple(_flatten_predicates(parts.get(":init", []))),
        goal=goal,
    )


def _parse_tree(text: str) -> Tree:
    """Return the first expression of a text as nested lists of words in small letters; [] for an empty text."""
    words = re.findall(r"[()]|[^\s()]+", re.sub(r";.*", "", text).lower())
    open_lists: list[list[Tree]] = [[]]
    for word in words:
        if word == "(":
            open_lists.append([])
        elif word != ")":
            open_lists[-1].append(word)
        elif len(open_lists) == 1:
            raise RegistryError("has a bracket ) too many", remedy=_REMEDY)
        else:
            closed = open_lists.pop()
            open_lists[-1].append(closed)
        if len(open_lists) > _DEEPEST:
            raise RegistryError(f"has brackets deeper than {_DEEPEST}", remedy=_REMEDY)
    if len(open_lists) != 1:
        raise RegistryError("lacks a closing bracket", remedy=_REMEDY)
    return open_lists[0][0] if open_lists[0] else []


def _flatten_predicates(trees: Sequence[Tree]) -> Iterator[Predicate]:
    """Yield the predicates of trees and of every `and` in them, all of which must hold; empty trees are passed over."""
    for tree in trees:
        if not isinstance(tree, list) or not tree:
            continue
        if tree[0] == "and":
            yield from _flatten_predicates(tree[1:])
        elif not all(isinstance(word, str) for word in tree):
            remedy = "LIBERO's goals are predicates joined by And; write the tags of other tasks yourself."
            raise RegistryError(f"a goal of the form ({tree[0]} ...) is not understood", remedy=remedy)
        else:
            yield tuple(str(word) for word in tree)


def _parse_typed_list(words: Sequence[Tree]) -> dict[str, str]:
    """Return `a b - c d - e` as {a: c, b: c, d: e}; names without a class are of the class `object`."""
    classes: dict[str, str] = {}
    names: list[str] = []
    remaining = iter([word for word in words if isinstance(word, str)])
    for word in remaining:
        if word != "-":
            names.append(word)
            continue
        kind = next(remaining, "object")
        classes |= dict.fromkeys(names, kind)
        names = []
    return classes | dict.fromkeys(names, "object")


def _check_angles(tree: Tree, *, is_angle: bool = False) -> None:
    if isinstance(tree, str):
        if is_angle and not _ANGLE.fullmatch(tree):
            raise RegistryError(f"the angle {tree!r} is not a number", remedy="Write :yaw_rotation in radians.")
        return
    is_angle = is_angle or tree[:1] == [":yaw_rotation"]
    for part in tree[1:] if tree[:1] == [":yaw_rotation"] else tree:
        _check_angles(part, is_angle=is_angle)


def _region_owners(trees: Sequence[Tree]) -> Iterator[tuple[str, str]]:
    for tree in trees:
        if not isinstance(tree, list) or not tree:
            continue
        for attribute in tree[1:]:
            if isinstance(attribute, list) and len(attribute) == 2 and attribute[0] == ":target":
                yield f"{attribute[1]}_{tree[0]}", str(attribute[1])
