"""The machine: folders that can be written to, memory under a limit, GPUs."""

from __future__ import annotations

from safevla_bench.doctor import machine


def by_check(out=None) -> dict[str, tuple[str, str]]:
    return {finding.check: (finding.level, finding.found) for finding in machine.check_machine(out)}


def test_a_folder_that_does_not_exist_is_looked_at_where_it_would_be_made(tmp_path):
    level, found = by_check(tmp_path / "a" / "b")["--out"]
    assert level == "ok"
    assert found.startswith(f"{tmp_path} can be written to")
    assert not (tmp_path / "a").exists()


def test_an_out_that_holds_something_is_a_warning(tmp_path):
    (tmp_path / "kept").touch()
    findings = [finding for finding in machine.check_machine(tmp_path) if finding.check == "--out"]
    assert [finding.level for finding in findings] == ["warning", "ok"]
    assert "is there already" in findings[0].found


def test_a_folder_that_cannot_be_written_to_is_an_error(monkeypatch, tmp_path):
    def refuse(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(machine.tempfile, "TemporaryFile", refuse)
    assert by_check(tmp_path / "run")["--out"] == ("error", f"{tmp_path} cannot be written to: Permission denied")


def test_little_disk_is_a_warning(monkeypatch, tmp_path):
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 2**29}))
    assert by_check(tmp_path)["--out"][0] == "warning"


def test_available_memory_is_the_least_of_the_machine_and_its_control_group(tmp_path):
    meminfo, limit = tmp_path / "meminfo", tmp_path / "memory.max"
    meminfo.write_text("MemTotal:  16777216 kB\nMemAvailable:  8388608 kB\n")
    assert machine.available_memory_gib(meminfo, limit) == 8
    limit.write_text("max\n")
    assert machine.available_memory_gib(meminfo, limit) == 8
    limit.write_text(f"{2**31}\n")
    assert machine.available_memory_gib(meminfo, limit) == 2
    assert machine.available_memory_gib(tmp_path / "absent", limit) is None


def test_a_gpu_is_named_without_its_serial_number(monkeypatch, tmp_path):
    script = tmp_path / "nvidia-smi"
    script.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H100 (UUID: GPU-123)'\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert by_check()["GPU"] == ("ok", "GPU 0: NVIDIA H100")
    script.write_text("#!/bin/sh\nexit 9\n")
    assert by_check()["GPU"][0] == "warning"
