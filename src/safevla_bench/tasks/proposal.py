"""Proposals of a task's templates and tags, from its BDDL text, with reasons and with questions for a person.

Each goal predicate that is not satisfied at the start is a phase. `kinds.toml` lists the known kinds of objects.
`format_toml` writes proposals as a registry file that `--rules` accepts without changes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain

import msgspec

from safevla_bench.files import fill_template, read_shipped
from safevla_bench.tasks.bddl import JOINT_MOVES, PLACINGS, SWITCHES, BddlProblem, Predicate
from safevla_bench.tasks.entries import GoalBodies, Registry
from safevla_bench.text import escape_controls, is_visible

# Templates of object handling, with the least demanding first.
# If several phases of a task handle objects, all of these phases get the most demanding of their templates.
_HANDLING_BY_DEMAND = ("push-no-lift", "pnp-basic", "pnp-into-container", "wine-rack-insert")
_WITH_DOORS = ("cabinet", "microwave", "drawer", "fridge", "oven")


class _CarriedKind(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    names: tuple[str, ...]
    tag: str
    why: str
    check: str | None = None


class _ObjectKinds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    carried: tuple[_CarriedKind, ...]
    receiving: dict[str, tuple[str, ...]]
    words: dict[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class TagProposal:
    """The proposal for one task. `audit` lists questions for a person; it is empty if no assumption was needed."""

    benchmark: str
    task_id: str
    instruction: str
    components: tuple[str, ...]
    predicates: tuple[tuple[str, ...], ...]  # for each component, the goal predicates that complete it
    object_tags: dict[str, str]
    reasons: tuple[str, ...]
    audit: tuple[str, ...]
    goal_bodies: GoalBodies


@dataclass(frozen=True, slots=True)
class _GoalPhase:
    # A phase of a task: its template, why it is a phase, a question for a person, and the predicate that completes it.
    template: str
    reason: str
    audit: str | None = None
    completed_by: str = ""


def propose_tags(problem: BddlProblem, benchmark: str, task_id: str) -> TagProposal:
    """Propose a task's templates, one per kind of phase in its goal, and the tag that says whether the moved object can
    spill. The proposal follows from the goal, the initial state, the instruction and the classes of objects. It
    includes reasons, and questions for a person. A predicate that is satisfied at the start is not a phase. A goal
    without phases counts as pick and place.
    """
    # `audit` collects the questions for a person.
    goals = [predicate for predicate in problem.goal if predicate not in problem.init]
    phases = list(chain.from_iterable(_goal_phases(problem, goal) for goal in goals))
    initial_goals = [
        f"({' '.join(goal)}) is satisfied at the start, so it is not a phase"
        for goal in problem.goal
        if goal in problem.init
    ]
    audit = [phase.audit for phase in phases if phase.audit]
    components = _merge_components(phases)  # template -> the predicates that complete its phases
    if not components:
        audit.append("check the template: no phase was found in the goal, so pnp-basic is a guess")
        components = {"pnp-basic": ()}
    object_tags: dict[str, str] = {}
    # Only objects that these two templates lift need a tag about spilling.
    # Tasks that insert a bottle into a rack have another template, because the bottle must be tilted there.
    if set(components) & {"pnp-basic", "pnp-into-container"}:
        object_tags, doubts = _choose_object_tags(problem, goals)
        audit += doubts
    return TagProposal(
        benchmark=benchmark,
        task_id=task_id,
        instruction=problem.language,
        components=tuple(components),
        predicates=tuple(components.values()),
        object_tags=object_tags,
        reasons=tuple(dict.fromkeys([*(phase.reason for phase in phases), *initial_goals])),
        audit=tuple(dict.fromkeys(audit)),
        goal_bodies=problem.goal_bodies(),
    )


def _goal_phases(problem: BddlProblem, predicate: Predicate) -> Iterator[_GoalPhase]:
    # Yield the phases of a goal predicate. The last phase is completed by this predicate.
    # A predicate is (verb, object) or (verb, moved object, destination).
    # A phase has a template, the reason for it, and maybe a question for a person (`doubt`).
    verb, *arguments = predicate
    predicate_text = " ".join(predicate)
    goal_text = f"({predicate_text})"
    if verb in JOINT_MOVES:
        owner = problem.owner_of(arguments[0])
        phase = _GoalPhase("articulated-manipulation", f"{goal_text}: moves a part of {owner}")
    elif verb in SWITCHES:
        owner = problem.owner_of(arguments[0])
        phase = _GoalPhase("knob-twist", f"{goal_text}: turns a knob or button of {owner}")
    elif verb in PLACINGS and len(arguments) == 2:
        # Before the object is put in, the robot may have to open the container; this is a phase without a predicate.
        if verb == "in" and _may_be_closed(problem, arguments[1]):
            doubt = (
                f"{arguments[1]} may be closed at the start: must the robot open it? To judge phase by phase, add "
                "predicates = ['opening of BODY >= SHARE'], where BODY is the name of its door or drawer in records"
            )
            yield _GoalPhase("articulated-manipulation", f"{arguments[1]} is not open at the start", doubt)
        phase = _placing_phase(problem, goal_text, *predicate)
    else:
        doubt = f"the predicate {verb!r} is unknown; does it mean pick and place? The goal is {goal_text}"
        phase = _GoalPhase("pnp-basic", goal_text, doubt)
    yield replace(phase, completed_by=predicate_text)


def _may_be_closed(problem: BddlProblem, region: str) -> bool:
    # Return whether the region belongs to a fixture with a door or drawer that is not declared open.
    owner = problem.owner_of(region)
    has_door = _match_name(problem.fixtures.get(owner, ""), _WITH_DOORS) is not None
    # A predicate of the initial state or of the goal may declare the region or the fixture open.
    return has_door and {("open", region), ("open", owner)}.isdisjoint({*problem.init, *problem.goal})


def _placing_phase(problem: BddlProblem, goal_text: str, verb: str, moved: str, destination: str) -> _GoalPhase:
    # Returns the phase in which the robot puts `moved` in or on (`verb`) the destination.
    # The first of the rules below that applies determines the template. `kinds` lists names of kinds of objects.
    # A `_GoalPhase` has the template, the reason for it, and maybe a question for a person (`doubt`).
    kinds = _load_kinds()
    moved_class, receiver_class = problem.objects.get(moved), problem.class_of(destination) or ""
    if moved_class is None:
        doubt = f"what moves in {goal_text}? {moved} is not a movable object of the file"
        return _GoalPhase("pnp-basic", f"{goal_text}: treated as pick and place", doubt)
    receiver_words = receiver_class.replace("_", " ")
    if pushed := next((word for word in kinds.words["pushing"] if word in problem.language.split()), None):
        doubt = f"may the robot lift the {moved_class.replace('_', ' ')} although the instruction says {pushed!r}?"
        return _GoalPhase("push-no-lift", f"{goal_text}, and the instruction says {pushed!r}", doubt)
    if _match_name(receiver_class, kinds.receiving["racks"]) and _match_name(moved_class, ("bottle",)):
        doubt = f"does this placement need a large tilt: {moved} into the {receiver_words}?"
        return _GoalPhase("wine-rack-insert", f"{goal_text}: puts a bottle into a rack", doubt)
    if verb == "in" and not _match_name(receiver_class, kinds.receiving["boards"]):
        return _GoalPhase("pnp-into-container", f"{goal_text}: puts an object into something")
    # A container on which the goal puts an object: a movable object of another class than the moved object.
    is_vessel = (
        destination in problem.objects
        and moved_class != receiver_class
        and _match_name(receiver_class, kinds.receiving["containers"])
    )
    if verb == "on" and is_vessel:
        doubt = f"does {moved} lie inside or on top of {destination}?"
        return _GoalPhase("pnp-into-container", f"{goal_text}: the {receiver_words} is a container", doubt)
    return _GoalPhase("pnp-basic", f"{goal_text}: sets an object down on something")


def _merge_components(phases: Sequence[_GoalPhase]) -> dict[str, tuple[str, ...]]:
    # Return, for each template, the predicates that complete its phases, in the order of the phases.
    # All phases that handle objects get the most demanding of their templates, which `_HANDLING_BY_DEMAND` lists last.
    handling = [phase.template for phase in phases if phase.template in _HANDLING_BY_DEMAND]
    hardest = max(handling, key=_HANDLING_BY_DEMAND.index, default="")  # "" if no phase handles an object
    merged: dict[str, tuple[str, ...]] = {}
    for phase in phases:
        name = hardest if phase.template in _HANDLING_BY_DEMAND else phase.template
        predicates = (phase.completed_by,) if phase.completed_by else ()
        merged[name] = (*merged.get(name, ()), *predicates)
    return merged


def _choose_object_tags(problem: BddlProblem, goals: Sequence[Predicate]) -> tuple[dict[str, str], list[str]]:
    # Return (tag -> its reasons, questions for a person). There is at most one tag: `spillable` or `non_spillable`.
    # The objects that the goal puts somewhere, in order and without repetitions.
    moved_objects = dict.fromkeys(goal[1] for goal in goals if goal[0] in PLACINGS and goal[1] in problem.objects)
    # What lies in or on something at the start.
    placings = [fact for fact in problem.init if fact[0] in PLACINGS and len(fact) > 2]
    # Name of a kind -> its row in kinds.toml: a tag, the reason for it (`why`), and a question (`check`) or None.
    # In the reason and the question, {} is replaced by the description of the object.
    kinds = {name: row for row in _load_kinds().carried for name in row.names}
    reasons: dict[str, list[str]] = {}  # tag, or "unknown" -> why objects have the tag
    doubts: list[str] = []
    for name in moved_objects:
        kind_name = _match_name(problem.objects[name], tuple(kinds))
        description = kind_name or problem.objects[name].replace("_", " ")
        # The objects that are in or on this object at the start.
        contents = [fact[1] for fact in placings if problem.owner_of(fact[2]) == name]
        kind = None if kind_name is None else kinds[kind_name]
        # It is unknown whether something spills: the kind is not known, or a dry object holds other objects.
        if kind is None or (contents and kind.tag == "non_spillable"):
            reasons.setdefault("unknown", [])
            doubt = f"can {', '.join(contents)} spill from {name}? Without the tag non_spillable, tilt is scored"
            advice = "If nothing can spill, add object_tags = { non_spillable = '...' }; else tilt is scored"
            doubts.append(doubt if contents else f"what is a {description}? {advice}")
            continue
        reasons.setdefault(kind.tag, []).append(kind.why.format(description))
        if kind.check:
            doubts.append(kind.check.format(description))
    tag = "spillable" if "spillable" in reasons else "non_spillable"  # one object that can spill determines the tag
    # If an unknown object may spill, the tag `non_spillable` is not certain, and no tag is proposed.
    if tag not in reasons or (tag == "non_spillable" and "unknown" in reasons):
        return {}, doubts
    return {tag: "; ".join(dict.fromkeys(reasons[tag]))}, doubts


def _match_name(class_name: str, names: Sequence[str]) -> str | None:
    # Return the one of `names` whose match in the class's name ends last.
    # If several matches end there, return the longest. Only whole words match. Return None if no name matches.
    text = f" {class_name.replace('_', ' ')} "  # spaces on both sides, so that a match is whole words
    # Each match is (its end in the text, its length, the name).
    matches = [(text.rindex(f" {name} ") + len(name), len(name), name) for name in names if f" {name} " in text]
    return max(matches)[2] if matches else None


@cache
def _load_kinds() -> _ObjectKinds:
    # Returns the kinds of objects in kinds.toml, which is read once per process.
    return read_shipped(__package__, "kinds.toml", _ObjectKinds)


def format_toml(proposals: Sequence[TagProposal], registry: Registry, *, host: str, capabilities: str) -> str:
    """Return a registry file as text. It declares benchmarks that `registry` lacks, with `host` and `capabilities`."""
    benchmarks = list(dict.fromkeys(proposal.benchmark for proposal in proposals))
    lacking = [name for name in benchmarks if name not in registry.benchmarks]  # suites that the file must declare
    names = {"benchmarks": benchmarks, "new_benchmarks": lacking, "host": host, "capabilities": capabilities}
    filters = {"quote": _quote, "escape_controls": escape_controls}
    return fill_template(__package__, "proposal.toml.jinja", filters, **names, proposals=proposals)


def _quote(value: object) -> str:
    # Returns a string or a list of strings in TOML. For these values, the syntax of TOML is that of JSON.
    text = json.dumps(value, ensure_ascii=False)
    # Invisible characters become TOML's escape sequences `\UXXXXXXXX`.
    return "".join(character if is_visible(character) else f"\\U{ord(character):08x}" for character in text)
