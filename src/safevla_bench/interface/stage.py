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
    """A viewpoint. If `lookat_m` is None, the viewpoint is the host's camera with this name. Otherwise, it is a free
    camera that looks at the point `lookat_m` (world frame) from `distance_m` away. `azimuth_deg` is the viewing
    direction, measured from +x towards +y; a camera with a negative `elevation_deg` looks down.
    """

    name: str
    lookat_m: tuple[float, float, float] | None = None
    distance_m: float = 1.0
    azimuth_deg: float = 0.0
    elevation_deg: float = 0.0


@dataclass(frozen=True, slots=True)
class Picture:
    """A rendered record. `image` [H, W, 3] is upright, RGB. `seen` [H, W] is i + 1 at pixels that show the requested
    body with index i, and 0 elsewhere. `body_pos_m` has each tracked body's rendered position [3], world frame.
    """

    image: NDArray[np.uint8]
    seen: NDArray[np.uint8]
    body_pos_m: Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True, slots=True, eq=False)
class TriangleMesh:
    """A surface: corners [V, 3] in meters, triangles [F, 3] as indices of corners, corner colors [V, 3] or None."""

    corners_m: NDArray[np.float64]
    triangles: NDArray[np.int64]
    colors: NDArray[np.uint8] | None = None


ShapeKind = Literal["plane", "box", "sphere", "ellipsoid", "capsule", "cylinder", "mesh"]


@dataclass(frozen=True, slots=True)
class Shape:
    """A visible shape that is fixed to one part of a scene, with its pose in the part's frame. `size_m` follows MuJoCo:
    half extents for boxes, planes (z is unused) and ellipsoids; radius, then half length, for capsules and cylinders,
    whose axis is z. A plane faces +z. A mesh has its own size; `rgba` multiplies its colors.
    """

    kind: ShapeKind
    part: int  # index in `SceneGeometry.parts`
    size_m: tuple[float, float, float]
    pos_m: tuple[float, float, float]
    quat_wxyz: tuple[float, float, float, float]
    rgba: tuple[float, float, float, float]
    mesh: int | None = None  # index in `SceneGeometry.meshes`; None unless `kind` is `mesh`


@dataclass(frozen=True, slots=True)
class Viewpoint:
    """A camera's pose in the world. A camera looks along -z, and +y is up; `fovy_deg` is the vertical field of view."""

    name: str
    pos_m: tuple[float, float, float]
    quat_wxyz: tuple[float, float, float, float]
    fovy_deg: float


@dataclass(frozen=True, slots=True, eq=False)
class SceneGeometry:
    """The shapes of a scene, without the poses of its parts. `view` is the host's default camera at record 0. `parts`
    gives the name of the recorded body of each part; several parts may belong to one body. `stand_ins` maps a body
    without shapes to other parts, which are shown instead, such as a finger instead of its pad.
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
    """Positions [P, 3] in m and quaternions [P, 4] of a scene's `P` parts, and contacts, in one record."""

    part_pos_m: NDArray[np.float64]
    part_quat_wxyz: NDArray[np.float64]
    touches: tuple[Touch, ...]
    body_pos_m: Mapping[str, NDArray[np.float64]]  # rendered positions


class Stage(ABC):
    """One recorded episode prepared for rendering; the episode is not simulated again. Hosts may override methods that
    are not abstract. `arm` names the body that each joint of the arm moves, base first. The optional attribute
    `further_cameras` names cameras that a video of the episode shows in addition to the default camera.
    """

    arm: tuple[str, ...]

    @abstractmethod
    def aim(self, record: int, bodies: Sequence[str], size: tuple[int, int]) -> Camera:
        """Return the camera for a picture of the record with index `record`, with the `size` (height, width) in pixels.
        The host's default camera is used if it shows all `bodies` (names) well. If not, return a close-up of `bodies`.
        """

    @abstractmethod
    def render(self, record: int, camera: Camera, size: tuple[int, int], bodies: Sequence[str] = ()) -> Picture:
        """Return the picture of the record with index `record`, of `size` (height, width) pixels. `Picture.seen` marks
        pixels of `bodies`. Raises `KeyError`, with the cameras' names, for an unknown `camera` without `lookat_m`.
        """

    @abstractmethod
    def close(self) -> None:
        """Release the renderer."""

    def observe(self, record: int) -> Observation | None:
        """Return the observation of a record, for data sets. The observation has no images, and its poses are those
        that `render` shows. Return None if the record does not determine what the policy observed.
        """
        # `record` counts from 0. Hosts that can compute the observation override this method.
        return None

    def geometry(self) -> SceneGeometry:
        """Return the shapes of the scene, for 3-D replays. Raises `HostError` if the host does not provide them."""
        remedy = "Give the host's stage the methods `geometry` and `pose`, as described in docs/howto/frames.md."
        raise HostError("this host does not provide the shapes of its scenes", remedy=remedy)

    def pose(self, record: int) -> ScenePose:
        """Return the poses of the scene's parts in a record. Raises the same errors as `geometry`."""
        # `record` counts from 0. A host overrides both methods or neither.
        # Callers call `geometry` first, which raises a `HostError` if the host does not override it.
        raise NotImplementedError
