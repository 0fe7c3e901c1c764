"""What openpi's own client packs, as hexadecimal: the cases of tests/policies/servers/test_codecs.py.

In an environment of its own, for it needs an older numpy:

    pip install openpi-client==0.1.2 && python tests/cases/make_openpi_frames.py > tests/cases/openpi_frames.json
"""

import json

import numpy as np
from openpi_client import msgpack_numpy

CASES = {
    "request": {
        "observation/image": np.arange(12, dtype=np.uint8).reshape(2, 2, 3),
        "observation/state": np.linspace(-1, 1, 8),
        "prompt": "put the bowl on the plate",
    },
    "reply": {"actions": np.arange(14, dtype=np.float32).reshape(2, 7), "server_timing": {"infer_ms": 12.5}},
    "scalars": {"f4": np.float32(0.5), "i8": np.int64(-3), "bool": np.bool_(True), "f8": np.float64(0.1)},
    "empty": {"none": None, "list": [1, "two", 3.0], "array": np.zeros((0, 7))},
    "numbers": {"small": 5, "byte": 200, "two": 60000, "four": 2**31, "eight": 2**40, "minus": -5, "less": -(2**33)},
    "texts": {"short": "é", "long": "x" * 300, "bytes": b"\x00\xff"},
    "big-endian": {"array": np.arange(3, dtype=">i4"), "text": np.array(["ab", "c"])},
}

print(json.dumps({name: msgpack_numpy.packb(message).hex() for name, message in CASES.items()}, indent=1))
