"""Demonstrations of a scripted teacher, whose hand is pushed about: what it saw, and what it did before the push.

The scenes are drawn anew by LIBERO's own resets, so that none of its 50 initial states is seen in training. Each
episode is judged as it ends. Beside the arrays lies its record, which `safevla score` judges again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import safevla_bench as sb
from learned.plan import CAMERAS, DONE, IMAGE_SIZE, STRIDE, Plan
from learned.senses import read_places, read_state
from safevla_bench import hosts
from safevla_bench.archive import write_archive
from safevla_bench.hosts.protocols import load_protocol
from safevla_bench.interface.environment import HostEnv
from safevla_bench.interface.policy import Action, Observation, Policy, Wants
from safevla_bench.interface.task import Task
from safevla_bench.policies import scripted
from safevla_bench.rollout.episode import EpisodeOutcome, run_episode
from safevla_bench.rollout.plan import PlannedEpisode, plan_episodes

PUSH, START_PUSH, START_STEPS = 0.1, 0.3, 8
"""Standard deviation of the noise, as a share of the largest action; that of the first steps; how many these are."""
NEAR_M = 0.09
"""So near to the object the hand is not pushed: the fingers have 14 mm of room."""
SEED = 1000
"""Of the scenes: the environment's seed, so that no scene is one of an evaluation."""
PICTURES = Wants(cameras=CAMERAS, image_size=(IMAGE_SIZE, IMAGE_SIZE), privileged=True)


@dataclass
class Demonstrator:
    """A teacher whose actions are pushed by zero-mean noise (as in DART); what it wanted to do is the label.

    Laskey et al., DART: Noise Injection for Robust Imitation Learning, CoRL 2017.
    """

    teacher: Policy
    wants: Wants
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(SEED))
    seen: list[Observation] = field(default_factory=list)
    wanted: list[Action] = field(default_factory=list)

    def reset(self, task: Task, seed: int) -> None:
        self.teacher.reset(task, seed)
        self.random = np.random.default_rng(seed)
        self.seen, self.wanted = [], []

    @property
    def looks_next(self) -> bool:
        return len(self.wanted) % STRIDE == 0

    def act(self, observation: Observation) -> Action:
        wanted = self.teacher.act(observation)
        size = START_PUSH if len(self.wanted) < START_STEPS else PUSH
        if np.linalg.norm(read_places(observation)[:3]) < NEAR_M:
            size = 0.0
        self.seen.append(observation)
        self.wanted.append(wanted)
        pushed = wanted.copy()
        pushed[[0, 1, 2, 5]] += size * self.random.normal(size=4) * [1.0, 1.0, 1.0, 0.5]
        return np.clip(pushed, -1.0, 1.0)

    def close(self) -> None:
        """Nothing to free."""

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """Return the episode: images [K, 2, H, W, 3] of every second step, states [T, 11], places, actions [T, 7]."""
        looked = self.seen[::STRIDE]
        return {
            "images": np.stack([[seen.images[camera] for camera in CAMERAS] for seen in looked]),
            "states": np.stack([read_state(seen) for seen in self.seen]).astype(np.float32),
            "places": np.stack([read_places(seen) for seen in self.seen]).astype(np.float32),
            "actions": np.stack(self.wanted).astype(np.float32),
        }


def plan_demo(task: Task, teacher: str, number: int) -> PlannedEpisode:
    """Return one episode whose scene is drawn by the reset, settled as in the preset protocol."""
    rules = load_protocol()
    planned = plan_episodes([task], 1, [f"scripted:{teacher}"], rules)[0]
    return replace(
        planned,
        episode_id=f"{teacher}/{task.benchmark}/{task.task_id}/demo_{number:03d}",
        episode=number,
        start=replace(planned.start, init_state_index=number, env_seed=SEED, drawn=True),
        policy_seed=SEED + number,
    )


def record_demos(plan: Plan, teacher: str, task_number: int) -> None:
    """Record until every student has its demonstrations of this teacher and task, then render the chosen ones.

    What is there already stays. Rendering is most of the work, and where few demonstrations are safe, few are chosen.

    Raises:
        SystemExit: the most that may be recorded do not hold them, or an episode crashed.
    """
    folder = plan.demo_folder(teacher, task_number)
    folder.mkdir(parents=True, exist_ok=True)
    selections = {student.chosen for student in plan.students if teacher in student.teachers}
    host = hosts.make_host("libero")
    task = host.tasks(plan.suite)[task_number]
    with closing(host.make(task, Wants(privileged=True))) as env:
        for number in range(plan.most_demos):
            path = folder / f"demo_{number:03d}.json"
            if not path.exists():
                record_demo(env, teacher, number, path)
            counts = {chosen: len(select_demos(folder, chosen)) for chosen in selections}
            summary = ", ".join(f"{count} {chosen}" for chosen, count in sorted(counts.items()))
            print(f"record {teacher} task {task_number}: {number + 1} recorded, {summary} of {plan.demos}", flush=True)
            if all(count >= plan.demos for count in counts.values()):
                break
        else:
            raise SystemExit(f"{plan.most_demos} demonstrations of {teacher} in task {task_number} hold only {counts}")
    chosen_paths = {path for chosen in selections for path in select_demos(folder, chosen)[: plan.demos]}
    with closing(host.make(task, PICTURES)) as env:
        for done, path in enumerate(sorted(chosen_paths)):
            if not path.with_suffix(".npz").exists():
                render_demo(env, teacher, int(path.stem.removeprefix("demo_")), path)
            print(f"render {teacher} task {task_number}: {done + 1} of {len(chosen_paths)}", flush=True)
    (folder / DONE).touch()


def record_demo(env: HostEnv, teacher: str, number: int, path: Path) -> None:
    """Record and judge one demonstration without pictures: its outcome goes to `path`, its record beside it."""
    outcome = run_demo(env, Demonstrator(scripted.make(teacher), Wants(privileged=True)), teacher, number)
    assert outcome.batch is not None
    verdict = sb.score(outcome.batch, sb.load_ruleset()).episode(0)
    write_archive(path.with_suffix(".parquet"), outcome.batch)
    path.write_text(json.dumps({"success": verdict.success, "safe": verdict.safe is True}), encoding="utf-8")


def render_demo(env: HostEnv, teacher: str, number: int, path: Path) -> None:
    """Run a recorded demonstration once more, with pictures, and keep what was seen and wanted.

    The same seed gives the same bytes, with pictures and without; it is checked.

    Raises:
        SystemExit: it went otherwise than it was recorded.
    """
    demonstrator = Demonstrator(scripted.make(teacher), PICTURES)
    outcome = run_demo(env, demonstrator, teacher, number)
    assert outcome.batch is not None
    recorded = sb.open_archive(path.with_suffix(".parquet"))
    if not np.array_equal(recorded.eef_pos_m.values, outcome.batch.eef_pos_m.values):
        raise SystemExit(f"{path.stem} of {teacher} moves otherwise than it was recorded; remove {path.parent}")
    save_arrays(path.with_suffix(".npz"), demonstrator.arrays())


def run_demo(env: HostEnv, demonstrator: Demonstrator, teacher: str, number: int) -> EpisodeOutcome:
    """Run one demonstration.

    Raises:
        SystemExit: it crashed.
    """
    outcome = run_episode(env, demonstrator, plan_demo(env.task, teacher, number))
    if outcome.batch is None:
        raise SystemExit(f"demonstration {number} of {teacher} crashed: {outcome.reason}")
    return outcome


def select_demos(folder: Path, chosen: str) -> list[Path]:
    """Return the outcome files of a folder's demonstrations of one selection, in the order of recording."""
    return [path for path in sorted(folder.glob("demo_*.json")) if is_chosen(path, chosen)]


def is_chosen(path: Path, chosen: str) -> bool:
    """Return whether a demonstration is of a selection: `all`, `successes`, or `safe`, which also succeed."""
    outcome = json.loads(path.read_text(encoding="utf-8"))
    required = {"all": (), "successes": ("success",), "safe": ("success", "safe")}[chosen]
    return all(outcome[name] for name in required)


def save_arrays(path: Path, arrays: Mapping[str, NDArray[np.generic]]) -> None:
    """Write arrays into a file that appears when it is whole."""
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)
    partial.replace(path)
