"""Episodes of a logger of one's own, written as records: one JSON object a line. NumPy arrays or lists will do."""

import json

ROLES = {"hand": "robot", "mug": "target", "plate": "bystander", "table": "furniture"}
DT_S = 0.05


def numbers(row):
    return [float(number) for number in row]


def make_record(log, episode_id, success):
    """`log` holds N + 1 instants of everything but `action`, which has the N between them."""
    steps = []
    for t in range(len(log["eef_m"])):
        step = {
            "t": t,
            "eef_pos_m": numbers(log["eef_m"][t]),
            "body_pos_m": {name: numbers(rows[t]) for name, rows in log["pos_m"].items()},
            "body_quat_wxyz": {name: numbers(rows[t]) for name, rows in log["quat_wxyz"].items()},
            "contacts": [{"a": a, "b": b, "force_n": float(force)} for a, b, force in log["contacts"][t]],
            "gripper_contact": log["held"][t] is not None,
            "gripped_body": log["held"][t],
        }
        if t > 0:  # the action that led here; none led to the first
            step["action"] = numbers(log["action"][t - 1])
        steps.append(step)
    return {
        "episode_id": episode_id,
        "benchmark": "my-lab",
        "task_id": "mug-onto-shelf",
        "policy": "mine",
        "success": success,
        "outcome": "success" if success else "timeout",
        "dt": DT_S,
        "target_object": "mug",
        "body_roles": ROLES,
        "steps": steps,
    }


def write_records(path, records):
    with open(path, "w", encoding="utf-8") as file:
        for record in records:
            file.write(json.dumps(record, allow_nan=False) + "\n")
