"""docs/reference/policy-contract.md: its policy runs, and its images, states and grippers are what servers are sent."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from safevla_bench.errors import PolicyError
from safevla_bench.interface.policy import Observation, UnrenderedImages, Wants
from safevla_bench.policies.python import ORIENTATIONS, adopt_object, libero_state, orient_images
from safevla_bench.policies.servers.dialects import load_dialect
from safevla_bench.policies.servers.transforms import SWITCHES

PAGE = Path("docs/reference/policy-contract.md").read_text(encoding="utf-8")
CODE = re.search(r"```python\n(# my_policy\.py\n.*?)```", PAGE, re.S)[1]
CAMERAS = ("agentview", "robot0_eye_in_hand")


def observation(seed: int = 0) -> Observation:
    rng = np.random.default_rng(seed)
    quaternion = rng.normal(size=4)
    return Observation(
        instruction="put the bowl on the stove",
        eef_pos_m=rng.normal(size=3),
        eef_quat_wxyz=quaternion / np.linalg.norm(quaternion),
        gripper_qpos=np.array([0.04, -0.04]),
        images={camera: rng.integers(0, 256, (224, 224, 3), dtype=np.uint8) for camera in CAMERAS},
    )


@pytest.mark.parametrize("seed", range(5))
def test_a_python_policy_sees_what_openpi_is_sent(seed):
    """Two ways: the orientation and state of a `python:` policy, and the request of openpi's dialect."""
    observed = observation(seed)
    request = load_dialect("openpi-libero").build_request(observed)
    oriented = orient_images(observed, "libero-vla")
    np.testing.assert_array_equal(oriented.images["agentview"], request["observation/image"])
    np.testing.assert_array_equal(oriented.images["robot0_eye_in_hand"], request["observation/wrist_image"])
    np.testing.assert_array_equal(libero_state(observed), request["observation/state"])


def test_orientations_are_the_flips_of_the_raw_image_that_the_page_says():
    observed = observation()
    raw = {camera: image[::-1] for camera, image in observed.images.items()}  # MuJoCo's rows begin at the bottom
    flips = {"upright": lambda image: image[::-1], "libero-vla": lambda image: image[::-1, ::-1]}
    assert set(ORIENTATIONS) == {"upright", "libero-vla", "simulator"}
    for orientation in ORIENTATIONS:
        assert f'`"{orientation}"`' in PAGE
        turn = flips.get(orientation, lambda image: image)
        for camera, image in orient_images(observed, orientation).images.items():
            np.testing.assert_array_equal(image, turn(raw[camera]))


def test_images_that_nobody_rendered_stay_unrendered():
    unrendered = replace(observation(), images=UnrenderedImages(CAMERAS))
    assert orient_images(unrendered, "libero-vla") is unrendered


def test_an_unknown_orientation_is_refused():
    class Tilted:
        orientation = "sideways"

        def act(self, observation): ...

    with pytest.raises(PolicyError, match="'sideways'") as caught:
        adopt_object("tilted", Tilted())
    assert "libero-vla" in str(caught.value)


def test_an_object_is_shown_the_images_that_it_asks_for():
    class Watcher:
        wants = Wants(cameras=("front",), image_size=(32, 32))
        orientation = "libero-vla"

        def act(self, observation):
            self.seen = observation.images["front"]
            return np.zeros(7)

    watcher, picture = Watcher(), np.eye(3, dtype=np.uint8)[:, :, None].repeat(3, 2)
    adopt_object("watcher", watcher).act(replace(observation(), images={"front": picture}))
    np.testing.assert_array_equal(watcher.seen[:, :, 0], np.eye(3)[:, ::-1])


def test_the_conversions_of_grippers_are_those_of_the_dialects():
    gripper = np.array([0.0, 0.2, 0.8, 1.0])
    for formula, switch in (
        ("-np.sign(2 * gripper - 1)", "open-is-one"),
        ("np.where(gripper < 0.5, -1, 1)", "close-is-one"),
    ):
        assert f"`{formula}`" in PAGE
        np.testing.assert_array_equal(eval(formula, {"np": np, "gripper": gripper}), SWITCHES[switch](gripper))


def test_the_policy_of_the_page_runs_if_the_host_has_its_cameras(safevla_run, monkeypatch):
    """On the fake host, which has one of the two."""
    with_one = CODE.replace(', "robot0_eye_in_hand")', ",)").replace(', observation.images["robot0_eye_in_hand"]', "")
    code, out, err = safevla_run(with_one.replace("(256, 256)", "(32, 32)"), "--host", "fake", "--suite", "fake")
    assert (code, "mine" in out) == (0, True), err
    assert '"orientation": "libero-vla"' in Path("runs/first/run.json").read_text()


@pytest.mark.libero
@pytest.mark.long
def test_the_policy_of_the_page_runs_on_libero_as_it_stands(safevla_run):
    code, out, err = safevla_run(CODE, "--host", "libero", "--suite", "libero-goal")
    assert (code, "mine" in out) == (0, True), err


@pytest.fixture
def safevla_run(safevla, tmp_path, monkeypatch):
    """Run the page's command with this module, ten steps of it."""

    def run(code: str, *host: str) -> tuple[int, str, str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.delitem(sys.modules, "my_policy", raising=False)
        (tmp_path / "my_policy.py").write_text(code)
        command = re.search(r"safevla eval --host libero --suite libero-goal (--task 0.*)\n", PAGE)[1]
        return safevla("eval", *host, *command.split(), "--max-steps", "10")

    return run


def test_the_picture_is_small():
    assert Path("docs/images/policy-contract.png").stat().st_size < 100_000
