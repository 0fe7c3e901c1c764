"""The reader of BDDL, the format in which LIBERO describes the objects, initial state and goal of a task.

BDDL consists of nested lists of words in parentheses, regardless of case. `;` begins a comment. No simulator is needed.

LIBERO's own parser (`libero/envs/bddl_utils.py`) evaluates the angles of a file with Python's `eval`, ignores unknown
groups, and keeps only the last value of a repeated name. LIBERO therefore receives `BddlProblem.text` instead of the
file. This text only contains what the following grammar accepts:

    file       = (define group*)                    no repeated group, region, attribute, name or class
    group      = (problem NAME) | (:domain robosuite) | (:requirements NAME*) | (:language WORD*) | (:regions region*)
               | (:fixtures typed*) | (:objects typed*) | (:obj_of_interest NAME*) | (:init predicate*)
               | (:goal predicate) | (:goal (and predicate*))
    region     = (NAME (:target NAME) [(:ranges ((N N N N)+))] [(:yaw_rotation ((N N)))] [(:rgba (N N N N))])
    typed      = NAME+ - NAME                       predicate = (NAME NAME) | (NAME NAME NAME)

N is a finite decimal number. A NAME consists of ASCII letters, digits and `_.:-`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypeVar

from safevla_bench.errors import Place, RegistryError
from safevla_bench.files import read_input
from safevla_bench.tasks.entries import GoalBodies

Tree: TypeAlias = "str | list[Tree]"
Predicate = tuple[str, ...]  # a predicate and its arguments, such as `("on", "plate_1", "table_stove_front_region")`
JOINT_MOVES = ("open", "close")
SWITCHES = ("turnon", "turnoff")
PLACINGS = ("in", "on")
_GROUNDS = ("table", "floor")
_MAX_BYTES = 1 << 20
_NAME = re.compile(r"[a-z0-9_.:-]+")
_NUMBER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)(?:\.[0-9]*)?(?:e[-+]?[0-9]+)?")
# Maps each attribute of a region to the number of values in each row of the attribute.
_ROW_LENGTHS = {":ranges": 4, ":yaw_rotation": 2, ":rgba": 4}
_GROUPS = ("problem", ":domain", ":requirements", ":language", ":regions", ":fixtures", ":objects", ":obj_of_interest",
           ":init", ":goal")  # fmt: skip
_REMEDY = "A BDDL file has the form (define (problem ...) (:language ...) (:objects ...) (:goal (And (On a b))))"


@dataclass(frozen=True, slots=True)
class BddlProblem:
    """The content of one task file, in lower case."""

    language: str
    objects: Mapping[str, str]  # class of each movable object, by name
    fixtures: Mapping[str, str]  # class of each fixture, with or without joints, by name
    regions: Mapping[str, str]  # maps OWNER_REGION to OWNER, the object or fixture to which the region belongs
    init: tuple[Predicate, ...]
    goal: tuple[Predicate, ...]
    text: str  # text that is written from the checked content; LIBERO receives it instead of the file

    def owner_of(self, name: str) -> str:
        """Return the object or fixture to which the region `name` belongs; return `name` if it is not a region."""
        return self.regions.get(name, name)  # region -> owner

    def goal_bodies(self) -> GoalBodies:
        """Return the goal's receptacles, except the scene's table or floor, and the fixtures that the goal moves."""
        # `PLACINGS`, `JOINT_MOVES` and `SWITCHES` are verbs, such as `on`, `open` and `turnon`.
        # The arguments of a placing goal are the object that is moved and its destination, (moved, destination).
        placings = [arguments for verb, *arguments in self.goal if verb in PLACINGS and len(arguments) == 2]
        joint_goals = [arguments for verb, *arguments in self.goal if verb in (*JOINT_MOVES, *SWITCHES)]
        carried = {moved for moved, _ in placings}
        destinations = dict.fromkeys(self.owner_of(destination) for _, destination in placings)
        # The class of a scene's table or floor ends in this word, as in `kitchen_table`.
        grounds = {name for name in destinations if self.fixtures.get(name, "").rpartition("_")[2] in _GROUNDS}
        # A destination that is itself carried is not a receptacle.
        return GoalBodies(
            receptacles=tuple(name for name in destinations if name not in carried | grounds),
            fixtures=tuple(dict.fromkeys(self.owner_of(arguments[0]) for arguments in joint_goals)),
        )

    def class_of(self, name: str) -> str | None:
        """Return the class of an object, a fixture, or a region's owner; None if the file does not declare `name`."""
        owner = self.owner_of(name)
        return self.objects.get(owner) or self.fixtures.get(owner)  # a name is declared in at most one of the two


def read_bddl(path: Path) -> BddlProblem:
    """Read a BDDL file. Raises `RegistryError`, which names the file, if it cannot be read or parsed."""
    try:
        text = read_input(path, _MAX_BYTES).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        # `strerror` is the operating system's reason; an error of decoding has none.
        problem = error.strerror if isinstance(error, OSError) and error.strerror else "is not UTF-8 text"
        remedy = "Name a task file that LIBERO can read, such as bddl_files/libero_goal/turn_on_the_stove.bddl."
        raise RegistryError(problem, remedy=remedy, place=Place(file=str(path))) from None
    try:
        return parse_bddl(text)
    except RegistryError as error:
        raise error.with_place(Place(file=str(path))) from None


def parse_bddl(text: str) -> BddlProblem:
    """Parse a BDDL text. Raises `RegistryError` if the module's grammar does not accept it."""
    tree = _parse_tree(text)
    if not isinstance(tree, list) or tree[:1] != ["define"]:
        raise _grammar_error("is not a BDDL problem: the text does not begin with (define")
    groups = _collect_unique((_split_head(group, "a group") for group in tree[1:]), "group")
    if unknown := sorted(groups.keys() - set(_GROUPS)):
        raise _grammar_error(f"unknown group {unknown[0]!r}; groups: {', '.join(_GROUPS)}")
    # A group that the file lacks is an empty list.
    contents = {name: groups.get(name, []) for name in _GROUPS}
    # LIBERO does not need these groups. Their content must be valid all the same, because `text` contains it.
    for name in ("problem", ":domain", ":requirements", ":obj_of_interest"):
        words = _read_words(contents[name], f"({name} ...)")
        if name in groups and name in ("problem", ":domain"):
            _require_count(words, 1, f"({name} ...)")
    if contents[":domain"] not in ([], ["robosuite"]):
        raise _grammar_error(f"LIBERO's domain is robosuite, but the file's domain is {contents[':domain'][0]!r}")
    goals = contents[":goal"]
    if len(goals) == 1 and isinstance(goals[0], list) and goals[0][:1] == ["and"]:
        goals = goals[0][1:]  # the predicates that `and` joins
    elif len(goals) > 1:
        raise _grammar_error("(:goal ...) holds more than one expression; join predicates by (And ...)")
    if not goals:
        raise _grammar_error("the task has no goal")
    objects = _parse_typed_list(contents[":objects"], ":objects")
    fixtures = _parse_typed_list(contents[":fixtures"], ":fixtures")
    _collect_unique([*objects.items(), *fixtures.items()], "object")  # refuses a name in both lists
    return BddlProblem(
        language=" ".join(_read_words(contents[":language"], "(:language ...)", re.compile(r"\S+"))),
        objects=objects,
        fixtures=fixtures,
        regions=_collect_unique(map(_parse_region, contents[":regions"]), "region"),
        init=tuple(_parse_predicate(tree, "an initial state") for tree in contents[":init"]),
        goal=tuple(_parse_predicate(tree, "a goal") for tree in goals),
        text=_format_tree(tree),
    )


def _grammar_error(problem: str) -> RegistryError:
    # Returns an error for the caller to raise. The error's remedy shows the form of a BDDL file.
    return RegistryError(problem, remedy=_REMEDY)


def _parse_tree(text: str) -> Tree:
    # Returns the only list or word in the text, in lower case and without comments; [] for an empty text.
    # Raises an error for unbalanced parentheses, and for a text with further lists or words.
    words = re.findall(r"[()]|[^\s()]+", re.sub(r";[^\r\n]*", "", text).lower())
    open_lists: list[list[Tree]] = [[]]  # the whole text, then all lists that are still open
    for word in words:
        if word == "(":
            open_lists.append([])
        elif word != ")":
            open_lists[-1].append(word)
        elif len(open_lists) == 1:  # no list is open
            raise _grammar_error("has one closing bracket too many")
        else:
            closed = open_lists.pop()
            open_lists[-1].append(closed)
    if len(open_lists) != 1:
        raise _grammar_error("lacks a closing bracket")
    if len(open_lists[0]) > 1:
        raise _grammar_error("has text before or after (define ...)")
    return open_lists[0][0] if open_lists[0] else []


def _format_tree(tree: Tree) -> str:
    # Returns the text of a word or of nested lists, with parentheses.
    return tree if isinstance(tree, str) else f"({' '.join(map(_format_tree, tree))})"


Value = TypeVar("Value")


def _collect_unique(pairs: Iterable[tuple[str, Value]], noun: str) -> dict[str, Value]:
    # Returns the pairs as a dictionary. Raises an error if a name is repeated. `noun` is the error's word for an item.
    values: dict[str, Value] = {}
    for name, value in pairs:
        if name in values:
            raise _grammar_error(f"the {noun} {name!r} is repeated")
        values[name] = value
    return values


def _split_head(tree: Tree, description: str) -> tuple[str, list[Tree]]:
    # Returns the name with which a list begins, and the rest of the list. Errors call the list `description`.
    # A `Tree` is a word or a list of trees.
    if isinstance(tree, str) or not tree:
        raise _grammar_error(f"{description} must be a list that begins with a name, not {tree or '()'!r}")
    return _read_words(tree[:1], description)[0], tree[1:]


def _read_words(trees: Sequence[Tree], description: str, pattern: re.Pattern[str] = _NAME) -> list[str]:
    # Returns the trees as words. Raises an error if one is a list, or a word that does not match the pattern.
    words = [tree for tree in trees if isinstance(tree, str)]
    rejected = [word for word in words if not pattern.fullmatch(word)]
    if rejected or len(words) < len(trees):
        shown = rejected[0] if rejected else "(...)"  # "(...)" stands for a list in place of a word
        raise _grammar_error(f"{shown!r} in {description} is not a {'number' if pattern is _NUMBER else 'name'}")
    return words


def _require_count(items: Sequence[object], count: int, description: str) -> None:
    # Raises an error if a list, which the error calls `description`, does not have `count` items.
    if len(items) != count:
        raise _grammar_error(f"{description} holds {len(items)} items, not {count}")


def _parse_predicate(tree: Tree, description: str) -> Predicate:
    # Returns a predicate with one or two arguments. Error messages contain `description` as the predicate's name.
    verb, arguments = _split_head(tree, description)
    # An argument that is a list is not a name.
    if not 1 <= len(arguments) <= 2 or not all(isinstance(word, str) for word in arguments):
        remedy = "LIBERO's goals are predicates joined by one And; for other tasks, write the tags yourself."
        raise RegistryError(f"{description} has an unknown form: ({verb} ...)", remedy=remedy)
    return (verb, *_read_words(arguments, description))


def _parse_typed_list(trees: Sequence[Tree], group: str) -> dict[str, str]:
    # Parse a list of names with classes. For example, return {a: c, b: c, d: e} for `a b - c d - e`.
    # `form_error` is created before it is needed, because two lines raise it.
    form_error = _grammar_error(f"({group} ...) must be a list of the form NAME ... - CLASS NAME ... - CLASS")
    pairs: list[tuple[str, str]] = []
    classes: list[tuple[str, str]] = []  # (class, ""), only to find repeated classes
    names: list[str] = []  # names that still wait for their class
    remaining = iter(_read_words(trees, f"({group} ...)"))
    for word in remaining:
        if word != "-":
            names.append(word)
            continue
        class_name = next(remaining, "-")  # at the end of the list, "-" marks a missing class
        if not names or class_name == "-":
            raise form_error
        pairs += [(name, class_name) for name in names]
        classes.append((class_name, ""))
        names = []
    if names:  # names without a class
        raise form_error
    _collect_unique(classes, "class")
    return _collect_unique(pairs, "object")


def _parse_region(tree: Tree) -> tuple[str, str]:
    # Returns the pair (OWNER_REGION, OWNER) for `BddlProblem.regions`.
    # Raises an error if the region has no single owner, or an unknown or invalid attribute.
    # `_ROW_LENGTHS` maps the name of an attribute to the number of values in each row of the attribute.
    name, attributes = _split_head(tree, "a region")
    values = _collect_unique((_split_head(attribute, "an attribute") for attribute in attributes), "attribute")
    # The target is removed, so that `values` holds the attributes with numbers. They are checked, but not kept.
    owner = _read_words(values.pop(":target", []), ":target")
    _require_count(owner, 1, f":target of region {name}")
    for key, value in values.items():
        if key not in _ROW_LENGTHS:
            choices = ", ".join([":target", *_ROW_LENGTHS])
            raise _grammar_error(f"unknown attribute {key!r} of region {name}; attributes: {choices}")
        _require_count(value, 1, key)
        rows = value if key == ":rgba" else value[0]  # `:rgba` holds one row; other attributes hold a list of rows
        if isinstance(rows, str) or not rows or (key == ":yaw_rotation" and len(rows) > 1):
            raise _grammar_error(f"{key} must hold one list of numbers in region {name}")
        for row in rows:
            numbers = [] if isinstance(row, str) else _read_words(row, key, _NUMBER)
            _require_count(numbers, _ROW_LENGTHS[key], f"{key} of region {name}")
            if not all(math.isfinite(float(number)) for number in numbers):
                raise _grammar_error(f"{key} holds a number that is too large in region {name}")
    return f"{owner[0]}_{name}", owner[0]
