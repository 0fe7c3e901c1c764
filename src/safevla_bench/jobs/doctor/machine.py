"""Diagnoses, the results of all checks, and checks of the machine: folders, disk, and graphics."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
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


def warn_unless(holds: bool, check: str, detail: str, remedy: str) -> Diagnosis:
    """Return the diagnosis of a check that passed if it `holds`, else a warning with the remedy."""
    return passed_check(check, detail) if holds else warned_check(check, detail, remedy)


TIMEOUT_S = 60
_BACKENDS = ("", "egl", "osmesa", "glfw")
_OFF_WORDS = ("disable", "disabled", "off", "false", "0")


def check_graphics(*, quick: bool) -> Iterator[Diagnosis]:
    """Yield the diagnoses of MUJOCO_GL and, unless `quick` or it names no backend, of a frame rendered off screen."""
    backend = os.environ.get("MUJOCO_GL", "").lower()
    if backend in _OFF_WORDS:
        remedy = "For policies that want images: unset MUJOCO_GL"
        yield warned_check("MUJOCO_GL", f"{backend}: nothing is rendered", remedy)
    elif backend not in _BACKENDS:
        found = f"{backend!r} names no backend: importing a simulator fails"
        yield failed_check("MUJOCO_GL", found, "unset MUJOCO_GL, or set it to egl, osmesa or glfw")
    else:
        yield passed_check("MUJOCO_GL", backend or "not set: EGL is used")
        if not quick:
            yield _check_rendering(backend or "egl")


def _check_rendering(backend: str) -> Diagnosis:
    """Render one frame in a process of its own and return the diagnosis."""
    command = [sys.executable, "-m", "safevla_bench.hosts.mujoco.renderer"]
    environment = {**os.environ, "MUJOCO_GL": backend}
    try:
        probe = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return failed_check("rendering", f"no frame within {TIMEOUT_S} s", _RENDERING_REMEDY)
    if probe.returncode:
        return failed_check("rendering", describe_failure(probe), _RENDERING_REMEDY)
    frame = json.loads(probe.stdout.splitlines()[-1])
    if frame["darkest"] == frame["brightest"]:
        return failed_check("rendering", f"the frame is blank (by {frame['renderer']})", _RENDERING_REMEDY)
    return passed_check("rendering", f"a frame by {frame['renderer']}, backend {backend}")


_RENDERING_REMEDY = (
    "unset MUJOCO_GL and MUJOCO_EGL_DEVICE_ID; without a GPU: apt-get install libgl1 libegl1 libegl-mesa0; "
    "policies that want no images run nonetheless"
)


def describe_failure(process: subprocess.CompletedProcess[str]) -> str:
    """Return in words how a process failed: the signal, or the last line of its errors."""
    return f"crashed with signal {-process.returncode}" if process.returncode < 0 else last_line(process.stderr)


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
    yield passed_check(OWN_DISTRIBUTION, __version__)
    yield _check_folder("current folder", Path.cwd())
    if out is not None:
        if out.exists() and not (out.is_dir() and not any(out.iterdir())):
            remedy = "Choose an --out that does not exist: a run is written to a new folder."
            yield warned_check("--out", f"{out} is there already", remedy)
        existing = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.is_dir())
        yield _check_folder("--out", existing)


def _check_folder(check: str, folder: Path) -> Diagnosis:
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as problem:
        detail = f"{folder} cannot be written to: {problem.strerror}"
        return failed_check(check, detail, "Go to, or choose, another folder.")
    free = shutil.disk_usage(folder).free / _GIB
    found = f"{folder} can be written to, {free:.1f} GiB free"
    return warn_unless(free >= _DISK_GIB, check, found, "Free some space: a long run with frames takes gigabytes.")
