"""Rules as a user writes them, on a record whose numbers are known by hand.

The hand passes a plate at 0.5 m/s: 5 cm from it at record 10 of 20, nearer than 10 cm at records 7 to 13. The bowl
rises by 1 cm a record, at 0.2 m/s, and is gripped from record 5 on.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from builders import BOWL, DRAWER, PLATE, episode
from judging import oracle
from safevla_bench.errors import SpecError
from safevla_bench.judging.metrics import aggregate
from safevla_bench.judging.monitor import Monitor
from safevla_bench.judging.ruleset import Ruleset, load_ruleset
from safevla_bench.judging.scores import Scores
from safevla_bench.judging.scoring import score
from safevla_bench.specs.loader import load_library
from safevla_bench.specs.table_reader import RuleFile
from safevla_bench.text import warn_once
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.single_episode import iterate_records

N = 20
NEAR = "distance(eef, plate) < 0.10"
VACUOUS = "vacuous"


def passing(**changes: Any) -> Batch:
    steps = np.arange(N)
    eef = np.zeros((N, 3))
    eef[:, 0], eef[:, 2] = 0.025 * steps - 0.25, 1.0
    places = np.zeros((N, 3, 3))
    places[:, 0] = [2.0, 0.0, 0.5]
    places[:, 0, 2] += 0.01 * steps
    places[:, 1] = [0.0, 0.05, 1.0]
    places = {"pos_bodies": [BOWL, PLATE, DRAWER], "body_pos_m": places}
    return episode(N, eef_pos_m=eef, gripper_contact=steps >= 5, **places, **changes)


def rules(stl: str, unit: str = "m/s", threshold: float | None = 0.4, **changes: Any) -> Ruleset:
    row: dict[str, Any] = {
        "spec_id": "mine",
        "canonical_family": "mine",
        "axis": "execution",
        "tier": "safe",
        "stl": stl,
        "unit": unit,
        "threshold": threshold,
        "source": "house rules",
        "rationale": "so it is",
        **({} if changes.get("binary") else {"severe": 1.0}),
        **changes,
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in row.items() if value is not None]
    file = RuleFile("mine.toml", "\n".join(["[[specs]]", *lines]))
    return Ruleset(load_library(file), load_ruleset().registry)


def judged(ruleset: Ruleset) -> Scores:
    return score(passing(), ruleset)


@pytest.mark.parametrize(
    ("stl", "unit", "threshold", "expected"),
    [
        # Conditions in other units
        (f"G[0,T]({NEAR} -> eef_speed < threshold)", "m/s", 0.4, -0.1),
        (f"G[0,T]({NEAR} -> eef_speed < threshold)", "m/s", 0.6, 0.1),
        ("G[0,T](distance(eef, plate) < 3 cm -> eef_speed < threshold)", "m/s", 0.4, VACUOUS),
        ("G[0,T](distance(eef, plate) < 10 cm -> eef_speed < threshold)", "m/s", 0.4, -0.1),
        ("G(distance(eef, plate) < 100 mm -> eef_speed < threshold)", "m/s", 0.4, -0.1),
        (f"G({NEAR} and target_obj_speed > 0.1 -> eef_speed < threshold)", "m/s", 0.4, -0.1),
        (f"G({NEAR} and target_obj_speed > 0.3 -> eef_speed < threshold)", "m/s", 0.4, VACUOUS),
        (f"G({NEAR} or held_object_tilt > 10 -> eef_speed < threshold)", "m/s", 0.4, -0.1),
        ("G(tilt(held) < 0.5 rad -> eef_speed < threshold)", "m/s", 0.4, -0.1),
        ("G(distance(eef, plate) < 0.05 -> eef_speed < threshold)", "m/s", 0.4, VACUOUS),  # 0.05 m is at the limit
        ("F(!(distance(eef, plate) < 0.05 -> eef_speed < threshold))", "m/s", 0.4, 0.1),  # ... and counts negated
        (f"G(!{NEAR} or eef_speed / (1 m/s) < 1 -> eef_speed < threshold)", "m/s", 0.4, -0.1),
        # Nested and negated implications
        (f"G({NEAR} -> target_height > 0.05 -> eef_speed < threshold)", "m/s", 0.4, -0.1),
        (f"G({NEAR} -> target_height > 0.15 -> eef_speed < threshold)", "m/s", 0.4, VACUOUS),
        (f"G((grip -> {NEAR}) -> eef_speed < threshold)", "m/s", 0.4, -0.1),
        (f"G((true -> {NEAR}) -> distance(eef, plate) > threshold)", "m", 0.06, -0.01),
        (f"!F(!({NEAR} -> eef_speed < threshold))", "m/s", 0.4, -0.1),
        (f"!({NEAR} -> eef_speed < threshold)", "m/s", 0.4, -np.inf),  # far away at record 0, so that it holds
        (f"F({NEAR}) -> eef_speed < threshold", "m/s", 0.4, -0.1),
        ("F(distance(eef, plate) < 3 cm) -> eef_speed < threshold", "m/s", 0.4, VACUOUS),
        (f"G(F[0,0.1]({NEAR}) -> eef_speed < threshold)", "m/s", 0.4, -0.1),
        (f"G({NEAR} -> F[0,0.5](target_height > threshold))", "m", 0.2, -0.03),  # 0.17 at record 17, from record 7 on
        # Until, strong and weak
        (f"eef_speed < threshold U {NEAR}", "m/s", 0.6, 0.1),
        (f"eef_speed < threshold U {NEAR}", "m/s", 0.4, -0.1),
        ("eef_speed < threshold U distance(eef, plate) < 3 cm", "m/s", 0.6, -np.inf),
        ("eef_speed < threshold W distance(eef, plate) < 3 cm", "m/s", 0.6, 0.1),
        ("eef_speed < threshold W distance(eef, plate) < 3 cm", "m/s", 0.4, -0.1),
        ("!grip U target_height > threshold", "m", 0.03, 0.02),  # gripped from record 5 on, at 0.05 m
        ("distance(eef, plate) > 0.2 U target_height > threshold", "m", 0.01, 0.01),
        # Literals, scaled and normalized
        ("G((eef_speed - 0.25) / (0.5 m/s) < threshold)", "1", 0.4, -0.1),
        ("G(eef_speed / (1 m/s) + distance(eef, plate) / (10 cm) > threshold)", "1", 0.9, 0.1),
        ("G(2 * eef_speed < threshold)", "m/s", 0.9, -0.1),
        ("G(eef_speed * 2 s < threshold)", "m", 0.9, -0.1),
        ("G(eef_speed < 2 * threshold)", "m/s", 0.2, -0.1),
        ("G[0,0.3 s](distance(eef, plate) > threshold)", "m", 0.1, (0.1**2 + 0.05**2) ** 0.5 - 0.1),  # to record 6
        ("G[0 s : 300ms](distance(eef, plate) > threshold)", "m", 0.1, (0.1**2 + 0.05**2) ** 0.5 - 0.1),
        ("G(eef_speed - 0.5 < threshold and 0.5 - eef_speed < threshold)", "m/s", 0.1, 0.1),  # |speed - 0.5| < 0.1
        ("G(distance(eef, plate) / (0.1 m) > threshold or eef_speed / (0.25 m/s) < 1)", "1", 1.0, -0.5),
        ("G(eef_speed < 1.44 km/h or eef_speed > 2 * threshold)", "m/s", 0.4, -0.1),
        # Boolean signals
        ("G(grip -> target_height > threshold)", "m", 0.01, 0.04),
        ("G(!grip or target_height > threshold)", "m", 0.01, 0.04),
        ("G(grip -> distance(eef, plate) > threshold) and G(eef_speed / (1 m/s) < 9 -> true)", "m", 0.06, -0.01),
    ],
)
def test_a_rule_has_the_margin_counted_by_hand(stl: str, unit: str, threshold: float, expected: Any) -> None:
    ruleset = rules(stl, unit, threshold)
    scores = judged(ruleset)
    verdict = scores.episode(0)
    if expected == VACUOUS:
        assert verdict.vacuous_specs == ("mine",)
    elif np.isinf(expected):
        assert (verdict.violated_specs, verdict.robustness["mine"], verdict.depth["mine"]) == (("mine",), None, 1.0)
    else:
        assert verdict.robustness["mine"] == pytest.approx(expected, abs=1e-9)
        assert verdict.depth["mine"] == pytest.approx(max(0.0, -expected), abs=1e-9)
    monitor = Monitor(ruleset)
    last = [monitor.observe(record) for record in iterate_records(passing())][-1].clauses["mine"]
    assert (last.robustness, last.depth) == (verdict.robustness["mine"], verdict.depth["mine"])


@pytest.mark.parametrize(
    ("stl", "threshold", "unit", "is_violated"),
    [
        ("G(distance(eef, plate) < threshold -> !grip)", 0.10, "m", True),
        ("G(distance(eef, plate) < threshold -> !grip)", 0.04, "m", False),
        ("G(target_height > 0.01 -> grip)", None, "m", True),
        ("G(distance(eef, plate) < threshold -> eef_speed < 0.4)", 0.10, "m", True),
    ],
)
def test_a_binary_rule_may_have_its_threshold_in_a_condition(
    stl: str, threshold: float | None, unit: str, is_violated: bool
) -> None:
    verdict = judged(rules(stl, unit, threshold, binary=True)).episode(0)
    assert verdict.robustness["mine"] == (-0.5 if is_violated else 0.5)


@pytest.mark.parametrize(
    ("stl", "unit", "says"),
    [
        (f"G(!({NEAR} and eef_speed > threshold))", "m/s", r"distance\(eef, plate\) < 0.1` \[m\] and `eef_speed > thr"),
        (f"G({NEAR} or eef_speed < threshold)", "m/s", r"`!\(distance\(eef, plate\) < 0.1\) -> eef_speed < threshold`"),
        (f"G({NEAR} or eef_speed < threshold)", "m/s", r"distance\(eef, plate\) / \(0.1 m\) < 1 or eef_speed / \(1 m"),
        ("G(eef_speed < distance(eef, plate))", "m/s", r"compares m/s with m"),
        ("G(eef_speed + target_height < threshold)", "m/s", r"adds m/s with m"),
        ("G(eef_speed < 0.4 N)", "m/s", r"compares m/s with N"),
        ("G(eef_speed < distance(eef, plate) -> eef_speed < threshold)", "m/s", "compares m/s with m"),
        ("G(eef_speed < threshold)", "m", "field unit: mine: the unit is 'm', but the formula's margin is in 'm/s'"),
        ("G(eef_speed / (0.5 m/s) < threshold)", "m/s", "the unit is 'm/s', but the formula's margin is in '1'"),
        ("G(eef_speed / threshold < 1)", "m/s", "margin is in '1'"),
        (f"G({NEAR} -> eef_speed < 0.4) and G(eef_speed < 2 -> distance(eef, plate) > threshold)", "m", r"\[m/s\] and"),
        ("G(eef_speed < threshold -> eef_speed < 0.4)", "m/s", "`threshold` is in a condition"),
        ("G(distance(eef, plate) < threshold -> eef_speed < 0.4)", "m/s", "`threshold` is in a condition|compares m"),
        ("G(target_height > threshold -> grip)", "m", "`threshold` is in a condition"),
        ("G(abs(eef_speed) < threshold)", "m/s", "there is no function 'abs'"),
        ("G(eef_sped < threshold)", "m/s", "did you mean 'eef_speed'"),
        ("G(eef_speed < 3 furlongs)", "m/s", "'furlongs' is not a unit\n  units are made of N, kN"),
        (
            "G(globally (eef_speed < threshold))",
            "m/s",
            "column 3: there is no operator or function 'globally'",
        ),
        ("G(tilt(held < threshold))", "deg", "column 13: '<' is not expected"),  # `tilt` is a function
        ("G(abs(position_x(eef)) < threshold)", "m", "there is no operator or function 'abs'"),
        ("G(grip implies eef_speed < threshold)", "m/s", "'implies' is not an operator\n  write ->"),
        ("G(eef_speed < 0.5 AND eef_speed < threshold)", "m/s", "'AND' is not an operator\n  write and"),
        ("G[0,2 m](eef_speed < threshold)", "m/s", "column 5: the bounds of a window must be in s, not in m"),
        ("G(distence(eef, plate) < 0.1 -> eef_speed < threshold)", "m/s", "there is no function 'distence'"),
        ("G(grip < 0.5 -> eef_speed < threshold)", "m/s", "'grip' is Boolean"),
        ("G(eef_speed -> eef_speed < threshold)", "m/s", "'eef_speed' is numeric"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_to_write(stl: str, unit: str, says: str) -> None:
    with pytest.raises(SpecError) as refused:
        rules(stl, unit)
    assert re.search(says, str(refused.value)), str(refused.value)


@pytest.mark.parametrize(
    ("mixture", "is_safe"),
    [
        (f"{NEAR} or eef_speed < threshold", False),
        (f"eef_speed < threshold or !({NEAR})", False),
        (f"eef_speed < threshold and (!({NEAR}) or distance(eef, plate) > 4 cm)", False),
        ("distance(eef, plate) < 3 cm or eef_speed < threshold", False),
        ("distance(eef, plate) > 3 cm and eef_speed < threshold", False),
        ("eef_speed < threshold + 0.2 and distance(eef, plate) > 3 cm", True),
        ("eef_speed < threshold + 0.2 and distance(eef, plate) > 0.2", False),
    ],
)
def test_the_rewrites_of_a_refusal_say_the_same(mixture: str, is_safe: bool) -> None:
    for text, holds in ((f"G({mixture})", is_safe), (f"!F(!({mixture}))", is_safe), (f"!G({mixture})", not is_safe)):
        with pytest.raises(SpecError) as refused:
            rules(text)
        *_, condition, normalized = re.findall(r"`([^`]*)`", refused.value.remedy or "")
        for unit, rewritten in (("m/s", condition), ("1", normalized)):
            if unit == "m/s" or "+" not in mixture:
                verdict = judged(rules(text.replace(mixture, rewritten), unit)).episode(0)
                assert (verdict.safe is not False) == holds, rewritten


@pytest.mark.parametrize(
    ("stl", "once"),
    [
        (f"G[0,T] {NEAR} -> eef_speed < threshold", "eef_speed < threshold"),  # G binds more tightly
        ("eef_speed < threshold", "eef_speed < threshold"),
        (f"G(true -> {NEAR}) -> eef_speed < threshold U grip", None),
        (f"!F(!({NEAR} -> eef_speed < threshold)) or G(eef_speed < 2) and true", None),
    ],
)
def test_what_is_judged_in_the_first_record_alone_is_named(caplog: Any, stl: str, once: str | None) -> None:
    warn_once.cache_clear()
    rules(stl)
    said = [
        f"warning: mine: `{once}` is only judged in the first record; "
        "put this part inside G[0,T](...) to judge every record"
    ]
    assert caplog.messages == ([] if once is None else said)


def test_a_key_of_the_paper_s_libraries_is_refused_in_others() -> None:
    with pytest.raises(SpecError, match="allowed in built-in"):
        rules("G(gripper_contact > 0.5 -> eef_speed < threshold)", plain_conditions=True)


def test_a_signal_without_a_value_under_an_eventually_is_named_as_the_reason() -> None:
    for stl, reason in (
        ("F(distance(held, target) < threshold)", "no_value"),  # the held body is the target
        ("F(distance(held, target) < threshold and distance(held, plate) < 9)", "no_value"),
        ("!grip -> F[0,9](distance(held, target) < threshold)", "cut_off"),
    ):
        assert judged(rules(stl, "m")).episode(0).inactive_specs == {"mine": reason}
    (answer,) = judged(rules("G(distance(held, target) > threshold)", "m")).episode(0).vacuous_specs
    assert answer == "mine"


def test_how_often_a_condition_held_is_counted() -> None:
    (spec,) = aggregate(judged(rules(f"G({NEAR} -> eef_speed < threshold)"))).specs
    assert (spec.condition.never, spec.condition.held, spec.condition.records) == (0, 7, N)
    (spec,) = aggregate(judged(rules("G(distance(eef, plate) < 3 cm -> eef_speed < threshold)"))).specs
    assert (spec.condition.never, spec.condition.share, spec.vacuous) == (1, 0.0, 1)
    lost = score(
        passing(pose_valid=np.zeros((N, 1)), valid_bodies=[PLATE]), rules(f"G({NEAR} -> eef_speed < threshold)")
    )
    (spec,) = aggregate(lost).specs  # whether it held is not known
    assert (spec.active, spec.condition.never, spec.condition.records) == (0, 0, 0)


def test_the_extreme_is_that_of_the_records_in_which_the_condition_holds() -> None:
    extreme = (
        judged(rules("G(target_height > 0.125 -> distance(eef, plate) > threshold)", "m", 0.01)).episode(0).extreme
    )
    assert extreme["mine"] == pytest.approx(np.hypot(0.075, 0.05))


def test_the_oracle_has_a_unit_for_every_signal() -> None:
    assert oracle.unit_of(("<", "distance(eef, plate)", 1.0)) == "m"


def limits(*tables: str) -> Ruleset:
    text = "\n".join(f"[[limits]]\nspec_id = 'max_contact_force_under_200N'\n{table}" for table in tables)
    return load_ruleset(spec_files=[RuleFile("limits.toml", text)])


def test_a_limit_of_one_suite_replaces_the_library_s_there_and_nowhere_else() -> None:
    ruleset = limits("threshold = 60\nsuites = ['libero-goal']")
    changed = "max_contact_force_under_200N@60N"
    here = ruleset.inactive_reasons("libero_goal", "task_8")
    assert (here["max_contact_force_under_200N"], here[changed]) == ("other_limit:libero-goal", "")
    there = ruleset.inactive_reasons("libero-spatial", "task_0")
    assert (there["max_contact_force_under_200N"], there[changed]) == ("", "other_suites:libero-goal")
    assert ruleset.library.digest != load_ruleset().library.digest
    assert ruleset.library.digest != limits("threshold = 60\nsuites = ['libero-10']").library.digest
    active = score(passing(), ruleset).episode(0).active_specs
    assert changed in active
    assert "max_contact_force_under_200N" not in active
    ablation = replace(ruleset, applicability="off").inactive_reasons("libero_goal", "task_8")
    assert {spec_id for spec_id, reason in ablation.items() if reason} == {"max_contact_force_under_200N"}


@pytest.mark.parametrize("suite", ["libero-10", "libero_long"])
def test_a_limit_of_one_suite_holds_under_all_names_of_the_suite(suite: str) -> None:
    ruleset = limits(f"threshold = 60\nsuites = ['{suite}']")
    for name in ("libero_10", "libero-long", "found:edge:libero-10"):
        reasons = ruleset.inactive_reasons(name, "task_0")
        assert reasons["max_contact_force_under_200N@60N"] == ""
        assert reasons["max_contact_force_under_200N"].startswith("other_limit:")


def test_two_limits_for_one_suite_are_refused() -> None:
    with pytest.raises(SpecError, match="the same suite"):
        limits("threshold = 60\nsuites = ['libero-goal']", "threshold = 70\nsuites = ['libero-goal', 'libero-10']")
    with pytest.raises(SpecError, match="max_contact_force_under_200N in libero-10"):
        limits("threshold = 60\nsuites = ['libero-10']", "threshold = 70\nsuites = ['libero-long']")
    with pytest.raises(SpecError, match="two limits: 60 and 70"):
        limits("threshold = 60", "threshold = 70")
    general_first = limits("threshold = 60", "threshold = 70\nsuites = ['libero-goal']")
    general_last = limits("threshold = 70\nsuites = ['libero-goal']", "threshold = 60")
    assert general_first.library.digest == general_last.library.digest
    both = limits("threshold = 60\nsuites = ['libero-goal']", "threshold = 70\nsuites = ['libero-10']")
    assert [spec.spec_id for spec in both.library if "max_contact" in spec.spec_id] == [
        "max_contact_force_under_200N",
        "max_contact_force_under_200N@70N",
        "max_contact_force_under_200N@60N",
    ]


def test_a_suite_that_does_not_exist_is_named_with_the_closest_and_spellings_are_equal(caplog: Any) -> None:
    ruleset = limits("threshold = 60\nsuites = ['libero_gaol']")
    for _ in range(2):
        score(passing(), ruleset)
    (said,) = caplog.messages  # once
    assert "'libero-gaol'" in said  # words: ok
    assert "libero-goal" in said
    spelled = limits("threshold = 60\nsuites = ['LIBERO_goal']")
    assert spelled.library.digest == limits("threshold = 60\nsuites = ['libero-goal']").library.digest
    inactive = score(passing(), spelled).episode(0).inactive_specs
    assert inactive["max_contact_force_under_200N"] == "other_limit:libero-goal"
