"""A recording of vla-evaluation-harness, tests/cases/vla_eval_recording: its own LIBERO benchmark, run on loopback.

Its model server plays the demo's hasty actions where there are some for the task and initial state, else waves. In an
environment with LIBERO, mujoco 3.2.3 and `pip install vla-eval==0.8.0`, from the repository's root:

    python tests/cases/make_vla_eval_recording.py OUT

OUT/recording-*.sqlite is the recording, OUT/fixtures.json the places of all bodies below the world in the harness's own
environment as each episode began, which no recording has. Of its four tasks the committed file keeps two.
"""

import asyncio
import json
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import anyio
import numpy as np
from vla_eval.benchmarks.libero.benchmark import LIBEROBenchmark
from vla_eval.model_servers.predict import PredictModelServer
from vla_eval.model_servers.serve import serve_async
from vla_eval.orchestrator import Orchestrator

from safevla_bench.sources.runs.episode_index import read_sources

if find_spec("torch") is None:  # the harness patches `torch.load`, which these initial states do not need
    sys.modules["torch"] = ModuleType("torch")
    sys.modules["torch"].load = None

PORT = 8931
DEMO = Path("src/safevla_bench/jobs/demo.parquet")
SUITES = {
    "libero_spatial": (
        110,
        [
            "pick up the black bowl between the plate and the ramekin and place it on the plate",
            "pick up the black bowl on the ramekin and place it on the plate",
        ],
    ),
    "libero_10": (
        40,
        [
            "put the yellow and white mug in the microwave and close it",
            "put the black bowl in the bottom drawer of the cabinet and close it",
        ],
    ),
}
"""Suite -> steps and tasks."""


class Player(PredictModelServer):
    """Plays recorded actions by task and episode."""

    def __init__(self):
        super().__init__()
        batch, _ = read_sources([DEMO])
        self._actions = {
            (header.benchmark.replace("-", "_"), header.task_id, header.init_state_index): batch.action.episode_rows(e)
            for e, header in enumerate(batch.headers)
            if header.policy == "scripted:hasty"
        }
        self._tasks = {}

    async def on_episode_start(self, config, ctx):
        await super().on_episode_start(config, ctx)
        self._tasks[ctx.episode_id] = config["task"]

    def predict(self, obs, ctx):
        task = self._tasks[ctx.episode_id]
        actions = self._actions.get((task["suite"], f"task_{task['task_id']}", task["episode_idx"]), ())
        if ctx.step < len(actions):
            return {"actions": actions[ctx.step].astype(np.float32)}
        generator = np.random.default_rng([task["task_id"] + task["episode_idx"], ctx.step // 10])
        action = generator.uniform(-1, 1, 7) - [0, 0, 0.3, 0, 0, 0, 0]
        return {"actions": action.astype(np.float32)}

    def get_action_spec(self):
        return {}

    def get_observation_spec(self):
        return {}


def note_places(reset, places):
    """Return the benchmark's `reset`, which then notes where everything stands."""

    def noting_reset(self, task):
        observation = reset(self, task)
        model = self._env.env.sim.model._model
        top = [body for body in range(1, model.nbody) if model.body_parentid[body] == 0]
        key = f"{self.suite}/task_{task['task_id']}/{task['episode_idx']}"
        places[key] = {model.body(body).name: model.body_pos[body].tolist() for body in top}
        return observation

    return noting_reset


def main(out):
    server = threading.Thread(target=lambda: anyio.run(serve_async, Player(), "127.0.0.1", PORT), daemon=True)
    server.start()
    places = {}
    LIBEROBenchmark.reset = note_places(LIBEROBenchmark.reset, places)
    config = {
        "server": {"url": f"ws://127.0.0.1:{PORT}"},
        "output_dir": out,
        "benchmarks": [
            {
                "benchmark": "vla_eval.benchmarks.libero.benchmark:LIBEROBenchmark",
                "subname": suite,
                "episodes_per_task": 2,
                "max_steps": steps,
                "tasks": tasks,
                "params": {"suite": suite, "seed": 7},
            }
            for suite, (steps, tasks) in SUITES.items()
        ],
    }
    asyncio.run(Orchestrator(config).run())
    Path(out, "fixtures.json").write_text(json.dumps(places, indent=1))


if __name__ == "__main__":
    main(sys.argv[1])
