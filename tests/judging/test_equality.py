"""Values that equal a limit up to rounding meet it: in scores, the monitor, labels and other thresholds alike."""

from __future__ import annotations

import numpy as np
import pytest

from builders import BOWL, DRAWER, PLATE, episode
from safevla_bench.judging.monitor import Monitor
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.sensitivity.curves import ThresholdSetting, ThresholdVariant, apply_variant
from safevla_bench.training.labels import label_records, scored_specs
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.marks import SINGLE
from safevla_bench.trajectory.single_episode import iterate_records
from safevla_recorder.episode import add_header_field

SPEC = "non_target_max_disp_5mm"
RULES = load_ruleset(missing="deactivate")


def pushed(start: float, end: float, *, single: tuple[str, ...] = ()) -> Batch:
    """The plate moves along x; with `single` the numbers are those that float32 holds."""
    places = np.zeros((8, 3, 3))
    places[:, 1, 0] = np.where(np.arange(8) < 4, start, end)
    places = places.astype(np.float32 if single else np.float64).astype(np.float64)
    extra = add_header_field({}, SINGLE, list(single)) if single else {}
    return episode(8, pos_bodies=[BOWL, PLATE, DRAWER], body_pos_m=places, extra=extra)


@pytest.mark.parametrize(
    ("start", "end"), [(0.6, 0.605), (0.1, 0.105), (0.3, 0.305), (0.0, 0.005), (1.2, 1.205), (-0.25, -0.245)]
)
def test_a_motion_of_five_millimeters_in_decimals_is_at_the_limit_wherever_it_begins(start: float, end: float) -> None:
    for batch in (pushed(start, end), pushed(start, end, single=("body_pos_m",))):
        verdict = score(batch, RULES).episode(0)
        assert (verdict.robustness[SPEC], verdict.first_violation_step, verdict.safe) == (0.0, None, True)
        standing = [Monitor(RULES).observe(record) for record in iterate_records(batch)][-1]
        assert standing.safe
        scores = score(batch, RULES)
        labels, labeled = label_records(batch, scores, RULES), scored_specs(scores)
        assert np.nanmin(labels.margin[:, [column.spec_id for column in labeled].index(SPEC)]) == 0.0


def test_float32_is_rounded_more_coarsely_only_where_a_source_of_the_signal_was_stored_so() -> None:
    beyond = 0.005 * (1 + 5e-5)
    for single, margin in (((), -2.5e-7), (("eef_pos_m",), -2.5e-7), (("body_pos_m",), 0.0)):
        batch = pushed(0.0, beyond, single=single)
        rho = score(batch, RULES).episode(0).robustness[SPEC]
        assert rho == pytest.approx(margin, rel=1e-3)
        monitor = Monitor(RULES)
        assert [monitor.observe(record) for record in iterate_records(batch)][-1].robustness[SPEC] == rho


@pytest.mark.parametrize("factor", [1 + 2e-9, 1 + 1e-6])
def test_what_is_beyond_by_more_than_rounding_is_a_violation(factor: float) -> None:
    verdict = score(pushed(0.0, 0.005 * factor), RULES).episode(0)
    assert verdict.robustness[SPEC] < 0
    assert verdict.first_violation_step == 4


def test_another_threshold_meets_rounding_as_a_judgement_from_the_records_does() -> None:
    batch, other = pushed(0.6, 0.62), load_ruleset(missing="deactivate", thresholds=[f"{SPEC}=20mm"])
    variant = ThresholdVariant("20 mm", {SPEC: ThresholdSetting(0.02, 0.05)})
    moved = apply_variant(score(batch, RULES), RULES.library, variant)
    assert moved.episode(0).robustness[SPEC] == 0.0
    assert score(batch, other).episode(0).robustness[f"{SPEC}@0.02m"] == 0.0
