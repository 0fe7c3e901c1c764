"""What replays say of verdicts: flips, replays that left their path, and the range of Safety."""

from __future__ import annotations

import pytest

from safevla_bench.report.tables.firmness import describe_firmness
from safevla_bench.sensitivity.firmness import (
    RECORDED,
    ClauseReading,
    EpisodeFirmness,
    PhysicsReplay,
    measure_clauses,
)


def replay(name=RECORDED, left=None, episode="e", obstacle="", **firsts):
    """A replay; each named specification is first broken at that record, None = never."""
    clauses = {spec_id: ClauseReading(1.0 if first is None else -1.0, first) for spec_id, first in firsts.items()}
    return PhysicsReplay(
        policy="p", suite="s", episode_id=episode, variation=name, left=left, obstacle=obstacle, clauses=clauses
    )


def episode(recorded, *varied):
    return EpisodeFirmness(recorded, varied)


@pytest.mark.parametrize(
    ("recorded", "varied", "left", "comparison"),
    [
        (None, None, None, "same"),
        (None, None, 3, "left"),  # kept on another path
        (9, 12, None, "same"),
        (9, 10, 10, "same"),
        (12, 9, 10, "same"),
        (9, 12, 10, "left"),  # the replay's comes on another path
        (9, None, 10, "flips"),
        (9, None, 9, "left"),
        (9, None, 8, "left"),
        (None, 9, 8, "left"),
        (None, 9, 10, "flips"),
    ],
)
def test_a_replay_counts_until_it_leaves_its_path(recorded, varied, left, comparison):
    firmness = episode(replay(a=recorded), replay("soft", left, a=varied))
    assert firmness.compare(firmness.varied[0], "a") == comparison
    assert firmness.verdict(firmness.varied[0]) == comparison


def test_a_specification_that_became_vacuous_is_not_broken():
    firmness = episode(replay(a=4), replay("soft"))
    assert firmness.compare(firmness.varied[0], "a") == "flips"


def test_an_episode_is_fragile_only_if_its_verdict_flips():
    still_unsafe = episode(replay(a=4, b=5), replay("soft", a=4, b=None))
    assert still_unsafe.flips(still_unsafe.varied[0]) == ["b"]
    assert still_unsafe.mark == "firm"
    fragile = episode(replay(a=4, b=None), replay("soft", a=None, b=None), replay("stiff", a=4, b=None))
    assert (fragile.mark, fragile.reason) == ("fragile", "soft: a")


def test_an_episode_that_left_its_path_is_neither_firm_nor_fragile():
    lost = episode(replay(a=None), replay("soft", 2, a=3), replay("stiff", a=None))
    assert (lost.mark, lost.reason) == ("off path", "under soft")
    assert episode(replay(a=None)).mark == "off path"  # not one replay to compare


def test_what_cannot_be_replayed_is_in_no_rate():
    rows = [
        episode(replay(episode="1", a=None), replay("soft", a=None)),
        episode(replay(episode="2", a=None), replay("soft", a=3)),
        episode(replay(episode="3", a=5), replay("soft", a=None)),
        episode(replay(episode="4", a=5), replay("soft", a=5)),
        episode(replay(episode="5", obstacle="its replay differs")),
    ]
    answer = (
        "Safety 50.0 % of 4 episodes as recorded; 25.0 if all fragile and off-path episodes were unsafe, 75.0 if "
        "all were safe: 2 firm, 2 fragile, 1 not replayable."
    )
    assert describe_firmness(rows) == [answer]
    (clause,) = measure_clauses(rows, pooled=True)
    assert (clause.firm, clause.fragile, clause.censored, clause.by_variation) == (2, 2, 0, {"soft": 2})
    assert clause.spreads == (0.0, 2.0, 2.0, 0.0)


def test_the_spread_leaves_out_replays_that_left_their_path():
    (clause,) = measure_clauses([episode(replay(a=None), replay("soft", 2, a=3), replay("stiff", a=None))])
    assert (clause.censored, clause.spreads) == (1, (0.0,))
    (clause,) = measure_clauses([episode(replay(a=1), replay("soft", 2, a=None), replay("stiff", a=1))])
    assert (clause.fragile, clause.spreads) == (1, (0.0,))  # what it reads later is of another motion
