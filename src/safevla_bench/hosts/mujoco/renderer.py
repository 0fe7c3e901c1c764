"""Off-screen pictures of a MuJoCo model: colors, and the body that each pixel shows.

    python -m safevla_bench.hosts.mujoco.renderer

renders one frame and prints the result as JSON. The command may crash, so run it in a separate process.
"""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import HostError
from safevla_bench.hosts.mujoco.graphics import GRAPHICS_REMEDY, egl_device
from safevla_bench.interface.stage import Camera

if TYPE_CHECKING:
    import mujoco

VISUAL_GROUPS = frozenset({1, 2})  # groups of visible geoms: 1 in robosuite, 2 in other MuJoCo models


@dataclass(frozen=True)
class Appearance:
    """Appearance of a host's models: visible geom groups, whether sites are drawn, and cameras that are upside down."""

    groups: frozenset[int] = VISUAL_GROUPS
    sites: bool = False  # whether to draw sites, such as goal markers, of MuJoCo's visible groups
    turned: frozenset[str] = frozenset()


ROBOSUITE = Appearance()
_SHADOW_MAP_SIZE = 1024  # size of the shadow map [texels]; with a larger map, software rendering takes 1 s per picture
_NO_BODY = -1


class Renderer:
    """Off-screen renderer of one model, for pictures up to a maximum size (height, width). It has a separate OpenGL
    context (EGL unless MUJOCO_GL names osmesa or glfw), so the import order of MuJoCo and robosuite does not matter.
    """

    def __init__(self, model: mujoco.MjModel, size: tuple[int, int], appearance: Appearance = ROBOSUITE) -> None:
        """Set the model's picture size and shadows, and make a context; raise `HostError` if rendering fails."""
        # `size` is the maximum (height, width) of pictures. `appearance` says which groups of geoms are drawn.
        # `appearance` also says whether sites are drawn, and which cameras are mounted upside down (`turned`).
        import mujoco

        self.size = size
        self._upside_down_cameras, self._is_upside_down = appearance.turned, False
        self._model = model
        backend = os.environ.get("MUJOCO_GL", "").lower() or "egl"  # the library that makes an OpenGL context
        try:
            with egl_device():
                self._gl = importlib.import_module(f"mujoco.{backend}").GLContext(size[1], size[0])
        # Backends raise different errors if a module, library, device or display is missing.
        except Exception as error:
            raise HostError(f"no picture can be rendered by {backend}: {error}", remedy=GRAPHICS_REMEDY) from error
        self._gl.make_current()
        model.vis.global_.offheight, model.vis.global_.offwidth = size
        model.vis.quality.shadowsize = _SHADOW_MAP_SIZE
        self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        self._scene = mujoco.MjvScene(model, maxgeom=10_000)
        self._option = mujoco.MjvOption()
        self._option.geomgroup[:] = [group in appearance.groups for group in range(len(self._option.geomgroup))]
        if not appearance.sites:
            self._option.sitegroup[:] = 0

    def look(self, data: mujoco.MjData, camera: Camera) -> None:
        """Set the scene and the camera for the next pictures. The kinematics of `data` must be current. Raises
        `KeyError` if the model has no camera of that name.
        """
        import mujoco

        # `_option` says which geoms and sites are drawn.
        self._is_upside_down = camera.lookat_m is None and camera.name in self._upside_down_cameras
        view, all_categories = mujoco.MjvCamera(), mujoco.mjtCatBit.mjCAT_ALL
        if camera.lookat_m is None:  # a camera of the model; otherwise, a free camera
            view.type, view.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED, self._model.camera(camera.name).id
        else:
            view.type, view.lookat[:] = mujoco.mjtCamera.mjCAMERA_FREE, camera.lookat_m
            view.distance, view.azimuth, view.elevation = camera.distance_m, camera.azimuth_deg, camera.elevation_deg
        mujoco.mjv_updateScene(self._model, data, self._option, None, view, all_categories, self._scene)

    def image(self, size: tuple[int, int]) -> NDArray[np.uint8]:
        """Render the colors of the current view, uint8 [H, W, 3], upright; `size` is (height, width)."""
        import mujoco

        self._gl.make_current()
        pixels = np.empty((*size, 3), dtype=np.uint8)
        rectangle = mujoco.MjrRect(0, 0, size[1], size[0])
        mujoco.mjr_render(rectangle, self._scene, self._context)
        mujoco.mjr_readPixels(pixels, None, rectangle, self._context)
        picture = pixels[::-1]  # OpenGL starts with the bottom row
        if self._is_upside_down:  # the camera is mounted upside down, so turn the picture by 180 degrees
            picture = picture[::-1, ::-1]
        return picture.copy()

    def bodies(self, size: tuple[int, int]) -> NDArray[np.int64]:
        """Return the id of the body that each pixel of the current view shows, [H, W]; -1 = no body."""
        import mujoco

        # `size` is (height, width). The scene is rendered once more, with one color per geom instead of its material.
        flags = self._scene.flags
        flags[mujoco.mjtRndFlag.mjRND_SEGMENT] = flags[mujoco.mjtRndFlag.mjRND_IDCOLOR] = 1
        pixels = self.image(size).astype(np.int64)
        flags[mujoco.mjtRndFlag.mjRND_SEGMENT] = flags[mujoco.mjtRndFlag.mjRND_IDCOLOR] = 0
        # In this rendering mode, a pixel's color is the id of the drawn geom, as three bytes; red is the lowest byte.
        drawn_ids = pixels @ np.array([1, 256, 65536])  # 0 = background, else the index of the drawn geom plus 1
        body_of_id = np.full(self._scene.ngeom + 1, _NO_BODY)
        for geom in self._scene.geoms[: self._scene.ngeom]:
            if geom.objtype == mujoco.mjtObj.mjOBJ_GEOM and 0 <= geom.segid < self._scene.ngeom:
                body_of_id[geom.segid + 1] = self._model.geom_bodyid[geom.objid]
        # An id above `ngeom` is not a drawn geom. `where` computes both branches, so `minimum` keeps the index valid.
        return np.where(drawn_ids <= self._scene.ngeom, body_of_id[np.minimum(drawn_ids, self._scene.ngeom)], _NO_BODY)

    def close(self) -> None:
        # Frees the context and its OpenGL objects. The renderer cannot be used afterwards.
        self._gl.make_current()  # MuJoCo frees OpenGL objects in the current context
        self._context.free()
        self._gl.free()


_Sensor = Callable[[Mapping[str, Any]], Any]


class CameraGate:
    """Switch for the cameras of one robosuite environment; `renders` counts the rendered pictures.

    robosuite renders every camera at the first physics substep of every control step, and three times at a reset. The
    gate wraps the sensors but keeps their observables enabled. So pictures are sampled at the same instant, from the
    same state, as without a gate. Disabling an observable (`modify_observable(enabled=False)`) would reset its timer
    and shift the sampling instant.

    The gate takes effect at the environment's next reset, which makes new sensors. A closed gate returns a black
    picture, which must not be shown. `is_open`: pictures may be rendered. `is_fresh`: a picture was rendered.
    """

    def __init__(self, size: tuple[int, int]) -> None:
        """Let the cameras render at first; `size` is the (height, width) of the black pictures of a closed gate."""
        self.is_open = True  # whether the cameras render; a closed gate returns black pictures instead
        self.is_fresh = False  # whether a picture was rendered since the gate was opened
        self.renders = 0  # number of pictures rendered
        self._blank: NDArray[np.uint8] = np.zeros((*size, 3), dtype=np.uint8)

    def set_open(self, wanted: bool) -> None:
        """Open or close the gate for the next samples; `is_fresh` stays true only while the gate stays open."""
        self.is_fresh = self.is_fresh and self.is_open and wanted  # False after the gate was closed
        self.is_open = wanted

    def install(self, env: Any) -> None:
        """Wrap the camera sensors that robosuite 1.4 or 1.5 makes in later resets. A second call does nothing."""
        # A sensor is a function that renders one camera's picture. The gate decides whether it is called.
        # `env` is robosuite's environment.
        create_sensors = env._create_camera_sensors
        if getattr(create_sensors, "gate", None) is self:
            return  # installed already

        def gate_sensor(sensor: _Sensor) -> _Sensor:
            # Returns a sensor that renders only while the gate is open, and else returns a black picture (`_blank`).
            @wraps(sensor)  # keeps robosuite's attribute for the sensor's modality
            def sample(cache: Mapping[str, Any]) -> Any:
                # To find a new sensor's shape, robosuite calls the sensor with an empty cache instead of `_obs_cache`.
                if not self.is_open or cache is not env._obs_cache:
                    return self._blank
                self.renders, self.is_fresh = self.renders + 1, True
                return sensor(cache)

            return sample

        @wraps(create_sensors)
        def create_gated(*args: Any, **options: Any) -> tuple[list[_Sensor], list[str]]:
            sensors, names = create_sensors(*args, **options)
            return list(map(gate_sensor, sensors)), names

        create_gated.gate = self  # type: ignore[attr-defined]
        env._create_camera_sensors = create_gated


_PROBE_SCENE = """
<mujoco>
  <worldbody>
    <light pos="0 0 3"/>
    <geom type="sphere" size="0.3" rgba="1 1 1 1"/>
    <camera name="seen" pos="0 -2 0" xyaxes="1 0 0 0 0 1"/>
  </worldbody>
</mujoco>
"""


def main() -> None:
    """Render a white ball on black, 64 x 64. Print the renderer's name and the extreme pixel values as JSON."""
    import mujoco

    # `safevla doctor` runs this in another process, because broken graphics can crash.
    # If all pixels are equal, rendering does not work.
    gl = importlib.import_module("OpenGL.GL")  # OpenGL has no type stubs
    model = mujoco.MjModel.from_xml_string(_PROBE_SCENE)
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    with egl_device(), mujoco.Renderer(model, 64, 64) as renderer:
        renderer.update_scene(data, camera="seen")
        image = renderer.render()
        renderer_name = gl.glGetString(gl.GL_RENDERER).decode()
    print(json.dumps({"renderer": renderer_name, "darkest": int(image.min()), "brightest": int(image.max())}))


if __name__ == "__main__":
    main()
