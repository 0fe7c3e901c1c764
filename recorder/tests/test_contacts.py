"""Static contacts: resting pairs count once they were apart, mechanical ones never, everything else always."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from safevla_recorder.contacts import ContactFilter, GeomMap, MeasuredContacts, contact_peaks, supported_bodies
from safevla_recorder.mujoco.contacts import ConstraintContacts

# Geoms and the bodies that own them: table, bowl (two geoms), plate, two links, two fingers.
TABLE, BOWL_A, BOWL_B, PLATE, LINK_1, LINK_2, LEFT, RIGHT = range(8)
PLACE = np.array([0, 1, 1, 2, 3, 4, 5, 6])
ROBOT = np.array([False, False, False, True, True, True, True])
ROLES = {f"body_{k}": "robot" if robot else "furniture" for k, robot in enumerate(ROBOT)}
FINGERS = np.array([0, 0, 0, 0, 0, 0, 1, 2])


def touches(*substeps: tuple[tuple[int, int], ...]) -> ConstraintContacts:
    rows = [(k, a, b) for k, pairs in enumerate(substeps) for a, b in pairs]
    substep, geom1, geom2 = (np.array([row[i] for row in rows], dtype=np.int32) for i in range(3))
    nothing = np.zeros(len(rows), dtype=np.int32)
    return ConstraintContacts(
        len(substeps), substep, geom1, geom2, nothing, nothing + 3, None, np.zeros(3), np.zeros((len(rows), 9))
    )


def filter_of(*pairs: tuple[int, int], apart: int = 1) -> ContactFilter:
    return ContactFilter(GeomMap(ROLES, PLACE, FINGERS, 0 * PLACE, 0.002, apart), touches(pairs))


def count(filtered: ContactFilter, *substeps: tuple[tuple[int, int], ...]) -> list[bool]:
    return filtered.mark_counted(touches(*substeps)).tolist()


TABLE_BOWL, LINKS = (TABLE, BOWL_A), (LINK_1, LINK_2)
RULES = {
    "a resting pair does not count while it stays": ([TABLE_BOWL], [[TABLE_BOWL], [TABLE_BOWL]], [False, False]),
    "it counts when it forms again": (
        [TABLE_BOWL],
        [[TABLE_BOWL], [], [TABLE_BOWL], [TABLE_BOWL]],
        [False, True, True],
    ),
    "another geom of the same body counts": ([TABLE_BOWL], [[TABLE_BOWL, (TABLE, BOWL_B)]], [False, True]),
    "the order of geoms does not matter": ([TABLE_BOWL], [[(BOWL_A, TABLE)]], [False]),
    "robot contacts with anything else count": ([(LINK_1, TABLE)], [[(LINK_1, TABLE)]], [True]),
    "robot links touching in record 0 never count": ([LINKS], [[LINKS], [], [LINKS[::-1]]], [False, False]),
    "robot links apart in record 0 count": ([], [[LINKS]], [True]),
    "fingers of one gripper never count": ([], [[(LEFT, RIGHT), (RIGHT, LEFT)]], [False, False]),
    "fingers that touched never count": ([(LEFT, RIGHT)], [[], [(LEFT, RIGHT)]], [False]),
    "geoms of one body never count": ([], [[(BOWL_A, BOWL_B)]], [False]),
    "geoms of one body that touched never count": ([(BOWL_A, BOWL_B)], [[], [(BOWL_A, BOWL_B)]], [False]),
    "a finger on another link counts": ([], [[(LEFT, LINK_1)]], [True]),
}


@pytest.mark.parametrize(("first", "substeps", "expected"), RULES.values(), ids=RULES)
def test_what_counts_follows_from_the_contacts_of_record_0(first, substeps, expected):
    assert count(filter_of(*first), *substeps) == expected


def test_what_was_released_or_separated_in_a_block_is_remembered_in_the_next():
    resting = filter_of(TABLE_BOWL, (TABLE, PLATE))
    assert count(resting, ((TABLE, PLATE), TABLE_BOWL), ((TABLE, PLATE),)) == [False, False, False]
    assert count(resting, (TABLE_BOWL, (TABLE, PLATE))) == [True, False]
    assert count(resting, (TABLE_BOWL,)) == [True]


@given(st.lists(st.booleans(), min_size=1, max_size=30), st.integers(1, 5), st.lists(st.integers(1, 29), max_size=4))
def test_a_host_may_ask_for_so_many_substeps_apart_in_a_row_across_blocks_too(touching, apart, cuts):
    away, expected = 0, []
    released = False
    for here in touching:
        if here:
            expected.append(released)
        away = 0 if here else away + 1
        released = released or away >= apart
    resting = filter_of((TABLE, BOWL_A), apart=apart)
    edges = sorted({0, len(touching), *(cut for cut in cuts if cut < len(touching))})
    counts = []
    for start, end in zip(edges, edges[1:]):
        counts += count(resting, *(((TABLE, BOWL_A),) if here else () for here in touching[start:end]))
    assert counts == expected


NONE, BOTH = (), (TABLE_BOWL, (TABLE, PLATE))


@pytest.mark.parametrize(
    ("blocks", "expected"),
    [
        ([[NONE], [NONE], [NONE, BOTH]], [True, True]),
        ([[NONE, NONE], [NONE, BOTH]], [True, True]),
        ([[NONE], [NONE, BOTH]], [False, False]),
        ([[NONE, NONE], [BOTH], [NONE], [NONE, BOTH]], [False] * 4),
        ([[NONE, NONE], [(TABLE_BOWL,), NONE], [NONE, BOTH]], [False, False, True]),
    ],
)
def test_substeps_apart_add_up_over_blocks_and_begin_again_with_each_contact_of_the_pair(blocks, expected):
    resting = filter_of(*BOTH, apart=3)
    assert [counts for block in blocks for counts in count(resting, *block)] == expected


def test_a_resting_pair_counts_after_one_substep_apart_unless_the_host_asks_for_more():
    resting = ContactFilter(GeomMap(ROLES, PLACE, FINGERS, 0 * PLACE, 0.002), touches((TABLE_BOWL,)))
    assert count(resting, (), (TABLE_BOWL,)) == [True]


@pytest.mark.parametrize(("options", "peak"), [({}, 4.0), ({"are_net": True}, 7.0)])
def test_forces_are_those_at_single_points_unless_they_are_said_to_be_net(options, peak):
    forces = np.array([[0.0, 0.0, 3.0], [0.0, 0.0, 4.0]])
    pair = np.array([TABLE, TABLE]), np.array([BOWL_A, BOWL_B])
    contacts = MeasuredContacts(1, np.array([0, 0]), *pair, forces, **options)
    peaks = contact_peaks(contacts, np.arange(2), np.array([0]), PLACE, 0.5)
    assert (peaks.force_n.tolist(), peaks.net_force_n.tolist(), peaks.impulse_ns.tolist()) == ([peak], [7.0], [3.5])


def test_a_scene_without_geoms_has_no_contacts():
    none = np.array([], dtype=np.int64)
    contacts = MeasuredContacts(2, none, none, none, np.zeros((0, 3)))
    peaks = contact_peaks(contacts, none, np.array([0, 0]), none, 0.5)
    assert (len(peaks.record), len(peaks.force_n), len(peaks.net_force_n)) == (0, 0, 0)


def test_dropped_pairs_are_the_resting_and_mechanical_bodies_once_each():
    dropped = filter_of((TABLE, BOWL_A), (BOWL_B, TABLE), (LINK_2, LINK_1), (LINK_1, TABLE), (BOWL_A, BOWL_B)).dropped
    assert dropped == ((0, 1), (3, 4), (5, 6))


def test_an_empty_contact_list_releases_what_rested():
    resting = filter_of((TABLE, BOWL_A))
    assert count(resting, (), ()) == []
    assert count(resting, ((TABLE, BOWL_A),)) == [True]


PAIRS = [(a, b) for a in range(8) for b in range(8) if a != b]
LISTS = st.lists(st.sampled_from(PAIRS), max_size=6, unique=True).map(tuple)


def plain(first, substeps):
    """The rule, a pair and a substep at a time."""
    robot = [bool(ROBOT[PLACE[geom]]) for geom in range(8)]
    rests = {frozenset(p) for p in first if not (robot[p[0]] or robot[p[1]])}
    links = {frozenset(PLACE[list(p)].tolist()) for p in first if robot[p[0]] and robot[p[1]]}
    result = []
    for pairs in substeps:
        for a, b in pairs:
            never = PLACE[a] == PLACE[b] or {a, b} == {LEFT, RIGHT} or frozenset((PLACE[a], PLACE[b])) in links
            result.append(not (never or frozenset((a, b)) in rests))
        rests &= {frozenset(p) for p in pairs}
    return result


@given(first=LISTS, substeps=st.lists(LISTS, min_size=1, max_size=12), cut=st.integers(0, 12))
def test_the_filter_is_the_rule_wherever_blocks_are_cut(first, substeps, cut):
    judged, blocks = filter_of(*first), [block for block in (substeps[:cut], substeps[cut:]) if block]
    assert [is_counted for block in blocks for is_counted in count(judged, *block)] == plain(first, substeps)


def test_the_rule_itself_sees_a_wrong_filter():
    """The oracle above distinguishes resting from counted."""
    assert plain([(TABLE, BOWL_A)], [((TABLE, BOWL_A),), (), ((TABLE, BOWL_A),)]) == [False, True]


def test_parts_of_one_fixture_never_count_resting_or_apart_and_are_dropped_by_pairs():
    fixtures = np.array([0, 1, 1, 1, 2, 2, 0, 0])  # bowl and plate; both links
    judged = ContactFilter(GeomMap(ROLES, PLACE, FINGERS, fixtures, 0.002), touches(((BOWL_A, PLATE),)))
    assert count(judged, (), ((BOWL_A, PLATE), (PLATE, BOWL_B), (LINK_1, LINK_2))) == [False] * 3
    assert count(judged, ((BOWL_A, LINK_1), (TABLE, PLATE))) == [True, True]
    assert judged.dropped == ((1, 2), (3, 4), (5, 6))


@given(
    up=st.lists(st.floats(-3.0, 3.0), min_size=3, max_size=3),
    holder=st.sampled_from([TABLE, PLATE, LINK_1, LEFT, BOWL_B]),
    is_first=st.booleans(),
    instants=st.sampled_from([[0], [1], [0, 1]]),
)
def test_a_body_is_supported_if_other_contacts_than_the_robots_carry_half_its_weight(up, holder, is_first, instants):
    """The bowl weighs 2 N; all contacts of the second substep are with one holder, the first has none."""
    geoms = GeomMap(ROLES, PLACE, FINGERS, 0 * PLACE, 0.002, weights={1: np.array([0.0, 0.0, 2.0])})
    side = np.array([[0.5, 9.0, force] for force in up])
    bowl, other = np.full(3, BOWL_A), np.full(3, holder)
    pair = (bowl, other, -side) if is_first else (other, bowl, side)
    contacts = MeasuredContacts(2, np.ones(3, dtype=np.int64), *pair)
    is_carried = holder in (TABLE, PLATE) and sum(up) >= 1.0
    if holder in (TABLE, PLATE) and abs(sum(up) - 1.0) < 1e-9:
        return
    expected = [[substep == 1 and is_carried] for substep in instants]
    assert supported_bodies(contacts, np.array(instants), geoms).tolist() == expected
