"""Diagnoses, the results of all checks, and checks of the machine: folders, disk, and OpenGL.

OpenGL means its libraries, the backend that MUJOCO_GL names, and one frame rendered off screen.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from safevla_bench.plugins import OWN_DISTRIBUTION
from safevla_bench.version import __version__

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One check: its level, what was found, and the remedy if there is one."""

    check: str
    level: Level
    found: str
    remedy: str | None = None


def passed_check(check: str, detail: str) -> Diagnosis:
    """Return the diagnosis of a check that passed."""
    return Diagnosis(check, "ok", detail)


def warned_check(check: str, detail: str, remedy: str) -> Diagnosis:
    """Return the diagnosis of something that works with limits, or may fail."""
    return Diagnosis(check, "warning", detail, remedy)


def failed_check(check: str, detail: str, remedy: str) -> Diagnosis:
    """Return the diagnosis of something that does not work."""
    return Diagnosis(check, "error", detail, remedy)


def check_if(holds: bool, check: str, detail: str, remedy: str, level: Level = "warning") -> Diagnosis:
    """Return the diagnosis of a check that passed if it `holds`, else one of this level with the remedy."""
    return Diagnosis(check, "ok", detail) if holds else Diagnosis(check, level, detail, remedy)


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
    """Yield the diagnoses of OpenGL's libraries (Linux alone), of MUJOCO_GL and, unless `quick`, of a rendered frame.

    Missing libraries are errors if a simulator is installed (`needed`), else warnings. No frame is tried if MUJOCO_GL
    names no backend.
    """
    if sys.platform == "linux":
        yield _check_libraries(needed)
    backend = os.environ.get("MUJOCO_GL", "").lower()
    yield _check_backend(backend)
    if not quick and backend in _BACKENDS:
        yield _check_rendering(backend)


def _check_backend(backend: str) -> Diagnosis:
    if backend in _OFF_WORDS:
        remedy = "For policies that want images: unset MUJOCO_GL"
        return warned_check("MUJOCO_GL", f"{backend}: nothing is rendered", remedy)
    is_known, remedy = backend in _BACKENDS, "unset MUJOCO_GL, or set it to egl, osmesa or glfw"
    shown = backend or "not set: EGL is used"
    found = shown if is_known else f"{backend!r} names no backend: importing a simulator fails"
    return check_if(is_known, "MUJOCO_GL", found, remedy, "error")


def _check_libraries(needed: bool) -> Diagnosis:
    missing = [(names, package) for names, package in _LIBRARIES if not any(map(_can_load, names))]
    names = ", ".join(" or ".join(names) for names, _ in missing)
    found = f"missing: {names}" if missing else "libGL and libEGL with a driver are there"
    remedy = f"apt-get install {' '.join(package for _, package in missing)}   (their names on Debian and Ubuntu)"
    return check_if(not missing, "OpenGL", found, remedy, "error" if needed else "warning")


def _can_load(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def _check_rendering(backend: str) -> Diagnosis:
    """Render one frame in a process of its own, by `backend` or else EGL, and return the diagnosis."""
    command = [sys.executable, "-m", "safevla_bench.hosts.mujoco.renderer"]
    environment = {**os.environ, "MUJOCO_GL": backend or "egl"}
    try:
        probe = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return _failed_rendering(f"no frame within {TIMEOUT_S} s", backend)
    if probe.returncode:
        crash = f"the renderer crashed with signal {-probe.returncode}"
        return _failed_rendering(crash if probe.returncode < 0 else last_line(probe.stderr), backend)
    frame = json.loads(probe.stdout.splitlines()[-1])
    if frame["darkest"] == frame["brightest"]:
        return _failed_rendering(f"the frame is blank (by {frame['renderer']})", backend)
    return passed_check("rendering", f"a frame by {frame['renderer']}, backend {backend or 'egl'}")


def _failed_rendering(detail: str, backend: str) -> Diagnosis:
    settings = ("MUJOCO_GL" if backend else "", _DEVICE if _DEVICE in os.environ else "")
    steps = [f"unset {setting}" for setting in settings if setting]
    steps.append("without a GPU: apt-get install libegl-mesa0; policies that want no images run nonetheless")
    return failed_check("rendering", detail, "; ".join(steps))


def last_line(text: str) -> str:
    """Return the last line of a process's output that is not blank, else "it said nothing"."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


_GIB = 2**30
_DISK_GIB = 2.0


def check_machine(out: Path | None) -> Iterator[Diagnosis]:
    """Yield the diagnoses of this package's version and the folders.

    `out` is the folder of a future run; None = do not check it.
    """
    yield _check_own_version()
    yield _check_folder("current folder", Path.cwd())
    if out is not None:
        if out.exists() and not (out.is_dir() and not any(out.iterdir())):
            remedy = "Choose an --out that does not exist: a run is written to a new folder."
            yield warned_check("--out", f"{out} is there already", remedy)
        existing = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.is_dir())
        yield _check_folder("--out", existing)


def _check_own_version() -> Diagnosis:
    """Return a warning if another safevla-recorder was installed over the recorder that this distribution contains."""
    installed = __version__  # it is the recorder's
    with suppress(importlib.metadata.PackageNotFoundError):
        installed = importlib.metadata.version(OWN_DISTRIBUTION)
    is_own = installed == __version__
    found = installed if is_own else f"{installed} is installed, but its recorder is that of {__version__}"
    remedy = "pip uninstall safevla-recorder, then install safevla-bench again: it contains the recorder."
    return check_if(is_own, OWN_DISTRIBUTION, found, remedy)


def _check_folder(check: str, folder: Path) -> Diagnosis:
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as problem:
        detail = f"{folder} cannot be written to: {problem.strerror}"
        return failed_check(check, detail, "Go to, or choose, another folder.")
    free = shutil.disk_usage(folder).free / _GIB
    found = f"{folder} can be written to, {free:.1f} GiB free"
    return check_if(free >= _DISK_GIB, check, found, "Free some space: a long run with frames takes gigabytes.")
