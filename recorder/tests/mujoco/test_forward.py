"""Skipping the stages of positions and velocities: the same bits whatever changes between two calls."""

from __future__ import annotations

from functools import partial

import pytest

from safevla_recorder.mujoco.forward import skip_repeated_stages
from safevla_recorder.mujoco.hook import hook_after

mujoco = pytest.importorskip("mujoco", reason="MuJoCo comes with the extra libero")
pytestmark = pytest.mark.skipif(not hasattr(mujoco, "mj_getState"), reason="this MuJoCo is left alone")

# A motor presses a paddle onto a block on the floor; a mocap body drags a ball by a weld that can be switched off.
MODEL = """
<mujoco>
  <option timestep="0.002" cone="elliptic"/>
  <worldbody>
    <geom name="floor" type="plane" size="2 2 0.1"/>
    <body name="paddle" pos="0 0 0.25"><joint name="press" type="slide" axis="0 0 1" damping="1"/>
      <geom type="box" size="0.1 0.1 0.02" mass="0.5"/><site name="tip"/></body>
    <body name="block" pos="0.02 0 0.1"><freejoint/><geom type="box" size="0.06 0.05 0.1" mass="0.3"/></body>
    <body name="drag" mocap="true" pos="1 0 0.4"/>
    <body name="ball" pos="1 0 0.4"><freejoint/><geom type="sphere" size="0.05" mass="0.2"/></body>
  </worldbody>
  <equality><weld body1="drag" body2="ball"/></equality>
  <actuator><motor joint="press"/></actuator>
  <sensor><force site="tip"/><accelerometer site="tip"/><clock/></sensor>
</mujoco>
"""
COMPARED = ("qpos", "qvel", "qacc", "qacc_warmstart", "sensordata", "efc_force", "xpos", "cvel", "qfrc_actuator")


class Simulation:
    """What robosuite's MjSim is, as far as forward dynamics go."""

    def __init__(self):
        self.model, self.data = Holder(), Holder()
        self.model._model = mujoco.MjModel.from_xml_string(MODEL)
        self.data._data = mujoco.MjData(self.model._model)

    def forward(self):
        mujoco.mj_forward(self.model._model, self.data._data)

    def step(self, with_udd=True):
        mujoco.mj_step(self.model._model, self.data._data)


@pytest.fixture(autouse=True)
def _log_elsewhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its warnings to a file in the current folder


class Holder:
    pass


def visit_another_state(m, d):
    """Compute the kinematics elsewhere and come back, as controllers by inverse kinematics do."""
    positions = d.qpos.copy()
    d.qpos[0] += 0.1
    mujoco.mj_kinematics(m, d)
    d.qpos[:] = positions


CHANGES = {
    "nothing": lambda m, d: None,
    "ctrl": lambda m, d: d.ctrl.__setitem__(0, -9.0),
    "qfrc_applied": lambda m, d: d.qfrc_applied.__setitem__(1, 0.3),
    "xfrc_applied": lambda m, d: d.xfrc_applied.__setitem__(2, 0.4),
    "mocap_pos": lambda m, d: d.mocap_pos.__setitem__((0, 0), 1.05),
    "eq_active": lambda m, d: d.eq_active.__setitem__(0, 0),
    "qpos": lambda m, d: d.qpos.__setitem__(1, 0.03),
    "qvel": lambda m, d: d.qvel.__setitem__(1, 0.1),
    "time": lambda m, d: setattr(d, "time", 7.0),
    "a mass": lambda m, d: m.body_mass.__setitem__(2, 0.5),
    "a friction": lambda m, d: m.geom_friction.__setitem__((slice(None), 0), 0.2),
    "gravity": lambda m, d: m.opt.gravity.__setitem__(2, -5.0),
    "the cone": lambda m, d: setattr(m.opt, "cone", 0),
    "iterations": lambda m, d: setattr(m.opt, "iterations", 2),
    "the integrator": lambda m, d: setattr(m.opt, "integrator", mujoco.mjtIntegrator.mjINT_IMPLICITFAST),
    "a flag": lambda m, d: setattr(m.opt, "enableflags", int(mujoco.mjtEnableBit.mjENBL_ENERGY)),
    "another state's kinematics": visit_another_state,
    "a reset": mujoco.mj_resetData,
    "an unstable velocity": lambda m, d: d.qvel.__setitem__(0, 1e30),
    "an unstable force": lambda m, d: d.qfrc_applied.__setitem__(0, 1e30),
}


def run(simulation, change, hook=None, substeps=40):
    """Three calls a substep, as robosuite makes them, and `change` before one of them in some of the substeps."""
    model, data = simulation.model._model, simulation.data._data
    states = []
    for substep in range(substeps):
        if substep % 10 == 6:
            change(model, data)
        simulation.forward()
        if substep % 10 == 4:
            change(model, data)
        data.ctrl[0] = -4.0 - substep % 3
        simulation.forward()
        if substep % 10 == 9:
            change(model, data)
        simulation.step()
        states.append({name: getattr(data, name).tobytes() for name in COMPARED})
    return states


def count_calls(monkeypatch):
    calls = {"mj_forward": 0, "mj_step": 0, "mj_forwardSkip": 0}

    def call(name, original, *args):
        calls[name] += 1
        return original(*args)

    for name in calls:
        monkeypatch.setattr(mujoco, name, partial(call, name, getattr(mujoco, name)))
    return calls


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_whatever_changes_between_two_calls_the_bits_are_those_of_the_full_calls(change):
    plain, fast = Simulation(), Simulation()
    skip_repeated_stages(fast)
    expected, results = run(plain, change), run(fast, change)
    for substep, (first, second) in enumerate(zip(expected, results)):
        assert first == second, f"substep {substep}"


def test_where_nothing_changes_one_call_of_three_is_full(monkeypatch):
    fast, calls = Simulation(), count_calls(monkeypatch)
    skip_repeated_stages(fast)
    run(fast, CHANGES["nothing"], substeps=10)
    assert calls == {"mj_forward": 10, "mj_step": 0, "mj_forwardSkip": 20}
    assert fast.data._data.ncon > 0  # or constraints would not be compared


@pytest.mark.parametrize("integrator", ["RK4", "IMPLICIT", "IMPLICITFAST"])
def test_under_another_integrator_every_call_is_full(monkeypatch, integrator):
    fast, calls = Simulation(), count_calls(monkeypatch)
    fast.model._model.opt.integrator = getattr(mujoco.mjtIntegrator, f"mjINT_{integrator}")
    skip_repeated_stages(fast)
    run(fast, CHANGES["nothing"], substeps=10)
    assert calls == {"mj_forward": 20, "mj_step": 10, "mj_forwardSkip": 0}


def test_with_a_callback_every_call_is_full(monkeypatch):
    fast, calls, passive = Simulation(), count_calls(monkeypatch), []
    skip_repeated_stages(fast)
    fast.forward()
    mujoco.set_mjcb_passive(lambda m, d: passive.append(d.time))
    try:
        run(fast, CHANGES["nothing"], substeps=10)
    finally:
        mujoco.set_mjcb_passive(None)
    assert calls["mj_forwardSkip"] == 0
    assert len(passive) == 30


def test_hooks_set_later_are_called_and_undoing_restores_the_methods():
    fast, after = Simulation(), []
    dynamics = skip_repeated_stages(fast)
    unhook = hook_after(fast, "step", lambda: after.append(fast.data._data.efc_force.copy()))
    run(fast, CHANGES["nothing"], substeps=3)
    unhook()
    dynamics.undo()
    assert len(after) == 3
    assert not {"forward", "step"} & set(vars(fast))


def test_methods_that_somebody_has_replaced_are_left_alone():
    fast, after = Simulation(), []
    hook_after(fast, "step", lambda: after.append(1))
    hooked = fast.step
    assert skip_repeated_stages(fast) is None
    assert fast.step == hooked
    assert "forward" not in vars(fast)


def test_a_model_with_flexible_bodies_is_computed_in_full(monkeypatch):
    cloth = '<flexcomp name="f" type="grid" count="3 3 1" spacing=".1 .1 .1" mass="1" dim="2"><pin id="0"/></flexcomp>'
    fast = Simulation()
    fast.model._model = mujoco.MjModel.from_xml_string(MODEL.replace("</worldbody>", cloth + "</worldbody>"))
    fast.data._data = mujoco.MjData(fast.model._model)
    calls = count_calls(monkeypatch)
    skip_repeated_stages(fast)
    run(fast, CHANGES["nothing"], substeps=2)
    assert calls == {"mj_forward": 4, "mj_step": 2, "mj_forwardSkip": 0}
