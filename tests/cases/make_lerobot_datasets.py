"""Two small datasets by LeRobot's own writer: the cases of tests/sources/foreign/test_demonstrations.py.

In environments of their own, one for each version of the layout:

    pip install lerobot==0.4.4 && python tests/cases/make_lerobot_datasets.py tests/cases/lerobot_v3.0
    pip install lerobot==0.3.3 && python tests/cases/make_lerobot_datasets.py tests/cases/lerobot_v2.1

Only what is read is kept: info, tasks and data.
"""

import inspect
import shutil
import sys
from pathlib import Path

import numpy as np
from lerobot.datasets.lerobot_dataset import LeRobotDataset

FEATURES = {"action": {"dtype": "float32", "shape": (7,), "names": [f"a{k}" for k in range(7)]}}
TASKS = ("turn on the stove", "open the middle drawer of the cabinet")

root = Path(sys.argv[1])
dataset = LeRobotDataset.create("safevla/cases", fps=20, features=FEATURES, root=root, use_videos=False)
takes_task = "task" in inspect.signature(dataset.add_frame).parameters
for number, task in enumerate(TASKS):
    for step in range(3 + number):
        action = {"action": np.full(7, number + step / 10, dtype=np.float32)}
        dataset.add_frame(action, task=task) if takes_task else dataset.add_frame({**action, "task": task})
    dataset.save_episode()
if hasattr(dataset, "finalize"):
    dataset.finalize()
for left in ("stats.json", "episodes.jsonl", "episodes_stats.jsonl"):
    (root / "meta" / left).unlink(missing_ok=True)
shutil.rmtree(root / "meta" / "episodes", ignore_errors=True)
