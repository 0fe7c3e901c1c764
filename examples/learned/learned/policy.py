"""The trained network as a policy: pixels, proprioception and the instruction in, a chunk of actions out."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from learned.network import ChunkNetwork
from learned.plan import CAMERAS, IMAGE_SIZE, PUSHED, REPLAN
from learned.senses import read_state
from safevla_bench.errors import PolicyError
from safevla_bench.interface.policy import Observation, Wants
from safevla_bench.interface.task import Task


class Policy:
    """One student; `weights` is a file that training wrote. It sees no privileged state.

    `blind=yes` blackens its pictures, to see what they are worth. With `noise`, the scale of a Laplace distribution
    around the position of each move, it samples moves by its seed, for rollouts for preference pairs.
    """

    wants = Wants(cameras=CAMERAS, image_size=(IMAGE_SIZE, IMAGE_SIZE))

    def __init__(self, weights: str, replan: str = str(REPLAN), blind: str = "no", noise: str = "0") -> None:
        torch.set_num_threads(1)
        kept = torch.load(weights, weights_only=True)
        self.tasks: list[str] = kept["tasks"]
        self.network = ChunkNetwork(len(self.tasks))
        self.network.load_state_dict(kept["weights"])
        self.network.eval()
        self.replan, self.is_blind, self.task = int(replan), blind == "yes", 0
        self.noise, self.random = float(noise), np.random.default_rng()
        self.greeting = {"student": kept["student"]["name"], "step": kept["step"], "blind": self.is_blind}

    def reset(self, task: Task, seed: int) -> None:
        """Begin an episode: the words say which task it is, the seed what is sampled."""
        self.random = np.random.default_rng(seed)
        if task.instruction not in self.tasks:
            problem = f"the network was not trained to {task.instruction!r}"
            raise PolicyError(problem, remedy=f"It knows: {'; '.join(self.tasks)}.")
        self.task = self.tasks.index(task.instruction)

    def act(self, observation: Observation) -> NDArray[np.float64]:
        """Return the next actions, [CHUNK, 7]; the first `replan` of them are carried out."""
        images = np.stack([observation.images[camera] for camera in CAMERAS])
        if self.is_blind:
            images = np.zeros_like(images)
        pictures = torch.from_numpy(images)[None].permute(0, 1, 4, 2, 3)
        state = torch.from_numpy(read_state(observation).astype(np.float32))[None]
        with torch.inference_mode():
            move, grip, _ = self.network(pictures, state, torch.tensor([self.task]))
        chunk = torch.cat([move[0].clamp(-1, 1), grip[0].argmax(dim=1, keepdim=True) - 1.0], dim=1).double().numpy()
        return self.sample(chunk) if self.noise else chunk

    def sample(self, chunk: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return actions [CHUNK, 7] drawn around a chunk; grips stay, because opening by chance drops the object."""
        pushed = chunk.copy()
        pushed[:, PUSHED] += self.random.laplace(scale=self.noise, size=(len(chunk), len(PUSHED)))
        return np.clip(pushed, -1, 1)
