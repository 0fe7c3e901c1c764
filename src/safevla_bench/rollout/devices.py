"""The share of the machine of each worker process: one thread for linear algebra, and a GPU to render on."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
WORKER = "SAFEVLA_WORKER"
"""Tells a worker its number: where policies share a list of servers, each begins at another."""
RENDERER, VISIBLE = "MUJOCO_EGL_DEVICE_ID", "CUDA_VISIBLE_DEVICES"


def worker_environment(
    worker: int, inherited: Mapping[str, str], gpus: Sequence[str], *, cameras: bool
) -> dict[str, str]:
    """Return the environment variables of a worker by its number; what the user has set stays.

    Several processes that each compute on all cores slow each other down. Renderers go round the GPUs.
    """
    own = {**inherited, WORKER: str(worker)}
    for name in ONE_THREAD:
        own.setdefault(name, "1")
    if cameras and gpus:
        own.setdefault(RENDERER, gpus[worker % len(gpus)])
    return own


def usable_gpus(variables: Mapping[str, str], devices: Path = Path("/dev")) -> tuple[str, ...]:
    """Return the numbers of the GPUs that may be used here, in order; none where they are not named by numbers."""
    if VISIBLE in variables:  # robosuite refuses a renderer outside of it
        visible = [number.strip() for number in variables[VISIBLE].split(",")]
        return tuple(visible) if all(number.isdecimal() for number in visible) else ()
    return _query_nvidia_smi() or tuple(sorted(_device_numbers(devices), key=int))


def _query_nvidia_smi() -> tuple[str, ...]:
    try:
        ran = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(re.findall(r"^GPU (\d+):", ran.stdout, re.M)) if ran.returncode == 0 else ()


def _device_numbers(devices: Path) -> list[str]:
    matches = (re.fullmatch(r"nvidia(\d+)", path.name) for path in devices.glob("nvidia*"))
    return [match[1] for match in matches if match]
