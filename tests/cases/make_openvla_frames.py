"""Requests to the servers of OpenVLA and OpenVLA-OFT, and replies: the cases of tests/policies/servers/test_openvla.py.

Runs `vla-scripts/deploy.py` of both projects from clones of them, on loopback, with a stand-in for the model. Requests
are posted as the clients in that file and in `experiments/robot/openvla_utils.py` post them, with json_numpy in the
place of json, which those files put there. In an environment of its own:

    pip install fastapi==0.165.0 uvicorn==0.54.0 requests==2.34.2 json-numpy==2.1.1 numpy==2.4.6 pillow
    python tests/cases/make_openvla_frames.py OPENVLA OPENVLA_OFT > tests/cases/openvla_frames.json
"""

import importlib.util
import json
import subprocess
import sys
import tempfile
import threading
import time
import types
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import requests
import uvicorn
from fastapi import FastAPI

REVISIONS = {"openvla": "c8f03f4", "openvla-oft": "213c5ff"}
IMAGE = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
TEXT = "put the bowl on the plate"
REQUESTS = {
    "openvla": {"image": IMAGE, "instruction": TEXT, "unnorm_key": "libero_spatial"},
    "openvla-oft": {
        "full_image": IMAGE,
        "wrist_image": IMAGE[::-1].copy(),
        "state": np.linspace(-1, 1, 8),
        "instruction": TEXT,
    },
}
ACTION = np.linspace(-1, 1, 7)
CHUNK = [np.linspace(-1, 1, 7, dtype=np.float32) * (1 + k) / 8 for k in range(8)]
STUBBED = (
    *("draccus", "torch", "transformers", "experiments", "experiments.robot", "experiments.robot.openvla_utils"),
    *("experiments.robot.robot_utils", "prismatic", "prismatic.vla", "prismatic.vla.constants"),
)


def load_server(clone, revision):
    """Import a revision's file with stand-ins for what loads and runs the model."""
    command = ["git", "-C", clone, "show", f"{revision}:vla-scripts/deploy.py"]
    path = Path(tempfile.mkdtemp()) / "deploy.py"
    path.write_bytes(subprocess.run(command, check=True, capture_output=True).stdout)
    for name in STUBBED:
        sys.modules[name] = MagicMock(name=name)
    sys.modules["draccus"].wrap = lambda: lambda function: function
    utils = sys.modules["experiments.robot.openvla_utils"]
    utils.get_vla_action, utils.get_vla = answer_chunk, lambda cfg: types.SimpleNamespace(norm_stats=[cfg.unnorm_key])
    spec = importlib.util.spec_from_file_location("deploy", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.OpenVLAServer


def answer_chunk(cfg, vla, processor, observation, instruction, **_):
    assert observation["full_image"].dtype == np.uint8
    assert instruction == TEXT
    if observation["state"].shape != (8,):
        raise ValueError("a state of another length")
    return CHUNK


def make_server(kind, clone):
    server_class = load_server(clone, REVISIONS[kind])
    if kind == "openvla-oft":
        return server_class(types.SimpleNamespace(use_proprio=False, use_l1_regression=False, use_diffusion=False,
                                                  use_film=False, unnorm_key="key"))  # fmt: skip
    server = server_class("a-model")
    server.vla.predict_action = lambda **given: ACTION
    return server


def listen(server, kind):
    """The routes that `run` of the file adds, on a free port."""
    app = FastAPI()
    app.post("/act")(server.predict_action if kind == "openvla" else server.get_server_action)
    listening = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
    threading.Thread(target=listening.run, daemon=True).start()
    while not listening.started:
        time.sleep(0.05)
    return f"http://127.0.0.1:{listening.servers[0].sockets[0].getsockname()[1]}"


frames = {}
for kind, clone in zip(REVISIONS, sys.argv[1:], strict=True):
    url = listen(make_server(kind, clone), kind)
    asked = REQUESTS[kind]
    faulty = {"image": IMAGE} if kind == "openvla" else {**asked, "state": np.zeros(3)}
    answered = requests.post(f"{url}/act", json=asked)
    frames[kind] = {
        "request": requests.Request("POST", url, json=asked).prepare().body.decode(),
        "reply": answered.text,
        "error": requests.post(f"{url}/act", json=faulty).text,
        "openapi": requests.get(f"{url}/openapi.json").text,
    }
    assert np.array_equal(answered.json(), ACTION if kind == "openvla" else CHUNK)
print(json.dumps(frames, indent=1))
