"""Stages: recorded episodes prepared for rendering and for 3-D replays."""

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
    """A viewpoint: one of the host's cameras by its name, or a free camera that looks at `lookat_m` (world frame) from
    `distance_m` away. `azimuth_deg` is its viewing direction, counted from +x to +y; a negative `elevation_deg` looks
    down.
    """

    name: str
    lookat_m: tuple[float, float, float] | None = None
    distance_m: float = 1.0
    azimuth_deg: float = 0.0
    elevation_deg: float = 0.0


@dataclass(frozen=True, slots=True)
class Picture:
    """A rendered record. image [H, W, 3] upright, RGB; `seen` [H, W] is i + 1 where body i of the requested ones is
    visible, else 0; `body_pos_m` has the position [3] of every tracked body as rendered, world frame.
    """

    image: NDArray[np.uint8]
    seen: NDArray[np.uint8]
    body_pos_m: Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True, slots=True, eq=False)
class TriangleMesh:
    """A surface: corners [V, 3] in meters, triangles [F, 3] of their indices, colors [V, 3] as uint8 or None."""

    corners_m: NDArray[np.float64]
    triangles: NDArray[np.int64]
    colors: NDArray[np.uint8] | None = None


ShapeKind = Literal["plane", "box", "sphere", "ellipsoid", "capsule", "cylinder", "mesh"]


@dataclass(frozen=True, slots=True)
class Shape:
    """A visible shape that is fixed to one part of a scene, with its pose in that part's frame. `size_m` follows
    MuJoCo: half extents of boxes, planes (z is unused) and ellipsoids; radius, then half the length, of capsules and
    cylinders, along z. A plane faces +z. A mesh has its own size. Colors multiply.
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
    """A camera in the world. It looks along its -z, with y up; `fovy_deg` is the vertical field of view."""

    name: str
    pos_m: tuple[float, float, float]
    quat_wxyz: tuple[float, float, float, float]
    fovy_deg: float


@dataclass(frozen=True, slots=True, eq=False)
class SceneGeometry:
    """The shapes of a scene, without the poses of its parts; `view` is the host's usual camera at record 0. `parts`
    names the recorded body of each part; several parts may belong to one body. `stand_ins` lists the parts to show for
    a body without a shape, such as the finger for its pad.
    """

    parts: tuple[str, ...]
    stand_ins: Mapping[str, tuple[int, ...]]
    shapes: tuple[Shape, ...]
    meshes: tuple[TriangleMesh, ...]
    view: Viewpoint


@dataclass(frozen=True, slots=True)
class Touch:
    """A contact of two recorded bodies: a point [m] and the direction from `a` to `b`, world frame."""

    a: str
    b: str
    point_m: tuple[float, float, float]
    normal: tuple[float, float, float]


@dataclass(frozen=True, slots=True, eq=False)
class ScenePose:
    """Poses of a scene's parts in a record, [P, 3] m and [P, 4] wxyz, and the contacts. `body_pos_m` see `Picture`."""

    part_pos_m: NDArray[np.float64]
    part_quat_wxyz: NDArray[np.float64]
    touches: tuple[Touch, ...]
    body_pos_m: Mapping[str, NDArray[np.float64]]


class Stage(ABC):
    """One recorded episode prepared for rendering; nothing is simulated. Hosts may override methods that are not
    abstract. `arm` names the body that each joint of the arm moves, base first. The optional attribute
    `further_cameras` names the cameras that a video of the episode shows in addition to the default one.
    """

    arm: tuple[str, ...]

    @abstractmethod
    def aim(self, record: int, bodies: Sequence[str], size: tuple[int, int]) -> Camera:
        """Return the camera for a picture of `size` pixels (height, width) that shows these bodies in that record. This
        is the host's default camera if it shows them well, or none are given; else a close-up.
        """

    @abstractmethod
    def render(self, record: int, camera: Camera, size: tuple[int, int], bodies: Sequence[str] = ()) -> Picture:
        """Return the picture of a record, [height, width, 3]; `seen` contains the index of each of `bodies` plus 1.
        Raises `KeyError`, listing the host's cameras, for an unknown camera without `lookat_m`.
        """

    @abstractmethod
    def close(self) -> None:
        """Release the renderer."""

    def observe(self, record: int) -> Observation | None:
        """Return the observation of a record without images, at the pose that `render` shows, for data sets. None if
        the record does not determine what the policy observed.
        """
        return None

    def geometry(self) -> SceneGeometry:
        """Return the shapes of the scene, for 3-D replays. Raises `HostError` if the host does not provide them."""
        remedy = "Its stage needs the methods `geometry` and `pose`: docs/howto/frames.md."
        raise HostError("this host does not provide the shapes of its scenes", remedy=remedy)

    def pose(self, record: int) -> ScenePose:
        """Return the poses of the scene's parts in a record. Raises `HostError` as `geometry` does."""
        raise NotImplementedError
