"""What the servers of the paper's entries are asked and answer, by hand from the projects' own clients.

None of it is made from the package's data.
"""

from __future__ import annotations

import numpy as np

_AXES = ("x", "y", "z", "roll", "pitch", "yaw")
_OPENPI = {
    ("observation/image",): ("uint8", (224, 224, 3)),
    ("observation/wrist_image",): ("uint8", (224, 224, 3)),
    ("observation/state",): ("float64", (8,)),
    ("prompt",): str,
}
_OPENPI_MOBILE = {
    **_OPENPI,
    ("observation/right_image",): ("uint8", (224, 224, 3)),
    ("observation/state",): ("float64", (16,)),
}
_GR00T = {
    ("video.image",): ("uint8", (1, 1, 256, 256, 3)),
    ("video.wrist_image",): ("uint8", (1, 1, 256, 256, 3)),
    **{(f"state.{axis}",): ("float32", (1, 1, 1)) for axis in _AXES},
    ("state.gripper",): ("float32", (1, 1, 2)),
    ("annotation.human.action.task_description",): list,
}
_MOBILE_STATES = {
    "end_effector_position_relative": 3,
    "end_effector_rotation_relative": 4,
    "gripper_qpos": 2,
    "base_position": 3,
    "base_rotation": 4,
}


def _mobile(dtype):
    cameras = ("robot0_agentview_left", "robot0_agentview_right", "robot0_eye_in_hand")
    return {
        **{(f"video.{camera}",): ("uint8", (1, 1, 256, 256, 3)) for camera in cameras},
        **{(f"state.{name}",): (dtype, (1, 1, size)) for name, size in _MOBILE_STATES.items()},
        ("annotation.human.task_description",): list,
    }


EXPECTED = {
    "openvla-7b@libero": {("images", "agentview"): ("uint8", (256, 256, 3)), ("task_description",): str},
    "cosmos-policy-2b@libero": {
        ("primary_image",): ("uint8", (256, 256, 3)),
        ("wrist_image",): ("uint8", (256, 256, 3)),
        ("proprio",): ("float64", (9,)),
        ("task_description",): str,
    },
    "gr00t-n1.7@libero": _GR00T,
    "pi0.5@libero": _OPENPI,
    "pi-rl-130@libero": _OPENPI,
    "pi0@robocasa-365": _OPENPI_MOBILE,
    "pi0.5@robocasa-365": _OPENPI_MOBILE,
    "gr00t-n1.5@robocasa-365": _mobile("float32"),
    "rldx-1@robocasa-365": _mobile("float32"),
}
"""Entry -> path in the request -> type; an array's is dtype and shape."""


WIRES = {
    "openvla-7b@libero": "vla-eval",
    "gr00t-n1.7@libero": "gr00t",
    "gr00t-n1.5@robocasa-365": "gr00t",
    "rldx-1@robocasa-365": "gr00t",
}
"""How its server is spoken to, where not over openpi's websocket."""


def leaves(request, path=()):
    """The request's entries by path."""
    for key, value in request.items():
        if isinstance(value, dict):
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key), value


def refusal(entry, request):
    """Why the entry's server refuses the request; None where it does not."""
    expected, fields = EXPECTED[entry], dict(leaves(request))
    for path in (*expected, *fields):
        if path not in fields:
            return f"{'/'.join(path)} is missing"
        if path not in expected:
            return f"{'/'.join(path)} is not known"
        kind, value = expected[path], fields[path]
        if isinstance(kind, tuple):
            actual = (str(value.dtype), value.shape) if isinstance(value, np.ndarray) else type(value).__name__
            if actual != kind:
                return f"{'/'.join(path)} is {actual}, not {kind}"
            if value.dtype == np.uint8 and value.min() == value.max():
                return f"{'/'.join(path)} is one color"
        elif not isinstance(value, kind) or not value or (kind is list and not all(map(str.__instancecheck__, value))):
            return f"{'/'.join(path)} is {value!r}, not a {kind.__name__}"
    return None


def reply(entry, steps=16):
    """What the entry's server answers: the open gripper of its convention, and small motions."""
    rows = np.tile(np.arange(1, 13) / 100, (steps, 1))
    if entry.startswith("gr00t-n1.7"):
        parts = {f"action.{axis}": rows[:, k].reshape(1, steps, 1) for k, axis in enumerate(_AXES)}
        return {**parts, "action.gripper": np.ones((1, steps, 1), dtype=np.float32)}
    if entry in ("gr00t-n1.5@robocasa-365", "rldx-1@robocasa-365"):
        names = ("end_effector_position", "end_effector_rotation", "gripper_close", "base_motion", "control_mode")
        cut = np.split(rows, [3, 6, 7, 11], axis=1)
        return {f"action.{name}": part[np.newaxis] for name, part in zip(names, cut, strict=True)}
    if entry == "openvla-7b@libero":
        return {"actions": rows[0, :7].astype(np.float32)}  # the harness's server plays its chunks itself
    return {"actions": rows[:, : 12 if "robocasa" in entry else 7]}
