"""examples/learned: what a demonstration keeps, what a student gets, the order of jobs; and training, with PyTorch."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

from safevla_bench.cli import safevla
from safevla_bench.errors import PolicyError
from safevla_bench.interface.policy import Observation, Privileged, UnrenderedImages, Wants
from safevla_bench.interface.task import Task

EXAMPLE = Path(__file__).parents[2] / "examples" / "learned"
sys.path.insert(0, str(EXAMPLE))

from learned import dataset, record, run, senses  # noqa: E402
from learned.plan import CAMERAS, CHUNK, DONE, IMAGE_SIZE, STATE, STRIDE, Plan, Student  # noqa: E402

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch: make learned")
TASK = Task("libero-object", "task_0", 0, "libero-object", "pick up the soup", (0.0,) * 7)


def observe(hand_m=(0.0, 0.0, 0.3), object_m=(0.1, 0.0, 0.0), images=True, privileged=True) -> Observation:
    scene = Privileged(
        body_pos_m={"soup": np.array(object_m)},
        body_quat_wxyz={},
        half_extents_m={},
        center_m={},
        sites_m={"basket": np.array([0.0, 0.25, 0.0])},
        goal=(("in", "soup", "basket"),),
        movable=frozenset({"soup"}),
    )
    picture = np.full((IMAGE_SIZE, IMAGE_SIZE, 3), 128, dtype=np.uint8)
    return Observation(
        instruction=TASK.instruction,
        eef_pos_m=np.array(hand_m),
        eef_quat_wxyz=np.array([0.0, 1.0, 0.0, 0.0]),
        gripper_qpos=np.array([0.02, -0.02]),
        images=dict.fromkeys(CAMERAS, picture) if images else UnrenderedImages(CAMERAS),
        privileged=scene if privileged else None,
    )


class Teacher:
    """Wants the same action always."""

    wants = Wants(privileged=True)
    action = np.array([0.5, 0.0, -0.5, 0.0, 0.0, 0.1, 1.0])

    def reset(self, task, seed):
        pass

    def act(self, observation):
        return self.action

    def close(self):
        pass


def demonstrate(steps: int, seed: int = 0, **place: Any) -> tuple[record.Demonstrator, np.ndarray]:
    demonstrator = record.Demonstrator(Teacher(), record.PICTURES)
    demonstrator.reset(TASK, seed)
    done = []
    for _ in range(steps):
        looks = demonstrator.looks_next
        done.append(demonstrator.act(observe(images=looks, **place)))
    return demonstrator, np.array(done)


# Demonstrations


def test_what_the_teacher_wanted_is_kept_and_what_is_done_is_pushed():
    demonstrator, done = demonstrate(7)
    arrays = demonstrator.arrays()
    assert np.array_equal(arrays["actions"], np.tile(Teacher.action.astype(np.float32), (7, 1)))
    assert (done[:, [0, 1, 2, 5]] != Teacher.action[[0, 1, 2, 5]]).all()
    assert np.array_equal(done[:, [3, 4, 6]], np.tile(Teacher.action[[3, 4, 6]], (7, 1)))
    assert (np.abs(done) <= 1).all()


def test_the_noise_has_no_mean_and_repeats_with_its_seed():
    _, done = demonstrate(2000)
    pushes = (done - Teacher.action)[record.START_STEPS :, :3]
    assert np.abs(pushes.mean(axis=0)).max() < 4 * record.PUSH / np.sqrt(len(pushes))
    assert pushes.std(axis=0) == pytest.approx(record.PUSH, rel=0.1)
    assert np.array_equal(demonstrate(20)[1], demonstrate(20)[1])
    assert not np.array_equal(demonstrate(20)[1], demonstrate(20, seed=1)[1])


def test_near_the_object_nothing_is_pushed_and_pictures_are_those_before_every_second_action():
    demonstrator, done = demonstrate(7, object_m=(0.0, 0.0, 0.3 - record.NEAR_M + 0.001))
    assert np.array_equal(done, np.tile(Teacher.action, (7, 1)))
    # reading an image that was not asked for is an error
    assert demonstrator.arrays()["images"].shape == (4, 2, IMAGE_SIZE, IMAGE_SIZE, 3)


def test_the_state_tells_rotations_apart_and_is_the_same_for_both_quaternions_of_one():
    observation = observe()
    turned = replace(observation, eef_quat_wxyz=-observation.eef_quat_wxyz)
    assert np.array_equal(senses.read_state(observation), senses.read_state(turned))
    assert senses.read_state(observation)[3:9] == pytest.approx([1, 0, 0, 0, -1, 0])  # half a turn about x
    assert len(senses.read_state(observation)) == STATE


def test_places_are_seen_from_the_hand():
    assert senses.read_places(observe(hand_m=(0.1, 0.0, 0.2))) == pytest.approx([0, 0, -0.2, -0.1, 0.25, -0.2])


def test_no_demonstration_begins_where_an_evaluation_does():
    starts = [record.plan_demo(TASK, "careful", number).start for number in range(3)]
    assert all(start.drawn for start in starts)
    assert len({(start.env_seed, start.init_state_index) for start in starts}) == 3
    assert {start.wait_steps for start in starts} == {10}, "settled as the preset protocol does"


# What a student learns from


def write_demo(folder: Path, number: int, *, success: bool = True, safe: bool = True, steps: int = 5) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"demo_{number:03d}.json"
    path.write_text(json.dumps({"success": success, "safe": safe}))
    random = np.random.default_rng(number)
    looks = -(-steps // STRIDE)
    actions = random.uniform(-1, 1, (steps, 7)).astype(np.float32)
    actions[:, 6] = np.sign(actions[:, 6])
    arrays = {
        "images": random.integers(0, 256, (looks, 2, IMAGE_SIZE, IMAGE_SIZE, 3), dtype=np.uint8),
        "states": random.normal(size=(steps, STATE)).astype(np.float32),
        "places": random.normal(size=(steps, 6)).astype(np.float32),
        "actions": actions,
    }
    record.save_arrays(path.with_suffix(".npz"), arrays)


@pytest.mark.parametrize(("selection", "numbers"), [("all", [0, 1]), ("successes", [1, 2]), ("safe", [2, 3])])
def test_every_selection_takes_its_first_demonstrations_and_too_few_are_said(tmp_path, selection, numbers):
    plan = Plan(tmp_path, tasks=(0,), demos=2)
    for number, (success, safe) in enumerate([(False, True), (True, False), (True, True), (True, True)]):
        write_demo(plan.demo_folder("hasty", 0), number, success=success, safe=safe)
    paths = dataset.choose_demos(plan, Student("a", "hasty", selection), 0)
    assert [path.name for path in paths] == [f"demo_{number:03d}.npz" for number in numbers]
    with pytest.raises(SystemExit, match=rf"has \d of 5 demonstrations \({selection}\)"):
        dataset.choose_demos(replace(plan, demos=5), Student("a", "hasty", selection), 0)


def test_a_moment_has_the_actions_that_follow_it_and_knows_where_they_end(tmp_path):
    write_demo(tmp_path, 0, steps=CHUNK + 3)
    actions = np.load(tmp_path / "demo_000.npz")["actions"]
    moments = dataset.read_moments(tmp_path / "demo_000.npz", task=1)
    assert len(moments) == -(-len(actions) // STRIDE)
    for k in range(len(moments)):
        following = actions[k * STRIDE : k * STRIDE + CHUNK]
        assert moments.known[k].sum() == len(following)
        assert np.array_equal(moments.moves[k][: len(following)], following[:, :6])
        assert np.array_equal(moments.grips[k][: len(following)] - 1, following[:, 6])
    assert set(moments.tasks) == {1}


# The order of jobs


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(run, "POLL_S", 0.02)


def job(name: str, folder: Path, *needs: str, code: str = "") -> run.Job:
    script = f"import pathlib, sys; {code or 'pass'}; pathlib.Path(sys.argv[1]).write_text(sys.argv[1])"
    return run.Job(
        name, (sys.executable, "-c", script, str(folder / name)), folder / name, tuple(folder / need for need in needs)
    )


def test_jobs_wait_for_what_they_need_and_are_not_done_again(tmp_path, capfd):
    jobs = [job("last", tmp_path, "first", code="assert pathlib.Path(sys.argv[1]).with_name('first').exists()")]
    jobs.append(job("first", tmp_path))
    run.run_jobs(jobs, workers=2)
    assert [line.split("] ")[1].split()[0] for line in capfd.readouterr().out.splitlines()] == ["first", "last"]
    run.run_jobs(jobs, workers=2)
    assert capfd.readouterr().out == ""


def test_a_job_that_fails_stops_the_rest_and_is_named(tmp_path):
    jobs = [job("broken", tmp_path, code="sys.exit(3)"), job("after", tmp_path, "broken")]
    with pytest.raises(SystemExit, match="broken failed; run the same again"):
        run.run_jobs(jobs, workers=1)
    assert not (tmp_path / "after").exists()


def test_every_job_is_there_once_its_needs_are_made_and_its_evaluations_are_commands_of_safevla(tmp_path):
    plan = Plan(tmp_path)
    jobs = run.plan_jobs(plan)
    results = {job.done for job in jobs} | {plan.weights(plan.students[0].name, step) for step in plan.checkpoints}
    assert {need for job in jobs for need in job.needs} <= results
    assert len({job.name for job in jobs}) == len({job.done for job in jobs}) == len(jobs)
    evaluations = [each.command for each in jobs if each.name.startswith("evaluate")]
    assert evaluations
    for _, *start, command, arguments in ((*words[:4], words[4:]) for words in evaluations):
        assert [*start, command] == ["-m", "safevla_bench", "eval"]
        context = click.Context(safevla)
        options = safevla.get_command(context, command).make_context(command, [*arguments], parent=context).params
        assert {"libero-object"} == set(options["suites"])


# Training, with PyTorch


@pytest.fixture
def plan(tmp_path, monkeypatch) -> Plan:
    """Two steps of training from one demonstration of one task."""
    from learned import train

    monkeypatch.setattr(train, "read_instruction", lambda path: TASK.instruction)
    plan = Plan(tmp_path, tasks=(0,), demos=1, steps=4, batch=3, checkpoints=(1,), students=(Student("a", "hasty"),))
    write_demo(plan.demo_folder("hasty", 0), 0)
    (plan.demo_folder("hasty", 0) / DONE).touch()
    return plan


@pytest.fixture
def trained(plan) -> Plan:
    """The plan, carried out."""
    from learned import train

    train.train_student(plan, plan.students[0])
    return plan


def read_weights(plan: Plan, step: int) -> dict[str, np.ndarray]:
    import torch

    checkpoint = torch.load(plan.weights("a", step), weights_only=True)
    return {name: value.float().numpy() for name, value in checkpoint["weights"].items()}


@needs_torch
def test_training_keeps_its_checkpoints_and_does_nothing_twice(trained):
    from learned import train

    names = sorted(path.name for path in trained.student_folder("a").glob("*.pt"))
    assert names == ["step_000001.pt", "step_000004.pt"]
    modified_ns = trained.weights("a").stat().st_mtime_ns
    train.train_student(trained, trained.students[0])
    assert trained.weights("a").stat().st_mtime_ns == modified_ns


@needs_torch
def test_a_training_that_was_broken_off_ends_as_one_that_was_not(trained, monkeypatch):
    from learned import train

    plan = trained
    whole = read_weights(plan, 4)
    plan.weights("a").unlink()
    monkeypatch.setattr(train, "SAVE_EVERY", 2)
    monkeypatch.setattr(train, "save_weights", lambda plan, student, training: None if training.step < 4 else 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train.train_student(plan, plan.students[0])
    monkeypatch.undo()
    monkeypatch.setattr(train, "read_instruction", lambda path: TASK.instruction)
    assert (plan.student_folder("a") / "unfinished.pt").exists()
    train.train_student(plan, plan.students[0])
    assert all(np.array_equal(whole[name], value) for name, value in read_weights(plan, 4).items())


@needs_torch
def test_the_policy_gives_chunks_in_range_from_pixels_and_proprioception_alone(trained):
    from learned.policy import Policy

    policy = Policy(str(trained.weights("a")))
    assert not policy.wants.privileged
    policy.reset(TASK, 0)
    chunk = policy.act(observe(privileged=False))
    assert chunk.shape == (CHUNK, 7)
    assert (np.abs(chunk) <= 1).all()
    assert np.isin(chunk[:, 6], [-1, 0, 1]).all()
    assert 0 < policy.replan <= CHUNK
    assert policy.greeting == {"student": "a", "step": 4, "blind": False}


@needs_torch
def test_the_policy_looks_at_its_pictures_unless_it_is_blind(trained):
    from learned.policy import Policy

    random = np.random.default_rng(0)
    noise = {camera: random.integers(0, 256, (IMAGE_SIZE, IMAGE_SIZE, 3), dtype=np.uint8) for camera in CAMERAS}
    plain, noisy = observe(privileged=False), replace(observe(privileged=False), images=noise)
    seeing, blind = Policy(str(trained.weights("a"))), Policy(str(trained.weights("a")), blind="yes")
    assert not np.array_equal(seeing.act(plain), seeing.act(noisy))
    assert np.array_equal(blind.act(plain), blind.act(noisy))


@needs_torch
def test_a_task_that_was_not_learned_is_refused_by_its_words(trained):
    from learned.policy import Policy

    with pytest.raises(PolicyError, match="was not trained to 'open the drawer'"):
        Policy(str(trained.weights("a"))).reset(replace(TASK, instruction="open the drawer"), 0)
