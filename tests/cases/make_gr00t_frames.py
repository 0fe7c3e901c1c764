"""What GR00T's client and server pack, as hexadecimal: the cases of tests/policies/test_frames.py.

GR00T is on no package index. Its serializer is two operations of public libraries, and these bytes are made by those:
an array is a file that numpy.save writes, in a map of two entries, and the message is packed by the reference
implementation of MessagePack, which turns to a hook for what it does not know. So this is the public format by another
way than the package's, not the reference program itself.

    pip install msgpack==1.2.4 numpy==2.4.6 && python tests/cases/make_gr00t_frames.py > tests/cases/gr00t_frames.json
"""

import io
import json

import msgpack
import numpy as np


def hook(value):
    file = io.BytesIO()
    np.save(file, value, allow_pickle=False)
    return {"__ndarray_class__": True, "as_npy": file.getvalue()}


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

print(json.dumps({name: msgpack.packb(message, default=hook).hex() for name, message in CASES.items()}, indent=1))
