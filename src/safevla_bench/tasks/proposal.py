"""Proposals of template and tags for a task, from its BDDL text, with reasons and questions for a person.

Each goal predicate that does not hold from the start is a phase. `kinds.toml` lists the kinds of objects. `format_toml`
writes proposals as a registry file that `--rules` reads unchanged.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

import msgspec
from msgspec.structs import asdict

from safevla_bench.tasks.bddl import JOINT_MOVES, PLACINGS, SWITCHES, BddlProblem, Predicate
from safevla_bench.tasks.entries import GoalBodies, Registry
from safevla_bench.text import escape_controls

_BY_DEMAND = ("push-no-lift", "pnp-basic", "pnp-into-container", "wine-rack-insert")
"""Templates of object handling, the least demanding first. Several such phases become the most demanding one."""

_HEAD = (
    "# Proposed by `safevla tasks --propose` from the goals. A person should answer each line beginning with `# audit`",
    "# and change the task where the answer asks for it. Then: safevla score SOURCE --out DIR --rules THIS_FILE",
)


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
    """The proposal for one task. `audit` holds questions for a person; it is empty if nothing had to be assumed."""

    benchmark: str
    task_id: str
    instruction: str
    components: tuple[str, ...]
    object_tags: dict[str, str]
    reasons: tuple[str, ...]
    audit: tuple[str, ...]
    goal_bodies: GoalBodies

    @property
    def template(self) -> str | None:
        """The template, None if there are several."""
        return self.components[0] if len(self.components) == 1 else None


@dataclass(frozen=True, slots=True)
class _GoalPhase:
    template: str
    reason: str
    audit: str | None = None


def propose_tags(problem: BddlProblem, benchmark: str, task_id: str) -> TagProposal:
    """Return a task's templates, one per kind of phase of its goal, and whether what it moves can spill.

    They follow from goal, initial state, instruction and the classes of the objects, with reasons and what to check by
    hand. A part of the goal that holds from the start is not a phase; a goal without any counts as pick and place.
    """
    phases = [phase for predicate in _open_goals(problem) for phase in _goal_phases(problem, predicate)]
    initial_goals = [
        f"({' '.join(goal)}) holds from the start: no phase" for goal in problem.goal if goal in problem.init
    ]
    audit = [phase.audit for phase in phases if phase.audit]
    components = _merge_components(phases)
    if not components:
        audit.append("no phase was found in the goal: pnp-basic is a mere guess")
        components = ("pnp-basic",)
    object_tags: dict[str, str] = {}
    if set(components) & {"pnp-basic", "pnp-into-container"} and "wine-rack-insert" not in components:
        object_tags, doubts = _choose_object_tags(problem)
        audit += doubts
    return TagProposal(
        benchmark=benchmark,
        task_id=task_id,
        instruction=problem.language,
        components=components,
        object_tags=object_tags,
        reasons=tuple(dict.fromkeys([*(phase.reason for phase in phases), *initial_goals])),
        audit=tuple(dict.fromkeys(audit)),
        goal_bodies=problem.goal_bodies(),
    )


def _open_goals(problem: BddlProblem) -> tuple[Predicate, ...]:
    return tuple(predicate for predicate in problem.goal if predicate not in problem.init)


def _goal_phases(problem: BddlProblem, predicate: Predicate) -> list[_GoalPhase]:
    """Return the phases that one goal predicate asks for."""
    verb, *arguments = predicate
    goal_text = f"({' '.join(predicate)})"
    if verb in JOINT_MOVES and arguments:
        return [
            _GoalPhase(
                "articulated-manipulation", f"{goal_text}: a part of {problem.owner_of(arguments[0])} has to move"
            )
        ]
    if verb in SWITCHES and arguments:
        return [_GoalPhase("knob-twist", f"{goal_text}: a knob or button of {problem.owner_of(arguments[0])}")]
    if verb in PLACINGS and len(arguments) == 2:
        return _placing_phases(problem, goal_text, *predicate)
    return [_GoalPhase("pnp-basic", goal_text, f"the predicate {verb!r} is unknown: is {goal_text} a pick and place?")]


def _placing_phases(problem: BddlProblem, goal_text: str, verb: str, moved: str, place: str) -> list[_GoalPhase]:
    """Return the phases of putting the object `moved` at `place`, each with its reason and, where unsure, a doubt."""
    kinds, receiver = _load_kinds(), problem.class_of(place) or ""
    if moved not in problem.objects:
        doubt = f"{moved} is no movable object of the file: what moves in {goal_text}?"
        return [_GoalPhase("pnp-basic", f"{goal_text}: taken for a pick and place", doubt)]
    pushed = next((word for word in kinds.words["pushing"] if word in problem.language.split()), None)
    if pushed:
        thing = problem.objects[moved].replace("_", " ")
        doubt = f"the instruction says {pushed!r}: may the {thing} be lifted all the same?"
        return [_GoalPhase("push-no-lift", f"{goal_text}, and the instruction says {pushed!r}", doubt)]
    if _match_name(receiver, kinds.receiving["racks"]) and _match_name(problem.objects[moved], ("bottle",)):
        doubt = f"does it take a large tilt to put {moved} into the {receiver.replace('_', ' ')}?"
        return [_GoalPhase("wine-rack-insert", f"{goal_text}: a bottle into a rack", doubt)]
    if verb == "in" and not _match_name(receiver, kinds.receiving["boards"]):
        shut = _opening_phases(problem, place)
        into = _GoalPhase("pnp-into-container", f"{goal_text}: an object into something")
        return [*shut, into]
    stacked = problem.objects[moved] == receiver
    if (
        verb == "on"
        and not stacked
        and place in problem.objects
        and _match_name(receiver, kinds.receiving["containers"])
    ):
        doubt = f"does {moved} lie in {place}, or on top of it?"
        return [_GoalPhase("pnp-into-container", f"{goal_text}: the {receiver.replace('_', ' ')} holds things", doubt)]
    return [_GoalPhase("pnp-basic", f"{goal_text}: an object set down on something")]


def _opening_phases(problem: BddlProblem, region: str) -> list[_GoalPhase]:
    owner = problem.owner_of(region)
    fixture = problem.fixtures.get(owner, "")
    if not _match_name(fixture, ("cabinet", "microwave", "drawer", "fridge", "oven")):
        return []
    opened = {("open", region), ("open", owner)}
    if opened & ({*problem.init} | {*problem.goal}):
        return []
    doubt = f"nothing says that {region} is open at first: does the robot have to open it?"
    return [_GoalPhase("articulated-manipulation", f"{region} is not open at first", doubt)]


def _merge_components(phases: Sequence[_GoalPhase]) -> tuple[str, ...]:
    handling = [phase.template for phase in phases if phase.template in _BY_DEMAND]
    hardest = max(handling, key=_BY_DEMAND.index, default=None)
    return tuple(
        dict.fromkeys(hardest if phase.template in _BY_DEMAND and hardest else phase.template for phase in phases)
    )


def _choose_object_tags(problem: BddlProblem) -> tuple[dict[str, str], list[str]]:
    """Return spillable or non_spillable with its reason, and what to check."""
    moved = dict.fromkeys(
        arguments[0]
        for verb, *arguments in _open_goals(problem)
        if verb in PLACINGS and arguments and arguments[0] in problem.objects
    )
    kinds = {name: row for row in _load_kinds().carried for name in row.names}
    reasons_by_tag: dict[str, list[str]] = {}
    doubts, unknown = [], False
    for name in moved:
        kind = problem.objects[name]
        known = _match_name(kind, tuple(kinds))
        carried, class_words = (kinds[known], known) if known else (None, kind.replace("_", " "))
        contents = [
            item
            for verb, item, *places in problem.init
            if verb in PLACINGS and places and problem.owner_of(places[0]) == name
        ]
        if carried is None or (contents and carried.tag == "non_spillable"):
            unknown = True
            doubts.append(_kind_question(name, class_words, contents))
            continue
        reasons_by_tag.setdefault(carried.tag, []).append(carried.why.format(class_words))
        if carried.check:
            doubts.append(carried.check.format(class_words))
    if "spillable" in reasons_by_tag:
        return {"spillable": "; ".join(dict.fromkeys(reasons_by_tag["spillable"]))}, doubts
    if unknown or not reasons_by_tag:
        return {}, doubts
    return {"non_spillable": "; ".join(dict.fromkeys(reasons_by_tag["non_spillable"]))}, doubts


def _kind_question(name: str, class_words: str, contents: Sequence[str]) -> str:
    if contents:
        return f"{name} holds {', '.join(contents)} at first: spillable? Without non_spillable tilt is scored"
    remedy = "If nothing can spill, add object_tags = { non_spillable = '...' }; else tilt is scored"
    return f"what is a {class_words}? {remedy}"


def _match_name(kind: str, names: Sequence[str]) -> str | None:
    text = f" {kind.replace('_', ' ')} "
    matches = [(text.rindex(f" {name} ") + len(name), len(name), name) for name in names if f" {name} " in text]
    return max(matches)[2] if matches else None


@cache
def _load_kinds() -> _ObjectKinds:
    text = resources.files(__package__).joinpath("kinds.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), _ObjectKinds)


def format_toml(proposals: Sequence[TagProposal], registry: Registry, *, host: str, capabilities: str) -> str:
    """Return the registry file's text; it declares benchmarks that `registry` lacks, with host and capability set."""
    lines = list(_HEAD)
    for benchmark in dict.fromkeys(proposal.benchmark for proposal in proposals):
        if benchmark not in registry.benchmarks:
            lines += ["", f"[benchmarks.{_quote(benchmark)}]", f"host = {_quote(host)}"]
            lines += [f"capabilities = {_quote(capabilities)}"]
    for proposal in proposals:
        lines += ["", *_task_lines(proposal)]
    for benchmark in dict.fromkeys(proposal.benchmark for proposal in proposals):
        lines += ["", f"[goal_bodies.{_quote(benchmark)}]"]
        lines += [_goal_bodies_line(proposal) for proposal in proposals if proposal.benchmark == benchmark]
    return "\n".join(lines) + "\n"


def proposal_rows(proposals: Sequence[TagProposal]) -> list[dict[str, object]]:
    """Return a plain row per proposal. It has `template`, or `components` where it has several phases."""
    return [
        {
            **_task_keys(proposal),
            "object_tags": dict(proposal.object_tags),
            "reasons": list(proposal.reasons),
            "audit": list(proposal.audit),
            "goal_bodies": {name: list(bodies) for name, bodies in asdict(proposal.goal_bodies).items()},
        }
        for proposal in proposals
    ]


def _task_keys(proposal: TagProposal) -> dict[str, object]:
    return {
        "benchmark": proposal.benchmark,
        "task_id": proposal.task_id,
        **({"template": proposal.template} if proposal.template else {"components": list(proposal.components)}),
        "instruction": proposal.instruction,
    }


def _task_lines(proposal: TagProposal) -> list[str]:
    """Return the lines of a proposal's [[tasks]] table in TOML, then comments with its reasons and questions."""
    lines = ["[[tasks]]", *(f"{key} = {_quote(value)}" for key, value in _task_keys(proposal).items())]
    if proposal.object_tags:
        tags = ", ".join(f"{tag} = {_quote(reason)}" for tag, reason in proposal.object_tags.items())
        lines.append(f"object_tags = {{ {tags} }}")
    lines += [f"# why: {escape_controls(reason)}" for reason in proposal.reasons]
    return lines + [f"# audit: {escape_controls(question)}" for question in proposal.audit]


def _goal_bodies_line(proposal: TagProposal) -> str:
    named = [f"{name} = {_quote(list(bodies))}" for name, bodies in asdict(proposal.goal_bodies).items() if bodies]
    return f"{_quote(proposal.task_id)} = {{ {', '.join(named)} }}".replace("{  }", "{}")


def _quote(value: object) -> str:
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
