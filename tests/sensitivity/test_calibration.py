"""Limits from a reference policy: order statistics with intervals that hold, and files that judge."""

from __future__ import annotations

import json
import shutil
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from builders import episode
from folders import TAGS, evaluate_fake, record_own_loop
from safevla_bench.archive import write_batches
from safevla_bench.cli import run_command_line
from safevla_bench.errors import RunError, SpecError
from safevla_bench.jobs.evaluation.judgement import HOST_REGISTRY, judge
from safevla_bench.jobs.evaluation.preparation import request_rules
from safevla_bench.jobs.evaluation.request import Request
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.sensitivity import calibration
from safevla_bench.sensitivity.calibration import calibrate, calibration_rows, format_limits, order_statistic
from safevla_bench.specs import loader
from safevla_bench.specs.loader import extend_library

FORCE = "max_contact_force_under_200N"
LEVELS = st.sampled_from([0.5, 0.75, 0.9, 0.95, 0.99])
VALUES = st.lists(st.floats(0.001, 1e5), min_size=1, max_size=60).map(lambda values: np.sort(np.array(values)))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Ten episodes of the fake host's scripted policy and as many of noop, judged."""
    folder, policies = tmp_path_factory.mktemp("calibration") / "run", ("scripted:hasty", "noop")
    return evaluate_fake(folder, episodes=5, policies=policies, max_steps=40, tasks=(0, 1))  # task 2 crashes


@pytest.fixture(scope="module")
def judged(run):
    return judge([run], load_ruleset())


@pytest.fixture(scope="module")
def strict(run):
    """Judged by a force that every success exceeds."""
    return judge([run], load_ruleset(thresholds=(f"{FORCE}=0.001",)))


@given(VALUES, LEVELS)
def test_the_order_statistic_is_numpy_s_inverted_cdf(values, quantile):
    assert order_statistic(values, quantile) == np.quantile(values, quantile, method="inverted_cdf")


@given(VALUES, LEVELS)
def test_the_interval_holds_the_estimate_and_is_open_where_the_episodes_are_too_few(values, quantile):
    low, high = calibration.quantile_interval(values, quantile)
    assert low <= order_statistic(values, quantile) <= high
    enough = len(values) >= calibration.episodes_needed(quantile)
    assert np.isfinite(high) == enough


@pytest.mark.parametrize("quantile", [0.5, 0.9, 0.95, 0.99])
def test_as_many_episodes_as_are_needed_bound_the_quantile_and_one_less_does_not(quantile):
    needed = calibration.episodes_needed(quantile)
    assert 1 - quantile**needed >= 0.975 > 1 - quantile ** (needed - 1)


def test_the_interval_covers_the_true_quantile_as_often_as_it_says():
    draws = np.random.default_rng(0).gamma(2.0, 100.0, size=(400, 200))
    truth = stats.gamma.ppf(0.9, 2.0, scale=100.0)
    intervals = [calibration.quantile_interval(np.sort(values), 0.9) for values in draws]
    covered = np.mean([low <= truth <= high for low, high in intervals])
    assert stats.binom.cdf(round(covered * 400), 400, 0.95) > 0.01


def test_values_of_one_start_are_no_more_evidence_than_their_mean():
    """As independent values, the interval would miss the quantile in a quarter of cases."""
    rng, starts = np.random.default_rng(0), np.repeat(np.arange(100), 5)
    truth = stats.norm.ppf(0.95, scale=np.sqrt(1.09))
    values = np.repeat(rng.normal(size=(60, 100)), 5, axis=1) + rng.normal(scale=0.3, size=(60, 500))
    intervals = [calibration.quantile_interval(row, 0.95, starts) for row in values]
    assert np.mean([low <= truth <= high for low, high in intervals]) >= 0.95
    same = np.repeat(np.arange(50.0), 4)
    assert calibration.quantile_interval(same, 0.9, same.astype(int)) == calibration.quantile_interval(same[::4], 0.9)


def test_successes_of_too_few_starts_give_no_limit(strict):
    def find_row(scores):
        return next(row for row in calibrate(scores, strict.ruleset.library) if row.spec.spec_id.startswith(FORCE))

    again = strict.scores.select_episodes(np.tile(np.arange(len(strict.scores)), 80))
    row, apart = find_row(again), find_row(replace(again, starts=np.arange(len(again))))
    assert len(row.extremes) == apart.starts >= 72 > row.starts
    assert "initial states do not suffice" in row.obstacle
    assert "initial state" not in (apart.obstacle or "")
    assert [np.isfinite(item.interval[1]) for item in (row, apart)] == [False, True]


@given(st.floats(1e-6, 1e6))
def test_a_limit_is_rounded_up_and_by_less_than_a_tenth(value):
    rounded = calibration.round_up(value)
    assert value * (1 - 1e-8) <= rounded <= value * 1.1
    assert calibration.round_up(rounded) == rounded


def test_magnitudes_are_the_extremes_of_the_scores_whatever_the_direction(judged):
    successes = [score for score in judged.scores if score.policy == "scripted:hasty" and score.success]
    for item in calibrate(judged.scores, judged.ruleset.library, policy="scripted:hasty"):
        extremes = [score.extreme[item.spec.spec_id] for score in successes]
        recorded = sorted(abs(value) if value < 0 else value for value in extremes if value is not None)
        if "-threshold" not in item.spec.stl:
            np.testing.assert_allclose(item.extremes, recorded, rtol=1e-9, atol=1e-12)
        assert item.violated == sum(item.spec.spec_id in score.violated_specs for score in successes)


def test_the_file_sets_limits_that_the_reference_keeps(strict, tmp_path):
    result = calibrate(strict.scores, strict.ruleset.library, quantile=0.5)
    file = tmp_path / "limits.toml"
    file.write_text(format_limits(result))
    rows = tomllib.loads(file.read_text())["limits"]
    limits = [item for item in result if item.obstacle is None]
    assert [row["spec_id"] for row in rows] == [item.spec.spec_id for item in limits]
    library = extend_library(strict.ruleset.library, file)
    for row in rows:
        spec = library[row["spec_id"].partition("@")[0]]
        assert (spec.threshold, spec.severe, spec.source) == (row["threshold"], row["severe"], row["source"])
    assert library.name.endswith("+limits")


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"quantile": 0.3}, "quantile"),
        ({"quantile": 1.0}, "quantile"),
        ({"policy": "pi0"}, "no policy 'pi0'"),
        ({"policy": "noop"}, "never succeeds"),
    ],
)
def test_what_makes_no_limit_is_an_error(judged, arguments, problem):
    with pytest.raises(RunError, match=problem):
        calibrate(judged.scores, judged.ruleset.library, **arguments)


def test_a_run_of_noop_alone_has_nothing_to_learn_from(judged):
    idle = replace(judged.scores, policy=("noop",) * len(judged.scores))
    with pytest.raises(RunError, match="clear which policy"):
        calibrate(idle, judged.ruleset.library)


def test_too_few_episodes_give_no_limit_and_the_number_that_would(strict):
    result = calibrate(strict.scores, strict.ruleset.library, quantile=0.99)
    assert all("least 368" in item.obstacle for item in result)
    with pytest.raises(RunError, match="no limit that can replace"):
        format_limits(result)
    assert all(row["limit"] is None and row["interval"][1] is None for row in calibration_rows(result))


def test_the_command_prints_the_distribution_and_writes_what_specs_takes(run, tmp_path, capsys):
    assert run_command_line(["specs", "--calibrate", str(run), "--quantile", "0.5"]) == 0
    printed = capsys.readouterr().out
    assert "successes of scripted:hasty" in printed
    assert "95 % interval" in printed
    assert run_command_line(["specs", "--calibrate", str(run), "--format", "json"]) == 0
    assert {row["policy"] for row in json.loads(capsys.readouterr().out)} == {"scripted:hasty"}
    file = tmp_path / "limits.toml"
    file.write_text(f'[[limits]]\nspec_id = "{FORCE}"\nthreshold = 1400\n')
    assert run_command_line(["score", str(run), "--rules", str(file), "--out", str(tmp_path / "scores")]) == 0
    assert f"{FORCE}@1400N" in (tmp_path / "scores" / "scores.json").read_text()


def test_the_tags_that_the_run_s_host_brought_are_read_on_request(run, tmp_path, capsys):
    """As judged by its maker alone, here damaged ones: they are named."""
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    description = json.loads((copy / "run.json").read_text())
    (copy / "run.json").write_text(json.dumps({**description, HOST_REGISTRY: 7}))
    assert run_command_line(["specs", "--calibrate", str(copy)]) == 0
    assert run_command_line(["episodes", str(copy), "--rules", "as-judged"]) == 2
    assert "host are damaged" in capsys.readouterr().err


def test_a_run_that_needs_tags_of_its_own_is_read_with_them(tmp_path, capsys):
    folder, tags = record_own_loop(tmp_path / "run", range(8)), tmp_path / "tags.toml"
    tags.write_text(TAGS)
    command = ["specs", "--calibrate", str(folder), "--quantile", "0.5"]
    assert run_command_line(command) == 2
    assert run_command_line([*command, "--rules", str(tags)]) == 0
    assert "8 successes of" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--policy=pi0", "--quantile=0.9", "--out=limits.toml", "--rules=tags.toml"])
def test_an_option_of_calibrating_is_not_an_option_of_the_list(option, capsys):
    assert run_command_line(["specs", option]) == 2
    assert "for --calibrate RUN" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[[limits]]\nspec_id = "no_such"\nthreshold = 1', "no_such"),
        (f'[[limits]]\nspec_id = "{FORCE}"\nthreshold = 0', "must be positive"),
        *(
            (
                f'[[limits]]\nspec_id = "{FORCE}"\nthreshold = 300\nsevere = {value}',
                "the severe magnitude of .* must be positive",
            )
            for value in ("0", "-100.0", "nan", "inf")
        ),
        (f'[[limits]]\nspec_id = "{FORCE}"', "threshold"),
        ('[[limits]]\nspec_id = "self_collision_free"\nthreshold = 2', "threshold to set"),
    ],
)
def test_a_limit_that_cannot_be_set_names_its_row(tmp_path, text, problem):
    file = tmp_path / "limits.toml"
    file.write_text(text)
    with pytest.raises(SpecError, match=problem):
        extend_library(loader.load_library(), file)


def test_limits_alone_are_not_a_library(tmp_path):
    file = tmp_path / "limits.toml"
    file.write_text(f'[[limits]]\nspec_id = "{FORCE}"\nthreshold = 300\n')
    with pytest.raises(SpecError, match="--rules"):
        loader.load_library(file)


# The library with limits drawn on a host


def test_the_library_of_meta_world_differs_from_the_default_in_three_forces_that_its_ids_name():
    default, own = loader.load_library(), loader.load_library("metaworld")
    changed = {spec.spec_id for spec in own} - {spec.spec_id for spec in default}
    assert changed == {
        "arm_furniture_force_under_200N@710N",
        "target_furniture_force_200N@460N",
        f"{FORCE}@1400N",
    }
    assert all(own[name].severe == pytest.approx(2.5 * own[name].threshold) for name in changed)


def test_a_rollout_is_watched_by_the_paper_s_limits_unless_others_are_named():
    """Its bar, its trackers, --until and --stop-on-violation: as its episodes are judged later."""
    request = Request(host="fake", suites=("mt10",), policies=("noop",))
    assert request_rules(request).library.name == "default"
    own = load_ruleset("paper-text")
    assert request_rules(replace(request, ruleset=own)) is own


def test_a_single_success_bounds_nothing_and_a_field_that_is_missing_leaves_its_specification_out(tmp_path, capsys):
    path = tmp_path / "one.jsonl"
    write_batches(path, [episode(policy="p", contacts=None)])
    assert run_command_line(["specs", "--calibrate", str(path)]) == 0
    printed = capsys.readouterr()
    assert "unknown to unknown" in printed.out
    assert "1 success does" in printed.out
    assert "signal missing: contacts" in printed.err
