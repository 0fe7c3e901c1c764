"""The network: two cameras, proprioception and the task in; a chunk of actions out. About 0.4 million parameters."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from learned.plan import CHUNK, STATE

CHANNELS, HIDDEN = 64, 256
GRIPS = 3


class CameraEncoder(nn.Module):
    """Images of one camera [N, 3, H, W] in 0 to 1 -> where each feature is in the image, [N, 2 * CHANNELS]."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 32, 8, stride=4, padding=2), nn.ReLU(),
            nn.Conv2d(32, CHANNELS, 4, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1), nn.ReLU(),
            nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1),
        )  # fmt: skip
        self.sharpness = nn.Parameter(torch.tensor(1.0))

    def forward(self, images: Tensor) -> Tensor:
        return expected_places(self.layers(images) * self.sharpness)


def expected_places(features: Tensor) -> Tensor:
    """Return the spatial softmax of features [N, C, H, W]: the expected place of each, [N, 2 C] in -1 to 1.

    Levine et al., End-to-End Training of Deep Visuomotor Policies, JMLR 2016.
    """
    count, channels, height, width = features.shape
    weights = features.flatten(2).softmax(dim=2).view(count, channels, height, width)
    down = (weights.sum(dim=3) * torch.linspace(-1, 1, height)).sum(dim=2)
    across = (weights.sum(dim=2) * torch.linspace(-1, 1, width)).sum(dim=2)
    return torch.cat([down, across], dim=1)


class ChunkNetwork(nn.Module):
    """Returns the moves [N, CHUNK, 6] in -1 to 1, the grips' logits [N, CHUNK, 3], and the places [N, 6].

    The places, of object and goal from the hand, are learned beside the actions; nobody reads them afterwards.
    """

    def __init__(self, tasks: int) -> None:
        super().__init__()
        self.tasks = tasks
        self.cameras = nn.ModuleList([CameraEncoder(), CameraEncoder()])
        self.register_buffer("state_mean", torch.zeros(STATE))
        self.register_buffer("state_scale", torch.ones(STATE))
        known = STATE + tasks
        self.places = nn.Sequential(nn.Linear(4 * CHANNELS + known, 128), nn.ReLU(), nn.Linear(128, 6))
        self.trunk = nn.Sequential(
            nn.Linear(4 * CHANNELS + known, HIDDEN), nn.ReLU(),
            nn.Linear(HIDDEN, HIDDEN), nn.ReLU(),
            nn.Linear(HIDDEN, HIDDEN), nn.ReLU(),
        )  # fmt: skip
        self.move, self.grip = nn.Linear(HIDDEN, CHUNK * 6), nn.Linear(HIDDEN, CHUNK * GRIPS)

    def forward(self, images: Tensor, states: Tensor, tasks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Take images uint8 [N, 2, 3, H, W], states [N, 11] and tasks [N]."""
        seen = [encode(images[:, k].float() / 255) for k, encode in enumerate(self.cameras)]
        known = (states - self.state_mean) / self.state_scale
        task = nn.functional.one_hot(tasks, self.tasks).float()
        features = torch.cat([*seen, known, task], dim=1)
        thought = self.trunk(features)
        moves = self.move(thought).view(-1, CHUNK, 6)
        return moves, self.grip(thought).view(-1, CHUNK, GRIPS), self.places(features)
