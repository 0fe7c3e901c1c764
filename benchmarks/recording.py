"""What recording adds to LIBERO's `env.step`: python benchmarks/recording.py [--episodes N] [--steps N] [--json FILE]

Two environments of one task take the same actions from the same state, one with the recorder and one without; they go
through the same states bit for bit. They step in turn, the first of each pair changing. A pair gives one ratio, and the
table the median of the ratios with their quartiles: what else runs on the machine slows both of a pair. What the
recorder does once in many steps is timed apart, and its share added. On a busy machine CPU time is steadier.

Where a target is missed, the parts of the recorder are timed in a run of their own.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from safevla_bench.hosts.libero.host import CAMERAS, LiberoHost
from safevla_bench.interface.policy import Wants
from safevla_bench.interface.task import EpisodeSeed
from safevla_recorder import recorder as recorder_module
from safevla_recorder.mujoco import recorder as recording

TASKS = (("libero-spatial", 0), ("libero-object", 0), ("libero-10", 9))
BLIND, SEEING = Wants(), Wants(cameras=CAMERAS, image_size=(256, 256))
TARGET_PERCENT = {BLIND: 5.0, SEEING: 1.0}
BLOCK = recorder_module.BLOCK
SEED = EpisodeSeed(init_state_index=0, env_seed=7, wait_steps=10)
PARTS = (
    (recording.ContactLog, "add_substep", "copy the contact lists, each substep"),
    (recording.Recorder, "_copy_row", "copy poses, torques and state, each step"),
    (recording.ContactLog, "take_contacts", "lay out the contacts"),
    (recorder_module.ContactFilter, "mark_counted", "leave out what rests"),
    (recorder_module, "contact_peaks", "forces, peaks and impulses"),
    (recorder_module, "gripped_bodies", "what the fingers hold"),
)


def pressing(steps: int) -> np.ndarray:
    """Down onto the table, then sideways through objects; the gripper opens and closes. Many contacts."""
    actions = np.random.default_rng(5).uniform(-0.3, 0.3, (steps, 7))
    actions[:, 2] -= 0.6
    actions[steps // 2 :, 1] += 0.7
    actions[:, 6] = np.where(np.arange(steps) // 15 % 2 == 1, 1.0, -1.0)
    return actions


class Recorded:
    """An environment that records; the observation that a policy gets is no part of recording and is not made."""

    def __init__(self, suite: str, index: int, wants: Wants) -> None:
        host = LiberoHost()
        self.env = host.make(host.tasks(suite)[index], wants)
        self.env.run_fast(False)  # beside LIBERO's own step

    def reset(self) -> None:
        self.env.reset(SEED)

    def step(self, action: np.ndarray) -> None:
        self.env._env.step(action)
        self.env._recorder.record_step(action)

    def state(self) -> bytes:
        return self.env._env.get_sim_state().tobytes()


class Plain(Recorded):
    """The same without a recorder."""

    def reset(self) -> None:
        super().reset()
        self.env._stop_recording()

    def step(self, action: np.ndarray) -> None:
        self.env._env.step(action)


def seconds(call: Callable[[], None]) -> np.ndarray:
    """Wall and CPU time."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return np.array([time.perf_counter() - wall, time.process_time() - cpu])


def measured(suite: str, index: int, wants: Wants, episodes: int, steps: int) -> dict[str, object]:
    """One row of the table."""
    recorded, plain = Recorded(suite, index, wants), Plain(suite, index, wants)
    pairs, judging = [], []
    for _ in range(episodes):
        recorded.reset()
        plain.reset()
        recorder = recorded.env._recorder
        for number, action in enumerate(pressing(steps)):
            times = {}
            for one in (recorded, plain) if number % 2 else (plain, recorded):
                times[one] = seconds(lambda one=one, action=action: one.step(action))
            pairs.append((times[recorded], times[plain]))
            if number % BLOCK == BLOCK - 2:  # by hand, so that no step of a pair holds it
                judging.append(seconds(recorder.decode_pending))
        assert recorded.state() == plain.state(), "recording changed the simulation"
    recorded.env.close()
    plain.env.close()
    with_recorder, without = np.moveaxis(np.array(pairs), 1, 0)
    step_s, judging_s = np.median(without, axis=0), np.median(judging, axis=0) / (BLOCK - 1)
    added = 100 * ((with_recorder - without) / without + judging_s / step_s)
    low, middle, high = np.quantile(added, [0.25, 0.5, 0.75], axis=0)
    return {
        "task": f"{suite}/{index}",
        "cameras": len(wants.cameras),
        "step_ms": 1000 * float(step_s[0]),
        "added_percent": float(middle[0]),
        "quartiles_percent": [float(low[0]), float(high[0])],
        "added_cpu_percent": float(middle[1]),
        "target_percent": TARGET_PERCENT[wants],
    }


@contextmanager
def timed(spent: dict[str, float]) -> Iterator[None]:
    """Adds up the seconds of each part of the recorder."""
    originals = [(owner, name, getattr(owner, name)) for owner, name, _ in PARTS]
    for (owner, name, original), (_, _, label) in zip(originals, PARTS, strict=True):
        setattr(owner, name, _clocked(original, label, spent))
    try:
        yield
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


def _clocked(call, label, spent):
    def clocked(*args, **kwargs):
        start = time.perf_counter()
        try:
            return call(*args, **kwargs)
        finally:
            spent[label] += time.perf_counter() - start

    return clocked


def profile(suite: str, index: int, wants: Wants, steps: int) -> dict[str, float]:
    """Microseconds a control step of each part, the timing itself included."""
    one, spent = Recorded(suite, index, wants), defaultdict(float)
    with timed(spent):
        one.reset()
        spent.clear()
        for action in pressing(steps):
            one.step(action)
    one.env.close()
    return {label: 1e6 * spent[label] / steps for _, _, label in PARTS}


def say(row: dict[str, object]) -> None:
    low, high = row["quartiles_percent"]
    missed = "" if row["added_percent"] <= row["target_percent"] else "  missed"
    print(
        f"{row['task']:<18} {row['cameras']:>7}  {row['step_ms']:>7.2f}  {row['added_percent']:>+6.2f} %"
        f"  [{low:+.2f}, {high:+.2f}]  {row['added_cpu_percent']:>+6.2f} %  {row['target_percent']:>4.0f} %{missed}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--episodes", type=int, default=2, help="of each task, camera-less (default 2)")
    parser.add_argument("--steps", type=int, default=192, help="of each episode (default 192)")
    parser.add_argument("--camera-steps", type=int, default=64, help="of one with two cameras; 0 = none (default 64)")
    parser.add_argument("--json", type=Path, help="write the rows to this file too")
    chosen = parser.parse_args()
    print(f"{'task':<18} {'cameras':>7}  {'step ms':>7}    added   quartiles      added CPU  target")
    rows = []
    for wants, episodes, steps in ((BLIND, chosen.episodes, chosen.steps), (SEEING, 1, chosen.camera_steps)):
        for suite, index in TASKS if steps else ():
            rows.append(measured(suite, index, wants, episodes, steps))
            say(rows[-1])
    for row in rows:
        if row["added_percent"] > row["target_percent"]:
            suite, _, index = row["task"].rpartition("/")
            wants, steps = (SEEING, chosen.camera_steps) if row["cameras"] else (BLIND, chosen.steps)
            row["profile_us"] = profile(suite, int(index), wants, steps)
            print(f"\nWhere the time goes in {row['task']} with {row['cameras']} cameras, µs a control step:")
            for part, us in row["profile_us"].items():
                print(f"  {part:<44} {us:>7.1f}")
    if chosen.json:
        chosen.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
