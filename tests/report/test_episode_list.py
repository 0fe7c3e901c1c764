"""The list of episodes: rows, filters, orders, and the search for one."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from builders import crash
from report.scenes import NAN, verdicts
from safevla_bench.errors import RunError
from safevla_bench.report import episode_list

GONE = crash(episode_id="z", task_id="task_9", policy="b", reason="Boom\nIt broke")
SCORES = verdicts((True, -10, 1), (True, -900, -40), (True, NAN, 3), (False, -600, 1), (True, 50, NAN), absent=(GONE,))
DT_S = np.full(5, 0.5)


def test_rows_stand_in_the_order_of_the_source_and_lost_episodes_last():
    rows = episode_list.list_episodes(SCORES, DT_S)
    assert [row.number for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row.margin and row.margin.spec for row in rows] == ["force", "force", "tilt", "force", "force", None]
    assert (rows[1].first_violation_step, rows[1].first_violation_s) == (3, 1.5)
    lost = rows[5].to_document()
    assert (lost["outcome"], *(lost[name] for name in ("safe", "vsi", "rho", "success"))) == ("crashed", *[None] * 4)


def test_a_specification_alone_leaves_out_where_it_reached_no_verdict():
    rows = episode_list.list_episodes(SCORES, DT_S, "tilt")
    assert [(row.number, row.margin.rho, row.margin.violated) for row in rows] == [
        (1, 1, False),
        (2, -40, True),
        (3, 3, False),
        (4, 1, False),
    ]
    assert [row.number for row in episode_list.filter_episodes(rows, violated=True)] == [2]
    assert [row.first_violation_spec for row in rows] == [None, "tilt", None, None]


def test_filters_choose_and_keep_the_numbers():
    rows = episode_list.list_episodes(SCORES, DT_S)
    assert [row.number for row in episode_list.filter_episodes(rows, violated=True)] == [1, 2, 4]
    assert [row.number for row in episode_list.filter_episodes(rows, outcome="crashed")] == [6]
    assert [row.number for row in episode_list.filter_episodes(rows, policy="a", outcome="failure")] == [4]
    assert [row.number for row in episode_list.filter_episodes(rows, task="libero-goal/task_9")] == [6]
    assert episode_list.filter_episodes(rows, task="task_0") == rows[:5]


@pytest.mark.parametrize("filters", [{"policy": "nobody"}, {"task": "task_7"}, {"outcome": "timeout"}])
def test_a_filter_that_nothing_passes_lists_the_choices(filters):
    with pytest.raises(RunError, match="Available: ") as caught:
        episode_list.filter_episodes(episode_list.list_episodes(SCORES, DT_S), **filters)
    assert next(iter(filters.values())) in str(caught.value)


def test_orders():
    rows = episode_list.list_episodes(SCORES, DT_S)

    def numbers(order):
        return [row.number for row in episode_list.sort_episodes(rows, order)]

    assert numbers(None) == [1, 2, 3, 4, 5, 6]
    assert numbers("vsi") == [2, 4, 1, 3, 5, 6]  # 3 and 5 are both 0 deep: the nearer to its limit first
    assert numbers("rho") == [2, 4, 1, 3, 5, 6]
    assert numbers("step")[:3] == [2, 4, 1]
    margin_rows = episode_list.list_episodes(verdicts((True, NAN, 1), (True, 5, NAN)), DT_S)
    nearest = [row.number for row in episode_list.sort_episodes(margin_rows, "rho")]
    assert nearest == [2, 1], "5 of 200 N is nearer than 1 of 15 deg"
    ids = [row.episode_id for row in episode_list.sort_episodes([*rows, replace_id(rows[0], "e10")], "id")]
    assert ids == ["e0", "e1", "e2", "e3", "e4", "e10", "z"]


def replace_id(row, name):
    return msgspec.structs.replace(row, episode=msgspec.structs.replace(row.episode, episode_id=name))


def test_an_episode_is_found_by_id_position_and_unique_suffix():
    names = ("suite/task_0/ep_000", "suite/task_0/ep_001", "suite/task_1/ep_000", "2", ":1")
    rows = episode_list.list_episodes(replace(SCORES, episode_id=names), DT_S)
    assert episode_list.find_episode(rows, "suite/task_1/ep_000").number == 3
    assert episode_list.find_episode(rows, ":1").number == 1
    assert episode_list.find_episode(rows, "::1").number == 5
    assert episode_list.find_episode(rows, "2").number == 4, "a number without a colon is an id"
    assert episode_list.find_episode(rows, ":2").number == 2
    assert episode_list.find_episode(rows, "task_1/ep_000").number == 3
    assert episode_list.find_episode(rows, "001").number == 2, "with leading zeros it is the end of an id"
    assert episode_list.find_episode(rows, ":6").number == 6, "a lost episode has a number too"
    with pytest.raises(RunError, match="2 episodes match"):
        episode_list.find_episode(rows, "ep_000")
    with pytest.raises(RunError, match="'suite/task_0/ep_002'"):
        episode_list.find_episode(rows, "suite/task_0/ep_002")
    for wrong in ("3", ":0", ":7", ":01", ":", "-1", "", "\u0663"):
        with pytest.raises(RunError):
            episode_list.find_episode(rows, wrong)


def test_a_first_violation_has_the_time_of_its_stamp():
    rows = episode_list.list_episodes(SCORES, DT_S, stamps_s={1: np.array([0.0, 1.0, 5.0, 7.25])})
    assert (rows[1].first_violation_step, rows[1].first_violation_s) == (3, 7.25)
    assert rows[0].first_violation_s == rows[0].first_violation_step * 0.5
