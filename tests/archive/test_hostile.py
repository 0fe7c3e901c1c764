"""Thousands of malformed records: each is read rightly, or refused by a typed error that names its place and a remedy.

A fault is planted at a place that is known, so that the place of the error can be compared with it.
"""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from builders import BOWL, DRAWER, HAND, contacts, episode, same_bits
from safevla_bench.archive import open_archive, write_archive
from safevla_bench.archive.jsonl import decode_json, encode_json
from safevla_bench.errors import CollectedError, RecordError, SafevlaError
from safevla_bench.judging.ruleset import Ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.specs.loader import load_library
from safevla_bench.tasks.loader import load_registry
from safevla_bench.trajectory.batch import Batch

ID = "libero-goal/task_8/ep_000"
LIBRARY, TASKS = load_library(), load_registry()
Path = tuple[str | int, ...]
FORMS = [".jsonl", ".jsonl.zst", ".npz", ".parquet"]


def whole() -> dict[str, Any]:
    """A record with every field of the schema, and host-specific ones at every level."""
    batch = episode(
        3,
        joint_torque_limit_nm=(87.0, 12.0),
        joint_torque_nm=np.ones((3, 2)),
        contacts=contacts((1, HAND, BOWL, 3.0), (2, BOWL, DRAWER, 4.0)),
        gripped_body=np.array([-1, BOWL, BOWL]),
        sim_state=np.ones((3, 2)),
        action=np.ones((2, 2)),
        instruction="lift",
        seed=1,
        env_seed=2,
        init_state_index=3,
        horizon=4,
        outcome="success",
        embodiment="Panda",
        versions={"mujoco": "3.3"},
        dropped_pairs=(("hand", "link7"),),
    )
    tree: dict[str, Any] = {"schema_version": 1, **json.loads(encode_json(batch)), "mine": {"deep": [1, {"x": 2.5}]}}
    tree["steps"][1]["contacts"][0] |= {"impulse_ns": 0.5, "net_impulse_ns": 0.25, "geom": "g"}
    tree["steps"][2]["camera"] = [0.0, 1.0]
    return tree


WHOLE = whole()


def walk(tree: object, path: Path = ()) -> Iterator[tuple[Path, object]]:
    """Every value of a tree with its path."""
    yield path, tree
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield from walk(value, (*path, key))


PLACES = [(path, value) for path, value in walk(WHOLE) if path]
SCHEMA_PLACES = [(path, value) for path, value in PLACES if not {"mine", "camera", "geom"} & set(path)]
"""All but host-specific fields, which may hold anything."""


def at(tree: Any, path: Path) -> Any:
    for part in path:
        tree = tree[part]
    return tree


def plant(path: Path, value: object) -> dict[str, Any]:
    """The record with another value at a path."""
    tree = copy.deepcopy(WHOLE)
    at(tree, path[:-1])[path[-1]] = value
    return tree


MARK = "«here»"


def splice(path: Path, text: str) -> bytes:
    """The record as JSON text with other text in the place of a value."""
    whole_text = json.dumps(plant(path, MARK), ensure_ascii=False)
    return whole_text.replace(f'"{MARK}"', text).encode("utf-8", "surrogatepass")


NAMED = ("body_roles", "versions", "body_pos_m", "body_quat_wxyz", "pose_valid")
"""Fields whose values have names: a value of the wrong type is refused without its name."""


def require_place(error: RecordError, path: Path) -> None:
    """The error names the step and field of a path; of host-specific fields, that they are these."""
    host_field = (None, "extra") if {"mine", "camera", "geom"} & set(path) else place(path)
    keys = path[2:] if path[0] == "steps" else path
    unnamed = place((*path[: len(path) - len(keys)], keys[0])) if keys and keys[0] in NAMED else place(path)
    assert (error.place.step, error.place.field) in (place(path), unnamed, host_field), (path, str(error))


def place(path: Path) -> tuple[int | None, str | None]:
    """Step and field as an error names them."""
    step, parts = (path[1], path[2:]) if path[0] == "steps" and len(path) > 1 else (None, path)
    field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).removeprefix(".")
    assert not isinstance(step, str)
    return step, field or None


def read_line(line: bytes) -> Batch | RecordError:
    """What a reader makes of a line; an episode can be written again."""
    try:
        batch = decode_json(line)
    except RecordError as error:
        return error
    assert same_bits(decode_json(encode_json(batch)), batch)
    return batch


def refuse(line: bytes, problem: str, path: Path | None = None) -> RecordError:
    """The error of a line that must be refused, at the place where the fault is."""
    error = read_line(line)
    assert isinstance(error, RecordError), line[:200]
    assert error.remedy
    assert str(error).encode()
    assert re.search(problem, str(error)), (str(error), problem)
    if path is not None:
        require_place(error, path)
        assert error.place.episode == ID or path == ("episode_id",), str(error)
    return error


def judge(batch: Batch) -> None:
    """A verdict without a number that is none, or a typed error. Warnings are errors in this suite."""
    try:
        scores = score(batch, Ruleset(LIBRARY, TASKS, missing="deactivate"))
    except SafevlaError:
        return
    assert not np.isinf(scores.rho).any()
    assert np.nanmax(scores.depth, initial=0.0) <= 1.0
    assert scores.episode(0).safe == (not (scores.episode(0).vsi > 0))


NUMBERS = [(path, value) for path, value in PLACES if isinstance(value, int | float) and not isinstance(value, bool)]
TEXTS = [(path, value) for path, value in PLACES if isinstance(value, str)]
OBJECTS = [((), WHOLE)] + [(path, value) for path, value in PLACES if isinstance(value, dict)]


def test_the_record_itself_is_right():
    assert isinstance(read_line(json.dumps(WHOLE).encode()), Batch)
    assert len(PLACES) > 150


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_number_that_is_not_finite_is_refused_where_it_stands(literal):
    for path, value in PLACES:
        if isinstance(value, float) or literal != "1e999":
            error = refuse(splice(path, literal), r"is -?inf|inf is|limits are|not a finite number|is expected|beyond")
            limits = path[0] == "joint_torque_limit_nm" and len(path) > 1
            require_place(error, path[:1] if limits else path)


def test_a_number_out_of_range_is_refused_where_it_stands():
    for path, value in SCHEMA_PLACES:
        if isinstance(value, float):
            refuse(splice(path, "9" * 400), "Number out of range", path)


def test_an_integer_of_any_length_is_refused_or_kept():
    for path, value in NUMBERS:
        for digits in (19, 30, 300, 5000):
            outcome = read_line(splice(path, "-" + "9" * digits))
            host_field = (path, value) not in SCHEMA_PLACES
            if isinstance(value, int) and not host_field:
                assert isinstance(outcome, RecordError)
                assert digits == 5000 or outcome.place.episode == ID
            elif host_field and digits < 5000:  # more digits than Python reads
                assert isinstance(outcome, Batch)


def test_a_repeated_key_is_refused_at_every_depth():
    for path, value in OBJECTS:
        assert isinstance(value, dict)
        for key in value:
            inner = json.dumps({**value, "\x7f": 0})[:-1] + f", {json.dumps(key)}: {json.dumps(value[key])}}}"
            error = refuse(splice(path, inner) if path else inner.encode(), f"{key!r} is repeated")
            assert error.place.episode == ID


@pytest.mark.parametrize("half", ["\\ud800", "\\udfff", "a\\udc80b", "\\udc00\\ud800"])
def test_half_a_surrogate_pair_is_refused(half):
    for path, _ in TEXTS:
        refuse(splice(path, f'"{half}"'), "half a surrogate pair")
    for path, value in OBJECTS:
        assert isinstance(value, dict)
        inner = json.dumps(value)[:-1] + f', "{half}": 1}}'
        refuse(splice(path, inner) if path else inner.encode(), "half a surrogate pair")


def test_bytes_that_are_not_text_are_refused():
    for path, _ in TEXTS:
        line = splice(path, '"\ud800"')  # a surrogate as three bytes of would-be UTF-8
        refuse(line, "not UTF-8 at byte")


@pytest.mark.parametrize("depth", [70, 800, 100_000])
@pytest.mark.parametrize("brackets", ["[]", '{"a":}'])
def test_deep_nesting_is_refused_everywhere(depth, brackets):
    opening, closing = brackets[:-1], brackets[-1]
    nest = opening * depth + ("1" if opening != "[" else "") + closing * depth
    host_fields: list[Path] = [("mine",), ("steps", 1, "camera"), ("steps", 1, "contacts", 0, "geom")]
    for path in [*(path for path, _ in PLACES[::12]), *host_fields]:
        error = refuse(splice(path, nest), r"deep|is expected")
        assert error.place.episode == ID or path == ("episode_id",)


VALUES = [None, True, False, 0, -1, 1.5, 1e308, -1e308, 5e-324, -0.0, 2**63, "", "x", "plate"]
VALUES += [[], {}, [[]], [None], {"": 1}]


def test_any_value_in_any_place_is_read_rightly_or_refused_there():
    accepted = 0
    for path, was in PLACES:
        for value in VALUES:
            outcome = read_line(json.dumps(plant(path, value)).encode())
            accepted += isinstance(outcome, Batch)
            if isinstance(outcome, RecordError):
                assert outcome.place.episode == ID or path == ("episode_id",), (path, value)
                wrong = {type(was), type(value)} not in ({int, float}, {float}, {int}, {str}) and value is not None
                if wrong and path[0] == "steps" and len(path) > 1:
                    assert outcome.place.step is not None, (path, value, str(outcome))
    assert accepted > 500
    assert len(PLACES) * len(VALUES) - accepted > 1000


def test_a_value_of_the_wrong_type_is_refused_exactly_there():
    for path, value in SCHEMA_PLACES:
        foreign: object = "5" if type(value) in (int, float) else 5
        refuse(json.dumps(plant(path, foreign)).encode(), "is expected|allowed values", path)
        if isinstance(value, bool | int | float):
            foreign_number = 1 if isinstance(value, bool) else True
            refuse(json.dumps(plant(path, foreign_number)).encode(), "is expected", path)
        if path[0] == "steps" and len(path) == 3 and path[2] != "gripped_body":
            refuse(json.dumps(plant(path, None)).encode(), "not null", path)


def test_a_family_missing_in_one_step_is_refused_there():
    for path, _ in SCHEMA_PLACES:
        if path[0] == "steps" and len(path) == 3 and path[2] not in ("t", "gripped_body"):
            tree = copy.deepcopy(WHOLE)
            del at(tree, path[:-1])[path[-1]]
            error = refuse(json.dumps(tree).encode(), r"missing from step|appears at step")
            assert error.place.field == path[2]


def test_an_action_missing_in_one_step_is_refused_in_this_step():
    tree = copy.deepcopy(WHOLE)
    first, *others = tree["steps"]
    tree["steps"] = [first, *(copy.deepcopy(others[0]) | {"t": t} for t in range(1, 4))]
    del tree["steps"][2]["action"]
    assert refuse(json.dumps(tree).encode(), "action is missing from step 2").place.step == 2


TOUCH = {"a": "bowl", "b": "plate", "force_n": 1}
FAULTS: dict[str, tuple[Path, object, Path, str]] = {
    "no steps": (("steps",), [], ("steps",), "length >= 1"),
    "an unknown role": (
        ("body_roles", "plate"),
        "lamp",
        ("body_roles", "plate"),
        "'lamp' is not one of the allowed values",
    ),
    "a body in some steps only": (
        ("steps", 2, "body_pos_m"),
        {"bowl": [0, 0, 0]},
        ("steps", 2, "body_pos_m", "drawer"),
        "in only some steps",
    ),
    "a pose without a role": (("body_roles",), {"hand": "robot"}, ("steps", 0, "body_pos_m", "bowl"), "has no role"),
    "a contact without a role": (
        ("steps", 1, "contacts"),
        [{**TOUCH, "a": "cup"}],
        ("steps", 1, "contacts", 0, "a"),
        "'cup' has no role",
    ),
    "a negative force": (
        ("steps", 1, "contacts"),
        [{**TOUCH, "force_n": -1}],
        ("steps", 1, "contacts", 0, "force_n"),
        ">= 0",
    ),
    "steps out of order": (("steps", 1, "t"), 5, ("steps", 1, "t"), "t is 5, expected 1"),
    "an action in record 0": (("steps", 0, "action"), [0.0], ("steps", 0, "action"), "record 0 has an action"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_record_that_contradicts_itself_is_refused_at_its_place(fault):
    path, value, where, problem = FAULTS[fault]
    refuse(json.dumps(plant(path, value)).encode(), problem, where)


def test_a_missing_field_is_named():
    for name in ("episode_id", "benchmark", "task_id", "success", "dt", "target_object", "body_roles", "steps"):
        refuse(
            json.dumps({key: value for key, value in WHOLE.items() if key != name}).encode(),
            f"the key {name!r} is missing",
        )


def test_all_missing_fields_are_named_at_once():
    shown = {key: value for key, value in WHOLE.items() if key not in ("dt", "steps", "success")}
    refuse(json.dumps(shown).encode(), "the keys 'success', 'dt' and 'steps' are missing")


def test_every_bad_line_of_a_file_is_listed_with_its_number(tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b"\n{}\n" + encode_json(episode(3)) + b"[1]\n" + encode_json(episode(3)))
    with pytest.raises(CollectedError, match="a JSON object") as raised:
        open_archive(path)
    assert [(error.place.file, error.place.line) for error in raised.value.errors[:2]] == [
        (str(path), 2),
        (str(path), 4),
    ]
    assert "by policy 'test'" in str(raised.value.errors[2])


def test_lists_of_the_wrong_length_are_refused_in_their_step():
    for path, value in SCHEMA_PLACES:
        if isinstance(value, list) and path[0] == "steps" and len(path) > 1 and "contacts" not in path:
            for wrong in (value[:-1], [*value, 1.0]):
                error = refuse(json.dumps(plant(path, wrong)).encode(), "length|numbers|torques")
                assert error.place.field is not None
                assert error.place.field.startswith(str(path[2]))


def test_a_text_cut_off_anywhere_is_refused_and_names_its_episode():
    text, rng = json.dumps({"episode_id": ID, **WHOLE}).encode(), random.Random(1)
    for end in [*range(1, 60), *(rng.randrange(len(text)) for _ in range(150))]:
        error = refuse(text[:end], "malformed JSON|not UTF-8")
        assert error.place.episode == (ID if end > text.index(ID.encode()) + len(ID) + 1 else error.place.episode)


def test_an_empty_name_is_refused_for_episode_benchmark_task_and_body():
    for field in ("episode_id", "benchmark", "task_id"):
        refuse(json.dumps(plant((field,), "")).encode(), "length >= 1", (field,))
    tree = json.loads(json.dumps(WHOLE).replace('"plate"', '""'))
    refuse(json.dumps(tree).encode(), "a body has no name", ("body_roles",))
    tree["target_object"] = None
    refuse(json.dumps(tree).encode(), "a body has no name", ("body_roles",))


def test_twenty_thousand_contacts_in_a_step_are_read_and_judged(tmp_path):
    tree = copy.deepcopy(WHOLE)
    touch = {"a": "hand", "b": "bowl", "force_n": 1.0}
    tree["steps"][1]["contacts"] = [{**touch, "force_n": k / 200} for k in range(20_000)]
    batch = decode_json(json.dumps(tree).encode())
    row = score(batch, Ruleset(LIBRARY, TASKS)).episode(0)
    assert row.extreme["max_contact_force_under_200N"] == 99.995
    for suffix in FORMS:
        write_archive(tmp_path / f"x{suffix}", batch)
        assert same_bits(open_archive(tmp_path / f"x{suffix}"), batch)
    tree["steps"][1]["contacts"][17_777]["b"] = "nobody"
    refuse(json.dumps(tree).encode(), "'nobody' has no role", ("steps", 1, "contacts", 17_777, "b"))


JUDGED = {"eef_pos_m", "body_pos_m", "contacts", "joint_torque_nm"}


def test_numbers_beyond_any_scene_are_refused_where_they_stand():
    for path, value in SCHEMA_PLACES:
        if (
            isinstance(value, float)
            and path[0] == "steps"
            and path[-1] not in ("impulse_ns", "net_impulse_ns")
            and JUDGED & set(path)
        ):
            refuse(json.dumps(plant(path, 1e308)).encode(), "is implausibly large", path)
            refuse(json.dumps(plant(path, 1.1e100)).encode(), "is implausibly large", path)
    for dt in (1e308, 5e-324, 1e-120):
        refuse(json.dumps(plant(("dt",), dt)).encode(), "dt is", ("dt",))
    for limit in (1e308, 5e-324):
        refuse(json.dumps(plant(("joint_torque_limit_nm", 0), limit)).encode(), "the limits are")


def test_the_largest_numbers_that_are_accepted_are_judged():
    """Squares, quotients and sums of them are numbers: a warning would fail the suite."""
    for path, value in SCHEMA_PLACES:
        if not isinstance(value, float) or path[0] != "steps":
            continue
        for huge in (1e100, 5e-324) if JUDGED & set(path) else (1e308, -1e308, 5e-324):
            outcome = read_line(json.dumps(plant(path, huge)).encode())
            assert isinstance(outcome, Batch)
            judge(outcome)
    force = decode_json(json.dumps(plant(("steps", 2, "contacts", 0, "force_n"), 1e100)).encode())
    row = score(force, Ruleset(LIBRARY, TASKS)).episode(0)
    assert (row.safe, row.depth["max_contact_force_under_200N"]) == (False, 1.0)
