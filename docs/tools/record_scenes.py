"""Record the scenes by which `safevla doctor --server` finds a turned picture: `record_scenes.py [FILE]`.

One scene of each task of the demo, as its careful policy sees it on the way to the object, with the next actions. The
episodes must succeed and be those of the demo's archive. Needs LIBERO.
"""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

if __name__ == "__main__":
    os.environ["OPENBLAS_CORETYPE"] = "Haswell"  # as in record_demo.py

import numpy as np
from PIL import Image
from record_demo import HOST, POLICIES, plan_episodes

from safevla_bench import archive, hosts, policies
from safevla_bench.interface.policy import Observation, Wants
from safevla_bench.jobs import demo
from safevla_bench.jobs.doctor.pictures import CAMERAS, SCENES
from safevla_bench.rollout.episode import EnvRunner, run_serially

STEP, ACTIONS, SIZE, QUALITY = 10, 8, (256, 256), 85


class Watching:
    """The scripted policy, which keeps what it sees at `STEP`."""

    def __init__(self) -> None:
        self.inner = policies.make_policy(POLICIES[0])
        self.wants = Wants(privileged=True, cameras=CAMERAS, image_size=SIZE)
        self.scenes: list[Observation] = []
        self.step = 0

    @property
    def looks_next(self) -> bool:
        return self.step == STEP

    def reset(self, task, seed) -> None:
        self.step = 0
        self.inner.reset(task, seed)

    def act(self, observation):
        if self.looks_next:
            self.scenes.append(observation)
        self.step += 1
        return self.inner.act(observation)

    def close(self) -> None: ...


def record_scenes() -> dict[str, np.ndarray]:
    """Return the arrays of the file: each observation, its instruction, the next actions, and a picture of a camera."""
    planned = [episode for episode in plan_episodes() if episode.policy == POLICIES[0] and not episode.episode]
    watching = Watching()
    outcomes = list(run_serially(EnvRunner(hosts.make_host(HOST), {POLICIES[0]: watching}), planned))
    batch = archive.open_archive(Path(demo.__file__).with_name("demo.parquet"))
    actions = []
    for outcome in outcomes:
        assert outcome.outcome == "success", f"{outcome.planned.episode_id}: {outcome.outcome}"
        place = [header.episode_id for header in batch.headers].index(outcome.planned.episode_id)
        first, end = batch.starts[place] - place, batch.starts[place + 1] - place - 1
        played = outcome.batch.action.values.reshape(-1, 7)
        np.testing.assert_array_equal(played, batch.action.values.reshape(-1, 7)[first:end])
        actions.append(played[STEP : STEP + ACTIONS])
    scenes = watching.scenes
    readings = {name: np.array([scene.extra[name] for scene in scenes]) for name in scenes[0].extra}
    return {
        "instruction": np.array([scene.instruction for scene in scenes]),
        "actions": np.array(actions),
        **{name: np.array([getattr(scene, name) for scene in scenes]) for name in ("eef_pos_m", "eef_quat_wxyz")},
        "gripper_qpos": np.array([scene.gripper_qpos for scene in scenes]),
        **readings,
        **{camera: encode(np.concatenate([scene.images[camera] for scene in scenes])) for camera in CAMERAS},
    }


def encode(column: np.ndarray) -> np.ndarray:
    """Return the bytes of pictures one above the other, as WebP."""
    buffer = io.BytesIO()
    Image.fromarray(column).save(buffer, format="WEBP", quality=QUALITY, method=6)
    return np.frombuffer(buffer.getvalue(), np.uint8)


if __name__ == "__main__":
    np.savez_compressed(Path(sys.argv[1]) if len(sys.argv) > 1 else SCENES, **record_scenes())
