"""Reading BDDL, the text in which LIBERO describes a task: what is in the scene, how it begins, what the goal is.

BDDL is nested lists of words in brackets, without regard to case; `;` begins a comment. No simulator is needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from safevla_bench.errors import Place, RegistryError

Tree: TypeAlias = "str | list[Tree]"
Predicate = tuple[str, ...]
"""A predicate and what it is said of, such as `("on", "plate_1", "table_stove_front_region")`."""
_DEEPEST = 50
_REMEDY = "A BDDL file of LIBERO reads: (define (problem ...) (:language ...) (:objects ...) (:goal (And (On a b))))"


@dataclass(frozen=True, slots=True)
class Problem:
    """One task file; everything in it is in lower case, as LIBERO takes it."""

    language: str
    objects: Mapping[str, str]
    """Movable things: name -> class."""
    fixtures: Mapping[str, str]
    """Fixed things, articulated or not: name -> class."""
    regions: Mapping[str, str]
    """Region -> the object or fixture whose it is. A region's name is its owner's and its own, joined by `_`."""
    init: tuple[Predicate, ...]
    goal: tuple[Predicate, ...]

    def owner(self, name: str) -> str:
        """Whose region that is; whatever is no region is its own."""
        return self.regions.get(name, name)

    def kind(self, name: str) -> str | None:
        """The class of a thing, or of a region's owner; None where the file does not declare it."""
        owner = self.owner(name)
        return self.objects.get(owner) or self.fixtures.get(owner)


def read(path: Path) -> Problem:
    """The problem in a BDDL file.

    Raises:
        RegistryError: there is no such file, or it is no BDDL problem; names the file.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        problem = error.strerror if isinstance(error, OSError) and error.strerror else "is not UTF-8 text"
        remedy = "Name a task file that LIBERO can read, such as bddl_files/libero_goal/turn_on_the_stove.bddl."
        raise RegistryError(problem, remedy=remedy, place=Place(file=str(path))) from None
    try:
        return parse(text)
    except RegistryError as error:
        raise error.at(Place(file=str(path))) from None


def parse(text: str) -> Problem:
    """The problem in a text.

    Raises:
        RegistryError: it is no BDDL problem, or has no goal.
    """
    tree = _tree(text)
    if not isinstance(tree, list) or tree[:1] != ["define"]:
        raise RegistryError("is no BDDL problem: it does not begin with (define", remedy=_REMEDY)
    parts = {str(part[0]): part[1:] for part in tree[1:] if isinstance(part, list) and part}
    goal = tuple(_predicates(parts.get(":goal", [])))
    if not goal:
        raise RegistryError("the task has no goal", remedy=_REMEDY)
    return Problem(
        language=" ".join(word for word in parts.get(":language", []) if isinstance(word, str)),
        objects=_declared(parts.get(":objects", [])),
        fixtures=_declared(parts.get(":fixtures", [])),
        regions=dict(_regions(parts.get(":regions", []))),
        init=tuple(_predicates(parts.get(":init", []))),
        goal=goal,
    )


def _tree(text: str) -> Tree:
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


def _predicates(trees: Sequence[Tree]) -> Iterator[Predicate]:
    """The predicates in trees, through every `and`; all of them must hold."""
    for tree in trees:
        if not isinstance(tree, list) or not tree:
            continue
        if tree[0] == "and":
            yield from _predicates(tree[1:])
        elif not all(isinstance(word, str) for word in tree):
            remedy = "LIBERO's goals are predicates joined by And; write the tags of other tasks yourself."
            raise RegistryError(f"a goal of the form ({tree[0]} ...) is not understood", remedy=remedy)
        else:
            yield tuple(str(word) for word in tree)


def _declared(words: Sequence[Tree]) -> dict[str, str]:
    """`a b - c d - e` as {a: c, b: c, d: e}."""
    found: dict[str, str] = {}
    names: list[str] = []
    following = iter([word for word in words if isinstance(word, str)])
    for word in following:
        if word != "-":
            names.append(word)
            continue
        kind = next(following, "object")
        found |= dict.fromkeys(names, kind)
        names = []
    return found | dict.fromkeys(names, "object")


def _regions(trees: Sequence[Tree]) -> Iterator[tuple[str, str]]:
    for tree in trees:
        if not isinstance(tree, list) or not tree:
            continue
        for attribute in tree[1:]:
            if isinstance(attribute, list) and len(attribute) == 2 and attribute[0] == ":target":
                yield f"{attribute[1]}_{tree[0]}", str(attribute[1])
