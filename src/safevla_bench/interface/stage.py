"""Stages: recorded episodes set up again, for pictures and replays in three dimensions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import HostError
from safevla_bench.interface.policy import Observation

CLOSE_UP = "close-up"


@dataclass(frozen=True, slots=True)
class Camera:
    """The viewpoint of a picture: one of the host's own cameras by its name, or a free one. A free camera looks at
    `lookat_m` (world frame) from `distance_m` away; `azimuth_deg` is the direction it looks in, counted from +x to +y,
    and `elevation_deg` is negative if it looks down.
    """

    name: str
    lookat_m: tuple[float, float, float] | None = None
    distance_m: float = 1.0
    azimuth_deg: float = 0.0
    elevation_deg: float = 0.0


@dataclass(frozen=True, slots=True)
class Picture:
    """A camera's picture of one record. image [H, W, 3] upright, RGB; `seen` [H, W] is 0, or i + 1 where body i of
    those asked for is seen; `body_pos_m` has the position [3] of every tracked body as it stands in the picture, world
    frame.
    """

    image: NDArray[np.uint8]
    seen: NDArray[np.uint8]
    body_pos_m: Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True, slots=True, eq=False)
class TriangleMesh:
    """A surface: corners [V, 3] in metres, triangles [F, 3] of their indices, colours [V, 3] as uint8 or None."""

    corners_m: NDArray[np.float64]
    triangles: NDArray[np.int64]
    colors: NDArray[np.uint8] | None = None


ShapeKind = Literal["plane", "box", "sphere", "ellipsoid", "capsule", "cylinder", "mesh"]


@dataclass(frozen=True, slots=True)
class Shape:
    """Something to be seen that is fixed to one part of a scene, at a place in that part's frame. `size_m` as MuJoCo
    has it: half extents of boxes, planes (z is unused) and ellipsoids; radius first and half the length second of
    capsules and cylinders, along z. A plane faces +z. A mesh has its own size. Colours multiply.
    """

    kind: ShapeKind
    part: int
    size_m: tuple[float, float, float]
    pos_m: tuple[float, float, float]
    quat_wxyz: tuple[float, float, float, float]
    rgba: tuple[float, float, float, float]
    mesh: int | None = None


@dataclass(frozen=True, slots=True)
class Viewpoint:
    """A camera in the world: it looks along its -z, with y up; `fovy_deg` is the angle of the picture's height."""

    name: str
    pos_m: tuple[float, float, float]
    quat_wxyz: tuple[float, float, float, float]
    fovy_deg: float


@dataclass(frozen=True, slots=True, eq=False)
class SceneGeometry:
    """The look of a scene, apart from the places of its parts; `view` is the host's usual camera at record 0. `parts`
    names the recorded body that each part belongs to; several parts may have one name. `stand_ins` has the parts that
    are shown for a body with no shape of its own, such as the finger for its pad.
    """

    parts: tuple[str, ...]
    stand_ins: Mapping[str, tuple[int, ...]]
    shapes: tuple[Shape, ...]
    meshes: tuple[TriangleMesh, ...]
    view: Viewpoint


@dataclass(frozen=True, slots=True)
class Touch:
    """The touch of two recorded bodies in a state: a point [m] and the direction from `a` to `b`, world frame."""

    a: str
    b: str
    point_m: tuple[float, float, float]
    normal: tuple[float, float, float]


@dataclass(frozen=True, slots=True, eq=False)
class ScenePose:
    """The poses of a scene's parts in one record, [P, 3] m and [P, 4] wxyz, world frame, and the bodies that touch.
    `body_pos_m` as in `Picture`.
    """

    part_pos_m: NDArray[np.float64]
    part_quat_wxyz: NDArray[np.float64]
    touches: tuple[Touch, ...]
    body_pos_m: Mapping[str, NDArray[np.float64]]


class Stage(ABC):
    """One recorded episode set up again for rendering; nothing is simulated. `arm` names the body that each joint of
    the arm moves, base first. A stage may have `further_cameras`, the names of the cameras that a video of the episode
    shows beside the default one. Methods that are not abstract are a host's to add.
    """

    arm: tuple[str, ...]

    @abstractmethod
    def aim(self, record: int, bodies: Sequence[str], size: tuple[int, int]) -> Camera:
        """Return the camera for a picture of `size` pixels (height, width) that shows these bodies in that record. It
        is the host's default camera if that shows them well, or there are none; else one close up.
        """

    @abstractmethod
    def render(self, record: int, camera: Camera, size: tuple[int, int], bodies: Sequence[str] = ()) -> Picture:
        """Return the picture of a record, [height, width, 3]; `seen` has the place of each of `bodies` plus 1. Raises
        `KeyError`, with the names there are, for a camera without `lookat_m` that the host does not have.
        """

    @abstractmethod
    def close(self) -> None:
        """Free the renderer."""

    def observe(self, record: int) -> Observation | None:
        """Return the observation of a record without images, at the pose that `render` shows, for data sets. None if
        the host cannot tell from its record what the policy observed.
        """
        return None

    def geometry(self) -> SceneGeometry:
        """Return the look of the scene, for replays in three dimensions; raises `HostError` if the host cannot say."""
        remedy = "Its stage needs the methods `geometry` and `pose`: docs/frames.md."
        raise HostError("this host cannot say what its scenes look like", remedy=remedy)

    def pose(self, record: int) -> ScenePose:
        """Return the poses of the scene's parts in a record; raises as `geometry`."""
        raise NotImplementedError
