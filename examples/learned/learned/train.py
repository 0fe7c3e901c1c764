"""Training of one student: seeded, with checkpoints, and going on where it stopped."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from learned.dataset import Moments, choose_demos, load_moments, read_instruction
from learned.network import ChunkNetwork
from learned.plan import Plan, Student

RATE, DECAY, LONGEST_GRADIENT = 1e-3, 1e-4, 1.0
GRIP_SHARE, PLACE_SHARE = 0.2, 2.0
"""Of the loss: of the gripper, and of the places, which are labels of the simulator's and no input."""
SHIFT = 4
"""Pixels by which both pictures of a moment are moved at most, so that no single pixel is learned by heart."""
REPORT_EVERY, SAVE_EVERY = 100, 500


@dataclass
class Training:
    """A network on its way, with what it takes to go on."""

    network: ChunkNetwork
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.OneCycleLR
    step: int = 0

    def take_step(self, loss: Tensor) -> None:
        """Follow the gradient of a loss once."""
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), LONGEST_GRADIENT)
        self.optimizer.step()
        self.schedule.step()
        self.step += 1

    def save(self, path: Path) -> None:
        """Write everything, to go on from."""
        parts = {name: getattr(self, name).state_dict() for name in ("network", "optimizer", "schedule")}
        save_whole(path, {**parts, "step": self.step})

    def restore(self, path: Path) -> None:
        """Take up what `save` wrote."""
        kept = torch.load(path, weights_only=True)
        for name in ("network", "optimizer", "schedule"):
            getattr(self, name).load_state_dict(kept[name])
        self.step = kept["step"]


def train_student(plan: Plan, student: Student) -> None:
    """Train until the plan's last step; a finished student is left alone, an unfinished one goes on."""
    if plan.weights(student.name).exists():
        return
    torch.set_num_threads(1)
    if student.base:
        from learned.preference import train_preferred

        train_preferred(plan, student)
        return
    folder = plan.student_folder(student.name)
    folder.mkdir(parents=True, exist_ok=True)
    moments = load_moments(plan, student)
    training = begin_training(plan, student, moments)
    unfinished = folder / "unfinished.pt"
    if unfinished.exists():
        training.restore(unfinished)
    kept = {*(plan.checkpoints if student == plan.students[0] else ()), plan.steps}
    losses: list[list[float]] = []
    while training.step < plan.steps:
        random = np.random.default_rng([student.seed, training.step])
        loss, parts = batch_loss(training.network, moments, random, plan.batch)
        training.take_step(loss)
        losses.append(parts)
        if training.step % REPORT_EVERY == 0:
            report_losses(plan, student, training.step, losses)
            losses = []
        if training.step in kept:
            save_weights(plan, student, training)
        if training.step % SAVE_EVERY == 0:
            training.save(unfinished)
    unfinished.unlink(missing_ok=True)


def begin_training(plan: Plan, student: Student, moments: Moments) -> Training:
    """Return an untrained network of the student's seed, which knows the mean and the spread of the states."""
    torch.manual_seed(student.seed)
    network = ChunkNetwork(len(plan.tasks))
    network.state_mean.copy_(torch.from_numpy(moments.states.mean(axis=0)))
    network.state_scale.copy_(torch.from_numpy(moments.states.std(axis=0) + 1e-3))
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=plan.steps, pct_start=0.05)
    return Training(network, optimizer, schedule)


def batch_loss(
    network: ChunkNetwork, moments: Moments, random: np.random.Generator, size: int
) -> tuple[Tensor, list[float]]:
    """Return the loss of some moments drawn by chance, and its parts: of moves, grips and places."""
    chosen = random.integers(len(moments), size=size)
    images = torch.from_numpy(shift_images(moments.images[chosen], random)).permute(0, 1, 4, 2, 3)
    states, tasks, moves, grips, known, places, weights = (
        torch.from_numpy(getattr(moments, name)[chosen])
        for name in ("states", "tasks", "moves", "grips", "known", "places", "weights")
    )
    move, grip, place = network(images, states, tasks)
    share = weights[:, None].expand(known.shape)[known]
    of_moves = ((move - moves).abs().mean(dim=2)[known] * share).mean()
    of_grips = (nn.functional.cross_entropy(grip[known], grips[known], reduction="none") * share).mean()
    of_places = (place - places).abs().mean()
    loss = of_moves + GRIP_SHARE * of_grips + PLACE_SHARE * of_places
    return loss, [of_moves.item(), of_grips.item(), of_places.item()]


def shift_images(images: NDArray[np.uint8], random: np.random.Generator) -> NDArray[np.uint8]:
    """Return images [N, 2, H, W, 3], each pair moved by some pixels; the edge is repeated."""
    height, width = images.shape[2:4]
    moved = np.empty_like(images)
    for k, (down, across) in enumerate(random.integers(-SHIFT, SHIFT + 1, size=(len(images), 2))):
        rows = np.clip(np.arange(height) + down, 0, height - 1)
        columns = np.clip(np.arange(width) + across, 0, width - 1)
        moved[k] = images[k][:, rows][:, :, columns]
    return moved


def save_weights(plan: Plan, student: Student, training: Training, path: Path | None = None) -> None:
    """Write the network as it is now, in half precision, with its origin, into `path`, else the file of its step."""
    demos = [choose_demos(plan, student, task) for task in plan.tasks]
    content = {
        "weights": {name: value.half() for name, value in training.network.state_dict().items()},
        "tasks": [read_instruction(paths[0]) for paths in demos],
        "step": training.step,
        "student": asdict(student),
        "demos": {task: [path.stem for path in paths] for task, paths in zip(plan.tasks, demos, strict=True)},
    }
    save_whole(path or plan.weights(student.name, training.step), content)


def save_whole(path: Path, content: dict[str, object]) -> None:
    """Write a file that appears when it is whole."""
    partial = path.with_suffix(".partial")
    torch.save(content, partial)
    partial.replace(path)


def report_losses(plan: Plan, student: Student, step: int, losses: list[list[float]]) -> None:
    """Print and keep the mean losses of the last steps."""
    means = (round(float(mean), 5) for mean in np.mean(losses, axis=0))
    line = dict(zip(("moves", "grips", "places_m"), means, strict=True))
    print(f"train {student.name}: step {step} of {plan.steps}, {json.dumps(line)}", flush=True)
    with (plan.student_folder(student.name) / "losses.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps({"step": step, **line}) + "\n")
