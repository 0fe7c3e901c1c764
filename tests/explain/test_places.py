"""The bodies that the places of formulas match, suite by suite."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from builders import BOWL, PLATE, episode
from safevla_bench.explain.places import SuiteBodies, collect_bodies, describe_places, describe_unmatched, list_places
from safevla_bench.signals import parse_signal_formula
from safevla_bench.stl.parser import parse_formula

BATCH = episode(4, pos_bodies=[BOWL, PLATE], body_pos_m=episode(4).body_pos_m.episode_poses(0)[1][:, :2])


def test_places_are_roles_names_and_patterns_in_the_order_of_the_formulas() -> None:
    text = 'G(distance(eef, "pla*") > 0.1 -> clearance(held, drawer, 0, 0, 0, 1, 1, 1) > 0)'
    assert set(list_places([parse_signal_formula(text)])) == {"pla*", "drawer"}
    moving = 'G(over(handled, "pla*") > 0.1 & distance(eef, held) > 0.1)'
    assert list_places([parse_signal_formula(moving)]) == ("pla*",)


def found(places: Sequence[str], suites: SuiteBodies) -> Iterator[tuple[str, str]]:
    """Yield each place with the first three words on it."""
    for line in describe_places(places, suites):
        place, _, said = line.partition(": ")
        yield place.partition(" in ")[0], " ".join(said.split()[:3])


def test_of_a_role_the_bodies_that_the_form_sees_are_listed() -> None:
    text = "G(distance(eef, furniture) > 0.1 or gap(eef, furniture) > 0.1 or speed(bystander) > 1 m/s)"
    places = list_places([parse_formula(text)])
    assert places == ("tracked furniture", "furniture", "tracked bystander")
    assert list(found(places, collect_bodies([BATCH]))) == [
        ("tracked furniture", "no body; the"),
        ("furniture", "drawer (furniture; no"),
        ("tracked bystander", "plate (bystander; pose,"),
    ]


def test_each_match_says_what_is_recorded_and_what_is_missing() -> None:
    suites = collect_bodies([BATCH])
    assert list(found(["pla*", "furniture", "bystander"], suites)) == [
        ("pla*", "plate (bystander; pose,"),
        ("furniture", "drawer (furniture; no"),
        ("bystander", "plate (bystander; pose,"),
    ]


def test_a_pattern_without_a_match_is_named_with_the_closest_names() -> None:
    (line,) = describe_places(["plates*"], collect_bodies([BATCH]))
    assert "closest: plate" in line


def test_of_a_formula_the_places_that_match_nowhere_are_named() -> None:
    lines = list(describe_unmatched(["plate", "plates", "bystander"], collect_bodies([BATCH])))
    (line,) = lines
    assert "closest: plate" in line


def test_a_fact_holds_if_every_record_of_the_suite_with_the_body_has_it() -> None:
    posed = episode(4, episode_id="other")
    assert collect_bodies([posed])["libero-goal"]["drawer"].facts == {"pose", "tracked "}
    assert collect_bodies([posed, BATCH])["libero-goal"]["drawer"].facts == set()
