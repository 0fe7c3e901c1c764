"""Import of MuJoCo simulators: the EGL device for rendering, writable caches, and import errors.

robosuite uses CUDA_VISIBLE_DEVICES as the index of an EGL device (`robosuite/renderers/context/egl_context.py`, 1.4.0
and 1.5.2). But EGL and CUDA use different device numbers, and the variable may be empty or hold UUIDs, so this module
chooses the device.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import re
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from pathlib import Path

from safevla_bench.errors import HostError
from safevla_bench.interface.environment import WORKER
from safevla_bench.text import warn_once
from safevla_recorder.mujoco.hook import wrap_method

DEVICE, VISIBLE = "MUJOCO_EGL_DEVICE_ID", "CUDA_VISIBLE_DEVICES"
_CACHES = {"NUMBA_CACHE_DIR": "numba", "MPLCONFIGDIR": "matplotlib"}
_ROBOSUITE = "robosuite.renderers.context.egl_context"
_MAKE_DISPLAY = "create_initialized_egl_device_display"
GRAPHICS_REMEDY = (
    "`safevla doctor` says what is missing. Without a GPU: unset MUJOCO_GL, and apt-get install libgl1 libegl1 "
    "libegl-mesa0 libglib2.0-0 (names on Debian and Ubuntu)."
)


@contextmanager
def importing(simulator: str, install: str, *, by_egl: bool = True) -> Iterator[None]:
    """Choose the EGL device and writable caches for the block, which imports a simulator.

    If `by_egl` is False, CUDA_VISIBLE_DEVICES stays set. An import error becomes a `HostError` with a remedy: `install`
    if a package or name is missing, `GRAPHICS_REMEDY` if MuJoCo or OpenGL failed, otherwise a reinstallation.
    """
    # `simulator` is the simulator's name in error messages, and `install` is the command that installs it.
    # The patch at the end chooses the EGL device again whenever robosuite makes a display after the import.
    _use_writable_caches()
    try:
        with egl_device() if by_egl else nullcontext(), _skip_unwritable_log_file():
            yield
    except Exception as error:
        module_names = _traceback_modules(error)  # the modules in which the error occurred, outermost first
        is_graphics = any(name.startswith(("OpenGL", "mujoco")) for name in module_names)
        is_missing = isinstance(error, ModuleNotFoundError) or "cannot import name" in str(error)
        backend = os.environ.get("MUJOCO_GL")
        backend_note = f" with MUJOCO_GL={backend}" if backend and is_graphics else ""
        remedy = install
        if not is_missing:
            remedy = GRAPHICS_REMEDY if is_graphics else f"If a file is damaged, reinstall: {install}"
            if is_graphics and DEVICE in str(error):  # the error is about MUJOCO_EGL_DEVICE_ID
                remedy = f"Correct or unset the environment variable {DEVICE}."
        problem = f"{simulator} cannot be imported{backend_note}: {type(error).__name__}: {error}"
        raise HostError(problem, remedy=remedy) from error
    _patch_robosuite_display()


# The file to which robosuite writes its log.
_LOG_FILE = os.path.join(os.sep, "tmp", "robosuite.log")


@contextmanager
def _skip_unwritable_log_file() -> Iterator[None]:
    # robosuite's import opens `_LOG_FILE`. If the file exists and is not writable, robosuite logs nothing in the block.
    file_handler = logging.FileHandler
    if os.path.exists(_LOG_FILE) and not os.access(_LOG_FILE, os.W_OK):
        # The replacement ignores its arguments, such as the name of the file.
        logging.FileHandler = lambda *_, **__: logging.NullHandler()  # type: ignore[assignment, misc]
    try:
        yield
    finally:
        logging.FileHandler = file_handler  # type: ignore[misc]


def _traceback_modules(error: BaseException) -> list[str]:
    # Returns the module names of an error's traceback, outermost call first.
    return [str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__)]


def _patch_robosuite_display() -> None:
    # If robosuite's EGL module is imported, patches the module's function that creates an EGL display.
    # Then `egl_device` sets the environment variables that choose the device of each new display.
    module = sys.modules.get(_ROBOSUITE)
    create_display = getattr(module, _MAKE_DISPLAY, None)
    if create_display is None or hasattr(create_display, "__wrapped__"):
        return  # the module is not imported or is already patched

    def make_display(original: Callable[..., object], device_id: int = 0) -> object:
        with egl_device():
            return original(device_id=device_id)

    wrap_method(module, _MAKE_DISPLAY, make_display)


# The EGL device


@dataclass(frozen=True, slots=True)
class EglDevice:
    """A device in EGL's list: its CUDA ordinal (None = not a CUDA device), and whether it is a software renderer."""

    cuda: int | None = None
    is_software: bool = False


# Matches the beginning of a GPU's number or UUID in CUDA_VISIBLE_DEVICES.
_CUDA_NAME = re.compile(r"\d|GPU-|MIG-")


@contextmanager
def egl_device() -> Iterator[None]:
    """In the block, unset CUDA_VISIBLE_DEVICES. Also set MUJOCO_EGL_DEVICE_ID, unless the user has set it or MUJOCO_GL
    names another backend than EGL. Afterwards, restore both variables. Logs one warning if the device is a guess.
    """
    # `DEVICE` is the name of MUJOCO_EGL_DEVICE_ID, and `VISIBLE` is the name of CUDA_VISIBLE_DEVICES.
    # `WORKER` is the name of the variable with this worker's index.
    saved = {name: os.environ.get(name) for name in (DEVICE, VISIBLE)}
    if saved[DEVICE] is None and os.environ.get("MUJOCO_GL", "").lower() in ("", "egl"):
        worker_text = os.environ.get(WORKER, "0")
        worker = int(worker_text) if worker_text.isdecimal() else 0
        index, warning = choose_device(_list_devices(), saved[VISIBLE], worker)
        if warning:
            warn_once(f"{warning}. The EGL device for images is {index}; to choose another, set {DEVICE}.")
        if index is not None:  # None = the simulator chooses
            os.environ[DEVICE] = str(index)
    os.environ.pop(VISIBLE, None)  # robosuite would use the variable as the index of an EGL device
    try:
        yield
    finally:
        for name, value in saved.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def choose_device(devices: Sequence[EglDevice], visible: str | None, worker: int = 0) -> tuple[int | None, str]:
    """Return the index of the EGL device for a worker (None = the simulator chooses), and a warning ("" = none).
    `visible` is CUDA_VISIBLE_DEVICES; workers use its devices in turn. EGL's numbers for CUDA devices
    (EGL_CUDA_DEVICE_NV) count visible devices, or all devices if EGL lists more numbers than there are visible devices.
    """
    # `devices` are EGL's devices, in EGL's order. `device.cuda` is EGL's number for a CUDA device; None for others.
    words = [] if visible is None else [word.strip() for word in visible.split(",")]
    gpu_names = list(takewhile(_CUDA_NAME.match, words))  # as in CUDA, the first word that is not a GPU ends the list
    index_of_ordinal = {device.cuda: index for index, device in enumerate(devices) if device.cuda is not None}
    if visible is not None and not gpu_names:  # the user hides all GPUs
        for index, device in enumerate(devices):
            if device.is_software:
                return index, ""
        return 0, f"{VISIBLE}={visible!r} hides all GPUs, and EGL has no software device"
    if not index_of_ordinal:
        if visible is None:
            return None, ""
        return 0, f"EGL lists no CUDA device, so {VISIBLE}={visible} selects none"
    # Without other information, the workers use all of EGL's CUDA devices in turn, in the order of EGL's numbers.
    indices, warning = [index_of_ordinal[ordinal] for ordinal in sorted(index_of_ordinal)], ""
    # If EGL lists more devices than are visible, EGL's numbers count all GPUs, so they equal the numbers in `visible`.
    if visible is not None and len(index_of_ordinal) > len(gpu_names):
        visible_ordinals = [int(name) for name in gpu_names if name.isdecimal()]
        # UUIDs and unlisted ordinals cannot be matched with EGL's devices. Then the workers use all GPUs in turn.
        if len(visible_ordinals) == len(gpu_names) and index_of_ordinal.keys() >= set(visible_ordinals):
            indices = [index_of_ordinal[ordinal] for ordinal in visible_ordinals]
        else:
            warning = f"EGL lists {len(index_of_ordinal)} GPUs, which cannot be matched with {VISIBLE}={visible}"
    return indices[worker % len(indices)], warning


# EGL_CUDA_DEVICE_NV and EGL_EXTENSIONS from Khronos' EGL registry, and the maximum number of listed devices
_CUDA_DEVICE, _EXTENSIONS, _MAX_DEVICES = 0x323A, 0x3055, 64


@cache
def _list_devices() -> tuple[EglDevice, ...]:
    # Returns EGL's devices, in EGL's order; () if EGL is missing or lacks the functions that list devices.
    try:
        egl = ctypes.CDLL("libEGL.so.1")
    except OSError:
        return ()
    egl.eglGetProcAddress.restype = ctypes.c_void_p
    prototypes = {  # for each function, the type of the result, then the types of the arguments
        "eglQueryDevicesEXT": (ctypes.c_uint, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p),
        "eglQueryDeviceAttribEXT": (ctypes.c_uint, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p),
        "eglQueryDeviceStringEXT": (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int),
    }
    addresses = [egl.eglGetProcAddress(name.encode()) for name in prototypes]
    if not all(addresses):
        return ()
    query_all, query_number, query_text = (
        ctypes.CFUNCTYPE(*types)(address) for types, address in zip(prototypes.values(), addresses, strict=True)
    )
    handles, count, ordinal = (ctypes.c_void_p * _MAX_DEVICES)(), ctypes.c_int(), ctypes.c_ssize_t()
    if not query_all(_MAX_DEVICES, handles, ctypes.byref(count)):
        return ()
    devices = []
    for handle in handles[: count.value]:
        has_ordinal = query_number(handle, _CUDA_DEVICE, ctypes.byref(ordinal))  # this writes to `ordinal`
        extensions = query_text(handle, _EXTENSIONS) or b""
        devices.append(EglDevice(cuda=ordinal.value if has_ordinal else None, is_software=b"software" in extensions))
    return tuple(devices)


# Caches


def _use_writable_caches() -> None:
    # If the user's cache folder is not writable, set a private folder for the caches of numba and Matplotlib.
    # Workers inherit the folder, which is removed when this process ends.
    # `_CACHES` maps the environment variable of each cache to the cache's folder name. The user's values are kept.
    unset_names = [name for name in _CACHES if name not in os.environ]
    if not unset_names or _can_write(Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()):
        return
    folder = tempfile.mkdtemp(prefix="safevla-caches-")  # mode 0700
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name in unset_names:
        os.environ[name] = str(Path(folder, _CACHES[name]))


def _can_write(folder: Path) -> bool:
    # Returns whether files can be written to the folder, which is created if necessary.
    # Writes a test file, because `os.access` ignores a full disk and a file system that refuses root.
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(2**16))
            file.flush()
    except OSError:
        return False
    return True
