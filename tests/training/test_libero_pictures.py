"""What a dataset shows of LIBERO is what its host observes at the instant of the record."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pytest

from safevla_bench.hosts import make_host
from safevla_bench.interface.policy import Wants
from safevla_bench.interface.stage import Camera
from safevla_bench.interface.task import EpisodeSeed

pytestmark = [pytest.mark.libero, pytest.mark.long]


def test_observations_at_recorded_states_are_the_hosts_own_within_a_substep():
    host = make_host("libero")
    task = host.tasks("libero-object")[0]
    wants = Wants(cameras=("agentview", "robot0_eye_in_hand"), image_size=(128, 128))
    with closing(host.make(task, wants)) as env:
        observations = [env.reset(EpisodeSeed(0, 7, wait_steps=10))]
        for action in np.random.default_rng(0).uniform(-1, 1, (4, 7)):
            observations.append(env.step(action)[0])
        batch = env.recorded()
    with closing(host.stage(task, batch)) as stage:
        for k, observation in enumerate(observations):
            again = stage.observe(k)
            np.testing.assert_allclose(again.eef_pos_m, batch.eef_pos_m.episode_rows(0)[k], atol=1e-12)
            np.testing.assert_allclose(again.eef_pos_m, observation.eef_pos_m, atol=2e-3)
            np.testing.assert_allclose(again.eef_quat_wxyz, observation.eef_quat_wxyz, atol=5e-3)
            np.testing.assert_allclose(again.gripper_qpos, observation.gripper_qpos, atol=1e-9)
            for camera in wants.cameras:
                picture = stage.render(k, Camera(camera), wants.image_size).image
                gap = np.abs(picture.astype(int) - observation.images[camera])
                assert gap.mean() < 6, (k, camera)
