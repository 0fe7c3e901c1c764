"""The host robosuite: its tasks, what is refused; in the simulator: defaults, roles, what is thrown away, success."""

from __future__ import annotations

import inspect
from contextlib import closing, contextmanager
from dataclasses import replace

import numpy as np
import pytest

from builders import bodies_of_role
from safevla_bench.errors import HostError
from safevla_bench.hosts.robosuite import host
from safevla_bench.hosts.robosuite.host import RobosuiteHost
from safevla_bench.interface.policy import Wants
from safevla_bench.interface.task import EpisodeSeed, RecordedEpisode
from safevla_bench.tasks.loader import load_registry

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

START = EpisodeSeed(init_state_index=0, env_seed=7, wait_steps=10)
STILL = np.array(host.STILL)
FALL_STEPS = 40
"""Longer than what is thrown away takes to the floor: 10 m in 1.4 s."""


@contextmanager
def open_env(name: str):
    """An environment of that task, reset."""
    robosuite = RobosuiteHost()
    task = next(task for task in robosuite.tasks("robosuite") if task.task_id == name)
    with closing(robosuite.make(task, Wants())) as env:
        env.reset(START)
        yield env


def test_the_suite_holds_the_tasks_of_the_registry_with_its_instructions():
    tasks = RobosuiteHost().tasks("robosuite")
    assert {task.task_id for task in tasks} == {name for suite, name in load_registry().tasks if suite == "robosuite"}
    assert [task.index for task in tasks] == list(range(len(tasks)))
    assert all(task.instruction == load_registry().tasks["robosuite", task.task_id].instruction for task in tasks)
    with pytest.raises(HostError, match="no suite 'robocasa-365'"):
        RobosuiteHost().tasks("robocasa-365")


@pytest.mark.parametrize("task", RobosuiteHost().tasks("robosuite"), ids=lambda task: task.task_id)
def test_tags_follow_from_the_goal(task):
    goal, tags = host.task_goal(task.task_id), load_registry().task_tags("robosuite", task.task_id)
    assert ("manipulated_target" in tags) == bool(host.goal_targets(goal))
    assert ("goal_moves_articulated_fixture" in tags) == bool(host.opened_fixtures(goal))


def test_robosuite_under_either_name_will_do_in_version_1_5_alone(install_only):
    install_only({"mujoco": "3.3.1", "praxis-robosuite": "1.5.2.post1"})
    assert host.RobosuiteHost().versions() == {"mujoco": "3.3.1", "praxis-robosuite": "1.5.2.post1"}
    install_only({"robosuite": "1.5.1"})
    assert host.RobosuiteHost().versions() == {"robosuite": "1.5.1"}
    install_only({"robosuite": "1.4.0"})
    with pytest.raises(HostError, match=r"robosuite 1\.4\.0 is"):
        host.RobosuiteHost().versions()
    install_only({})
    with pytest.raises(HostError, match="robosuite is not"):
        host.RobosuiteHost().versions()


def test_what_it_does_not_have_is_refused_with_what_there_is():
    robosuite = RobosuiteHost()
    with pytest.raises(HostError, match=r"no camera 'leftview'(.|\n)*agentview"):
        robosuite.make(robosuite.tasks("robosuite")[0], Wants(cameras=("leftview",)))
    with pytest.raises(HostError, match="changes of pose"):
        robosuite.make(robosuite.tasks("robosuite")[0], Wants(absolute=True))
    with pytest.raises(HostError, match=r"no task 'Wipe'(.|\n)*Lift"):
        host.task_goal("Wipe")


# On the real simulator


@pytest.mark.robocasa
def test_a_task_is_robosuite_s_own_where_robocasa_has_another_of_that_name():
    from robocasa.environments.kitchen.atomic import kitchen_pick_place

    assert host.find_env_class("PickPlace") not in (kitchen_pick_place.PickPlace, None)
    env = host.make_env("PickPlace", Wants(), 7)
    assert type(env).__module__ == "robosuite.environments.manipulation.pick_place"
    env.close()


@pytest.mark.robocasa
def test_each_task_is_one_of_robosuite_s_and_has_its_horizon():
    host.make_env("Lift", Wants(), 7).close()  # imports robosuite
    for task in RobosuiteHost().tasks("robosuite"):
        kinds = [kind for kind in host.find_env_class(task.name).__mro__ if "__init__" in vars(kind)]
        horizons = [inspect.signature(kind.__init__).parameters.get("horizon") for kind in kinds]
        assert next(horizon.default for horizon in horizons if horizon) == task.horizon


@pytest.mark.robocasa
@pytest.mark.parametrize("name", ["PickPlaceCan", "NutAssemblyRound"])
def test_objects_that_a_task_throws_away_are_not_bystanders_and_their_fall_is_left_out(name):
    with open_env(name) as env:
        for _ in range(FALL_STEPS):
            env.step(STILL)
        batch, data = env.recorded(), env._model_and_data()[1]
        thrown = [thing.name for thing in env._robosuite_env().model.mujoco_objects if thing.joints]
        thrown.remove(batch.headers[0].target_object)
        assert thrown
        assert all(data.body(f"{body}_main").xpos[2] < 0.5 for body in thrown), "they lie on the floor"
    assert bodies_of_role(batch, "bystander") == set()
    assert set(thrown) <= bodies_of_role(batch, "furniture")
    assert all((body, "world") in batch.headers[0].dropped_pairs for body in thrown)
    assert batch.contacts.force_n.max(initial=0) < 20


@pytest.mark.robocasa
def test_parts_of_the_door_strike_nothing_and_the_door_s_handle_is_furniture():
    with open_env("Door") as env:
        batch = env.recorded()
    assert batch.headers[0].target_object is None
    assert ("Door_door", "Door_frame") in batch.headers[0].dropped_pairs
    assert "Door_latch" in bodies_of_role(batch, "furniture")


@pytest.mark.robocasa
def test_success_is_robosuite_s_own():
    with open_env("Lift") as env:
        assert not env.step(STILL)[1]
        env._model_and_data()[1].joint("cube_joint0").qpos[2] += 0.2
        assert env.step(STILL)[1]
        assert env.recorded().headers[0].success


@pytest.mark.robocasa
@pytest.mark.parametrize(("name", "done"), [("PickPlace", "objects_in_bins"), ("NutAssembly", "objects_on_pegs")])
def test_sub_goals_are_robosuite_s_own_where_a_task_has_several_objects(name, done):
    with open_env(name) as env:
        own = env._robosuite_env()
        thing = (own.objects if name == "PickPlace" else own.nuts)[0]
        place = own.target_bin_placements[0] if name == "PickPlace" else own.sim.data.body_xpos[own.peg1_body_id]
        height = place[2] + 0.06 if name == "PickPlace" else own.table_offset[2] + 0.03
        env.step(STILL)  # a body that moves between record 0 and the first substep is refused
        env._model_and_data()[1].joint(thing.joints[0]).qpos[:3] = [*place[:2], height]
        env.step(STILL)
        flags, record = np.array(getattr(own, done)), env.recorded()
    rows = record.channel("subgoals").episode_rows(0)
    things = [text.split()[1] for text in record.extra[0]["header"]["subgoal_names"]]
    assert things == [goal[1] for goal in host.task_goal(name)]
    assert not rows[0].any()
    assert rows[-1].tolist() == flags.tolist()
    assert flags[0] == 1


@pytest.mark.robocasa
@pytest.mark.parametrize(
    ("name", "targets", "bystanders"),
    [("PickPlace", {"Milk", "Bread", "Cereal", "Can"}, set()), ("ToolHang", {"frame", "tool"}, {"stand"})],
)
def test_all_objects_of_a_task_are_targets_but_not_the_stand_that_a_tool_hangs_on(name, targets, bystanders):
    with open_env(name) as env:
        batch = env.recorded()
    assert (bodies_of_role(batch, "target"), bodies_of_role(batch, "bystander")) == (targets, bystanders)


@pytest.mark.robocasa
def test_episodes_differ_by_index_and_seed_and_start_at_a_recorded_state_of_their_task():
    with open_env("Stack") as env:
        starts = []
        for index, seed in ((0, 7), (1, 7), (0, 8), (0, 7)):
            env.reset(EpisodeSeed(index, seed, 0))
            starts.append(env.recorded().sim_state.values.tobytes())
        model, _ = env._model_and_data()
        state = env.recorded().sim_state.values[: 1 + model.nq + model.nv].tolist()  # as demonstrations hold it
        env.reset(EpisodeSeed(5, 9, 0, recorded=RecordedEpisode("episode", "file", 0, state=tuple(state))))
        assert env.recorded().sim_state.values[: len(state)].tolist() == state
        with pytest.raises(HostError, match="no episode -1"):
            env.reset(EpisodeSeed(-1, 7, 0))
        recorded = RecordedEpisode("episode", "file", 0, state=(0.0,))
        with pytest.raises(HostError, match="has 1 numbers"):
            env.reset(EpisodeSeed(0, 7, 0, recorded=recorded))
    assert starts[0] == starts[3]
    assert len(set(starts)) == 3


@pytest.mark.robocasa
@pytest.mark.parametrize("name", ["Stack", "NutAssembly", "PickPlaceCan", "Door", "ToolHang"])
def test_a_start_is_where_it_is_placed_within_what_robosuite_draws(name):
    suite_host = RobosuiteHost()
    task, start = (
        next(task for task in suite_host.tasks("robosuite") if task.name == name),
        replace(START, wait_steps=0),
    )
    space = suite_host.search_space(task, start)
    with closing(suite_host.make(task, Wants())) as env:
        env.reset(start)
        bodies = {item.name: item.root_body for item in env._robosuite_env().model.mujoco_objects}
        drawn = dict(zip(space.names, _read_places(env, space, bodies), strict=True))
        assert all(low <= drawn[at] <= high for at, low, high in zip(space.names, space.low, space.high, strict=True))
        state = env.recorded().sim_state.episode_rows(0)[0]
        env.reset(replace(start, placed=tuple(drawn.items())))
        np.testing.assert_array_equal(env.recorded().sim_state.episode_rows(0)[0], state)
        env.reset(replace(start, placed=tuple(zip(space.names, space.low, strict=True))))
        np.testing.assert_allclose(_read_places(env, space, bodies), space.low, atol=1e-6)
        with pytest.raises(HostError, match="no coordinate"):
            env.reset(replace(start, placed=(("cup.x", 0.0),)))


def _read_places(env, space, bodies):
    _, data = env._model_and_data()
    names = [name.rpartition(".") for name in space.names]
    return [float(data.body(bodies[item]).xpos["xy".index(axis)]) for item, _, axis in names]
