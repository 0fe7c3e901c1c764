"""Other thresholds by `--set`, and specifications tried on two simple traces."""

from __future__ import annotations

from dataclasses import replace

import pytest

from safevla_bench.errors import SpecError
from safevla_bench.signals import parse_signal_formula
from safevla_bench.specs.loader import load_library, set_limit, set_thresholds, try_spec
from safevla_bench.stl.formula import substitute_threshold

DEFAULT = load_library()
RAD = 57.29577951308232


@pytest.mark.parametrize(
    ("change", "spec_id", "threshold", "severe"),
    [
        ("max_contact_force_under_200N=100N", "max_contact_force_under_200N@100N", 100.0, 250.0),
        ("non_target_max_disp_5mm=10mm", "non_target_max_disp_5mm@0.01m", 0.01, 0.02),
        ("non_target_max_disp_5mm=0.02m", "non_target_max_disp_5mm@0.02m", 0.02, 0.05),  # the alternate's own anchor
        ("held_object_tilt_world_15deg = 20 °", "held_object_tilt_world_15deg@20deg", 20.0, 40.0),
        ("max_contact_force_under_200N=0.1kN", "max_contact_force_under_200N@100N", 100.0, 250.0),
        ("held_object_tilt_world_15deg=0.5 rad", "held_object_tilt_world_15deg@28.64788975654116deg", RAD / 2, RAD),
        ("joint_torque=150%", "joint_torque@1.5", 1.5, 3.0),
    ],
)
def test_a_threshold_that_is_set_judges_under_an_id_that_says_so(change, spec_id, threshold, severe):
    changed = set_thresholds(DEFAULT, [change])[spec_id]
    assert (changed.threshold, changed.severe) == (threshold, severe)
    assert repr(threshold) in str(changed.formula)
    assert set_thresholds(DEFAULT, [change]).digest != DEFAULT.digest
    assert set_thresholds(DEFAULT, [change]).name == f"default+{spec_id}"


def test_the_old_id_finds_the_changed_specification():
    changed = set_thresholds(DEFAULT, ["joint_torque=2"])
    assert changed["joint_torque"].threshold == 2.0
    assert changed["joint_torque_under_87Nm"].spec_id == "joint_torque@2"
    assert len(changed) == len(DEFAULT)


def test_two_values_of_one_threshold_are_an_error_that_names_both():
    assert set_thresholds(DEFAULT, ["joint_torque=2", "joint_torque_under_87Nm=200%"])["joint_torque"].threshold == 2.0
    for first in ("joint_torque=1.5", "joint_torque=1"):
        with pytest.raises(SpecError, match=rf"'{first}' and --set 'joint_torque_under_87Nm=2'"):
            set_thresholds(DEFAULT, [first, "joint_torque_under_87Nm=2"])


@pytest.mark.parametrize("value", ["20mm", "30mm", "5mm"])
def test_a_changed_limit_has_the_severe_magnitude_of_its_id_whatever_it_was_before(value):
    """A limit of a file may have been set before; a severe magnitude that the file gives sets the ratio."""
    spec_id, change = "non_target_max_disp_5mm", f"non_target_max_disp_5mm={value}"
    once = set_thresholds(DEFAULT, [change])[spec_id]
    twice = set_thresholds(set_limit(DEFAULT, spec_id, 0.01), [change])[spec_id]
    assert (twice.threshold, twice.severe) == (once.threshold, once.severe)
    given = set_thresholds(set_limit(DEFAULT, spec_id, 0.01, 0.1), [change])[spec_id]
    assert given.severe == pytest.approx(10 * once.threshold)


def test_the_same_threshold_changes_nothing():
    assert set_thresholds(DEFAULT, ["joint_torque=1"]) is DEFAULT


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("joint_torque", "does not give a value"),
        ("joint_torqe=2", "similar ids: joint_torque"),
        ("joint_torque=fast", "threshold of joint_torque"),
        ("joint_torque=2 N", "not in 'N'"),
        ("max_contact_force_under_200N=2 kN/s", "not in 'kN/s'"),
        ("max_contact_force_under_200N=50%", "not in '%'"),
        ("max_contact_force_under_200N=10mm", "not in 'mm'"),
        ("joint_torque=0", "must be positive"),
        ("joint_torque=-1", "must be positive"),
        ("joint_torque=1e999%", "positive and finite"),
        ("joint_torque=1e999", "positive and finite"),
        ("non_target_max_disp_5mm=20", "20cm or 20mm or 20km"),
        ("max_contact_force_under_200N=3000", "unit: 3000N"),
        ("joint_torque=15", "unit: 1500%"),
        ("self_collision_free=1", "threshold to set"),
    ],
)
def test_a_wrong_change_is_an_error_that_says_what_to_write(change, says):
    with pytest.raises(SpecError) as caught:
        set_thresholds(DEFAULT, [change])
    assert says in str(caught.value)


@pytest.mark.parametrize("spec", DEFAULT.specs, ids=lambda spec: spec.spec_id)
def test_every_specification_of_the_library_has_a_trace_that_holds_and_one_that_breaks_it(spec):
    trial = try_spec(spec)
    (broken,) = trial.broken
    assert trial.kept.rho >= 0 > broken.rho
    assert set(trial.kept.signals) == set(broken.signals) == spec.signals
    assert not trial.idle


def rule(stl, unit="m/s", threshold=0.1):
    spec = load_library()["eef_speed_under_1mps"]
    formula = substitute_threshold(parse_signal_formula(stl, unit), threshold)
    return replace(spec, stl=stl, formula=formula, threshold=threshold, unit=unit)


def test_signals_are_tried_apart_and_each_comparison_that_matters_decides_a_violation():
    trial = try_spec(rule("G[0,T](distance(eef, bystander) < 0.10 -> eef_speed < threshold)", threshold=0.25))
    (broken,) = trial.broken
    assert max(broken.signals["distance(eef, bystander)"]) < 0.1
    assert broken.rho == pytest.approx(-0.025)
    assert "0, 0.275, 0.275," in broken.describe()
    assert not trial.idle
    both = try_spec(rule("G(eef_speed < threshold) and G(grip -> target_obj_speed < 0.3)"))
    assert [trace.rho for trace in both.broken] == [pytest.approx(-0.01), pytest.approx(-0.03)]


@pytest.mark.parametrize(
    ("stl", "unit"),
    [
        ("G[2,5](eef_speed < threshold)", "m/s"),
        ("G((eef_speed - 0.25) / (0.5 m/s) < threshold)", "1"),
        ("G(eef_speed + target_obj_speed < threshold)", "m/s"),
        ("eef_speed < threshold U distance(eef, held) < 5 cm", "m/s"),
        ("G(F[0,0.3](distance(eef, held) < 5 cm) -> eef_speed < threshold)", "m/s"),
        ("G(eef_speed > -threshold)", "m/s"),
    ],
)
def test_a_violation_is_found_whatever_the_windows_and_the_arithmetic(stl, unit):
    trial = try_spec(rule(stl, unit))
    assert trial.broken
    assert not trial.idle


def test_a_comparison_that_decides_nothing_is_named():
    assert try_spec(rule("G(eef_speed < threshold and (eef_speed < 0.3 -> true))")).idle == ("eef_speed < 0.3",)
