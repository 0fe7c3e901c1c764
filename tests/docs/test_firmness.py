"""The page on firmness: what it says of kept replays, and runs that are refused."""

from __future__ import annotations

import pytest

from safevla_bench.interface.task import VARIATIONS
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scores import SpecColumn
from safevla_bench.sensitivity.firmness import RECORDED, ClauseReading, PhysicsFile, PhysicsReplay

FORCE, TORQUE = "max_contact_force_under_200N", "joint_torque"


@pytest.fixture(scope="module")
def script(load_tool):
    return load_tool("firmness")


def replays(episode, leaving=None, flipped=()):
    """Replays under every variation: the force's verdict flips under those named, and `leaving` is off the path."""

    def row(name, first):
        clauses = {FORCE: ClauseReading(None if first is None else -1.0, first), TORQUE: ClauseReading(0.5)}
        at = 3 if name == leaving else None
        return PhysicsReplay(policy="p", suite="s", episode_id=episode, variation=name, left=at, clauses=clauses)

    return (row(RECORDED, None), *(row(name, 2 if name in flipped else None) for name in VARIATIONS))


def kept_replays(script, *rows):
    ruleset = load_ruleset()
    file = PhysicsFile(
        archive_sha256="a",
        judged_by=ruleset.provenance((), None),
        versions={"mujoco": "3"},
        left_path_m=0.01,
        variations={name: {field: 1 for field in change.changed} for name, change in VARIATIONS.items()},
        not_offered=(),
        replays=sum(rows, ()),
    )
    names = SpecColumn.__struct_fields__
    specs = tuple(SpecColumn(**{name: getattr(spec, name) for name in names}) for spec in ruleset.library.specs)
    return script.KeptReplays(recorded=9, specs=specs, file=file)


def test_clauses_are_told_apart_by_what_flips_them(script):
    of = kept_replays(script, replays("a", flipped=("half-step", "soft")), replays("b", leaving="soft"), replays("c"))
    text = script.describe_group(of).replace("\N{NO-BREAK SPACE}", " ")
    assert "3 of 9" in text
    assert f"replay flips: `{TORQUE}`." in text
    assert f"iterations flip: `{FORCE}` (1)." in text
    assert f"| {FORCE} | 200 N | 1 | 1 | 1 | 2 | 1 | 1 | 0 | 0 |" in text
    assert f"| {TORQUE} | 1 | 2 | 0 | 1 | 0 | 0 | 0 | 0 | 0 |" in text


def test_every_kind_of_variation_is_known(script):
    assert {field for change in VARIATIONS.values() for field in change.changed} == set(script.KIND_OF)


def test_replays_go_back_to_their_own_records_alone(script, tmp_path):
    with pytest.raises(SystemExit, match="hold the records"):
        script.resume_run("builtin", tmp_path)
