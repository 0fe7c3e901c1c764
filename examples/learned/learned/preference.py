"""Direct preference optimization of a student from pairs of its rollouts.

Rafailov et al., Direct Preference Optimization, NeurIPS 2023. The likelihood of an episode is the product over its
chunks of that of the executed moves: a Laplace distribution of fixed scale around each component that noise changes,
whose maximum likelihood an L1 loss estimates. The scale is that of the noise with which the rollouts were sampled.
Grips were not sampled and do not count. The reference is the student before the preferences. A sampled move beyond the
range was clipped; its density is taken at the clipped move, around the clipped mean.

A diffusion or flow head has no such likelihood. It is replaced by minus the denoising error, at the same noise and time
for policy and reference (Wallace et al., Diffusion Model Alignment Using Direct Preference Optimization, CVPR 2024).
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy.spatial.transform import Rotation
from torch import Tensor, nn

from learned.dataset import MOVE, Moments
from learned.network import ChunkNetwork
from learned.plan import CAMERAS, CHUNK, PUSHED, STATE, Plan, Student
from learned.train import Training, save_weights

NOISE = 0.05
"""Scale of the Laplace noise of rollouts and of the likelihood, as a share of the largest action."""
BETA, RATE, STEPS, PAIRS = 0.1, 1e-5, 200, 2
"""DPO's β; learning rate; steps; pairs of a step."""


@dataclass(frozen=True)
class Preferences:
    """Episodes as the moments at which their chunks began, and pairs (preferred, rejected) of them with weights."""

    episodes: tuple[Moments, ...]
    pairs: tuple[tuple[int, int], ...]
    weights: tuple[float, ...]


def read_preferences(folder: Path, tasks: list[str]) -> Preferences:
    """Return the training pairs of a dataset that `safevla export --format pairs --cameras` wrote.

    Raises:
        SystemExit: a pair began at one of the benchmark's own starts, on which students are evaluated.
    """
    head, *lines = (json.loads(line) for line in (folder / "meta/pairs.jsonl").read_text().splitlines())
    states = {state["state"]: state for state in head["states"]}
    if any(states[line["state"]]["is_of_benchmark"] for line in lines):
        raise SystemExit(f"{folder} has pairs from starts of the benchmark, on which students are evaluated")
    lines = [line for line in lines if line["split"] == "train"]
    frames = pq.read_table(folder / "data/chunk-000/file-000.parquet")
    owners = frames["episode_index"].to_numpy()
    places = sorted({line[side]["episode_index"] for line in lines for side in ("preferred", "rejected")})
    words = {line[side]["episode_index"]: line["instruction"] for line in lines for side in ("preferred", "rejected")}
    episodes = tuple(read_chunks(frames.take(np.flatnonzero(owners == k)), tasks.index(words[k])) for k in places)
    pairs = tuple((places.index(line["preferred"]["episode_index"]), places.index(line["rejected"]["episode_index"]))
                  for line in lines)  # fmt: skip
    return Preferences(episodes, pairs, tuple(line["weight"] for line in lines))


def read_chunks(frames: pq.lib.Table, task: int) -> Moments:
    """Return the moments of one episode at which a chunk began; `known` are the actions that were executed."""
    names = ("chunk_step", "policy_action", "observation.state")
    columns = {name: np.array(frames[name].to_pylist()) for name in names}
    number, step = columns["chunk_step"].T.astype(np.int64)
    first = np.flatnonzero(step == 0)
    ahead = np.minimum(first[:, None] + np.arange(CHUNK), len(step) - 1)
    known = (number[ahead] == number[first][:, None]) & (step[ahead] == np.arange(CHUNK))
    following = columns["policy_action"][ahead]
    images = [[decode_picture(frames[f"observation.images.{name}"][int(k)].as_py()) for name in CAMERAS] for k in first]
    return Moments(
        images=np.array(images),
        states=convert_states(columns["observation.state"][first]),
        tasks=np.full(len(first), task),
        places=np.zeros((len(first), 6), dtype=np.float32),
        moves=following[..., :MOVE].astype(np.float32),
        grips=np.sign(following[..., MOVE]).astype(np.int64) + 1,
        known=known,
        weights=np.ones(len(first), dtype=np.float32),
    )


def decode_picture(picture: dict[str, bytes]) -> NDArray[np.uint8]:
    """Return the picture [H, W, 3] of a frame."""
    return np.asarray(Image.open(io.BytesIO(picture["bytes"])))


def convert_states(states: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return the state of a dataset [N, 8] (position, axis-angle, fingers) as `senses.read_state` has it, [N, 11]."""
    turns = Rotation.from_rotvec(states[:, 3:6]).as_matrix()
    columns = np.concatenate([states[:, :3], turns[:, :, 0], turns[:, :, 1], states[:, 6:]], axis=1)
    assert columns.shape[1] == STATE
    return columns.astype(np.float32)


def log_likelihood(network: ChunkNetwork, episode: Moments, scale: float = NOISE) -> Tensor:
    """Return the logarithm of the likelihood of an episode's executed moves, a sum over its chunks; the constant of the
    Laplace density is left out, because it cancels.
    """
    images = torch.from_numpy(episode.images).permute(0, 1, 4, 2, 3)
    states, tasks, moves, known = (
        torch.from_numpy(getattr(episode, name)) for name in ("states", "tasks", "moves", "known")
    )
    move, _, _ = network(images, states, tasks)
    return -(move.clamp(-1, 1) - moves)[..., PUSHED].abs().sum(dim=2)[known].sum() / scale


def preference_loss(gains: Tensor, weights: Tensor, beta: float = BETA) -> Tensor:
    """Return DPO's loss, the weighted mean of -log σ(β (gain of the preferred - gain of the rejected)).

    gains [B, 2] are log-likelihoods of the preferred and the rejected episode, minus those of the reference; weights
    [B].
    """
    losses = -nn.functional.logsigmoid(beta * (gains[:, 0] - gains[:, 1]))
    return (losses * weights).sum() / weights.sum()


def train_preferred(plan: Plan, student: Student) -> None:
    """Train a student from its base and the pairs of the base's rollouts; an unfinished training goes on."""
    folder = plan.student_folder(student.name)
    folder.mkdir(parents=True, exist_ok=True)
    kept = torch.load(plan.weights(student.base), weights_only=True)
    preferences = read_preferences(plan.pair_folder(student.base), kept["tasks"])
    reference, network = (ChunkNetwork(len(kept["tasks"])) for _ in range(2))
    for each in (reference, network):
        each.load_state_dict({name: value.float() for name, value in kept["weights"].items()})
    with torch.inference_mode():
        before = torch.stack([log_likelihood(reference, episode) for episode in preferences.episodes]).clone()
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE)
    training = Training(network, optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0))
    unfinished = folder / "unfinished.pt"
    if unfinished.exists():
        training.restore(unfinished)
    while training.step < student.preference_steps:
        random = np.random.default_rng([student.seed, training.step])
        chosen = random.integers(len(preferences.pairs), size=PAIRS)
        pairs = [preferences.pairs[k] for k in chosen]
        gains = torch.stack(
            [log_likelihood(network, preferences.episodes[k]) - before[k] for pair in pairs for k in pair]
        ).view(-1, 2)
        training.take_step(preference_loss(gains, torch.tensor([preferences.weights[k] for k in chosen])))
        if training.step % 20 == 0:
            training.save(unfinished)
            print(f"train {student.name}: step {training.step} of {student.preference_steps}", flush=True)
    save_weights(plan, student, training, plan.weights(student.name))
    unfinished.unlink(missing_ok=True)
