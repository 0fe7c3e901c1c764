"""What GR00T's own serializer packs, as hexadecimal: the cases of tests/policies/servers/test_codecs.py.

Runs `gr00t/policy/server_client.py` of Isaac-GR00T from a clone of it, at the last tag with arrays as NumPy's files and
at a revision of main with arrays as msgpack_numpy packs them (since 3df8b38 of 2026-05-07). NVIDIA's repository and
squirel2000/Isaac-GR00T_n1d7 hold both. In an environment of its own:

    pip install msgpack==1.2.4 msgpack-numpy==0.4.8 numpy==2.4.6 pyzmq==27.3.0
    python tests/cases/make_gr00t_frames.py CLONE > tests/cases/gr00t_frames.json
"""

import io
import json
import subprocess
import sys
import tarfile
import tempfile
import types
from pathlib import Path

import numpy as np

REVISIONS = {"gr00t": "n1.7-release", "gr00t main": "626af89"}
FLAT = {
    "video.image": np.arange(12, dtype=np.uint8).reshape(1, 1, 2, 2, 3),
    "state.x": np.array([[[0.25]]], dtype=np.float32),
    "annotation.human.action.task_description": ["put the bowl on the plate"],
}
NESTED = {
    "video": {"image": np.arange(12, dtype=np.uint8).reshape(1, 1, 2, 2, 3)},
    "state": {"x": np.array([[[0.25]]], dtype=np.float32)},
    "language": {"annotation.human.action.task_description": [["put the bowl on the plate"]]},
}
CASES = {
    "ping": {"endpoint": "ping"},
    "reset": {"endpoint": "reset", "data": {"options": None}, "api_token": "k3y"},
    "flat": {"endpoint": "get_action", "data": {"observation": FLAT, "options": None}},
    "nested": {"endpoint": "get_action", "data": {"observation": NESTED, "options": None}},
    "bare": {"endpoint": "get_action", "data": FLAT},
    "reply": [{"action.x": np.arange(16, dtype=np.float32).reshape(1, 16, 1)}, {}],
    "big-endian": {"array": np.arange(3, dtype=">i4"), "columns": np.asfortranarray(np.arange(6.0).reshape(2, 3))},
    "error": {"error": "Unknown endpoint: reset"},
}


def load_module(clone, revision):
    """Import the serializer of a revision without the packages above it, which import the model."""
    folder = Path(tempfile.mkdtemp())
    archive = subprocess.run(["git", "-C", clone, "archive", revision, "gr00t"], check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
    for name in [name for name in sys.modules if name.split(".")[0] == "gr00t"]:
        del sys.modules[name]
    for name in ("gr00t", "gr00t.policy", "gr00t.data", "gr00t.configs", "gr00t.configs.data"):
        sys.modules[name] = package = types.ModuleType(name)
        package.__path__ = [str(folder / name.replace(".", "/"))]
    from gr00t.policy import server_client

    return server_client


frames = {}
for kind, revision in REVISIONS.items():
    client = load_module(sys.argv[1], revision)
    serializer, modality = client.MsgSerializer, client.ModalityConfig
    config = {"video": modality([0], ["image"]), "action": modality([*range(16)], ["x", "gripper"])}
    messages = {**CASES, "modality_config": config}
    frames[kind] = {name: serializer.to_bytes(message).hex() for name, message in messages.items()}
print(json.dumps(frames, indent=1))
