"""SimplerEnv's tasks of a WidowX, on stand-ins for its robot, scenes and success boxes: only that the host works."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from hosts.maniskill.standin import COLORS, SIZES_M, write_assets
from hosts.maniskill.test_conformance import play
from hosts.vulkan import MISSING, needs_vulkan
from safevla_bench.errors import HostError
from safevla_bench.hosts import drawn_reset_seed
from safevla_bench.hosts.conformance import HostConformance
from safevla_bench.hosts.conformance.base import Trial
from safevla_bench.hosts.maniskill import graphics, host
from safevla_bench.interface.policy import Wants
from safevla_bench.interface.task import EpisodeSeed

pytestmark = [pytest.mark.maniskill, pytest.mark.filterwarnings("ignore")]

NAMES = [name for name, facts in host.TASKS.items() if facts.suite == host.SIMPLER]
SEED = EpisodeSeed(init_state_index=5, env_seed=0, wait_steps=0)
BLIND, LOOK = Wants(), Wants(cameras=("3rd_view_camera",), image_size=(120, 160))


def make(name, wants=BLIND):
    own = host.ManiskillHost(robot="widowx")
    return own.make(next(task for task in own.tasks(host.SIMPLER) if task.name == name), wants)


def upstream_env(name):
    options = {"obs_mode": "rgb+segmentation", "reward_mode": "none", "sim_backend": "physx_cpu"}
    return host.import_maniskill()[name].make(**options)


@pytest.fixture(scope="module", autouse=True)
def _assets():
    write_assets()


def test_without_the_downloads_a_task_names_them(tmp_path, monkeypatch):
    monkeypatch.setenv("MS_ASSET_DIR", str(tmp_path))
    with pytest.raises(HostError, match="widowx250s, bridge_v2_real2sim") as refused:
        make(NAMES[0])
    assert "download_asset bridge_v2_real2sim" in str(refused.value.remedy)


@pytest.mark.parametrize("name", NAMES)
def test_a_task_begins_in_its_layout_and_records_at_five_hertz(name):
    facts = host.TASKS[name]
    with closing(make(name)) as env:
        starts = []
        for index in (0, 5, 0):
            first = env.reset(EpisodeSeed(index, 0, 0))
            starts.append(env.recorded().sim_state.episode_rows(0)[0])
        assert first.instruction == env._env.get_language_instruction()[0]
        moves = [env.step(np.array([0.02, 0, 0, 0, 0, 0, 1.0]))[0].eef_pos_m for _ in range(5)]
        batch = env.recorded()
    assert starts[0].tobytes() == starts[2].tobytes()
    assert (starts[0] != starts[1]).any()
    assert batch.dt_s[0] == pytest.approx(0.2)
    assert moves[-1][0] != moves[0][0]
    roles = batch.body_roles(0)
    assert [body for body, role in roles.items() if role == "target"] == list(facts.targets)
    assert {body for body, role in roles.items() if role == "robot"} >= {"left_finger_link", "right_finger_link"}
    assert all(roles[body] == "furniture" for body in ("arena", *facts.fixed) if body in roles)
    tracked = {batch.body_label(int(body)) for body in batch.body_pos_m.episode_poses(0)[0]}
    assert tracked <= SIZES_M.keys() - set(facts.fixed)
    header = batch.headers[0]
    assert (header.embodiment, header.joint_torque_limit_nm) == ("WidowX", None)


def test_success_is_recorded_at_each_step_and_as_that_of_the_last():
    with closing(make(NAMES[0])) as env:
        env.reset(SEED)
        spoon, towel = (env._env.objs[body] for body in env._env.obj_names)
        import sapien

        place = towel.pose.p[0].numpy() + [0, 0, 0.02]
        spoon.set_pose(sapien.Pose(place))
        still = np.array(env.task.still)
        on = [env.step(still)[1] for _ in range(2)]
        spoon.set_pose(sapien.Pose(place + [0.4, 0, 0.2]))
        off = env.step(still)[1]
        batch = env.recorded()
    assert (on, off, batch.headers[0].success) == ([True, True], False, False)
    assert batch.channel("subgoals").episode_rows(0).ravel().tolist() == [0, 1, 1, 0]
    assert batch.extra[0]["header"]["subgoal_names"] == ["src_on_target"]


def test_random_layouts_are_drawn_where_a_protocol_asks_for_them():
    with closing(make(NAMES[3])) as env:
        starts = []
        for index in (0, 1, 0):
            env.reset(EpisodeSeed(index, 3, 0, drawn=True))
            starts.append(env.recorded().sim_state.episode_rows(0)[0].tobytes())
    assert starts[0] == starts[2] != starts[1]


@needs_vulkan
def test_a_picture_is_that_of_upstream_s_own_observation():
    with closing(make(NAMES[1], replace(LOOK, image_size=(480, 640)))) as env, closing(upstream_env(NAMES[1])) as own:
        host.build_scene(env._env, 3, 5, renders=True)
        seen = graphics.take_pictures(env._env, LOOK.cameras)["3rd_view_camera"]
        expected, _ = own.reset(seed=3, options={"reconfigure": True, "episode_id": 5})
    assert seen.tobytes() == expected["sensor_data"]["3rd_view_camera"]["rgb"][0].numpy().tobytes()


@needs_vulkan
def test_the_photograph_is_behind_the_task_s_own_objects_in_each_environment():
    with closing(make(NAMES[0], LOOK)) as table, closing(make(NAMES[3], LOOK)) as sink:
        for env, color in (
            (table, COLORS["bridge_real_eval_1"]),
            (sink, COLORS["bridge_sink"]),
            (table, COLORS["bridge_real_eval_1"]),
        ):
            image = env.reset(SEED).images["3rd_view_camera"]
            assert image.shape == (120, 160, 3)
            behind = (image == color).all(axis=2).mean()
            assert 0.3 < behind < 0.99


class TestWidowX(HostConformance):
    factory = "hosts.maniskill.standin:make_widowx_host"
    trials = (
        Trial(host.SIMPLER, 0, roles={"arena": "furniture", "table_cloth_generated_shorter": "bystander"}),
        Trial(host.SIMPLER, 3, roles={"sink": "furniture", "dummy_sink_target_plane": "furniture"}),
    )
    seed = EpisodeSeed(init_state_index=2, env_seed=7, wait_steps=0)
    steps = 8
    other_wants = (Wants(privileged=True, extra=("joint_pos",)), *(() if MISSING else (LOOK,)))
    state_begins_with_time = False
    test_torques_are_in_newton_meters_and_have_limits = None  # none are published for its servos
    hold = close_on_nothing = touch_with_one_finger = move_object = set_down = turn_object = upright = None

    def bare(self, task, seed, actions):
        """By upstream's own environment, which renders each step, and the one physics step of our start."""
        if MISSING:
            raise NotImplementedError
        env = upstream_env(task.name)
        env.reset(seed=drawn_reset_seed(seed), options={"reconfigure": True, "episode_id": seed.init_state_index})
        host.settle_once(env, np.array(task.still))
        return play(env, actions)

    @needs_vulkan
    def test_a_recorded_episode_can_be_looked_at_as_it_was(self, run):
        super().test_a_recorded_episode_can_be_looked_at_as_it_was(run)
