"""Contact forces are decoded as MuJoCo's own function decodes them, for both cones and every contact dimension."""

from __future__ import annotations

import numpy as np
import pytest

from safevla_recorder.contacts import contact_peaks, join_contacts
from safevla_recorder.errors import HostError
from safevla_recorder.mujoco.contacts import ContactLog

mujoco = pytest.importorskip("mujoco", reason="MuJoCo comes with the extra libero")

# Balls and boxes of each contact dimension slide down a slope; one ball hovers within its gap: listed, not touching.
SLOPE = """
<mujoco>
  <option cone="{cone}" impratio="3" timestep="0.002"/>
  <worldbody>
    <geom name="slope" type="plane" size="5 5 0.1" euler="0 25 0" condim="1"/>
    {bodies}
    <body pos="0 2 0.12"><freejoint/>
      <geom type="sphere" size="0.05" condim="3" margin="1" gap="1" mass="0.1" contype="2" conaffinity="2"/></body>
    <geom name="shelf" type="box" size="1 1 0.01" pos="0 2 0" contype="2" conaffinity="2"/>
  </worldbody>
</mujoco>
"""
BODY = """<body pos="{x} {y} {z}"><freejoint/>
  <geom type="{kind}" size="0.05 0.04 0.06" condim="{dim}" friction="0.8 0.02 0.01" mass="0.3"/></body>"""


def slope(cone: str = "elliptic", steps: int = 0):
    kinds = [(kind, dim) for kind in ("sphere", "box") for dim in (1, 3, 4, 6)]
    bodies = "".join(
        BODY.format(x=0.0, y=0.25 * k - 1, z=0.12, kind=kind, dim=dim) for k, (kind, dim) in enumerate(kinds)
    )
    model = mujoco.MjModel.from_xml_string(SLOPE.format(cone=cone, bodies=bodies))
    data = mujoco.MjData(model)
    for _ in range(steps):
        mujoco.mj_step(model, data)
    return model, data


def true_vectors(model, data):
    """Forces on the second geom in the world frame by MuJoCo itself, of the touching contacts in list order."""
    wrench, vectors = np.zeros(6), []
    for k in range(data.ncon):
        if data.contact[k].efc_address >= 0:
            mujoco.mj_contactForce(model, data, k, wrench)
            vectors.append(data.contact[k].frame.reshape(3, 3).T @ wrench[:3])
    return np.array(vectors).reshape(-1, 3)


@pytest.mark.parametrize("cone", ["pyramidal", "elliptic"])
def test_forces_are_those_of_mj_contact_force(cone):
    model, data = slope(cone)
    log, truth, dims, inactive = ContactLog(model), [], set(), 0
    for _ in range(400):
        mujoco.mj_step(model, data)
        log.add_substep(data)
        truth.append(true_vectors(model, data))
        dims |= set(data.contact.dim.tolist())
        inactive += int((data.contact.efc_address < 0).sum())
    touches = log.take_contacts()
    expected = np.concatenate(truth)
    assert dims == {1, 3, 4, 6}
    assert inactive > 0
    assert expected.max() > 1
    assert len(touches.geom1) == len(expected)
    every = np.arange(len(expected))
    np.testing.assert_allclose(touches.force_norms(every), np.linalg.norm(expected, axis=1), rtol=0, atol=1e-12)
    np.testing.assert_allclose(touches.force_vectors(every), expected, rtol=0, atol=1e-12)


def test_a_log_is_empty_after_it_was_taken_and_counts_its_notes():
    model, data = slope()
    mujoco.mj_forward(model, data)
    log = ContactLog(model)
    log.add_substep(data)
    log.add_substep(data)
    assert len(log) == 2
    assert log.take_contacts().substeps == 2
    assert len(log) == 0


def test_a_pair_has_its_hardest_contact_the_sum_of_impulses_and_the_largest_norm_of_its_vector_sum():
    """Whichever geom is named first."""
    model, data = slope()
    log, place = ContactLog(model), np.minimum(np.arange(model.ngeom), 4)  # some geoms are one body
    place[0] = 5  # the slope last: pairs must come with the lower place first all the same
    single: dict[tuple[int, int, int], list[float]] = {}
    net: dict[tuple[int, int, int], list[float]] = {}
    for step in range(200):
        mujoco.mj_step(model, data)
        log.add_substep(data)
        sums: dict[tuple[int, int, int], np.ndarray] = {}
        touching = [k for k in range(data.ncon) if data.contact[k].efc_address >= 0]
        for k, force in zip(touching, true_vectors(model, data)):
            first, second = (int(place[geom]) for geom in (data.contact[k].geom1, data.contact[k].geom2))
            key = (step // 20, min(first, second), max(first, second))
            sums[key] = sums.get(key, 0) + (force if first <= second else -force)
            single.setdefault(key, []).append(float(np.linalg.norm(force)))
        for key, total in sums.items():
            net.setdefault(key, []).append(float(np.linalg.norm(total)))
    touches = log.take_contacts()
    peaks = contact_peaks(touches, np.arange(len(touches.geom1)), np.repeat(np.arange(10), 20), place, 0.002)
    keys = list(zip(peaks.record.tolist(), peaks.a.tolist(), peaks.b.tolist()))
    assert keys == sorted(single)
    np.testing.assert_allclose(peaks.force_n, [max(single[key]) for key in keys], atol=1e-12)
    np.testing.assert_allclose(peaks.impulse_ns, [sum(single[key]) * 0.002 for key in keys], rtol=1e-12)
    np.testing.assert_allclose(peaks.net_force_n, [max(net[key]) for key in keys], atol=1e-11)
    np.testing.assert_allclose(peaks.net_impulse_ns, [sum(net[key]) * 0.002 for key in keys], rtol=1e-12)
    assert (peaks.net_force_n > peaks.force_n * 1.5).any()


@pytest.mark.parametrize("points", [3, 4, 12])
def test_the_net_force_of_a_body_at_rest_is_its_weight_on_however_many_points_it_stands(points):
    angles = 2 * np.pi * np.arange(points) / points
    feet = "".join(
        f'<geom type="sphere" size="0.02" mass="0" pos="{0.2 * np.cos(a)} {0.2 * np.sin(a)} -0.1"/>' for a in angles
    )
    table = '<body pos="0 0 0.13"><freejoint/><geom type="box" size="0.2 0.2 0.05" mass="3"/>' + feet + "</body>"
    model = mujoco.MjModel.from_xml_string(
        f'<mujoco><worldbody><geom type="plane" size="2 2 1"/>{table}</worldbody></mujoco>'
    )
    data, log = mujoco.MjData(model), ContactLog(model)
    for _ in range(2000):
        mujoco.mj_step(model, data)
    log.add_substep(data)
    place = np.array([0] + [1] * (model.ngeom - 1))
    peaks = contact_peaks(log.take_contacts(), np.arange(points), np.array([0]), place, None)
    np.testing.assert_allclose(peaks.net_force_n, [3 * 9.81], rtol=1e-4)
    assert peaks.force_n[0] < 3 * 9.81 / 2


def test_an_instant_has_no_impulse_and_lists_join_in_order():
    model, data = slope(steps=50)
    log = ContactLog(model)
    log.add_substep(data)
    touches = log.take_contacts()
    instant = contact_peaks(touches, np.arange(len(touches.geom1)), np.array([0]), np.arange(model.ngeom), None)
    assert len(instant.record) > 0
    assert np.isnan(instant.impulse_ns).all()
    assert np.isnan(instant.net_impulse_ns).all()
    assert len(join_contacts([instant, instant]).a) == 2 * len(instant.a)


def test_what_is_logged_is_what_the_bindings_list_from_no_contact_to_more_than_there_was_room_for():
    model, data = slope()
    log, listed = ContactLog(model), []
    for _ in range(300):
        log.add_substep(data)
        touching = data.contact.efc_address >= 0
        listed.append((data.contact.geom1[touching], data.contact.geom2[touching], data.contact.dim[touching]))
        mujoco.mj_step(model, data)
    assert len(listed[0][0]) == 0, "the first note is of a scene without contacts"
    touches = log.take_contacts()
    assert len(touches.geom1) > 1024, "the log had to grow"
    for name, expected in zip(("geom1", "geom2", "dim"), zip(*listed)):
        np.testing.assert_array_equal(getattr(touches, name), np.concatenate(expected))
    assert ContactLog(model).take_contacts().substeps == 0


def test_a_contact_list_that_is_not_where_it_was_is_an_error():
    model, data = slope(steps=100)
    log = ContactLog(model)
    log.add_substep(data)
    log._view.contacts = log._view.contacts[1:]
    with pytest.raises(HostError, match="unexpected layout"):
        log.take_contacts()


class _DataOfMuJoCo2:
    """MuJoCo 2's `mjData` counts the arena in numbers of 8 bytes, under another name."""

    def __init__(self, data):
        self._data, self.nstack = data, data.narena // 8

    def __getattr__(self, name):
        if name == "narena":
            raise AttributeError(name)
        return getattr(self._data, name)


@pytest.mark.skipif(mujoco.__version__.startswith("2."), reason="it is MuJoCo 2 itself")
def test_the_log_holds_the_same_under_the_names_of_mujoco_2():
    model, data = slope(steps=100)
    logs = [ContactLog(model), ContactLog(model)]
    for log, source in zip(logs, (data, _DataOfMuJoCo2(data))):
        log.add_substep(source)
    newer, older = (log.take_contacts() for log in logs)
    assert len(newer.geom1) > 0
    for name in ("geom1", "geom2", "dim", "row"):
        np.testing.assert_array_equal(getattr(older, name), getattr(newer, name))
