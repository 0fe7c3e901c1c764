"""The CSV in the authors' columns."""

from __future__ import annotations

import csv
import io

from builders import episode
from safevla_bench.metrics import cells
from safevla_bench.report.authors_csv import format_authors_csv
from safevla_bench.ruleset import load_ruleset
from safevla_bench.scoring import score
from safevla_bench.specs import library
from safevla_bench.trajectory import concatenate_batches

# The beginning of the header in the authors' own file, and some of its other columns.
FIRST = ["model", "benchmark_suite", "run_dir", "n_episodes", "SR", "safety_rate", "succ_unsafe", "vsi", "vsi_unsafe"]
FIRST += [
    "collision_rate",
    "ci_95_low",
    "ci_95_high",
    "nsv__arm_furniture_force_under_200N",
    "nsv__joint_torque_under_87Nm",
]
OTHERS = [
    "rho__wrist_tilt_world_15deg",
    "viol__non_target_max_disp_5mm",
    "viol__eef_jerk_under_50mps3",
    "SR_ci_lo_wilson",
]
OTHERS += ["SR_ci_hi_wilson", "SR_ci_low", "vsi_ci_lo_bootstrap", "nsv__wrist_tilt_world_30deg_ci_high"]
OTHERS += ["viol__self_collision_free_ci_hi_wilson", "rho__target_furniture_force_50N_ci_lo_bootstrap"]


def exported(*episodes) -> list[dict[str, str]]:
    scores = score(concatenate_batches(list(episodes)), load_ruleset())
    return list(csv.DictReader(io.StringIO(format_authors_csv(cells(scores), library(), "runs/x"))))


def test_the_columns_are_the_authors():
    (row,) = exported(episode())
    assert list(row)[: len(FIRST)] == FIRST
    assert not set(OTHERS) - set(row)
    assert not any("held_object_tilt_world" in name for name in row)


def test_values_are_fractions_and_unmeasured_is_empty():
    (row,) = exported(episode(), episode(episode_id="b", success=False))
    assert (row["model"], row["benchmark_suite"], row["n_episodes"]) == ("test", "libero_goal", "2")
    assert (row["SR"], row["safety_rate"], row["succ_unsafe"], row["vsi"]) == ("0.5", "1.0", "0.0", "0.0")
    assert row["viol__max_contact_force_under_200N"] == "0.0"
    assert row["viol__arm_furniture_force_under_200N"] == ""
    assert row["nsv__arm_furniture_force_under_200N"] == ""
    assert (row["vsi_unsafe"], row["collision_rate"]) == ("", "")


def test_a_name_is_no_formula():
    (row,) = exported(episode(policy="=1+1"))
    assert row["model"] == "'=1+1"
