"""Graphics: libraries, the backend that is named, a frame; a crash of the renderer is a finding."""

from __future__ import annotations

import signal
import subprocess

import pytest

from safevla_bench.doctor import graphics


def by_check(*, needed=True, quick=True) -> dict[str, tuple[str, str]]:
    return {f.check: (f.level, f.found) for f in graphics.check_graphics(needed=needed, quick=quick)}


def rendering(monkeypatch, code=0, stdout="", stderr=""):
    done = subprocess.CompletedProcess([], code, stdout, stderr)
    monkeypatch.setattr(graphics.subprocess, "run", lambda *_, **__: done)
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    return by_check(quick=False)["rendering"]


@pytest.mark.parametrize(("needed", "level"), [(True, "error"), (False, "warning")])
def test_missing_libraries_are_an_error_where_a_simulator_needs_them_else_a_warning(monkeypatch, needed, level):
    monkeypatch.setattr(graphics, "_can_load", lambda name: name != "libEGL.so.1")
    (finding,) = (f for f in graphics.check_graphics(needed=needed, quick=True) if f.check == "OpenGL")
    assert (finding.level, finding.found) == (level, "missing: libEGL.so.1")
    assert "apt-get install libegl1 " in finding.remedy


@pytest.mark.parametrize(
    ("value", "level"), [("bogus", "error"), ("off", "warning"), ("egl", "ok"), ("EGL", "ok"), ("", "ok")]
)
def test_a_backend_that_does_not_exist_is_an_error_and_none_at_all_a_warning(monkeypatch, value, level):
    monkeypatch.setenv("MUJOCO_GL", value)
    assert by_check()["MUJOCO_GL"][0] == level


def test_a_renderer_that_crashes_hangs_fails_or_draws_nothing_is_an_error(monkeypatch):
    assert rendering(monkeypatch, -signal.SIGSEGV) == ("error", "the renderer crashed with signal 11")
    assert rendering(monkeypatch, 1, stderr="Traceback\nImportError: no EGL\n") == ("error", "ImportError: no EGL")
    blank = '{"renderer": "none", "darkest": 0, "brightest": 0}'
    assert rendering(monkeypatch, 0, blank) == ("error", "the frame is blank (by none)")

    def hang(*_, **__):
        raise subprocess.TimeoutExpired([], 1)

    monkeypatch.setattr(graphics.subprocess, "run", hang)
    assert by_check(quick=False)["rendering"] == ("error", "no frame within 60 s")


def test_a_device_that_does_not_exist_is_named_in_the_remedy(monkeypatch):
    monkeypatch.setenv("MUJOCO_EGL_DEVICE_ID", "7")
    rendering(monkeypatch, 1, stderr="RuntimeError: got 7")
    (finding,) = (f for f in graphics.check_graphics(needed=True, quick=False) if f.check == "rendering")
    assert finding.remedy.startswith("unset MUJOCO_EGL_DEVICE_ID; ")


@pytest.mark.libero
def test_a_real_frame_is_rendered_by_a_named_renderer(monkeypatch):
    pytest.importorskip("mujoco", reason="MuJoCo comes with the extra libero")
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    level, found = by_check(quick=False)["rendering"]
    assert level == "ok", found
    assert found.startswith("a frame by ")
