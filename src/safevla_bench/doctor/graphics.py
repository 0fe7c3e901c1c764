"""OpenGL: the libraries, the backend that MUJOCO_GL names, and one frame rendered off screen."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator

from safevla_bench.doctor.findings import Finding, error, ok, warning

TIMEOUT_S = 60
_LIBRARIES = (
    (("libGL.so.1",), "libgl1"),
    (("libEGL.so.1",), "libegl1"),
    (("libEGL_mesa.so.0", "libEGL_nvidia.so.0"), "libegl-mesa0"),
)
"""Any one of these names, and the Debian package that holds it."""
_BACKENDS = ("", "egl", "osmesa", "glfw")
_OFF = ("disable", "disabled", "off", "false", "0")
_DEVICE = "MUJOCO_EGL_DEVICE_ID"


def findings(*, needed: bool, quick: bool) -> Iterator[Finding]:
    """Graphics as a simulator would find them; where none is installed (`needed` false), defects are warnings."""
    if sys.platform == "linux":
        yield from _libraries(needed)
    backend = os.environ.get("MUJOCO_GL", "").lower()
    yield _backend(backend)
    if not quick and backend in _BACKENDS:
        yield _frame(backend)


def _backend(backend: str) -> Finding:
    if backend in _BACKENDS:
        return ok("MUJOCO_GL", backend or "not set: EGL is used")
    if backend in _OFF:
        return warning("MUJOCO_GL", f"{backend}: nothing is rendered", "For policies that want images: unset MUJOCO_GL")
    remedy = "unset MUJOCO_GL, or set it to egl, osmesa or glfw"
    return error("MUJOCO_GL", f"{backend!r} names no backend: importing a simulator fails", remedy)


def _libraries(needed: bool) -> Iterator[Finding]:
    missing = [(names, package) for names, package in _LIBRARIES if not any(_loads(name) for name in names)]
    if not missing:
        yield ok("OpenGL", "libGL and libEGL with a driver are there")
        return
    names = ", ".join(" or ".join(names) for names, _ in missing)
    remedy = f"apt-get install {' '.join(package for _, package in missing)}   (their names on Debian and Ubuntu)"
    yield (error if needed else warning)("OpenGL", f"missing: {names}", remedy)


def _loads(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def _frame(backend: str) -> Finding:
    """One frame rendered in a process of its own, as the simulators do where nothing else is asked for: by EGL."""
    command = [sys.executable, "-m", "safevla_bench.hosts.mujoco.frame_probe"]
    environment = {**os.environ, "MUJOCO_GL": backend or "egl"}
    try:
        told = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return error("rendering", f"no frame within {TIMEOUT_S} s", _remedy(backend))
    if told.returncode < 0:
        return error("rendering", f"the renderer crashed with signal {-told.returncode}", _remedy(backend))
    if told.returncode:
        return error("rendering", last_line(told.stderr), _remedy(backend))
    frame = json.loads(told.stdout.splitlines()[-1])
    if frame["darkest"] == frame["brightest"]:
        return error("rendering", f"the frame is blank (by {frame['renderer']})", _remedy(backend))
    return ok("rendering", f"a frame by {frame['renderer']}, backend {backend or 'egl'}")


def _remedy(backend: str) -> str:
    steps = []
    if backend:
        steps.append("unset MUJOCO_GL")
    if _DEVICE in os.environ:
        steps.append(f"unset {_DEVICE}")
    steps.append("without a GPU: apt-get install libegl-mesa0; policies that want no images run nonetheless")
    return "; ".join(steps)


def last_line(text: str) -> str:
    """The last line of what a process said, which names the exception."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"
