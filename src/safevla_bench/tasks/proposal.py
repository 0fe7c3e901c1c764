"""From a task's BDDL text to a template and tags, with a reason for each choice and what a person should check.

Each goal predicate that does not hold from the start is a phase. What kinds of things there are stands in `kinds.toml`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

import msgspec

from safevla_bench.tasks.bddl import Predicate, Problem
from safevla_bench.tasks.entries import Registry

JOINT_MOVES = ("open", "close")
SWITCHES = ("turnon", "turnoff")
PLACINGS = ("in", "on")
_BY_DEMAND = ("push-no-lift", "pnp-basic", "pnp-into-container", "wine-rack-insert")
"""Templates of what is done to objects, the least demanding first: several such phases are one, the most demanding."""


class _Carried(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    names: tuple[str, ...]
    tag: str
    why: str
    check: str | None = None


class _Receiving(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    containers: tuple[str, ...]
    boards: tuple[str, ...]
    racks: tuple[str, ...]


class _Words(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pushing: tuple[str, ...]


class _Kinds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    carried: tuple[_Carried, ...]
    receiving: _Receiving
    words: _Words


@dataclass(frozen=True, slots=True)
class Proposal:
    """What is proposed for one task; `audit` is for a person, and empty only where nothing had to be assumed."""

    benchmark: str
    task_id: str
    instruction: str
    components: tuple[str, ...]
    """One or more templates, in the goal's order."""
    object_tags: dict[str, str]
    reasons: tuple[str, ...]
    audit: tuple[str, ...]

    @property
    def template(self) -> str | None:
        """The template, where there is one only."""
        return self.components[0] if len(self.components) == 1 else None

    def tags(self, registry: Registry) -> frozenset[str]:
        """The mechanism's tags, without those of objects."""
        return frozenset[str]().union(*(registry.templates[name].tags for name in self.components))


@dataclass(frozen=True, slots=True)
class _Phase:
    template: str
    reason: str
    audit: str | None = None


def propose(problem: Problem, benchmark: str, task_id: str) -> Proposal:
    """Template and tags of the task, from its goal, its objects' classes and how it begins."""
    phases = [phase for predicate in _to_do(problem) for phase in _phases_of(problem, predicate)]
    held = [f"({' '.join(one)}) holds from the start: no phase" for one in problem.goal if one in problem.init]
    audit = [phase.audit for phase in phases if phase.audit]
    components = _components(phases)
    if not components:
        audit.append("no phase was found in the goal: pnp-basic is a mere guess")
        components = ("pnp-basic",)
    object_tags: dict[str, str] = {}
    if set(components) & {"pnp-basic", "pnp-into-container"} and "wine-rack-insert" not in components:
        object_tags, doubts = _object_tags(problem)
        audit += doubts
    return Proposal(
        benchmark=benchmark,
        task_id=task_id,
        instruction=problem.language,
        components=components,
        object_tags=object_tags,
        reasons=tuple(dict.fromkeys([*(phase.reason for phase in phases), *held])),
        audit=tuple(dict.fromkeys(audit)),
    )


def _to_do(problem: Problem) -> tuple[Predicate, ...]:
    """The goal's predicates that do not hold from the start."""
    return tuple(predicate for predicate in problem.goal if predicate not in problem.init)


def _phases_of(problem: Problem, predicate: Predicate) -> list[_Phase]:
    verb, *arguments = predicate
    said = f"({' '.join(predicate)})"
    if verb in JOINT_MOVES:
        return [_Phase("articulated-manipulation", f"{said}: a part of {problem.owner(arguments[0])} has to move")]
    if verb in SWITCHES:
        return [_Phase("knob-twist", f"{said}: a knob or button of {problem.owner(arguments[0])}")]
    if verb in PLACINGS and len(arguments) == 2:
        return _placing(problem, said, *predicate)
    return [_Phase("pnp-basic", said, f"the predicate {verb!r} is unknown: is {said} a pick and place?")]


def _placing(problem: Problem, said: str, verb: str, moved: str, place: str) -> list[_Phase]:
    kinds, receiver = _kinds(), problem.kind(place) or ""
    if moved not in problem.objects:
        doubt = f"{moved} is no movable object of the file: what moves in {said}?"
        return [_Phase("pnp-basic", f"{said}: taken for a pick and place", doubt)]
    pushed = next((word for word in kinds.words.pushing if word in problem.language.split()), None)
    if pushed:
        doubt = f"the instruction says {pushed!r}: may the {_shown(problem, moved)} be lifted all the same?"
        return [_Phase("push-no-lift", f"{said}, and the instruction says {pushed!r}", doubt)]
    if _named(receiver, kinds.receiving.racks) and _named(problem.objects[moved], ("bottle",)):
        doubt = f"does it take a large tilt to put {moved} into the {receiver.replace('_', ' ')}?"
        return [_Phase("wine-rack-insert", f"{said}: a bottle into a rack", doubt)]
    if verb == "in" and not _named(receiver, kinds.receiving.boards):
        shut = _shut(problem, place)
        into = _Phase("pnp-into-container", f"{said}: an object into something")
        return [*shut, into]
    stacked = problem.objects[moved] == receiver
    if verb == "on" and not stacked and place in problem.objects and _named(receiver, kinds.receiving.containers):
        doubt = f"does {moved} lie in {place}, or on top of it?"
        return [_Phase("pnp-into-container", f"{said}: the {receiver.replace('_', ' ')} holds things", doubt)]
    return [_Phase("pnp-basic", f"{said}: an object set down on something")]


def _shut(problem: Problem, region: str) -> list[_Phase]:
    """The phase in which a drawer or door is opened that neither is open at first nor is named by the goal."""
    owner = problem.owner(region)
    if not _opens(problem, owner):
        return []
    opened = {("open", region), ("open", owner)}
    if opened & ({*problem.init} | {*problem.goal}):
        return []
    doubt = f"nothing says that {region} is open at first: does the robot have to open it?"
    return [_Phase("articulated-manipulation", f"{region} is not open at first", doubt)]


def _opens(problem: Problem, owner: str) -> bool:
    return bool(_named(problem.fixtures.get(owner, ""), ("cabinet", "microwave", "drawer", "fridge", "oven")))


def _components(phases: Sequence[_Phase]) -> tuple[str, ...]:
    """The phases' templates in order, those that are done to objects as the most demanding one of them."""
    done = [phase.template for phase in phases if phase.template in _BY_DEMAND]
    hardest = max(done, key=_BY_DEMAND.index, default=None)
    return tuple(dict.fromkeys(hardest if one.template in _BY_DEMAND and hardest else one.template for one in phases))


def _object_tags(problem: Problem) -> tuple[dict[str, str], list[str]]:
    """One object tag with its reason, and what to check; none where a moved object's kind is unknown."""
    moved = dict.fromkeys(
        arguments[0]
        for verb, *arguments in _to_do(problem)
        if verb in PLACINGS and arguments and arguments[0] in problem.objects
    )
    found: dict[str, list[str]] = {}
    doubts, unknown = [], False
    for name in moved:
        carried, shown = _carried(problem.objects[name])
        held = [one for verb, one, *on in problem.init if verb in PLACINGS and on and problem.owner(on[0]) == name]
        if carried is None or (held and carried.tag == "non_spillable"):
            unknown = True
            doubts.append(_ask(name, shown, held))
            continue
        found.setdefault(carried.tag, []).append(carried.why.format(shown))
        if carried.check:
            doubts.append(carried.check.format(shown))
    if "spillable" in found:
        return {"spillable": "; ".join(dict.fromkeys(found["spillable"]))}, doubts
    if unknown or not found:
        return {}, doubts
    return {"non_spillable": "; ".join(dict.fromkeys(found["non_spillable"]))}, doubts


def _ask(name: str, shown: str, held: Sequence[str]) -> str:
    if held:
        return f"{name} holds {', '.join(held)} at first: spillable? Without non_spillable tilt is scored"
    return (
        f"what is a {shown}? If nothing can spill, add object_tags = {{ non_spillable = '...' }}; else tilt is scored"
    )


def _carried(kind: str) -> tuple[_Carried | None, str]:
    """What is known of that class, and the name by which it goes."""
    known = {name: one for one in _kinds().carried for name in one.names}
    name = _named(kind, tuple(known))
    return (known[name], name) if name else (None, kind.replace("_", " "))


def _named(kind: str, names: Sequence[str]) -> str | None:
    """Which of the names is in a class as whole words: the one that ends last, the longest of those."""
    text = f" {kind.replace('_', ' ')} "
    found = [(text.rindex(f" {name} ") + len(name), len(name), name) for name in names if f" {name} " in text]
    return max(found)[2] if found else None


def _shown(problem: Problem, name: str) -> str:
    return problem.objects[name].replace("_", " ")


@cache
def _kinds() -> _Kinds:
    text = resources.files(__package__).joinpath("kinds.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), _Kinds)
