"""An explained episode as text for a terminal."""

from __future__ import annotations

import numpy as np
import pytest
from rich.cells import cell_len

from builders import BOWL, HAND, LINK, contacts, episode
from report.scenes import rollout, run
from safevla_bench.explain import episode as explaining
from safevla_bench.report import terminal
from safevla_bench.ruleset import load_ruleset
from safevla_bench.scoring import score

RULESET = load_ruleset()


@pytest.fixture(scope="module")
def rough():
    batch = run(["a"], [1.0], 10, ["libero-10"])
    return batch, score(batch, RULESET)


def test_broken_clauses_come_with_the_verdict_s_own_step_value_and_bodies():
    batch = episode(contacts=contacts((3, HAND, LINK, 1.0), (5, HAND, BOWL, 700.0), (7, HAND, BOWL, 900.0)), n=12)
    explanation = explaining.explain_episode(score(batch, RULESET), batch, RULESET, 0)
    assert [clause.spec_trace.spec.spec_id for clause in explanation.violated_clauses] == [
        "max_contact_force_under_200N",
        "self_collision_free",
    ], "equally deep: the one further beyond its limit first"
    force = next(c for c in explanation.violated_clauses if c.spec_trace.spec.spec_id == "max_contact_force_under_200N")
    assert force.first is not None
    assert (force.first.step, force.first.time_s, force.first.value) == (5, 0.25, 700.0)
    assert (force.worst.step, force.worst.value) == (7, 900.0)
    assert force.worst.involved is not None
    assert set(force.worst.involved.names) == {"hand", "bowl"}
    own = next(c for c in explanation.violated_clauses if c.spec_trace.spec.spec_id == "self_collision_free")
    assert own.first is not None
    assert own.first.involved is not None
    assert set(own.first.involved.names) == {"hand", "link7"}
    text = terminal.format_explanation(explanation, width=100)
    for words in (
        "Succeeded, unsafe",
        "0.25 s (step 5): 700\u00a0N",
        "below 200\u00a0N",
        "margin -700\u00a0N",
        "1.000",
    ):
        assert words in text


def test_a_safe_episode_shows_what_came_nearest(rough):
    batch, scores = rough
    safe = int(np.flatnonzero(scores.safe)[0])
    explanation = explaining.explain_episode(scores, batch, RULESET, safe)
    text = terminal.format_explanation(explanation, width=100)
    nearest = scores.specs[scores.worst_column[safe]].spec_id
    assert f"KEPT  {nearest}" in text
    assert "BROKEN" not in text
    assert text.count("┤") > 1
    all_plotted = terminal.format_explanation(explanation, plot_all=True, width=100)
    assert all_plotted.count("KEPT  ") == len(explanation.clauses)


def test_what_was_not_judged_says_why():
    batch = episode(benchmark="libero-10", task_id="task_8", n=12)
    explanation = explaining.explain_episode(score(batch, RULESET), batch, RULESET, 0)
    assert explanation.vacuous["held_object_tilt_world_15deg"] == "its condition never arose: transport"
    text = terminal.format_explanation(explanation, width=100)
    assert "needs arm_furniture_contact_signal" in text
    assert "its condition never arose: grip" in text
    alone = episode(benchmark="libero-10", task_id="task_8", roles={"bowl": "target"}, **_only_bowl())
    explanation = explaining.explain_episode(score(alone, RULESET), alone, RULESET, 0)
    assert "non_target_disp_max" in explanation.vacuous["non_target_max_disp_5mm"]


def _only_bowl():
    still = np.tile([[[0.5, 0.0, 0.8]]], (12, 1, 1))
    return {"pos_bodies": (0,), "body_pos_m": still, "quat_bodies": (0,), "body_quat_wxyz": np.ones((12, 1, 4))}


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_the_explanation_fits_whatever_the_names_are(width):
    batch = rollout(4, rough=1.0, benchmark="libero-10", episode_id="x" * 150, instruction="お皿の上に\x1b[31m" * 20)
    explanation = explaining.explain_episode(score(batch, RULESET), batch, RULESET, 0)
    text = terminal.format_explanation(explanation, plot_all=True, width=width)
    head = text.split("\n\nNot judged")[0]
    assert max(cell_len(line) for line in head.splitlines()) <= width
    assert "\x1b" not in text
