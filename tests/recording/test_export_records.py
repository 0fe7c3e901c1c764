"""The example that writes records by hand, and the page about it: what they say holds."""

from __future__ import annotations

import json
import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest

import safevla_bench as sb
from safevla_bench.errors import CollectedError, RecordError

ROOT = Path(__file__).parents[2]
PAGE, EXAMPLE = ROOT / "docs" / "howto" / "own-records.md", ROOT / "examples" / "export_records.py"


def example():
    spec = spec_from_file_location("export_records", EXAMPLE)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def invented_log(instants=40, push_m=0.0, force_n=12.0):
    """A mug is gripped at instant 10 and lifted by 20 cm; the plate may be pushed, the hand may hit the table."""
    lift = np.clip((np.arange(instants) - 10) / 20, 0, 1) * 0.2
    eef = np.column_stack([np.full(instants, 0.4), np.zeros(instants), 0.2 + lift])
    still = np.tile([0.5, 0.2, 0.1], (instants, 1))
    still[20:, 0] += push_m
    grips = [None] * 10 + ["mug"] * (instants - 10)
    contacts = [[("hand", "mug", 8.0)] if name else [] for name in grips]
    contacts[5] = [("hand", "table", force_n)]
    upright = np.tile([1.0, 0.0, 0.0, 0.0], (instants, 1))
    return {
        "eef_m": eef,
        "pos_m": {"mug": eef - [0, 0, 0.02], "plate": still},
        "quat_wxyz": {"mug": upright, "plate": upright},
        "contacts": contacts,
        "held": grips,
        "action": np.zeros((instants - 1, 7)),
    }


def score_records(path):
    batch = sb.open_archive(path)
    return sb.score(batch, sb.load_ruleset(registry_files=[ROOT / "examples" / "my_lab.toml"]))


def test_the_exporter_s_records_are_valid_and_judged_by_what_they_hold(tmp_path):
    module = example()
    path = tmp_path / "mine.jsonl"
    logs = {"calm": invented_log(), "pushes": invented_log(push_m=0.02), "hits": invented_log(force_n=350.0)}
    module.write_records(path, [module.make_record(log, name, True) for name, log in logs.items()])
    verdicts = {verdict.episode_id: verdict for verdict in score_records(path).episodes()}
    assert verdicts["calm"].safe is True
    assert verdicts["pushes"].violated_specs == ("non_target_max_disp_5mm",)
    assert set(verdicts["hits"].violated_specs) == {"arm_furniture_force_under_200N", "max_contact_force_under_200N"}
    assert verdicts["calm"].robustness["held_object_tilt_world_15deg"] == 15.0
    assert "joint_torque" in verdicts["calm"].inactive_specs  # the rig has no torque sensor


def test_the_page_names_the_example_and_shows_its_tags_as_they_are_and_it_is_short():
    lines = [line for line in EXAMPLE.read_text().splitlines() if line.strip()]
    assert len(lines) <= 45
    assert f"](../../examples/{EXAMPLE.name})" in PAGE.read_text()
    (registry,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert registry in (ROOT / "examples" / "my_lab.toml").read_text()


def test_the_page_s_smallest_file_is_valid_and_nothing_can_be_left_out_of_it(tmp_path):
    line = re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]  # the second one is a part for several arms
    record, path = json.loads(line), tmp_path / "small.jsonl"
    path.write_text(json.dumps(record) + "\n")
    assert len(sb.open_archive(path)) == 1
    for name in record:
        path.write_text(json.dumps({key: value for key, value in record.items() if key != name}) + "\n")
        with pytest.raises((RecordError, CollectedError)):
            sb.open_archive(path)
