"""A worker's share of the machine: one thread, one GPU in turn, and never against what the user has set."""

from __future__ import annotations

from safevla_bench.rollout.worker import ONE_THREAD, RENDERER, VISIBLE, usable_gpus, worker_environment


def test_renderers_go_round_the_gpus():
    given = [worker_environment(worker, {}, ("0", "1"), cameras=True)[RENDERER] for worker in range(3)]
    assert given == ["0", "1", "0"]


def test_no_gpu_is_named_without_cameras_or_gpus_or_where_the_user_names_one():
    assert RENDERER not in worker_environment(0, {}, ("0",), cameras=False)
    assert RENDERER not in worker_environment(0, {}, (), cameras=True)
    assert worker_environment(0, {RENDERER: "5"}, ("0",), cameras=True)[RENDERER] == "5"


def test_a_worker_computes_on_one_thread_unless_the_user_says_how_many():
    assert [worker_environment(0, {}, (), cameras=False)[name] for name in ONE_THREAD] == ["1", "1", "1"]
    assert worker_environment(0, {"OMP_NUM_THREADS": "4"}, (), cameras=False)["OMP_NUM_THREADS"] == "4"


def test_gpus_are_those_the_user_left_visible(tmp_path):
    assert usable_gpus({VISIBLE: "2, 3"}) == ("2", "3")
    assert usable_gpus({VISIBLE: ""}) == ()
    assert usable_gpus({VISIBLE: "GPU-8f0e"}) == ()  # a renderer is chosen by number


def test_gpus_are_found_by_the_driver_s_tool_or_else_by_their_devices(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert usable_gpus({}, devices=tmp_path) == ("2", "10")
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H100 (UUID: GPU-1)'\necho 'GPU 1: NVIDIA H100 (UUID: GPU-2)'\n")
    tool.chmod(0o755)
    assert usable_gpus({}, devices=tmp_path) == ("0", "1")
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert usable_gpus({}, devices=tmp_path) == ("2", "10")
