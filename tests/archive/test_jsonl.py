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


def _stamp_in_milliseconds(record):
    for number, step in enumerate(record["steps"]):
        step["time_s"] = 50.0 * number


def _first_contact(record):
    return next(step["contacts"][0] for step in record["steps"] if step["contacts"])


def _rename(record, old, new):
    for step in record["steps"]:
        step[new] = step.pop(old)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda record: None, ""),
        (lambda record: record.update(dt=50), "dt is 50 s"),
        (lambda record: _scale_positions(record, 1000.0), "body_pos_m may be in millimeters"),
        (_stamp_in_milliseconds, "time_s may not be in seconds"),
        (lambda record: [step.update(eef_quat_wxyz=[0.1, 0.2, 0.3, 0.4]) for step in record["steps"]], "norm of 0.548"),
        (lambda record: _rename(record, "joint_torque_nm", "joint_torques_nm"), "did you mean 'joint_torque_nm'?"),
        (
            lambda record: [step.update(eef_quat=[1, 0, 0, 0]) for step in record["steps"]],
            "did you mean 'eef_quat_wxyz'?",
        ),
        (lambda record: _rename(record, "contacts", "contact"), "did you mean 'contacts'?"),
        (lambda record: _first_contact(record).update(net_force=1.0), "did you mean 'net_force_n'?"),
        (lambda record: record.update(my_note="x", n_steps=3, roles={}, host_version="2", policy_name="p"), ""),
        (lambda record: [step.update(ts=1, n_contacts=0, sim_time=2, gripper_pos=3) for step in record["steps"]], ""),
        (lambda record: _first_contact(record).update(force=1.0, impulse_n=2.0), "'impulse_ns'"),
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


def test_a_pose_that_is_marked_as_unknown_raises_no_doubt(tmp_path, caplog):
    record = json.loads(Path("tests/cases/appendix_b.json").read_text())
    for step in record["steps"]:
        body = next(iter(step["body_pos_m"]))
        step["body_pos_m"][body], step["pose_valid"] = [9999.0, 0, 0], {body: False}
    path = tmp_path / "e.jsonl"
    path.write_text(json.dumps(record))
    (batch,) = read_episodes([path])
    assert len(batch) == 1
    assert "meters" not in caplog.text


def test_a_thousand_unknown_names_give_few_warnings(tmp_path, caplog):
    record = json.loads(Path("tests/cases/appendix_b.json").read_text())
    record.update({f"policy{number}": 1 for number in range(1000)})
    path = tmp_path / "e.jsonl"
    path.write_text("\n".join([json.dumps(record)] * 3))
    assert len([*read_episodes([path])]) == 3
    assert len(caplog.records) == 10


@pytest.mark.parametrize(
    "cut", [b'{"episode_id": "\xc3\xa9\xc3\xa9", "steps": [', b'{"episode_id": "\xc3\xa9', b'{"a": 1, "b']
)
def test_a_record_that_is_cut_off_is_called_so(cut):
    with pytest.raises(RecordError) as caught:
        decode_json(cut)
    assert "cut off" in caught.value.remedy


def test_a_contact_without_a_force_is_an_error_at_its_place():
    record = json.loads(Path("tests/cases/appendix_b.json").read_text())
    contact = _first_contact(record)
    contact["force"] = contact.pop("force_n")
    with pytest.raises(RecordError, match="has no force") as caught:
        decode_json(json.dumps(record).encode())
    assert caught.value.place.field == "contacts[0].force_n"


def test_an_unknown_role_is_an_error_at_its_body_with_the_roles():
    record = json.loads(Path("tests/cases/appendix_b.json").read_text())
    record["body_roles"]["plate"] = "obstacle"
    with pytest.raises(RecordError) as caught:
        decode_json(json.dumps(record).encode())
    assert caught.value.place.field == "body_roles.plate"
    assert "bystander" in caught.value.remedy
