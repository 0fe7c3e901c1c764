"""A viewer of the fake host's recorded episodes: coloured squares seen from above."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from safevla_bench.hosts.mujoco.viewer import read_states
from safevla_bench.interface.policy import Observation
from safevla_bench.interface.stage import CLOSE_UP, Camera, Picture, SceneGeometry, ScenePose, Shape, Viewpoint
from safevla_bench.trajectory.batch import Batch
from safevla_recorder.episode import Floats

WIDTH_M = 1.0
_CLOSE_M = 0.3
_STATE = 15
_COLORS: Mapping[str, tuple[int, int, int]] = {
    "table": (226, 220, 210),
    "tray": (150, 160, 175),
    "cup": (60, 140, 190),
    "block": (220, 160, 40),
    "gripper": (70, 70, 80),
}
"""In the order in which they are drawn, the uppermost last."""
_HALF_M: Mapping[str, float] = {"table": 0.45, "tray": 0.05, "cup": 0.02, "block": 0.02, "gripper": 0.012}


_VIEW = Viewpoint(
    name="slanted",
    pos_m=(-0.9, 0.0, 0.9),
    quat_wxyz=(0.6532815, 0.2705981, -0.2705981, -0.6532815),
    fovy_deg=45.0,
)
DOWNWARD_WXYZ = np.array([0.0, 1.0, 0.0, 0.0])


def finger_positions(*, closed: bool) -> Floats:
    """Return the positions of the two fingers as an observation has them, m."""
    return np.array([0.0, 0.0]) if closed else np.array([0.04, -0.04])


class FakeStage:
    """One episode of the fake host; x runs up in its pictures and y to the right."""

    arm = ("gripper",) * 7

    def __init__(self, episode: Batch, camera: str) -> None:
        self._states, self._camera = read_states(episode, _STATE), camera
        self._instruction = episode.headers[0].instruction or ""

    def aim(self, record: int, bodies: Sequence[str], size: tuple[int, int]) -> Camera:
        """Return the camera `agentview` if `bodies` is empty, else a close-up from right above their mean place. The
        table counts only if no other body is named. `size` is ignored.
        """
        if not bodies:
            return Camera(self._camera)
        places = self._body_positions(record)
        x, y, z = np.mean([places[name] for name in bodies if name != "table"] or [places["table"]], axis=0)
        return Camera(CLOSE_UP, (float(x), float(y), float(z)), _CLOSE_M, elevation_deg=-90.0)

    def render(self, record: int, camera: Camera, size: tuple[int, int], bodies: Sequence[str] = ()) -> Picture:
        """Return the picture of one record; its `seen` has 1 and on for the places in `bodies`, else 0. Later squares
        of `_COLORS` cover earlier ones. Raises `KeyError`, as MuJoCo does, for a camera of another name without
        `lookat_m`.
        """
        if camera.lookat_m is None and camera.name != self._camera:
            raise KeyError(f"Invalid name {camera.name!r}. Valid names: {[self._camera]}")
        image, seen = np.full((*size, 3), 255, dtype=np.uint8), np.zeros(size, dtype=np.uint8)
        places = self._body_positions(record)
        for name, color in _COLORS.items():
            covered = _square_mask(places[name], _HALF_M[name], camera, size)
            image[covered] = color
            seen[covered] = 1 + list(bodies).index(name) if name in bodies else 0
        return Picture(image, seen, {name: places[name] for name in ("block", "cup", "tray")})

    def geometry(self) -> SceneGeometry:
        """Return the squares as boxes, the table as a thin one, seen from above and from the side."""
        shapes = tuple(_box(name, part) for part, name in enumerate(_COLORS))
        return SceneGeometry(tuple(_COLORS), {}, shapes, (), _VIEW)

    def pose(self, record: int) -> ScenePose:
        """Return where the five bodies are in a record, all upright; no touches are given."""
        places = self._body_positions(record)
        upright = np.tile([1.0, 0.0, 0.0, 0.0], (len(_COLORS), 1))
        tracked = {name: places[name] for name in ("block", "cup", "tray")}
        return ScenePose(np.array([places[name] for name in _COLORS]), upright, (), tracked)

    def observe(self, record: int) -> Observation:
        numbers = self._states[record]
        return Observation(
            instruction=self._instruction,
            eef_pos_m=numbers[3:6].copy(),
            eef_quat_wxyz=DOWNWARD_WXYZ.copy(),
            gripper_qpos=finger_positions(closed=bool(numbers[1])),
        )

    def close(self) -> None:
        """Nothing to free."""

    def _body_positions(self, record: int) -> dict[str, Floats]:
        numbers = self._states[record]
        names = ("gripper", "block", "cup", "tray")
        return {"table": np.zeros(3), **dict(zip(names, numbers[3:].reshape(-1, 3), strict=True))}


def _box(name: str, part: int) -> Shape:
    half_m = _HALF_M[name]
    red, green, blue = (part / 255 for part in _COLORS[name])
    size_m = (half_m, half_m, 0.001 if name == "table" else half_m)
    return Shape("box", part, size_m, (0.0, 0.0, 0.0), (1.0, 0.0, 0.0, 0.0), (red, green, blue, 1.0))


def _square_mask(at: Floats, half_m: float, camera: Camera, size: tuple[int, int]) -> NDArray[np.bool_]:
    height, width = size
    center = camera.lookat_m or (0.0, 0.0, 0.0)
    metre = height / (camera.distance_m if camera.lookat_m else WIDTH_M)
    x = center[0] - (np.arange(height) + 0.5 - height / 2) / metre
    y = center[1] + (np.arange(width) + 0.5 - width / 2) / metre
    covered: NDArray[np.bool_] = (abs(x - at[0]) <= half_m)[:, None] & (abs(y - at[1]) <= half_m)[None, :]
    return covered
