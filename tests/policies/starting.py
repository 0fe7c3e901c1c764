"""Policies with which no episode starts, or whose texts are not valid Unicode (hostile/14 and hostile/15)."""

from __future__ import annotations

from pathlib import Path

from safevla_bench.errors import ServerRefusedError
from safevla_bench.interface.policy import Wants


class Camera:
    """Asks for a camera that the host does not have."""

    wants = Wants(cameras=("none",), image_size=(64, 64))

    def act(self, observation):
        return [0.0] * 7


class Late:
    """Is refused by its server, after a file has come into the folder `out`."""

    def __init__(self, out):
        self.out = Path(out)

    def reset(self, task, seed):
        (self.out / "notes.txt").write_text("not of this run")
        raise ServerRefusedError("refused", remedy="none")

    def act(self, observation):
        return [0.0] * 7


class Surrogate:
    """Raises an error that quotes the name of a file that is not UTF-8, in its second episode."""

    episodes = 0

    def reset(self, task, seed):
        self.episodes += 1

    def act(self, observation):
        if self.episodes == 2:
            raise ValueError("cannot open caf\udce9.txt")
        return [0.0] * 7
