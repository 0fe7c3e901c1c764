"""Python, folders, disk, memory and GPUs."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from safevla_bench.doctor.findings import Finding, error, ok, warning
from safevla_bench.doctor.simulators import tested
from safevla_bench.version import __version__

_GIB = 2**30
_DISK_GIB = 2.0
_MEMORY_GIB = 2.0
"""One simulator takes 0.5 to 1.2 GiB, and judging a large run about as much."""
_CGROUP = Path("/sys/fs/cgroup/memory.max")


def findings(out: Path | None) -> Iterator[Finding]:
    """The machine itself."""
    yield _python()
    yield ok("safevla-bench", __version__)
    yield from _folder("current folder", Path.cwd())
    if out is not None:
        yield from _out(out)
    yield _memory()
    yield _gpus()


def _python() -> Finding:
    found = f"{platform.python_version()} ({sys.executable})"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if version in tested().python:
        return ok("Python", found)
    known = ", ".join(tested().python)
    return warning("Python", f"{found}; tested are {known}", "Make an environment with one of those.")


def _out(out: Path) -> Iterator[Finding]:
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        remedy = "Choose an --out that does not exist: a run is written to a new folder."
        yield warning("--out", f"{out} is there already", remedy)
    existing = next(folder for folder in (out.absolute(), *out.absolute().parents) if folder.is_dir())
    yield from _folder("--out", existing)


def _folder(check: str, folder: Path) -> Iterator[Finding]:
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as problem:
        yield error(check, f"{folder} cannot be written to: {problem.strerror}", "Go to, or choose, another folder.")
        return
    free = shutil.disk_usage(folder).free / _GIB
    found = f"{folder} can be written to, {free:.1f} GiB free"
    if free >= _DISK_GIB:
        yield ok(check, found)
    else:
        yield warning(check, found, "Free some space: a long run with frames takes gigabytes.")


def _memory() -> Finding:
    available = available_memory_gib()
    if available is None:
        return warning("memory", "cannot be told on this system", "Have some GiB free for each simulator.")
    found = f"{available:.1f} GiB available"
    if available >= _MEMORY_GIB:
        return ok("memory", found)
    return warning("memory", found, "Close something: a simulator takes 0.5 to 1.2 GiB.")


def available_memory_gib(meminfo: Path = Path("/proc/meminfo"), limit: Path = _CGROUP) -> float | None:
    """What Linux says is available, or the control group's limit where that is less; None elsewhere."""
    try:
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        available = int(lines["MemAvailable"].split()[0]) / 2**20
    except (OSError, KeyError, ValueError):
        return None
    try:
        return min(available, int(limit.read_text()) / _GIB)
    except (OSError, ValueError):  # no control group, or its limit is "max"
        return available


def _gpus() -> Finding:
    command = shutil.which("nvidia-smi")
    if command is None:
        return ok("GPU", "none found: images are rendered, and policies run, on the CPU")
    try:
        told = subprocess.run([command, "-L"], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return warning("GPU", "nvidia-smi is there and fails", "Look at the driver: run nvidia-smi.")
    return ok("GPU", "; ".join(line.split(" (UUID")[0] for line in told.splitlines()) or "none")
