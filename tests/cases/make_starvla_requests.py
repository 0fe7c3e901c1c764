"""What starVLA's own clients send, as SHA-256 of the bytes, and for SimplerEnv what they make of replies: the cases of
tests/policies/servers/test_dialects.py.

Runs the unmodified clients of a checkout of starVLA (0ed0aad) on loopback with made-up observations, in an environment
with opencv-python, websockets, msgpack, typing_extensions, matplotlib and transforms3d:

    python tests/cases/make_starvla_requests.py CHECKOUT
"""

import hashlib
import json
import sys
import threading
from pathlib import Path

import msgpack
import numpy as np
from websockets.sync.server import serve

sys.path.insert(0, sys.argv[1])
from examples.simBenchmarks.Robocasa_365.eval_files import model2robocasa365_interface as robocasa
from examples.simBenchmarks.SimplerEnv.eval_files import model2simpler_interface as simpler

KITCHEN = np.random.default_rng(0).integers(0, 256, (256, 256, 3), dtype=np.uint8)
STATES = {
    "base_position": [0.5, -0.25, 0.75],
    "base_rotation": [0.0, 0.0, 0.0, 1.0],
    "end_effector_position_relative": [0.25, 0.125, 0.5],
    "end_effector_rotation_relative": [0.6, 0.0, 0.0, 0.8],
    "gripper_qpos": [0.04, -0.04],
}
WIDOWX = np.random.default_rng(0).integers(0, 256, (480, 640, 3), dtype=np.uint8)
replies = [np.zeros((1, 16, 12), np.float32)]
replies += [np.random.default_rng(k).uniform(-1, 1, (1, 16, 7)).astype(np.float32) for k in range(10)]
frames = []


def array(value):
    return {b"__ndarray__": True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}


def answer(connection):
    connection.send(msgpack.packb({"env": "starvla_policy_server"}))
    for frame in connection:
        frames.append(hashlib.sha256(frame).hexdigest())
        rows = replies[len(frames) - 1]
        connection.send(msgpack.packb({"status": "ok", "ok": True, "data": {"actions": rows}}, default=array))


with serve(answer, "127.0.0.1", 0, max_size=None) as server:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    port = server.socket.getsockname()[1]
    seen = {f"state.{name}": np.float32([[values]]) for name, values in STATES.items()}
    seen["video.robot0_agentview_left"] = KITCHEN[None, None]
    seen["annotation.human.task_description"] = ("put it there",)
    robocasa.PolicyWarper("", unnorm_key="panda", host="127.0.0.1", port=port).step(seen)
    client = simpler.ModelClient("", host="127.0.0.1", port=port)
    done = [client.step(WIDOWX, "put it there")[1] for _ in replies[1:]]
    server.shutdown()
actions = [[*one["world_vector"], *one["rot_axangle"], *one["gripper"]] for one in done]
cases = {"robocasa": frames[0], "simpler": {"frame": frames[1], "actions": np.array(actions, float).tolist()}}
assert len({*frames[1:]}) == 1
Path(__file__).with_name("starvla_requests.json").write_text(json.dumps(cases) + "\n")
