"""Checks whether a server's model gets pictures in the right orientation, by sending scenes in four orientations.

A model that gets a mirrored scene moves the hand to the mirrored place. No simulator is needed: for each task of the
demo archive, `scenes.npz` holds a recorded observation and the next recorded actions (docs/tools/record_scenes.py).
In each scene, the hand approaches the object in a successful episode of `scripted:careful`. The check compares only the
hand's horizontal direction with the recorded direction, because policies differ in the length and height of motions.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from safevla_bench.errors import PolicyError, ServerLostError
from safevla_bench.interface.policy import CONTROLLER_POSITION, CONTROLLER_ROTATION, Observation, Wants
from safevla_bench.interface.task import Task
from safevla_bench.jobs.doctor.machine import Diagnosis, passed_check, warned_check
from safevla_bench.policies.servers import ChunkModel
from safevla_recorder.episode import Floats

CHECK = "pictures"
HOST, CAMERAS = "libero", ("agentview", "robot0_eye_in_hand")
SCENES = resources.files(__package__).joinpath("scenes.npz")
MAX_ANGLE_DEG, MIN_GAIN_DEG = 40.0, 20.0
"""Limits for the warning that turned pictures fit better than the pictures as sent. For turned pictures, the mean angle
between replies and recorded actions must be at most `MAX_ANGLE_DEG`. It must also be smaller by `MIN_GAIN_DEG` than for
the pictures as sent. Random replies cause the warning with a probability of 4 %."""
_REVERSED = slice(None, None, -1)
TURNS: Mapping[str, tuple[slice, ...]] = {
    "as sent by the dialect": (),
    "turned by 180 degrees": (_REVERSED, _REVERSED),
    "mirrored left to right": (slice(None), _REVERSED),
    "upside down": (_REVERSED,),
}
AS_SENT = next(iter(TURNS))
_REMEDY = "Use the dialect of the model's project, or do not turn the pictures in the server: docs/howto/symptoms.md."


@dataclass(frozen=True, slots=True)
class ExampleScene:
    """A recorded observation, with upright pictures, and the actions [H, 7] that followed."""

    observation: Observation
    actions: Floats


def load_scenes() -> list[ExampleScene]:
    """Return the recorded scenes that ship with the package."""
    with np.load(io.BytesIO(SCENES.read_bytes()), allow_pickle=False) as file:
        arrays: dict[str, NDArray[Any]] = dict(file)
    # Each array has one entry per scene, except that a camera's array is an encoded image file.
    scene_count = len(arrays["instruction"])
    # The image file of a camera stacks the pictures of all scenes vertically, [scenes * height, width, 3].
    strips = {camera: np.asarray(Image.open(io.BytesIO(arrays[camera].tobytes()))) for camera in CAMERAS}
    images = {camera: strip.reshape(scene_count, -1, *strip.shape[1:]) for camera, strip in strips.items()}
    scenes = []
    for index in range(scene_count):
        observation = Observation(
            instruction=str(arrays["instruction"][index]),
            images={camera: pictures[index] for camera, pictures in images.items()},
            extra={name: arrays[name][index] for name in (CONTROLLER_POSITION, CONTROLLER_ROTATION)},
            **{name: arrays[name][index] for name in ("eef_pos_m", "eef_quat_wxyz", "gripper_qpos")},
        )
        scenes.append(ExampleScene(observation, arrays["actions"][index]))
    return scenes


def fit_images(scene: ExampleScene, wants: Wants, turn: tuple[slice, ...]) -> Observation:
    """Return the scene's observation, with pictures turned by `turn` (a value of `TURNS`) and resized for `wants`."""
    height, width = wants.image_size
    images = {}
    for camera in wants.cameras:
        # Turned pictures are views with negative strides, so make plain copies.
        picture = np.ascontiguousarray(scene.observation.images[camera][turn])
        if picture.shape[:2] != (height, width):
            picture = np.asarray(Image.fromarray(picture).resize((width, height), Image.Resampling.LANCZOS))
        images[camera] = picture
    return replace(scene.observation, images=images)


def measure_turns(model: ChunkModel, task: Task, scenes: Sequence[ExampleScene]) -> dict[str, float] | None:
    """Return a mapping: orientation (a key of `TURNS`) -> mean angle between the hand's motion in replies and in
    recorded actions [degrees]. Return None if no reply depends on the orientation. A reply without motion of the hand
    counts as 90 degrees. Each request begins an episode. Raises the errors of `ChunkModel.begin` and `infer`.
    """
    # `angles_deg` maps each orientation to a list of angles, one per scene.
    angles_deg, depends_on_turn = {turn_name: list[float]() for turn_name in TURNS}, False
    for scene in scenes:
        # Absolute actions are positions, so their motion is relative to the recorded start.
        start = scene.observation if model.wants.absolute else None
        replies = []
        for turn_name, slices in TURNS.items():
            model.begin(replace(task, instruction=scene.observation.instruction), seed=0)
            reply = model.infer(fit_images(scene, model.wants, slices))
            replies.append(reply)
            motion = _horizontal_motion(reply, start)
            # Recorded actions are always changes of position.
            recorded_motion = _horizontal_motion(scene.actions[: len(reply)], None)
            angles_deg[turn_name].append(_angle_deg(motion, recorded_motion))
        if not all(np.array_equal(reply, replies[0]) for reply in replies):
            depends_on_turn = True
    if not depends_on_turn:
        return None
    return {turn_name: float(np.mean(angles)) for turn_name, angles in angles_deg.items()}


def _horizontal_motion(actions: Floats, start: Observation | None) -> Floats:
    # Return the hand's change of position [x, y] in the actions [H, 7].
    # Only the direction of this change is used, so any unit is fine.
    # The first numbers of an action are a change of position if `start` is None, else an absolute position.
    if start is None:
        return np.asarray(actions[:, :2].sum(axis=0))
    return actions[-1, :2] - start.extra[CONTROLLER_POSITION][:2]


def _angle_deg(first: Floats, second: Floats) -> float:
    # Return the angle [degrees] between two vectors. If a vector is zero or not finite, return 90.
    norm_product = np.linalg.norm(first) * np.linalg.norm(second)
    if not np.isfinite(norm_product) or norm_product == 0:
        return 90.0
    return float(np.degrees(np.arccos(np.clip(first @ second / norm_product, -1.0, 1.0))))


def check_pictures(model: ChunkModel, task: Task, host: str) -> Iterator[Diagnosis]:
    """Check whether a connected model gets pictures in the right orientation. If it uses no pictures, yield nothing."""
    # If the model cannot be tested with LIBERO's recorded scenes, the check passes with a remark.
    cameras = model.wants.cameras
    if not cameras:
        return
    if host != HOST or not {*cameras} <= {*CAMERAS}:
        detail = f"orientation not checked: the recorded scenes have only LIBERO's cameras {' and '.join(CAMERAS)}"
        yield passed_check(CHECK, detail)
        return
    try:
        angles_deg = measure_turns(model, task, load_scenes())
    except ServerLostError:
        raise
    # A working model may refuse these scenes, so this check does not fail.
    except PolicyError as error:
        yield passed_check(CHECK, f"orientation not checked: {error.problem.splitlines()[0]}")
        return
    yield judge_turns(angles_deg)


def judge_turns(angles: Mapping[str, float] | None) -> Diagnosis:
    """Return a diagnosis of the angles from `measure_turns`: a warning if another orientation clearly fits better."""
    # `angles` maps each orientation to the mean angle [degrees]. None: the replies do not depend on the orientation.
    if angles is None:
        return passed_check(CHECK, "orientation unknown: replies do not depend on how the pictures are turned")
    best = min(angles, key=lambda turn: angles[turn])
    angle_lines = "\n".join(f"{angle:>4.0f}° {turn}" for turn, angle in angles.items())
    measured = f"angles between the model's motion and the recorded motion in successful episodes\n{angle_lines}"
    # Undecided: no orientation fits well, or the best orientation fits only slightly better than the pictures as sent.
    if angles[best] > MAX_ANGLE_DEG or (best != AS_SENT and angles[AS_SENT] - angles[best] < MIN_GAIN_DEG):
        return passed_check(CHECK, f"orientation undecided; {measured}")
    if best != AS_SENT:
        problem = f"the model seems to expect pictures {best}, compared with the dialect's pictures\n{measured}"
        return warned_check(CHECK, problem, _REMEDY)
    return passed_check(CHECK, f"the pictures are turned as the model expects; {measured}")
