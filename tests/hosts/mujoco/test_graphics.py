"""The EGL device that is chosen, caches that can be written, and the errors of a simulator's import."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from types import ModuleType

import pytest

from safevla_bench.errors import HostError
from safevla_bench.hosts.mujoco import graphics
from safevla_bench.hosts.mujoco.graphics import DEVICE, VISIBLE, EglDevice, choose_device, egl_device, importing

SOFTWARE = EglDevice(is_software=True)
OTHER_ORDER = (SOFTWARE, EglDevice(cuda=1), EglDevice(cuda=0))
ONE_VISIBLE = (EglDevice(), EglDevice(cuda=0), SOFTWARE)


@pytest.mark.parametrize(
    ("devices", "visible", "chosen"),
    [
        pytest.param((), None, [None] * 3, id="without EGL the simulator chooses"),
        pytest.param((SOFTWARE,), None, [None] * 3, id="without CUDA too"),
        pytest.param(OTHER_ORDER, None, [2, 1, 2], id="workers take the GPUs in CUDA's order"),
        pytest.param(OTHER_ORDER, "0,1", [2, 1, 2], id="all visible"),
        pytest.param(OTHER_ORDER, "1", [1, 1, 1], id="EGL counts all GPUs"),
        pytest.param(OTHER_ORDER, "1, 0", [2, 1, 2], id="as many as visible: EGL counts these"),
        pytest.param(ONE_VISIBLE, "3", [1, 1, 1], id="EGL counts the visible GPUs"),
        pytest.param(ONE_VISIBLE, "GPU-8f2ac6d1", [1, 1, 1], id="a UUID"),
        pytest.param(ONE_VISIBLE, "MIG-1c0f1b1e", [1, 1, 1], id="a part of a GPU"),
        pytest.param(OTHER_ORDER, "", [0, 0, 0], id="no GPU: software"),
        pytest.param(OTHER_ORDER, "-1", [0, 0, 0], id="no GPU by a negative number"),
        pytest.param(OTHER_ORDER, "NoDevFiles", [0, 0, 0], id="no GPU by another word"),
        pytest.param(OTHER_ORDER, "1,-1,0", [1, 1, 1], id="a negative number ends the list"),
        pytest.param(OTHER_ORDER, "1,", [1, 1, 1], id="so does nothing"),
    ],
)
def test_workers_render_on_the_gpus_that_the_user_left_visible(devices, visible, chosen):
    assert [choose_device(devices, visible, worker) for worker in range(3)] == [(index, "") for index in chosen]


@pytest.mark.parametrize(
    ("devices", "visible", "index"),
    [
        ((EglDevice(cuda=0),), "", 0),
        ((EglDevice(cuda=0),), "-1", 0),
        ((SOFTWARE,), "1", 0),
        ((SOFTWARE,), "GPU-8f2ac6d1", 0),
        (OTHER_ORDER, "GPU-8f2ac6d1", 2),
    ],
)
def test_a_choice_that_the_variable_does_not_settle_has_a_warning_that_names_it(devices, visible, index):
    chosen, warning = choose_device(devices, visible)
    assert chosen == index
    assert VISIBLE in warning


def test_the_variables_are_the_user_s_own_before_and_after_and_robosuite_sees_no_cuda_device(monkeypatch):
    monkeypatch.setenv(VISIBLE, "GPU-8f2ac6d1")
    monkeypatch.delenv(DEVICE, raising=False)
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setattr(graphics, "_list_devices", lambda: ONE_VISIBLE)
    with egl_device():
        assert (os.environ.get(VISIBLE), os.environ.get(DEVICE)) == (None, "1")
    assert (os.environ.get(VISIBLE), os.environ.get(DEVICE)) == ("GPU-8f2ac6d1", None)


def test_a_device_that_the_user_names_stays(monkeypatch):
    monkeypatch.setenv(VISIBLE, "3")
    monkeypatch.setenv(DEVICE, "0")
    with egl_device():
        assert (os.environ.get(VISIBLE), os.environ.get(DEVICE)) == (None, "0")


def test_robosuite_makes_its_display_on_the_chosen_device(monkeypatch):
    robosuite = ModuleType(graphics._ROBOSUITE)
    robosuite.create_initialized_egl_device_display = lambda device_id: (device_id, os.environ.get(DEVICE))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, graphics._ROBOSUITE, robosuite)
    monkeypatch.setattr(graphics, "_list_devices", lambda: ONE_VISIBLE)
    monkeypatch.setenv(VISIBLE, "7")
    monkeypatch.delenv(DEVICE, raising=False)
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    for _ in range(2):
        with importing("robosuite", "pip install it"):
            pass
    assert robosuite.create_initialized_egl_device_display(device_id=-1) == (-1, "1")


def test_the_devices_of_this_machine_are_listed():
    assert all(isinstance(device, EglDevice) for device in graphics._list_devices())


# Caches


@pytest.fixture
def _no_cache_variables(monkeypatch):
    for name in graphics._CACHES:
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("_no_cache_variables")
@pytest.mark.parametrize("unusable", [None, "/proc", "/dev/full"])  # None = a file; root may write to all three
def test_caches_go_to_a_private_folder_only_if_the_user_s_cannot_be_written(monkeypatch, tmp_path, unusable):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "later" / "cache"))
    graphics._use_writable_caches()
    assert not os.environ.keys() & graphics._CACHES.keys()
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", unusable or str(tmp_path / "file" / "cache"))
    graphics._use_writable_caches()
    private = Path(os.environ["NUMBA_CACHE_DIR"]).parent
    assert Path(os.environ["MPLCONFIGDIR"]).parent == private
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    private.rmdir()


@pytest.mark.usefixtures("_no_cache_variables")
def test_a_cache_folder_that_the_user_names_stays(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setenv("NUMBA_CACHE_DIR", "mine")
    monkeypatch.setenv("MPLCONFIGDIR", "mine too")
    graphics._use_writable_caches()
    assert (os.environ["NUMBA_CACHE_DIR"], os.environ["MPLCONFIGDIR"]) == ("mine", "mine too")


# The errors of an import


def _raise_in(module: str, error: Exception) -> None:
    exec("raise error", {"__name__": module, "error": error})


@pytest.mark.parametrize(
    ("module", "error", "remedy"),
    [
        (
            "numba.core.caching",
            RuntimeError("no locator available"),
            "If a file is damaged, reinstall: pip install sim",
        ),
        ("sim", ModuleNotFoundError("No module named 'bddl'"), "pip install sim"),
        ("sim", ImportError("cannot import name 'x' from 'y'"), "pip install sim"),
        ("OpenGL.platform", AttributeError("'NoneType' has no attribute 'eglQueryString'"), graphics.GRAPHICS_REMEDY),
        ("mujoco.egl", ImportError("Cannot initialize a EGL device display"), graphics.GRAPHICS_REMEDY),
        (
            "mujoco.egl",
            RuntimeError("The MUJOCO_EGL_DEVICE_ID environment variable must be an integer between 0 and 0"),
            "Correct or unset the environment variable MUJOCO_EGL_DEVICE_ID.",
        ),
    ],
)
def test_an_error_of_an_import_is_named_and_ascribed_to_graphics_only_if_graphics_raised_it(
    monkeypatch, module, error, remedy
):
    monkeypatch.setenv("MUJOCO_GL", "egl")
    with pytest.raises(HostError) as caught, importing("Simulator", "pip install sim"):
        _raise_in(module, error)
    assert caught.value.remedy == remedy
    assert f"{type(error).__name__}: {error}" in caught.value.problem
    is_graphics = remedy == graphics.GRAPHICS_REMEDY or "EGL" in remedy
    assert ("with MUJOCO_GL=egl" in caught.value.problem) == is_graphics


def test_robosuite_can_be_imported_although_its_log_file_belongs_to_another_user(monkeypatch, tmp_path):
    import logging

    (tmp_path / "robosuite.log").touch()
    monkeypatch.setattr(graphics, "_LOG_FILE", str(tmp_path / "robosuite.log"))
    monkeypatch.setattr(os, "access", lambda *_: False)
    with graphics._skip_unwritable_log_file():
        assert isinstance(logging.FileHandler("/nowhere/x.log"), logging.NullHandler)
    assert logging.FileHandler is not logging.NullHandler
