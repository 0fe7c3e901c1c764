"""examples/learned: what a demonstration keeps, what a student gets, the order of jobs; and training, with PyTorch."""

from __future__ import annotations

import importlib.util
import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from scipy.spatial.transform import Rotation

from pictures.builders import judged as rough_episodes
from safevla_bench.archive import write_archive
from safevla_bench.cli import safevla
from safevla_bench.errors import PolicyError
from safevla_bench.hosts.protocols import load_protocol
from safevla_bench.interface.policy import Observation, Privileged, UnrenderedImages, Wants
from safevla_bench.interface.task import Task
from safevla_bench.jobs.evaluation.judgement import judge
from safevla_bench.jobs.evaluation.request import Request
from safevla_bench.jobs.evaluation.rollouts import roll_out
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.rollout.plan import plan_episodes
from safevla_bench.training.labels import label_records
from safevla_bench.trajectory.batch import select_episodes

EXAMPLE = Path(__file__).parents[2] / "examples" / "learned"
sys.path.insert(0, str(EXAMPLE))

from learned import dataset, record, run, safer, senses  # noqa: E402
from learned.plan import CAMERAS, CHUNK, DONE, IMAGE_SIZE, PUSHED, STATE, STRIDE, Plan, Student  # noqa: E402

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


@pytest.mark.libero
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_demonstration_is_recorded_judged_and_rendered_as_it_was_recorded(tmp_path):
    plan = Plan(tmp_path, demos=1, students=(Student("of-careful", "careful"),))
    record.record_demos(plan, "careful", 0)
    folder = plan.demo_folder("careful", 0)
    verdict = json.loads((folder / "demo_000.json").read_text())
    scores = judge([folder / "demo_000.parquet"], load_ruleset()).scores
    assert verdict == {"success": bool(scores.success[0]), "safe": bool(scores.safe[0])}
    arrays = np.load(folder / "demo_000.npz")
    assert len(arrays["images"]) == -(-len(arrays["actions"]) // STRIDE)
    assert arrays["images"].std() > 10
    assert (folder / DONE).exists()


@pytest.mark.parametrize(("selection", "numbers"), [("all", [0, 1]), ("successes", [1, 2]), ("safe", [2, 3])])
def test_every_selection_takes_its_first_demonstrations_and_too_few_are_said(tmp_path, selection, numbers):
    plan = Plan(tmp_path, tasks=(0,), demos=2)
    for number, (success, safe) in enumerate([(False, True), (True, False), (True, True), (True, True)]):
        write_demo(plan.demo_folder("hasty", 0), number, success=success, safe=safe)
    paths = dataset.choose_demos(plan, Student("a", "hasty", selection), 0)
    assert [path.name for path in paths] == [f"demo_{number:03d}.npz" for number in numbers]
    with pytest.raises(SystemExit, match=rf"of 5 .*\({selection}\)"):
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
    with pytest.raises(SystemExit, match="broken failed"):
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

    with pytest.raises(PolicyError, match="'open the drawer'"):
        Policy(str(trained.weights("a"))).reset(replace(TASK, instruction="open the drawer"), 0)


# Safer by training: starts, weights and preferences


def libero_tasks() -> list[Task]:
    return [replace(TASK, task_id=f"task_{k}", index=k) for k in range(10)]


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    class Host:
        def tasks(self, suite):
            return libero_tasks()

    monkeypatch.setattr(safer.hosts, "make_host", lambda name: Host())
    return Plan(tmp_path, pair_states=3, pair_seeds=2), safer.draw_starts(Plan(tmp_path, pair_states=3, pair_seeds=2))


def test_pairs_begin_at_no_initial_state_and_at_no_scene_of_a_demonstration(drawn):
    plan, suite = drawn
    scenes = {(start.task_id, start.start) for start in suite.starts}
    assert len(scenes) == len(plan.tasks) * plan.pair_states
    assert {start.task_id for start in suite.starts} == {f"task_{k}" for k in plan.tasks}
    evaluated = plan_episodes([TASK], 50, ["a"], load_protocol())
    demonstrated = [record.plan_demo(TASK, "hasty", number).start for number in range(plan.most_demos)]
    for start in (found.start for found in suite.starts):
        assert start.drawn
        assert start.env_seed not in {other.start.env_seed for other in evaluated}
        assert start.env_seed not in {other.env_seed for other in demonstrated}
    seeds = [start.policy_seed for start in suite.starts]
    assert len(set(seeds)) == len(seeds) == len(scenes) * plan.pair_seeds


@needs_torch
def test_each_variant_is_registered_before_it_is_trained_and_evaluated_as_registered(tmp_path):
    plan = Plan(tmp_path, states=50, checkpoints=(), students=tuple(safer.list_students([0, 1, 2])))
    jobs = safer.plan_jobs(plan)
    made = {job.done for job in jobs}
    assert {need for job in jobs for need in job.needs} <= made
    assert len({job.name for job in jobs}) == len(made) == len(jobs)
    registered = {job.done for job in jobs if job.name.startswith("register")}
    assert len(registered) == 5 * 3 + len(safer.FILTERED) * 3
    assert all(registered <= {*job.needs} for job in jobs if job.name.startswith("train"))
    assert all(registered & {*job.needs} for job in jobs if job.name.startswith("evaluate"))
    for job in jobs:
        if job.command[1:3] == ("-m", "safevla_bench"):
            _, _, _, command, *arguments = job.command
            context = click.Context(safevla)
            params = safevla.get_command(context, command).make_context(command, arguments, parent=context).params
            assert bool(params.get("freeze")) == job.name.startswith("register")
            assert (params.get("episodes") == 50) == job.name.startswith("register")


def write_pairs(folder: Path, *, is_of_benchmark: bool = False, split: str = "train") -> None:
    """A dataset of a preferred and a rejected episode of five frames, in chunks of three and two executed actions."""
    random = np.random.default_rng(0)
    states = [{"state": "a", "is_of_benchmark": is_of_benchmark}]
    sides = {side: {"episode_index": k} for k, side in enumerate(("preferred", "rejected"))}
    pair = {"state": "a", "split": split, "weight": 0.5, "instruction": TASK.instruction, **sides}
    lines = [{"states": states}, pair]
    frames = []
    for k in range(10):
        stream = io.BytesIO()
        Image.fromarray(random.integers(0, 256, (IMAGE_SIZE, IMAGE_SIZE, 3), dtype=np.uint8)).save(stream, "PNG")
        picture = {"bytes": stream.getvalue(), "path": None}
        action = [*random.uniform(-1, 1, 6).tolist(), 1.0 if k % 2 else -1.0]
        frames.append(
            {
                "episode_index": k // 5,
                "chunk_step": [k % 5 // 3, k % 5 % 3],
                "policy_action": action,
                "observation.state": random.uniform(-1, 1, 8).tolist(),
                **{f"observation.images.{camera}": picture for camera in CAMERAS},
            }
        )
    (folder / "meta").mkdir(parents=True)
    (folder / "data/chunk-000").mkdir(parents=True)
    (folder / "meta/pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    pq.write_table(pa.Table.from_pylist(frames), folder / "data/chunk-000/file-000.parquet")


@needs_torch
def test_pairs_from_an_evaluation_s_starts_are_not_learned_from(tmp_path):
    from learned.preference import read_preferences

    write_pairs(tmp_path / "own", is_of_benchmark=True)
    with pytest.raises(SystemExit, match="students are evaluated"):
        read_preferences(tmp_path / "own", [TASK.instruction])
    write_pairs(tmp_path / "held", split="validation")
    assert not read_preferences(tmp_path / "held", [TASK.instruction]).pairs


@needs_torch
def test_an_episode_is_read_as_its_chunks_with_the_actions_that_were_executed(tmp_path):
    from learned.preference import read_preferences

    write_pairs(tmp_path)
    preferences = read_preferences(tmp_path, [TASK.instruction])
    assert (preferences.pairs, preferences.weights) == (((0, 1),), (0.5,))
    frames = pq.read_table(tmp_path / "data/chunk-000/file-000.parquet")["policy_action"].to_pylist()
    for number, episode in enumerate(preferences.episodes):
        assert episode.known.sum(axis=1).tolist() == [3, 2]
        executed = np.concatenate([episode.moves[k][episode.known[k]] for k in range(2)])
        np.testing.assert_array_equal(executed, np.float32(frames[5 * number : 5 * number + 5])[:, :6])
        assert len(episode.states[0]) == STATE


@needs_torch
def test_a_state_of_a_dataset_is_the_state_that_the_student_sees():
    from learned.preference import convert_states

    seen = observe()
    turn = Rotation.from_quat(seen.eef_quat_wxyz, scalar_first=True).as_rotvec()
    state = np.concatenate([seen.eef_pos_m, turn, seen.gripper_qpos])[None]
    np.testing.assert_allclose(convert_states(state)[0], senses.read_state(seen), atol=1e-6)


@needs_torch
def test_the_likelihood_is_laplace_s_of_the_sampled_moves(plan, tmp_path):
    import torch
    from learned.network import ChunkNetwork
    from learned.preference import log_likelihood, read_preferences

    write_pairs(tmp_path / "pairs")
    (episode, _) = read_preferences(tmp_path / "pairs", [TASK.instruction]).episodes
    torch.manual_seed(0)
    network = ChunkNetwork(1)
    images = torch.from_numpy(episode.images).permute(0, 1, 4, 2, 3)
    with torch.no_grad():
        move, _, _ = network(images, torch.from_numpy(episode.states), torch.from_numpy(episode.tasks))
        likelihood = float(log_likelihood(network, episode, scale=0.2))
    expected = 0.0
    for k, s in zip(*np.nonzero(episode.known), strict=True):
        density = torch.distributions.Laplace(move[k, s, PUSHED].clamp(-1, 1), 0.2)
        expected += density.log_prob(torch.from_numpy(episode.moves[k, s, PUSHED])).sum() + 3 * np.log(2 * 0.2)
    assert likelihood == pytest.approx(float(expected), rel=1e-4)


@needs_torch
def test_the_loss_of_equal_gains_is_ln_2_and_falls_as_the_preferred_gains():
    import torch
    from learned.preference import preference_loss

    weights = torch.tensor([0.5, 0.25])
    assert float(preference_loss(torch.zeros(2, 2), weights)) == pytest.approx(np.log(2))
    better = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    expected = (0.5 * -np.log(1 / (1 + np.exp(-0.1))) + 0.25 * np.log(2)) / 0.75
    assert float(preference_loss(better, weights, beta=0.1)) == pytest.approx(expected)
    assert preference_loss(better, weights) < preference_loss(better.flip(1), weights)


@needs_torch
def test_training_from_preferences_makes_the_preferred_episode_likelier_than_the_rejected(trained, monkeypatch):
    import torch
    from learned import preference, train
    from learned.network import ChunkNetwork

    monkeypatch.setattr(preference, "RATE", 1e-3)
    student = Student("better", "hasty", base="a", preference_steps=5)
    plan = replace(trained, students=(*trained.students, student))
    write_pairs(plan.pair_folder("a"))
    train.train_student(plan, student)
    episodes = preference.read_preferences(plan.pair_folder("a"), [TASK.instruction]).episodes

    def lead(name: str) -> float:
        network = ChunkNetwork(1)
        kept = torch.load(plan.weights(name), weights_only=True)
        network.load_state_dict({key: value.float() for key, value in kept["weights"].items()})
        with torch.no_grad():
            preferred, rejected = (preference.log_likelihood(network, episode) for episode in episodes)
        return float(preferred - rejected)

    assert lead("better") > lead("a") + 1


@needs_torch
def test_a_sampling_student_repeats_by_its_seed_and_stays_in_range(trained):
    from learned.policy import Policy

    policy = Policy(str(trained.weights("a")), noise="0.3")

    def sample(seed: int) -> np.ndarray:
        policy.reset(TASK, seed)
        return policy.act(observe(privileged=False))

    assert np.array_equal(sample(1), sample(1))
    assert not np.array_equal(sample(1), sample(2))
    assert (np.abs(sample(1)) <= 1).all()
    moves = np.array([[0.5] * 6 + [1.0]])
    policy.reset(TASK, 0)
    drawn = np.concatenate([policy.sample(moves) for _ in range(3000)])
    assert np.median(drawn[:, PUSHED], axis=0) == pytest.approx(0.5, abs=0.05)
    assert (drawn[:, PUSHED].std(axis=0) > 0.1).all()
    assert (drawn[:, 3:] == moves[:, 3:]).all(), "turns and grips are kept: students do not recover from others"


def test_a_student_of_two_teachers_learns_from_as_many_demonstrations_of_each(tmp_path):
    plan = Plan(tmp_path, tasks=(0,), demos=2)
    for teacher in ("careful", "hasty"):
        for number in range(3):
            write_demo(plan.demo_folder(teacher, 0), number, steps=5)
    from learned import dataset

    chosen = dataset.choose_demos(plan, Student("both", "careful+hasty"), 0)
    assert [(path.parent.parent.name, path.stem) for path in chosen] == [
        (teacher, f"demo_{number:03d}") for teacher in ("careful", "hasty") for number in range(2)
    ]


def test_moments_without_a_known_weight_are_left_out_and_others_weigh_one_on_average(tmp_path, monkeypatch):
    plan = Plan(tmp_path, tasks=(0,), demos=1)
    write_demo(plan.demo_folder("hasty", 0), 0, steps=5)
    monkeypatch.setattr(dataset, "weigh_actions", lambda path, count: np.array([2, 9, 0, 9, 4], dtype=np.float32))
    weighted = dataset.load_moments(plan, Student("a", "hasty", is_weighted=True)).weights
    assert weighted.tolist() == [1.0, 0.0, 2.0]
    assert dataset.load_moments(plan, Student("a", "hasty")).weights.tolist() == [1.0] * 3


def test_an_action_s_weight_is_that_of_the_record_after_it(tmp_path):
    batch = select_episodes(rough_episodes()[0], [1])
    write_archive(tmp_path / "demo.parquet", batch)
    rules = load_ruleset()
    labels = label_records(batch, score(batch, rules), rules)
    expected = np.nan_to_num(np.exp(labels.worst[1:] / 0.5), nan=0.0)
    count = int(batch.lengths[0]) - 1
    np.testing.assert_allclose(dataset.weigh_actions(tmp_path / "demo.npz", count), expected, rtol=1e-6)
    assert (expected < 1).any()


def test_differences_are_over_trainings_of_the_same_seed_with_their_spread(tmp_path, monkeypatch):
    safety = {"plain": 60.0, "safe": 70.0, "weighted": 65.0, "preferred": 80.0, "nudged": 75.0}

    def measure(folder: Path, reading: str) -> list[float]:
        variant, seed, *filtered = folder.name.split("-")
        return [50.0, safety[variant] + 10 * int(seed) + 5 * bool(filtered), 40.0, 100.0 + int(seed) ** 2]

    monkeypatch.setattr(safer, "measure_evaluation", measure)
    rows = safer.summarize(Plan(tmp_path, students=tuple(safer.list_students([0, 1, 2]))))
    assert len(rows) == len(safer.READINGS) * (len(safety) + len(safer.FILTERED))
    found = {(row["reading"], row["filter"], row["variant"]): row for row in rows}
    preferred = found["net-force", "filtered", "preferred"]
    assert preferred["Safety"] == (95.0, 10.0)
    assert preferred["Safety - plain"] == (25.0, 0.0)
    assert found["default", "", "plain"]["Safety - plain"] == (0.0, 0.0)
    (single, *_) = safer.summarize(Plan(tmp_path, students=tuple(safer.list_students([1]))))
    assert single["Safety"] == (70.0, None)


def test_an_evaluation_s_numbers_are_those_of_its_table(tmp_path):
    roll_out(Request(host="fake", suites=("fake",), tasks=(0, 1, 2), policies=("scripted:hasty",)), tmp_path / "run")
    success, safe, clean, steps = safer.measure_evaluation(tmp_path / "run", "default")
    judged = judge([tmp_path / "run"], load_ruleset())
    (cell,) = judged.summarize_scores()[0]
    assert (success, safe) == (pytest.approx(100 * cell.sr), pytest.approx(100 * cell.safety))
    assert clean <= min(success, safe)
    assert steps == np.mean(judged.records.lengths) - 1
