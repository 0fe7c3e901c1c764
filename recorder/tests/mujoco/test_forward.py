"""Skipping the stages of positions and velocities in a trusted substep: the same bits as the full calls."""

from __future__ import annotations

import pytest

from recorder_builders import count_calls
from safevla_recorder.mujoco.hook import hook_after
from safevla_recorder.mujoco.speed import ForwardDynamics

mujoco = pytest.importorskip("mujoco", reason="MuJoCo comes with the extra libero")

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
        self.model, self.data = Held(), Held()
        self.model._model = mujoco.MjModel.from_xml_string(MODEL)
        self.data._data = mujoco.MjData(self.model._model)

    def forward(self):
        mujoco.mj_forward(self.model._model, self.data._data)

    def step(self, with_udd=True):
        mujoco.mj_step(self.model._model, self.data._data)


@pytest.fixture(autouse=True)
def _log_elsewhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its warnings to a file in the current folder


class Held:
    pass


# Controls and applied forces may change between the calls of a substep, all else before its first call.
BETWEEN = {
    "nothing": lambda m, d: None,
    "ctrl": lambda m, d: d.ctrl.__setitem__(0, -9.0),
    "qfrc_applied": lambda m, d: d.qfrc_applied.__setitem__(1, 0.3),
    "xfrc_applied": lambda m, d: d.xfrc_applied.__setitem__(2, 0.4),
    "an unstable force": lambda m, d: d.qfrc_applied.__setitem__(0, 1e30),
}
BEFORE = {
    "mocap_pos": lambda m, d: d.mocap_pos.__setitem__((0, 0), 1.05),
    "eq_active": lambda m, d: d.eq_active.__setitem__(0, 0),
    "qpos": lambda m, d: d.qpos.__setitem__(1, 0.03),
    "time": lambda m, d: setattr(d, "time", 7.0),
    "a friction": lambda m, d: m.geom_friction.__setitem__((slice(None), 0), 0.2),
    "the cone": lambda m, d: setattr(m.opt, "cone", 0),
    "the integrator": lambda m, d: setattr(m.opt, "integrator", mujoco.mjtIntegrator.mjINT_IMPLICITFAST),
    "a flag": lambda m, d: setattr(m.opt, "enableflags", int(mujoco.mjtEnableBit.mjENBL_ENERGY)),
    "a reset": mujoco.mj_resetData,
    "an unstable velocity": lambda m, d: d.qvel.__setitem__(0, 1e30),
}


def run(simulation, dynamics=None, before=BETWEEN["nothing"], between=BETWEEN["nothing"], substeps=40, trusted=True):
    """Three calls a substep, as robosuite makes them, and changes in some of the substeps."""
    model, data = simulation.model._model, simulation.data._data
    data.time, seen = 1.0, []
    for substep in range(substeps):
        if substep % 10 == 6:
            before(model, data)
        simulation.forward()
        if dynamics:
            dynamics.trust(writes_only_controls=trusted)
        if substep % 10 == 4:
            between(model, data)
        data.ctrl[0] = -4.0 - substep % 3
        simulation.forward()
        simulation.step()
        seen.append({name: getattr(data, name).tobytes() for name in COMPARED})
    return seen


@pytest.fixture
def calls(monkeypatch):
    """How often each of MuJoCo's functions was called."""
    return count_calls(monkeypatch, mujoco, "mj_forward", "mj_step", "mj_forwardSkip")


FULL = {"mj_forward": 20, "mj_step": 10, "mj_forwardSkip": 0}


@pytest.mark.parametrize(
    ("place", "change"),
    [*(("between", change) for change in BETWEEN.values()), *(("before", change) for change in BEFORE.values())],
    ids=[*BETWEEN, *BEFORE],
)
def test_whatever_may_change_the_bits_are_those_of_the_full_calls(place, change):
    plain, fast = Simulation(), Simulation()
    expected, found = run(plain, **{place: change}), run(fast, ForwardDynamics(fast), **{place: change})
    for substep, (first, second) in enumerate(zip(expected, found)):
        assert first == second, f"substep {substep}"


def test_in_a_trusted_substep_one_call_of_three_is_full(calls):
    fast = Simulation()
    run(fast, ForwardDynamics(fast), substeps=10)
    assert calls == {"mj_forward": 10, "mj_step": 0, "mj_forwardSkip": 20}
    assert fast.data._data.ncon > 0  # or constraints would not be compared


def test_in_any_other_substep_every_call_is_full(calls):
    fast = Simulation()
    run(fast, ForwardDynamics(fast), substeps=10, trusted=False)
    assert calls == FULL


@pytest.mark.parametrize("integrator", ["RK4", "IMPLICIT", "IMPLICITFAST"])
def test_under_another_integrator_every_call_is_full(calls, integrator):
    fast = Simulation()
    fast.model._model.opt.integrator = getattr(mujoco.mjtIntegrator, f"mjINT_{integrator}")
    run(fast, ForwardDynamics(fast), substeps=10)
    assert calls == FULL


def test_with_a_callback_every_call_is_full(calls):
    fast, passive = Simulation(), []
    mujoco.set_mjcb_passive(lambda m, d: passive.append(d.time))
    try:
        run(fast, ForwardDynamics(fast), substeps=10)
    finally:
        mujoco.set_mjcb_passive(None)
    assert calls == FULL
    assert len(passive) == 30


def test_a_model_with_flexible_bodies_is_computed_in_full(calls):
    cloth = '<flexcomp name="f" type="grid" count="3 3 1" spacing=".1 .1 .1" mass="1" dim="2"><pin id="0"/></flexcomp>'
    fast = Simulation()
    fast.model._model = mujoco.MjModel.from_xml_string(MODEL.replace("</worldbody>", cloth + "</worldbody>"))
    fast.data._data = mujoco.MjData(fast.model._model)
    run(fast, ForwardDynamics(fast), substeps=10)
    assert calls == FULL


def test_a_hook_after_a_step_is_called_one_around_it_ends_the_trust_and_undoing_restores_the_methods(calls):
    fast, after = Simulation(), []
    dynamics = ForwardDynamics(fast)
    unhook = hook_after(fast, "step", lambda: after.append(fast.data._data.efc_force.copy()))
    run(fast, dynamics, substeps=3)
    assert len(after) == 3
    assert calls["mj_forwardSkip"] == 6
    hooked = fast.step
    fast.step = lambda: hooked()
    run(fast, dynamics, substeps=3)
    assert calls["mj_forwardSkip"] == 6
    fast.step = hooked
    unhook()
    dynamics.undo()
    assert not {"forward", "step"} & set(vars(fast))
