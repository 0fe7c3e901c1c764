"""Changes of a compiled model: they reach what they name, nothing else, and are taken back to the bit."""

from __future__ import annotations

import numpy as np
import pytest

mujoco = pytest.importorskip("mujoco")

from safevla_bench.errors import HostError  # noqa: E402
from safevla_bench.hosts.mujoco.environment import change_model  # noqa: E402
from safevla_bench.interface.task import VARIATIONS, PhysicsChange  # noqa: E402
from safevla_recorder.mujoco.recorder import Scene, copy_state  # noqa: E402

XML = """
<mujoco><worldbody><geom name="floor" type="plane" size="1 1 1"/>
{}
</worldbody></mujoco>
"""
BALL = (
    '<body name="{}" pos="{} 0 {}"><freejoint/>'
    '<geom type="sphere" size=".05" contype="{}" conaffinity="{}" solref="{}"/></body>'
)
ROLES = {"world": "furniture", "a": "target", "b": "bystander", "c": "robot"}


def make():
    """Three balls above each other, whose masks differ: a rests on b, b on c, and c on the floor."""
    rows = [("c", 0, 0.05, 1, 1, ".02 1"), ("b", 0.001, 0.15, 3, 1, "-1000 -10"), ("a", 0.002, 0.25, 1, 3, ".01 1")]
    model = mujoco.MjModel.from_xml_string(XML.format("\n".join(BALL.format(*row) for row in rows)))
    return model, mujoco.MjData(model), Scene(("world", "c", "b", "a"), ROLES, {}, {})


def run(change, steps=200):
    """The states of a run under a change, and its contacts as pairs of bodies."""
    model, data, scene = make()
    change_model(model, data, scene, change, [0, 0])
    states, pairs = [], set()
    for _ in range(steps):
        mujoco.mj_step(model, data)
        states.append(copy_state(model, data))
        pairs |= {frozenset(scene.body_name[model.geom_bodyid[g]] for g in contact.geom) for contact in data.contact}
    return np.array(states), pairs


def test_the_default_changes_nothing_to_the_bit():
    model, data, _ = make()
    for _ in range(200):
        mujoco.mj_step(model, data)
    assert run(PhysicsChange())[0][-1].tobytes() == copy_state(model, data).tobytes()


@pytest.mark.parametrize("name", [name for name in VARIATIONS if not name.endswith("-step")])
def test_each_variation_leads_elsewhere_and_is_taken_back(name):
    model, data, scene = make()
    before = {key: value.copy() for key in dir(model) if isinstance(value := getattr(model, key), np.ndarray)}
    options = model.opt.iterations, model.opt.tolerance
    undo = change_model(model, data, scene, VARIATIONS[name], [0, 0])
    undo()
    assert all(np.array_equal(getattr(model, key), value) for key, value in before.items())
    assert (model.opt.iterations, model.opt.tolerance) == options
    if name not in ("few-iterations", "many-iterations"):  # three balls need but a few
        assert (run(VARIATIONS[name])[0] != run(PhysicsChange())[0]).any()


def test_a_parted_pair_does_not_touch_and_all_others_do_as_before():
    _, pairs = run(PhysicsChange(apart=("a", "b")))
    assert frozenset("ab") not in pairs
    assert frozenset("ab") in run(PhysicsChange())[1]
    assert frozenset("bc") in pairs
    assert frozenset(("world", "c")) in pairs


def test_parting_what_never_meets_changes_no_bit():
    apart = run(PhysicsChange(apart=("a", "world")), steps=20)[0]
    assert apart.tobytes() == run(PhysicsChange(), steps=20)[0].tobytes()


def test_the_robot_can_be_named_as_a_whole():
    assert frozenset("bc") not in run(PhysicsChange(apart=("robot", "b")))[1]


def test_a_removed_body_touches_nothing_and_stays():
    states, pairs = run(PhysicsChange(without="b"))
    assert not any("b" in pair for pair in pairs)
    model = make()[0]
    place = 1 + model.jnt_qposadr[1]
    assert np.abs(states[:, place : place + 3] - [0.001, 0, 0.15]).max() < 1e-6


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (PhysicsChange(apart=("a", "hat")), "body 'hat'"),
        (PhysicsChange(without="c"), "c is a"),
    ],
)
def test_a_body_that_cannot_be_taken_is_refused(change, message):
    with pytest.raises(HostError, match=message):
        change_model(*make(), change, [0, 0])


def test_moved_things_are_so_far_away_in_the_plane():
    model, data, scene = make()
    before = data.qpos.copy()
    change_model(model, data, scene, PhysicsChange(shift_m=1e-4), [7, 0])
    moved = (data.qpos - before).reshape(3, 7)[:, :3]
    assert np.linalg.norm(moved, axis=1) == pytest.approx(1e-4)
    assert (moved[:, 2] == 0).all()
