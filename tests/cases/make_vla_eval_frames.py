"""What vla-evaluation-harness packs itself, as hexadecimal: the cases of tests/policies/test_frames.py.

In an environment of its own:

    pip install vla-eval==0.8.0 && python tests/cases/make_vla_eval_frames.py > tests/cases/vla_eval_frames.json

The harness sends images as PNG unless told otherwise; its servers read both, and the client sends them as they are.
"""

import json

import numpy as np
from vla_eval.protocol.messages import Message, MessageType, pack_message
from vla_eval.protocol.numpy_codec import set_image_format

OBSERVATION = {
    "images": {"agentview": np.arange(12, dtype=np.uint8).reshape(2, 2, 3)},
    "states": np.linspace(-1, 1, 8),
    "task_description": "put the bowl on the plate",
}
CASES = {
    "hello": Message(MessageType.HELLO, {"harness_version": "0.8.0", "protocol_version": 1}, 1, 12.5),
    "episode_start": Message(MessageType.EPISODE_START, {"task": {"name": "lift", "task_id": 3}}, 2, 13.0),
    "observation": Message(MessageType.OBSERVATION, OBSERVATION, 3, 13.5),
    "action": Message(MessageType.ACTION, {"actions": np.linspace(-1, 1, 7, dtype=np.float32)}, 3, 14.0),
    "chunk": Message(MessageType.ACTION, {"actions": np.arange(14, dtype=np.float64).reshape(2, 7)}, 4, 14.5),
    "scalars": Message(MessageType.ACTION, {"f": np.float32(0.5), "i": np.int64(-3), "b": np.bool_(True)}, 5, 15.0),
    "error": Message(MessageType.ERROR, {"error": "observation_failed: KeyError: 'states'"}, 6, 15.5),
}

set_image_format("raw")
print(json.dumps({name: pack_message(message).hex() for name, message in CASES.items()}, indent=1))
