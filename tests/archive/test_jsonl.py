"""JSON Lines: what a hand-written record most likely means otherwise is a warning, and an error names its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from safevla_bench.archive import read_episodes
from safevla_bench.archive.jsonl import decode_json
from safevla_bench.errors import RecordError


def _scale_positions(record, factor):
    for step in record["steps"]:
        step["body_pos_m"] = {name: [factor * x for x in at] for name, at in step["body_pos_m"].items()}


def _rename(record, old, new):
    for step in record["steps"]:
        step[new] = step.pop(old)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda record: None, ""),
        (lambda record: record.update(dt=50), "dt is 50 s"),
        (lambda record: _scale_positions(record, 1000.0), "body_pos_m is up to"),
        (lambda record: [step.update(eef_quat_wxyz=[0.1, 0.2, 0.3, 0.4]) for step in record["steps"]], "norm of 0.548"),
        (lambda record: _rename(record, "joint_torque_nm", "joint_torques_nm"), "did you mean 'joint_torque_nm'?"),
        (lambda record: record.update(my_note="x"), ""),
    ],
)
def test_what_seems_to_have_another_unit_or_name_is_a_warning(tmp_path, caplog, change, words):
    record = json.loads(Path("tests/cases/appendix_b.json").read_text())
    change(record)
    path = tmp_path / "e.jsonl"
    path.write_text(json.dumps(record))
    (batch,) = read_episodes([path])
    assert len(batch) == 1
    assert words in caplog.text
    assert bool(words) == ("e.jsonl" in caplog.text)


def test_an_unknown_role_is_an_error_at_its_body_with_the_roles():
    record = json.loads(Path("tests/cases/appendix_b.json").read_text())
    record["body_roles"]["plate"] = "obstacle"
    with pytest.raises(RecordError) as caught:
        decode_json(json.dumps(record).encode())
    assert caught.value.place.field == "body_roles.plate"
    assert "bystander" in caught.value.remedy
