"""A small episode, and an environment that nothing simulates."""

from __future__ import annotations

import contextlib
import math
from functools import partial
from types import SimpleNamespace

import numpy as np

from safevla_recorder.attachment import TaskLabel
from safevla_recorder.episode import ContactList, EpisodeArrays

ROLES = {"bowl": "target", "hand": "robot"}


def header(**changes):
    fields = {"episode_id": "e", "benchmark": "b", "task_id": "t", "success": True, "dt": 0.05, "target_object": "bowl"}
    return {**fields, **changes}


def recording(records=3, **changes):
    """Return an episode of a still bowl and hand that touch once."""
    fields = {
        "header": header(),
        "roles": ROLES,
        "records": records,
        "eef_pos_m": np.zeros((records, 3)),
        "pos_bodies": (0,),
        "body_pos_m": np.ones((records, 1, 3)),
        "contacts": ContactList(
            np.array([1]), np.array([0]), np.array([1]), np.array([2.0]), np.array([np.nan]), np.array([np.nan])
        ),
        "gripper_contact": np.zeros(records, dtype=bool),
        "gripped_body": np.full(records, -1),
        "action": np.zeros((records - 1, 7)),
    }
    return EpisodeArrays(**{**fields, **changes})


class StillRecorder:
    """Counts control steps in the place of a `Recorder`."""

    def __init__(self):
        self.actions = []

    def record_step(self, action):
        self.actions.append(action)

    def dropped_pairs(self):
        return ()

    def step_range_s(self):
        return (0.05, 0.05) if self.actions else (0.0, math.inf)

    def build_recording(self, header):
        return recording(len(self.actions) + 1, header=header, contacts=None)


class StillEnv:
    """A `RecordableEnv` of actions [x, gripper] that never moves."""

    host = "still"
    wait_steps = 2
    action_size = 2
    unstable_steps = 0
    has_soft_resets = False
    is_recorded = False
    positions = (0.0, 1.0)

    def __init__(self):
        self.task = TaskLabel("b", "t", "do nothing")
        self.versions = {"numpy": np.__version__}
        self.calls = SimpleNamespace(detached=0)

    def set_init_states(self, init_states):
        self.init_states = init_states

    def subscribe(self, listener):
        self.listener = listener
        return lambda: None

    def start_recorder(self):
        return StillRecorder(), self._detach

    def count_unstable_steps(self):
        return 0

    def copy_positions(self):
        return np.array(self.positions)

    def _detach(self):
        self.calls.detached += 1

    def header_fields(self):
        return {}

    def read_simulation(self):
        return {}

    def fixture_poses(self):
        return {"shelf": [1.0, 0.0, 0.5, 1.0, 0.0, 0.0, 0.0]}

    def is_still(self, action):
        return not np.any(action[:-1])

    def build_header(self, recorder, success, env_seed, index):
        return header(success=success, env_seed=env_seed, init_state_index=index, versions=self.versions)


ARM = "".join(f'<body name="robot0_link{k}"><joint name="robot0_joint{k}"/><geom size="0.1"/>' for k in range(1, 8))
KITCHEN = f"""
<mujoco>
  <worldbody>
    <body name="bowl_main"><freejoint/><geom size="0.1"/><body name="bowl_rim"><geom size="0.1"/></body></body>
    <body name="robot0_base"><geom size="0.1"/><site name="gripper0_right_grip_site"/>{ARM}
      <geom name="pad_l" size="0.1"/><geom name="pad_r" size="0.1"/>{"</body>" * 7}</body>
    <body name="cabinet"><geom size="0.1"/>
      <body name="cabinet_drawer"><joint type="slide"/><geom size="0.1"/>
        <body name="handle"><geom size="0.1"/></body></body></body>
    <body name="oven"><body name="oven_door"><joint/><geom size="0.1"/></body></body>
    <body name="cup_main"><freejoint/><geom size="0.1"/></body>
    <body name="lid_main"><freejoint/><geom size="0.1"/></body>
  </worldbody>
</mujoco>
"""
"""A robot of seven joints, a cabinet with a drawer, an oven with a door, a bowl, a cup and a lid."""
PADS = {"left_finger": ["pad_l"], "right_finger": ["pad_r"]}


class Cutter:
    """Lists what an `EpisodeCutter` is given."""

    def __init__(self):
        self.given = []

    def guard(self):
        return contextlib.nullcontext()

    def __getattr__(self, name):
        return lambda *arguments: self.given.append((name, *arguments))


def count_calls(monkeypatch, module, *names):
    """Return a dictionary that counts the calls of a module's functions from now on."""
    calls = dict.fromkeys(names, 0)

    def call(name, original, *args):
        calls[name] += 1
        return original(*args)

    for name in names:
        monkeypatch.setattr(module, name, partial(call, name, getattr(module, name)))
    return calls
