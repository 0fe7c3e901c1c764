"""A distribution with a policy that kills its process, found by its entry point in any process."""

from __future__ import annotations

import pytest

from scenes import install_plugin

_MODULE = '''
"""A policy that moves at random, and ends its process in a given episode."""
import os
import signal
import time
from pathlib import Path

import numpy as np

from safevla_bench.interface.policy import Wants


class Lethal:
    wants = Wants()

    def __init__(self, how, task, once, pause_s):
        self.how, self.task, self.once, self.pause_s = how, task, once, float(pause_s)

    def reset(self, task, seed):
        self.generator = np.random.default_rng(seed)
        self.doomed = task.task_id == self.task and not (self.once and Path(self.once).exists())
        self.steps = 0

    def act(self, observation):
        time.sleep(self.pause_s)
        self.steps += 1
        if self.doomed and self.steps == 3:
            if self.once:
                Path(self.once).touch()
            if self.how == "exit":
                os._exit(7)
            if self.how == "leave":
                raise SystemExit(0)
            os.kill(os.getpid(), getattr(signal, self.how))
        return self.generator.uniform(-1, 1, 7)

    def close(self):
        pass


def make(arg, how="exit", task="", once="", pause_s="0", at_start=""):
    if at_start and os.environ.get("OMP_NUM_THREADS"):  # in a worker
        os._exit(int(at_start))
    return Lethal(how, task, once, pause_s)
'''


@pytest.fixture
def lethal(tmp_path, monkeypatch):
    """Installs the policy `lethal`."""
    place = install_plugin(tmp_path / "installed", "lethal", _MODULE, "policies = make")
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    return place
