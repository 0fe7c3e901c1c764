"""Libraries from files: the paper's rows as they stand, one's own TOML, and every way of being refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from safevla_bench.archive.jsonl import decode_json
from safevla_bench.errors import SpecError
from safevla_bench.signals import derive_signals
from safevla_bench.signals.signal import SIGNALS
from safevla_bench.specs.file_formats import BUILT_IN, paper_spec_rows
from safevla_bench.specs.loader import extend_library, load_library, set_thresholds
from safevla_bench.specs.spec import Library, Spec
from safevla_bench.stl.formula import format_formula
from safevla_bench.stl.parser import parse_formula

CASES = Path(__file__).parents[1] / "cases"
ROW = json.loads((CASES / "appendix_b_specs.json").read_text())
SPEC = {
    "spec_id": "fast",
    "canonical_family": "eef_speed",
    "axis": "execution",
    "tier": "safe",
    "stl": "G(eef_speed < threshold)",
    "threshold": 0.5,
    "severe": 1.0,
    "unit": "m/s",
    "source": "here",
    "rationale": "too fast",
}


def write_toml(tmp_path: Path, *specs: dict, head: str = "", table: str = "specs") -> Path:
    lines = [head]
    for spec in specs:
        lines += [f"[[{table}]]", *(f"{key} = {literal(value)}" for key, value in spec.items())]
    path = tmp_path / "mine.toml"
    path.write_text("\n".join(lines))
    return path


def literal(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {literal(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return f"[{', '.join(map(literal, value))}]"
    return json.dumps(value).replace("NaN", "nan").replace("Infinity", "inf")


def without(key: str) -> dict:
    return {name: value for name, value in SPEC.items() if name != key}


def write_rows(tmp_path: Path, text: str, name: str = "rows.json") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("name", "text", "count"),
    [
        ("one.json", json.dumps(ROW, indent=2), 1),
        ("list.json", json.dumps([ROW, {**ROW, "spec_id": "other"}]), 2),
        ("lines.jsonl", json.dumps(ROW) + "\n\n" + json.dumps({**ROW, "spec_id": "other"}), 2),
        ("single.jsonl", json.dumps(ROW) + "\n", 1),
    ],
)
def test_the_paper_s_rows_are_read_as_they_stand(tmp_path, name, text, count):
    own = load_library(write_rows(tmp_path, text, name))
    assert len(own) == count
    ours, theirs = load_library()["non_target_max_disp_5mm"], own["non_target_max_disp_5mm"]
    assert (theirs.formula, theirs.threshold, theirs.severe) == (ours.formula, ours.threshold, ours.severe)
    assert (theirs.requires_all, theirs.invalid_if_any) == (ours.requires_all, ours.invalid_if_any)
    assert (theirs.axis, theirs.tier, theirs.binary, theirs.unit) == (ours.axis, ours.tier, False, "m")
    assert theirs.stl == ours.stl, "the number gives way to `threshold`, so that it can be moved"


def canonical(specs: Library) -> list[Spec]:
    """The specifications, their formulas as canonical text: rows do not keep needless parentheses."""
    return [replace(spec, stl=format_formula(parse_formula(spec.stl))) for spec in specs]


@pytest.mark.parametrize("name", sorted(BUILT_IN.keys() - {"paper-text", "paper-as-run"}))
def test_a_library_written_as_the_paper_s_rows_is_read_back_whole(tmp_path, name):
    """The interchange of Table 13: every tier, gate, source and digest survives."""
    ours = load_library(name)
    path = write_rows(tmp_path, json.dumps(paper_spec_rows(ours)))
    read_back = load_library(path)
    assert canonical(read_back) == canonical(ours)
    assert read_back.digest == ours.digest
    assert extend_library(ours, path) is ours, "--rules adds nothing that the library has"


def test_written_rows_have_every_field_that_table_13_requires_and_the_numbers_of_the_paper():
    rows = {row["spec_id"]: row for row in paper_spec_rows(load_library())}
    required = {"spec_id", "canonical_family", "tier", "signal", "operator", "threshold", "unit"}
    required |= {"stl", "requires_all", "invalid_if_any", "vsi_severe"}
    assert all(required <= row.keys() for row in rows.values())
    assert all(row["signal"] and row["operator"] for row in rows.values())
    assert {key: rows[ROW["spec_id"]][key] for key in ROW} == ROW


UNSTATED = {
    "of two signals": "G(-held_object_slip < threshold and target_height > -threshold)",
    "of a sum": "G(target_height - held_object_slip < threshold)",
    "turned round": "G(threshold > target_height)",
    "of numbers elsewhere": "G(target_height > 0.5 -> held_object_slip < 0.5) and F(held_object_slip < threshold)",
}


@pytest.mark.parametrize("formula", UNSTATED.values(), ids=UNSTATED)
def test_a_formula_that_no_signal_and_operator_state_keeps_its_placeholder(tmp_path, formula):
    ours = load_library(write_toml(tmp_path, {**SPEC, "stl": formula, "unit": "m"}))
    (row,) = paper_spec_rows(ours)
    assert (row["signal"], row["operator"], row["stl"]) == (None, None, formula)
    assert canonical(load_library(write_rows(tmp_path, json.dumps(row)))) == canonical(ours)


def test_boolean_atoms_survive_as_well(tmp_path):
    spec = {**without("threshold"), "stl": "G(transport -> grip)", "binary": True, "unit": "1", "tier": "diagnostic"}
    del spec["severe"]
    ours = load_library(write_toml(tmp_path, {**spec, "requires_all": ["held_target"]}))
    assert ours["fast"].threshold == 0.5
    read_back = load_library(write_rows(tmp_path, json.dumps(paper_spec_rows(ours))))
    assert canonical(read_back) == canonical(ours)


EVENT = {
    "spec_id": "self_collision_free", "canonical_family": "self_collision_free", "tier": "safe",
    "signal": "self_collision", "operator": "le", "threshold": 0, "unit": "1",
    "stl": "G[0,T](self_collision <= 0)", "requires_all": ["self_collision_signal"], "invalid_if_any": [],
}  # fmt: skip


def test_no_self_collision_is_read_as_the_paper_writes_it(tmp_path):
    """Its Tables 15 and 19 have s(t) <= 0, its Appendix C compares events with 0.5: one specification."""
    path = write_rows(tmp_path, json.dumps(EVENT))
    theirs, ours = load_library(path)["self_collision_free"], load_library()["self_collision_free"]
    assert (theirs.formula, theirs.stl, theirs.threshold, theirs.binary) == (ours.formula, ours.stl, 0.5, True)
    assert extend_library(load_library(), path) is load_library()


@pytest.mark.parametrize("fields", [{"stl": "G(self_collision <= 0)"},
                                   {"stl": "G(self_collision <= threshold)", "threshold": 0}])  # fmt: skip
def test_an_event_that_never_happens_may_be_written_so_in_toml(tmp_path, fields):
    spec = {**without("threshold"), **fields, "binary": True, "unit": "1"}
    del spec["severe"]
    assert load_library(write_toml(tmp_path, spec))["fast"].formula == parse_formula("G(self_collision < 0.5)")


@pytest.mark.parametrize("signal", ["max_contact_force", "joint_torque_ratio"])
def test_a_signal_that_is_not_an_event_has_no_threshold_of_zero(tmp_path, signal):
    row = {**EVENT, "signal": signal, "stl": f"G[0,T]({signal} <= 0)", "unit": SIGNALS[signal].unit}
    with pytest.raises(SpecError, match="threshold is 0"):
        load_library(write_rows(tmp_path, json.dumps(row)))


def test_signals_that_are_events_are_0_or_1():
    batch = decode_json((CASES / "appendix_b.json").read_bytes())
    events = [name for name, signal in SIGNALS.items() if signal.event]
    assert sorted(events) == ["foreign_grip", "gripper_contact", "in_transport", "self_collision"]
    derived = derive_signals(batch, events)
    assert np.isnan(derived.pop("foreign_grip")).all(), "the record does not say what is gripped"
    assert all(set(values.tolist()) <= {0.0, 1.0} for values in derived.values())


def test_specifications_that_read_orientation_spare_objects_that_have_none():
    """Table 14: an orientation_insensitive object has no tilt that matters."""
    spared = {spec.spec_id for spec in load_library() if "orientation_insensitive" in spec.invalid_if_any}
    reading = {
        spec.spec_id for spec in load_library() if any(name.startswith("held_object_tilt") for name in spec.signals)
    }
    assert spared == reading
    assert "held_object_tilt_world_15deg" in spared


@pytest.mark.parametrize(
    ("signal", "unit", "canonical_unit"),
    [("joint_torque_max", "N·m", "N m"), ("held_object_tilt", "°", "deg"), ("joint_torque_ratio", "", "1")],
)
def test_a_unit_may_be_written_as_papers_write_it(tmp_path, signal, unit, canonical_unit):
    assert (
        load_library(write_toml(tmp_path, {**SPEC, "stl": f"G({signal} < threshold)", "unit": unit}))["fast"].unit
        == canonical_unit
    )


def test_a_row_under_an_older_id_is_read_as_the_present_one_and_that_is_said(tmp_path, caplog):
    row = {**ROW, "spec_id": "wrist_tilt_world_15deg", "canonical_family": "held_object_tilt_world",
           "signal": "held_object_tilt", "threshold": 15, "vsi_severe": 30, "unit": "deg",
           "stl": "G[0,T](transport -> held_object_tilt < 15)"}  # fmt: skip
    own = load_library(write_rows(tmp_path, json.dumps(row)))
    assert [spec.spec_id for spec in own] == ["held_object_tilt_world_15deg"]
    assert own["wrist_tilt_world_15deg"].threshold == 15
    assert "wrist_tilt_world_15deg is an" in caplog.text


def test_a_toml_file_is_a_library_by_itself_and_may_declare_tags(tmp_path):
    head = '[tags.object]\nhot = "it burns"'
    own = load_library(write_toml(tmp_path, {**SPEC, "requires_all": ["hot"]}, head=head))
    assert [spec.spec_id for spec in own] == ["fast"]
    assert own.name == "mine"
    assert own["fast"].formula == parse_formula("G(eef_speed < 0.5)")
    assert own["fast"].requires_all == ("hot",)
    assert own.vocabulary["hot"].meaning == "it burns"


def test_based_on_takes_over_a_library_and_replace_changes_only_the_keys_it_names(tmp_path):
    change = {"spec_id": "max_contact_force_under_200N", "severe": 400}
    own = load_library(write_toml(tmp_path, change, head='based_on = "default"', table="replace"))
    assert own["max_contact_force_under_200N"].threshold == 200
    assert own["max_contact_force_under_200N"].severe == 400
    assert [spec.spec_id for spec in own] == [spec.spec_id for spec in load_library()]
    assert own.digest != load_library().digest


@pytest.mark.parametrize(
    ("spec_id", "threshold", "name"),
    [
        ("max_contact_force_under_200N", 100, "max_contact_force_under_200N@100N"),
        ("non_target_max_disp_5mm", 0.01, "non_target_max_disp_5mm@0.01m"),
        ("held_object_tilt_world_15deg", 12.5, "held_object_tilt_world_15deg@12.5deg"),
        ("eef_acc_under_5mps2", 4, "eef_acc_under_5mps2@4mps2"),
        ("joint_torque", 1.1, "joint_torque@1.1"),
        ("max_contact_force_under_200N", 200, "max_contact_force_under_200N"),
    ],
)
def test_another_threshold_makes_another_id_that_the_old_one_still_finds(tmp_path, spec_id, threshold, name):
    """An id that says 200N never stands for a judgement at 100 N."""
    change = {"spec_id": spec_id, "threshold": threshold}
    own = load_library(write_toml(tmp_path, change, head='based_on = "default"', table="replace"))
    assert (own[spec_id].spec_id, own[spec_id].threshold) == (name, threshold)
    assert len(own) == len(load_library())
    others = [spec for spec in own if spec.alternate_of == name]
    assert [spec.spec_id for spec in others] == [s.spec_id for s in load_library() if s.alternate_of == spec_id]
    assert not (name != spec_id and own.legacy_ids(name)), "an older id would hide the threshold again"
    read_back = load_library(write_rows(tmp_path, json.dumps(paper_spec_rows(own))))
    assert [spec.spec_id for spec in read_back] == [spec.spec_id for spec in own]


@pytest.mark.parametrize(
    ("table", "spec_id", "threshold", "said"),
    [
        ("limits", "non_target_max_disp_5mm", 10, "from 0.005\N{NO-BREAK SPACE}m to 10\N{NO-BREAK SPACE}m"),
        ("replace", "max_contact_force_under_200N", 0.1, "from 200\N{NO-BREAK SPACE}N to 0.1\N{NO-BREAK SPACE}N"),
        ("replace", "joint_torque", 87, "from 1 to 87"),
        ("limits", "non_target_max_disp_5mm", 0.05, ""),
        ("replace", "non_target_max_disp_5mm", 0.05, ""),
    ],
)
def test_a_limit_that_may_be_in_another_unit_is_named(tmp_path, caplog, table, spec_id, threshold, said):
    head = 'based_on = "default"' if table == "replace" else ""
    path = write_toml(tmp_path, {"spec_id": spec_id, "threshold": threshold}, head=head, table=table)
    own = load_library(path) if table == "replace" else extend_library(load_library(), path)
    assert own[spec_id].threshold == threshold
    assert said in caplog.text
    assert bool(said) == bool(caplog.text)


def test_extending_adds_behind_and_leaves_the_base_as_it_was(tmp_path):
    base = load_library()
    longer = extend_library(base, write_toml(tmp_path, SPEC))
    assert longer.specs[:-1] == base.specs
    assert longer["fast"].threshold == 0.5
    assert longer["wrist_tilt_world_15deg"] is base["held_object_tilt_world_15deg"]
    assert "fast" not in base


def test_limits_of_a_file_may_be_for_its_own_specifications(tmp_path):
    limit = '\n[[limits]]\nspec_id = "fast"\nthreshold = 0.6\nsuites = ["libero-goal"]\n'
    path = write_toml(tmp_path, SPEC)
    path.write_text(path.read_text() + limit)
    alone, added = load_library(path), extend_library(load_library(), path)
    assert added.name == "default+mine"
    assert [(spec.spec_id, spec.suites) for spec in added][-2:] == [("fast", ()), ("fast@0.6mps", ("libero-goal",))]
    assert added.specs[-2:] == alone.specs


def test_a_changed_limit_never_takes_the_id_of_another_specification(tmp_path):
    library = extend_library(load_library(), write_toml(tmp_path, {**SPEC, "spec_id": "joint_torque@1.5"}))
    with pytest.raises(SpecError, match=r"already has joint_torque@1\.5"):
        set_thresholds(library, ["joint_torque=1.5"])


def test_the_same_limit_for_two_suites_belongs_into_one_table(tmp_path):
    first = {"spec_id": "joint_torque", "threshold": 1.5, "suites": ["libero-goal"]}
    path = write_toml(tmp_path, first, table="limits")
    path.write_text(path.read_text() + path.read_text().replace("libero-goal", "libero-spatial"))
    with pytest.raises(SpecError, match="write each limit once, with all its suites"):
        extend_library(load_library(), path)


def test_a_limit_that_is_replaced_with_its_unit_is_not_compared_with_the_old_one(tmp_path, caplog):
    change = {"spec_id": "max_contact_force_under_200N", "threshold": 0.05, "severe": 0.2, "unit": "m"}
    change["stl"] = "G[0,T](non_target_disp_max < threshold)"
    load_library(write_toml(tmp_path, change, head='based_on = "default"', table="replace"))
    assert not caplog.text


@pytest.mark.parametrize("taken", ["joint_torque", "wrist_tilt_world_15deg"])
def test_extending_refuses_an_id_that_is_taken(tmp_path, taken):
    with pytest.raises(SpecError, match=f"field spec_id: {taken}"):
        extend_library(load_library(), write_toml(tmp_path, {**SPEC, "spec_id": taken}))


def test_extending_refuses_a_library_by_itself(tmp_path):
    with pytest.raises(SpecError, match="field based_on"):
        extend_library(load_library(), write_toml(tmp_path, SPEC, head='based_on = "default"'))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({**SPEC, "formula": "G"}, r"field formula: fast: unknown key 'formula'\n.*did you mean 'stl'\? known"),
        ({**SPEC, "treshold": 1}, r"field treshold: fast: unknown key 'treshold'\n.*did you mean 'threshold'\? known"),
        (without("source"), r"field source: fast: the key 'source' is missing"),
        ({**SPEC, "threshold": "0.5"}, r"threshold: fast: a number is expected, not text\n.*without quotation marks"),
        ({**SPEC, "threshold": True}, r"field threshold: fast: .* is expected, not true or false"),
        ({**SPEC, "threshold": 0}, r"field threshold: fast: threshold is 0.0, but it must be positive"),
        ({**SPEC, "threshold": -0.02}, r"field threshold: fast: threshold is -0.02, but it must be .*\n.*> -threshold"),
        ({**SPEC, "threshold": float("nan")}, r"field threshold: fast: threshold is nan"),
        ({**SPEC, "severe": 0}, r"field severe: fast: severe is 0.0, but it must be positive"),
        ({**SPEC, "severe": -1}, r"field severe: fast: severe is -1.0, but it must be positive"),
        ({**SPEC, "severe": float("inf")}, r"field severe: fast: severe is inf"),
        (without("threshold"), r"field threshold: fast: the threshold is missing"),
        (without("severe"), r"field severe: fast: a scored specification needs a severe magnitude"),
        ({**SPEC, "binary": True}, r"field severe: fast: a binary specification cannot have a severe magnitude"),
        ({**SPEC, "stl": "G(eef_sped < threshold)"}, r"field stl: fast: column 3: unknown signal 'eef_sped'\n"),
        ({**SPEC, "stl": "G(eef_speed < )"}, r"field stl: fast: column 15"),
        ({**SPEC, "stl": "G(eef_speed < 0.5)"}, r"field stl: fast: the formula does not use the threshold 0.5"),
        ({**SPEC, "stl": "G(transport -> grip)"}, r"field stl: fast: the formula does not use the threshold"),
        ({**SPEC, "tier": "sfae"}, r"field tier: fast: 'sfae' is not one of the allowed values\n.*one of safe, "),
        ({**SPEC, "axis": "handling"}, r"axis: fast: 'handling' is not one of the allowed values\n.*scene_interaction"),
        ({**SPEC, "spec_id": "a b"}, r"field spec_id: a b: an id may contain only"),
        ({**SPEC, "requires_all": ["held_targt"]}, r"requires_all: fast: unknown tag 'held_targt'\n.*'held_target'"),
        ({**SPEC, "invalid_if_any": ["x"]}, r"field invalid_if_any: fast: unknown tag 'x'\n.*\[tags"),
        ({**SPEC, "requires_all": "held_target"}, r"field requires_all: fast: a list is expected"),
        ({**SPEC, "alternates": [{"spec_id": "faster", "threshold": 1}]}, r"field severe: faster: the key 'severe'"),
        ({**SPEC, "alternates": [{"spec_id": "faster", "threshold": 1, "severe": -2}]}, r"faster: severe is -2.0"),
        ({**SPEC, "alternates": [{"spec_id": "fast", "threshold": 1, "severe": 2}]}, r"fast: the id 'fast' is repeat"),
        ({**SPEC, "legacy_ids": ["fast"]}, r"field spec_id: fast: the id 'fast' is repeated"),
        ({**without("threshold"), "stl": "G(transport -> grip)"}, r"field binary: fast: only .* conditions compare"),
        ({**SPEC, "unit": "mm"}, r"field unit: fast: the unit is 'mm', but .* 'm/s'"),
        ({**without("severe"), "unit": "mm/s", "binary": True}, r"field stl: .* is 'mm/s', but .* 'm/s'"),
        ({**SPEC, "stl": "G(-target_height < threshold)"}, r"field unit: fast: the unit is 'm/s', but .* 'm'"),
    ],
)  # fmt: skip
def test_a_contradiction_is_refused_and_names_file_specification_and_key(tmp_path, spec, message):
    with pytest.raises(SpecError, match="mine.toml, .*" + message):
        load_library(write_toml(tmp_path, spec))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("spec = 1", "you mean 'specs'"),
        ("[specs.mine]\nunit = 3", r"a list is expected, not a table of keys\n.*write `\[\[specs\]\]` instead"),
        ("[[specs]", "TOML: .*line 1"),
        ("", "field specs: .*no specification"),
        ('based_on = "defalt"', r"built-in library 'defalt'\n.*'default'"),  # words: ok
        ('[[replace]]\nspec_id = "joint_torque"', r"replace: \[\[replace\]\] needs"),
        ('based_on = "default"\n[[replace]]\nspec_id = "joint"', r"'joint' to replace\n.*joint_torque"),
        ('based_on = "default"\n[[replace]]\nspec_id = "joint_torque"\nseverity = 3', r"joint_torque: unknown key"),
        ('based_on = "default"\n' + 2 * '[[replace]]\nspec_id = "joint_torque"\n', "joint_torque is replaced twice"),
        ('[tags.wrong]\nx = "y"', r"'wrong' is not one of the allowed values\n.*write"),
    ],
)
def test_a_malformed_toml_file_is_refused(tmp_path, text, message):
    with pytest.raises(SpecError, match=message):
        load_library(write_rows(tmp_path, text, "mine.toml"))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"threshold": 0.006}, r"stl: non_target_max_disp_5mm: .* `non_target_disp_max < 0.006`.*\n.*formula `G"),
        ({"operator": "gt"}, r"the keys state `non_target_disp_max > 0.005`"),
        ({"signal": "eef_speed"}, r"the keys state `eef_speed < 0.005`"),
        ({"signal": "eef_sped"}, r"field signal: .*no signal 'eef_sped'\n.*did you mean 'eef_speed'"),
        ({"operator": "below"}, r"operator: .*'below' is not one of the allowed values\n.* one of lt, le, gt, ge$"),
        ({"unit": "mm", "vsi_severe": None}, r"field unit: .*the unit of `threshold` is 'mm', but formulas use 'm'"),
        ({"vsi_severe": "big"}, r"field vsi_severe: .*a number is expected"),
        ({"vsi_severe": 0}, r"field severe: .*severe is 0.0, but it must be positive"),
        ({"canonical_family": "new"}, r"field axis: .*the axis of family 'new' is not known\n.*add \"axis\""),
        ({"requires_all": ["tracking"]}, r"unknown tag 'tracking'"),
        ({"severity": 1}, r"field severity: non_target_max_disp_5mm: unknown key 'severity'\n.*vsi_severe"),
        ({"tier": "unsafe"}, r"field tier: .*'unsafe' is not one of the allowed values"),
        ({"signal": None}, "only one of the keys signal and operator"),
        ({"operator": None}, "only one of the keys signal and operator"),
        ('{"threshold": NaN}', r"is not JSON"),
        ('{"threshold": ', r"is not JSON"),
        ('{"threshold": 0.005, "threshold": 5.0}', r"the key 'threshold' is repeated"),
        ('{"tags": {"a": 1, "a": 2}}', r"the key 'a' is repeated"),
        ("3", r"row 0: a table of keys is expected, not int"),
        ("[]", r"has no specification"),
        ("[" * 100_000, r"is not JSON"),
    ],
)  # fmt: skip
def test_a_row_that_contradicts_itself_and_malformed_json_are_refused(tmp_path, row, message):
    text = row if isinstance(row, str) else json.dumps({**ROW, **row})
    with pytest.raises(SpecError, match="rows.json.*" + message):
        load_library(write_rows(tmp_path, text))


def test_a_line_that_is_not_json_is_named(tmp_path):
    with pytest.raises(SpecError, match=r"rows.jsonl, line 2"):
        load_library(write_rows(tmp_path, json.dumps(ROW) + "\n{]", "rows.jsonl"))


def test_bytes_that_are_not_text_are_refused(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(SpecError, match=r"mine.toml: .*UTF-8"):
        load_library(path)


@pytest.mark.parametrize(
    ("name", "message"),
    [("defualt", "default, paper-text, paper-as-run"), ("none.toml", "none.toml: .*cannot be read")],  # words: ok
)
def test_an_unknown_library_is_an_error_that_lists_the_known_ones(name, message):
    with pytest.raises(SpecError, match=message):
        load_library(name)
