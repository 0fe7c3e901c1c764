"""Formulas select bodies by role, name or pattern. For each suite, list the matches and recorded channels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import NamedTuple

from safevla_bench.signals.signal import SIGNALS, RecordFields
from safevla_bench.signals.space import MOVING_PLACES, PLACED_FORMS, WORLD, recorded_bodies
from safevla_bench.stl.formula import Formula, signal_names
from safevla_bench.text import matches_pattern
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.header import ROLES

# Maps a field of records to the name of the body property that it stores.
_FACT_OF_FIELD = {"body_pos_m": "pose", "body_quat_wxyz": "rotation", "body_shapes": "shape", "opening": "opening"}
_MOST_BODIES = 12  # maximum number of bodies that a line names
_TRACKED = "tracked "  # prefix of a role whose bodies need a pose; also the name of a property


class BodyFacts(NamedTuple):
    """The roles of a body in a suite, and the properties that are recorded."""

    roles: frozenset[str]
    facts: frozenset[str]  # properties that are recorded in every episode that has the body

    def describe(self) -> str:
        """Return the roles, and the recorded and missing properties: `bystander; pose, no rotation, no shape`."""
        # `facts` has the recorded properties. The values of `_FACT_OF_FIELD` are the properties in the text.
        words = [name if name in self.facts else f"no {name}" for name in _FACT_OF_FIELD.values()]
        words = [word for word in words if word != "no opening"]  # omitted, because most bodies cannot open
        return f"{'/'.join(sorted(self.roles))}; {', '.join(words)}"


SuiteBodies = Mapping[str, Mapping[str, BodyFacts]]  # maps suite and body to the properties of the body


def collect_bodies(chunks: Iterable[Batch]) -> SuiteBodies:
    """Return suite -> name of a body -> its roles and recorded properties, in order of first appearance."""
    suites: dict[str, dict[str, BodyFacts]] = {}
    for batch in chunks:
        fields = RecordFields(batch)
        for episode, header in enumerate(batch.headers):
            # For each property, the indices of the bodies that have this property recorded in this episode.
            bodies_by_fact = {fact: recorded_bodies(fields, field, episode) for field, fact in _FACT_OF_FIELD.items()}
            bodies_by_fact[_TRACKED] = {*batch.body_pos_m.episode_poses(episode)[0].tolist()}
            facts_by_body, first_body = suites.setdefault(header.benchmark, {}), int(batch.body_starts[episode])
            for body, (name, role) in enumerate(batch.body_roles(episode).items(), start=first_body):
                facts = frozenset(fact for fact, bodies in bodies_by_fact.items() if body in bodies)
                # A body may have several roles. A property counts only if every episode with the body has it.
                earlier = facts_by_body.get(name, BodyFacts(frozenset(), facts))
                facts_by_body[name] = BodyFacts(earlier.roles | {role}, earlier.facts & facts)
    return suites


def list_places(formulas: Iterable[Formula]) -> tuple[str, ...]:
    """Return the roles, names and patterns of bodies in the formulas, in order of first appearance. A role becomes
    `tracked ROLE` if the signal with this role considers only tracked bodies.
    """
    # A place is an argument of a signal of space that selects bodies, such as `robot`, `plate_1` or `cup*`.
    # `selector` (None for some signals) says which bodies a signal reads.
    # `selector.call` has the kind of the signal, such as `distance`, and the signal's arguments, places first.
    # For a signal that is not about space, the kind is "".
    places: list[str] = []
    names = [name for formula in formulas for name in sorted(signal_names(formula))]
    for selector in (SIGNALS[name].bodies for name in names):
        if selector is not None and selector.call[0]:
            form_name, arguments = selector.call
            form = PLACED_FORMS[form_name]
            # Gaps, distances to persons, and channels with a value per body need no tracked poses.
            needs_no_pose = form.is_gap or form.channel or form.person_column is not None
            for place in map(str, arguments[: len(form.places)]):
                places.append(place if needs_no_pose or place not in ROLES else f"{_TRACKED}{place}")
    # Leave out places that are not bodies of the scene: the world and the moving places, such as the held object.
    return tuple(dict.fromkeys(place for place in places if place not in (*MOVING_PLACES, WORLD)))


def describe_places(places: Sequence[str], suites: SuiteBodies) -> Iterator[str]:
    """Yield a line per body selector and suite: the matching bodies with recorded properties, or the closest names."""
    # `places` are the body selectors: roles, `tracked ROLE` (bodies with poses), names, and patterns of names.
    for place in places:
        role = place.removeprefix(_TRACKED)
        for suite, bodies in suites.items():
            matching = [name for name, facts in bodies.items() if _is_match(place, name, facts)]
            if matching:
                result = ", ".join(f"{name} ({bodies[name].describe()})" for name in matching[:_MOST_BODIES])
                if len(matching) > _MOST_BODIES:
                    result += f" and {len(matching) - _MOST_BODIES} more"
            elif role in ROLES:
                note = "" if role == place else "; the signal `gap` also matches links and fixed bodies"
                result = f"no body{note}"
            else:
                known_names = (*bodies, *MOVING_PLACES, *ROLES)
                closest = get_close_matches(place.strip("*"), known_names, n=3, cutoff=0.3) or sorted(bodies)[:3]
                result = f"no body; closest: {', '.join(closest) or 'none is recorded'}"
            yield f"{place} in {suite}: {result}"


def _is_match(place: str, name: str, facts: BodyFacts) -> bool:
    # Returns whether `place` selects the body `name`.
    # `place` is a role, `tracked ROLE` (bodies of a role with recorded poses), a body's name, or a pattern of names.
    # `facts.facts` are the body's recorded properties. `_TRACKED` is both a property and a prefix.
    role = place.removeprefix(_TRACKED)
    if role != place and _TRACKED not in facts.facts:
        return False
    return role in facts.roles if role in ROLES else matches_pattern(name, place)


def describe_unmatched(places: Sequence[str], suites: SuiteBodies) -> Iterator[str]:
    """Yield lines (the closest names, per suite) for each body selector that matches no body in any suite."""
    for place in places:
        # One line for each suite; it contains `: no body` if no body of the suite matches.
        lines = list(describe_places([place], suites))
        if all(": no body" in line for line in lines):
            yield from lines
