"""Pictures of ManiSkill's scenes, which SAPIEN renders by Vulkan on a GPU, or by Mesa's lavapipe on a CPU.

    python -m safevla_bench.hosts.maniskill.graphics

renders one frame and prints the result as JSON. The command may crash, so run it in a separate process.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray
from PIL import Image as PillowImage

from safevla_bench.errors import HostError

REMEDY = (
    "Without a GPU, install Mesa's lavapipe 24.3 or newer; for an NVIDIA GPU, install its Vulkan driver: "
    "docs/howto/maniskill.md. Policies that request no images need no driver."
)
_IMAGE_MODE = "rgb+segmentation"  # with segmentation, which ManiSkill needs to put photographs behind digital twins
_build_lock = threading.Lock()  # held while a scene is built, because `building` may patch SAPIEN's classes


class _NoVisual:
    """Replacement for a material or texture in a scene that is not rendered. All its methods do nothing."""

    def __init__(self, *_: object, **__: object) -> None: ...  # accepts any arguments and keeps none

    def __getattr__(self, name: str) -> Any:
        # Returns, for every name of a method, a function that accepts any arguments and does nothing.
        return lambda *_, **__: None


@contextmanager
def building(*, renders: bool) -> Iterator[None]:
    """Let SAPIEN build scenes in the block, in one thread at a time. SAPIEN makes materials even for scenes that are
    never rendered. If `renders` is false, this function replaces the materials, so no rendering device is needed.
    """
    import sapien.render
    import sapien.wrapper.urdf_loader

    # The classes are imported by name into several modules, so they must be replaced in each module.
    # Replacements affect all threads, so one thread at a time holds `_build_lock`.
    modules = () if renders else (sapien.render, sapien.pysapien.render, sapien.wrapper.urdf_loader)
    with _build_lock, ExitStack() as patches:
        for module in modules:
            for name in ("RenderMaterial", "RenderTexture2D"):
                patches.enter_context(mock.patch.object(module, name, _NoVisual))
        yield


def set_cameras(env: Any, cameras: Sequence[str], size: tuple[int, int]) -> None:
    """Set the picture size (height, width) of cameras in the next scenes of ManiSkill's environment. The view stays the
    same: if a camera has an intrinsic matrix, its picture is stretched to the new shape.
    """
    # `env` is ManiSkill's environment. `cameras` are names of cameras of the environment.
    # `changes` maps each name to the settings that differ from the camera's configuration.
    height, width = size
    changes: dict[str, dict[str, Any]] = {name: {"width": width, "height": height} for name in cameras}
    for name, change in changes.items():
        config = env._sensor_configs[name]
        if config.intrinsic is not None:
            # The first row of the matrix scales x to columns of pixels, and the second row scales y to rows.
            row_factors = [[width / config.width], [height / config.height], [1.0]]
            change["intrinsic"] = np.asarray(config.intrinsic) * row_factors
    env._custom_sensor_configs = changes


def load_backgrounds(env: Any) -> None:
    """Load a digital twin's background photographs in full size, only for this environment. ManiSkill itself shares the
    photographs between all environments, in the picture size of the first environment.
    """
    # `env` is ManiSkill's environment. Its dictionaries map camera names to paths and to photographs.
    paths = env.rgb_overlay_paths.items()
    env._rgb_overlay_images = {name: np.asarray(PillowImage.open(path).convert("RGB")) for name, path in paths}


def take_pictures(env: Any, cameras: Sequence[str]) -> dict[str, NDArray[np.uint8]]:
    """Return the images of ManiSkill's cameras, uint8 [H, W, 3], upright. The simulation is not affected."""
    # `env` is ManiSkill's environment, which otherwise computes no images. The keys of the result are `cameras`.
    # `_IMAGE_MODE` is the name of ManiSkill's observation mode with images.
    if not cameras:
        return {}
    from mani_skill.envs.utils.observations import parse_obs_mode_to_struct

    mode_attributes = {"_obs_mode": _IMAGE_MODE, "obs_mode_struct": parse_obs_mode_to_struct(_IMAGE_MODE)}
    # At the end of the block, the environment gets its mode and all its cameras back.
    with mock.patch.multiple(env, **mode_attributes), mock.patch.dict(env._sensors):
        for name in env._sensors.keys() - set(cameras):
            del env._sensors[name]  # unwanted cameras must not be rendered
        sensor_data = env._get_obs_sensor_data()
    return {name: np.array(sensor_data[name]["rgb"][0].cpu(), dtype=np.uint8) for name in cameras}


@cache
def render_device() -> str:
    """Return the device on which SAPIEN renders, with its driver if known, such as `llvmpipe (LLVM 15.0.6, 256 bits),
    Mesa 25.0.7 (LLVM 15.0.6)`. If SAPIEN accepts no device, raises `HostError` with the names of the refused devices.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # hides SAPIEN's warning that Vulkan is missing
        import sapien.render
    driver_of_device = vulkan_devices()  # maps the name of each Vulkan device to its driver
    try:
        summary = sapien.render.get_device_summary()
    except RuntimeError as error:
        listed = ", ".join(f"{name}, {driver}" for name, driver in driver_of_device.items())
        reason = f"SAPIEN refuses {listed}" if driver_of_device else "there is no Vulkan device"
        raise HostError(f"no picture can be rendered: {reason}", remedy=REMEDY) from error
    # The summary lists each device as `GPU: NAME`, followed by `Supported: 1` if SAPIEN accepts the device.
    supported_names = re.findall(r"GPU: (.*)\n\s*Supported: 1", summary)
    name = supported_names[0] if supported_names else summary.strip()
    return f"{name}, {driver_of_device[name]}" if name in driver_of_device else name


class _Properties(ctypes.Structure):
    """C struct VkPhysicalDeviceProperties2 of Vulkan 1.1; `rest` holds the properties after the name."""

    _fields_ = (
        ("kind", ctypes.c_uint64),
        ("next", ctypes.c_void_p),
        ("numbers", ctypes.c_uint32 * 5),
        ("name", ctypes.c_char * 256),
        ("rest", ctypes.c_byte * 1024),
    )


class _Driver(ctypes.Structure):
    """C struct VkPhysicalDeviceDriverProperties of Vulkan 1.2."""

    _fields_ = (
        ("kind", ctypes.c_uint64),
        ("next", ctypes.c_void_p),
        ("number", ctypes.c_uint32),
        ("name", ctypes.c_char * 256),
        ("version", ctypes.c_char * 256),
        ("rest", ctypes.c_byte * 64),
    )


def vulkan_devices() -> dict[str, str]:
    """Map the name of each Vulkan device to its driver, such as `Mesa 25.0.7 (LLVM 15.0.6)`; {} without Vulkan."""
    library = None  # the first Vulkan library that can be loaded; None without Vulkan
    for path in filter(None, ("libvulkan.so.1", os.environ.get("SAPIEN_VULKAN_LIBRARY_PATH"))):
        with suppress(OSError):
            library = library or ctypes.CDLL(path)
    # The code calls Vulkan's C library directly, because SAPIEN does not report drivers.
    # C structs: VkApplicationInfo requests Vulkan 1.2; VkInstanceCreateInfo has no layers or extensions.
    application_info = (ctypes.c_uint64 * 6)(0, 0, 0, 0, 0, (1 << 22 | 2 << 12) << 32)
    instance_info = (ctypes.c_uint64 * 8)(1, 0, 0, ctypes.addressof(application_info))
    instance, count = ctypes.c_void_p(), ctypes.c_uint32()
    if library is None or library.vkCreateInstance(instance_info, None, ctypes.byref(instance)):
        return {}  # there is no library, or Vulkan returned an error code
    library.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), None)  # this first call writes only the count
    handles, driver_of_device = (ctypes.c_void_p * count.value)(), {}
    library.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), handles)
    for handle in handles:
        # Vulkan fills `device`, and also `driver`, whose address is in the field `next` of `device`.
        driver = _Driver(kind=1000196000)  # `kind` is the struct's VkStructureType
        device = _Properties(kind=1000059001, next=ctypes.addressof(driver))
        library.vkGetPhysicalDeviceProperties2(ctypes.c_void_p(handle), ctypes.byref(device))
        driver_of_device[device.name.decode("utf-8", "replace")] = driver.version.decode("utf-8", "replace")
    library.vkDestroyInstance(instance, None)
    return driver_of_device


def main() -> None:
    """Render a white ball on black, 64 x 64; print the device's name and the extreme pixel values as JSON."""
    # `safevla doctor` runs this in another process, because broken graphics can crash.
    # If all pixels are equal, rendering does not work. `name` is the name of the device that renders.
    name = render_device()
    import sapien

    scene = sapien.Scene()
    scene.add_directional_light([1.0, 0.0, 0.0], [1.0, 1.0, 1.0])
    scene.create_actor_builder().add_sphere_visual(radius=0.3).build_static("ball")
    # The last three numbers are the vertical field of view [rad], and the nearest and farthest visible distance [m].
    camera = scene.add_camera("seen", 64, 64, 1.0, 0.01, 10.0)
    camera.entity.set_pose(sapien.Pose([-2.0, 0.0, 0.0]))
    scene.update_render()
    camera.take_picture()
    image = camera.get_picture("Color")[..., :3]
    print(json.dumps({"renderer": name, "darkest": float(image.min()), "brightest": float(image.max())}))


if __name__ == "__main__":
    main()
