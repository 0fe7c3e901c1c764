"""OpenGL: the libraries, the backend that MUJOCO_GL names, and one frame rendered off screen."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator

from safevla_bench.doctor.findings import Diagnosis, failed_check, passed_check, warned_check

TIMEOUT_S = 60
_LIBRARIES = (
    (("libGL.so.1",), "libgl1"),
    (("libEGL.so.1",), "libegl1"),
    (("libEGL_mesa.so.0", "libEGL_nvidia.so.0"), "libegl-mesa0"),
)
"""Names of a library, one of which must load, and the Debian package that holds it."""
_BACKENDS = ("", "egl", "osmesa", "glfw")
_OFF_WORDS = ("disable", "disabled", "off", "false", "0")
_DEVICE = "MUJOCO_EGL_DEVICE_ID"


def check_graphics(*, needed: bool, quick: bool) -> Iterator[Diagnosis]:
    """Check graphics as a simulator would find them; without a simulator (`needed` false) defects are warnings."""
    if sys.platform == "linux":
        yield from _check_libraries(needed)
    backend = os.environ.get("MUJOCO_GL", "").lower()
    yield _check_backend(backend)
    if not quick and backend in _BACKENDS:
        yield _check_rendering(backend)


def _check_backend(backend: str) -> Diagnosis:
    if backend in _BACKENDS:
        return passed_check("MUJOCO_GL", backend or "not set: EGL is used")
    if backend in _OFF_WORDS:
        return warned_check(
            "MUJOCO_GL", f"{backend}: nothing is rendered", "For policies that want images: unset MUJOCO_GL"
        )
    remedy = "unset MUJOCO_GL, or set it to egl, osmesa or glfw"
    return failed_check("MUJOCO_GL", f"{backend!r} names no backend: importing a simulator fails", remedy)


def _check_libraries(needed: bool) -> Iterator[Diagnosis]:
    missing = [(names, package) for names, package in _LIBRARIES if not any(_can_load(name) for name in names)]
    if not missing:
        yield passed_check("OpenGL", "libGL and libEGL with a driver are there")
        return
    names = ", ".join(" or ".join(names) for names, _ in missing)
    remedy = f"apt-get install {' '.join(package for _, package in missing)}   (their names on Debian and Ubuntu)"
    yield (failed_check if needed else warned_check)("OpenGL", f"missing: {names}", remedy)


def _can_load(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def _check_rendering(backend: str) -> Diagnosis:
    """Render one frame in a process of its own, by EGL unless MUJOCO_GL asks for something else, as simulators do."""
    command = [sys.executable, "-m", "safevla_bench.hosts.mujoco.frame_probe"]
    environment = {**os.environ, "MUJOCO_GL": backend or "egl"}
    try:
        probe = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return failed_check("rendering", f"no frame within {TIMEOUT_S} s", _rendering_remedy(backend))
    if probe.returncode < 0:
        return failed_check(
            "rendering", f"the renderer crashed with signal {-probe.returncode}", _rendering_remedy(backend)
        )
    if probe.returncode:
        return failed_check("rendering", last_line(probe.stderr), _rendering_remedy(backend))
    frame = json.loads(probe.stdout.splitlines()[-1])
    if frame["darkest"] == frame["brightest"]:
        return failed_check("rendering", f"the frame is blank (by {frame['renderer']})", _rendering_remedy(backend))
    return passed_check("rendering", f"a frame by {frame['renderer']}, backend {backend or 'egl'}")


def _rendering_remedy(backend: str) -> str:
    steps = []
    if backend:
        steps.append("unset MUJOCO_GL")
    if _DEVICE in os.environ:
        steps.append(f"unset {_DEVICE}")
    steps.append("without a GPU: apt-get install libegl-mesa0; policies that want no images run nonetheless")
    return "; ".join(steps)


def last_line(text: str) -> str:
    """Return the last line of a process's output, which names the exception."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"
