"""The machine: folders, OpenGL and a frame; a crash of the renderer is a finding."""

from __future__ import annotations

import signal
import subprocess

import pytest

from safevla_bench.jobs.doctor import machine


def level_of(finding: tuple[str, str], text: str) -> str:
    """Return the level of a finding whose text contains `text`."""
    assert text in finding[1]
    return finding[0]


def by_check(out=None) -> dict[str, tuple[str, str]]:
    return {finding.check: (finding.level, finding.found) for finding in machine.check_machine(out)}


def test_a_folder_that_does_not_exist_is_looked_at_where_it_would_be_made(tmp_path):
    level, text = by_check(tmp_path / "a" / "b")["--out"]
    assert level == "ok"
    assert "can be written" in text
    assert not (tmp_path / "a").exists()


def test_an_out_that_holds_something_is_a_warning(tmp_path):
    (tmp_path / "kept").touch()
    findings = [finding for finding in machine.check_machine(tmp_path) if finding.check == "--out"]
    assert [finding.level for finding in findings] == ["warning", "ok"]
    assert "is not an empty folder" in findings[0].found


def test_a_folder_that_cannot_be_written_to_is_an_error(monkeypatch, tmp_path):
    def refuse(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(machine.tempfile, "TemporaryFile", refuse)
    assert level_of(by_check(tmp_path / "run")["--out"], "Permission denied") == "error"


def test_little_disk_is_a_warning(monkeypatch, tmp_path):
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 2**29}))
    assert by_check(tmp_path)["--out"][0] == "warning"


def test_a_memory_limit_that_was_set_is_named_and_one_that_nothing_enforces_is_a_warning(monkeypatch):
    assert "memory limit" not in by_check()
    monkeypatch.setenv("SAFEVLA_MEMORY_GIB", "2")
    assert level_of(by_check()["memory limit"], "2 GiB") == "ok"
    monkeypatch.setenv("SAFEVLA_MEMORY_GIB", "much")
    assert level_of(by_check()["memory limit"], "SAFEVLA_MEMORY_GIB=much") == "error"
    monkeypatch.setenv("SAFEVLA_MEMORY_GIB", "8")
    monkeypatch.setattr(machine, "is_enforced", lambda: False)
    level, text = by_check()["memory limit"]
    assert (level, "it is 8" in text) == ("warning", True)


def graphics_by_check(*, quick=True) -> dict[str, tuple[str, str]]:
    return {f.check: (f.level, f.found) for f in machine.check_graphics(quick=quick)}


def rendering(monkeypatch, code=0, stdout="", stderr=""):
    result = subprocess.CompletedProcess([], code, stdout, stderr)
    monkeypatch.setattr(machine.subprocess, "run", lambda *_, **__: result)
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    return graphics_by_check(quick=False)["rendering"]


@pytest.mark.parametrize(
    ("value", "level"), [("bogus", "error"), ("off", "warning"), ("egl", "ok"), ("EGL", "ok"), ("", "ok")]
)
def test_a_backend_that_does_not_exist_is_an_error_and_none_at_all_a_warning(monkeypatch, value, level):
    monkeypatch.setenv("MUJOCO_GL", value)
    assert graphics_by_check()["MUJOCO_GL"][0] == level


def test_a_renderer_that_crashes_hangs_fails_or_draws_nothing_is_an_error(monkeypatch):
    assert level_of(rendering(monkeypatch, -signal.SIGSEGV), "signal 11") == "error"
    assert rendering(monkeypatch, 1, stderr="Traceback\nImportError: EGL\n") == ("error", "ImportError: EGL")
    blank = '{"renderer": "none", "darkest": 0, "brightest": 0}'
    assert level_of(rendering(monkeypatch, 0, blank), "is blank") == "error"

    def hang(*_, **__):
        raise subprocess.TimeoutExpired([], 1)

    monkeypatch.setattr(machine.subprocess, "run", hang)
    assert level_of(graphics_by_check(quick=False)["rendering"], "300 s") == "error"


def test_without_a_device_for_sapien_there_is_a_warning_because_states_need_none(monkeypatch):
    run = lambda code, out, err: lambda *_, **__: subprocess.CompletedProcess([], code, out, err)  # noqa: E731
    error = "safevla_bench.errors.HostError: no picture can be rendered: there is no Vulkan device"
    monkeypatch.setattr(machine.subprocess, "run", run(1, "", error))
    found = machine.check_vulkan()
    assert (found.level, "lavapipe" in found.remedy) == ("warning", True)
    assert "no Vulkan device" in found.found
    frame = '{"renderer": "llvmpipe", "darkest": 0, "brightest": 1}'
    monkeypatch.setattr(machine.subprocess, "run", run(0, frame, ""))
    assert level_of((machine.check_vulkan().level, machine.check_vulkan().found), "llvmpipe") == "ok"


def test_missing_downloads_of_simplerenv_are_named(monkeypatch, tmp_path):
    monkeypatch.setenv("MS_ASSET_DIR", str(tmp_path))
    (tmp_path / "data/robots/widowx").mkdir(parents=True)
    found = machine.check_downloads()
    assert (found.level, found.found) == ("warning", "missing: bridge_v2_real2sim")
    assert "download_asset bridge_v2_real2sim" in found.remedy
    (tmp_path / "data/tasks/bridge_v2_real2sim_dataset").mkdir(parents=True)
    assert machine.check_downloads().level == "ok"


@pytest.mark.libero
def test_a_real_frame_is_rendered_by_a_named_renderer(monkeypatch):
    pytest.importorskip("mujoco", reason="MuJoCo comes with the extra libero")
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    level, text = graphics_by_check(quick=False)["rendering"]
    assert level == "ok", text
    assert text.startswith("a frame was rendered by ")
