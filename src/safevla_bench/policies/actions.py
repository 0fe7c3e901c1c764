"""The actions that the scripted policies give: [7], all in [-1, 1].

Position [3] and rotation vector [3] of the end effector's motion in the base frame, then the gripper: -1 opens,
+1 closes.
"""

from __future__ import annotations

import numpy as np

from safevla_bench.interface import Action

OPEN, CLOSE = -1.0, 1.0
STILL: Action = np.array([0.0] * 6 + [OPEN])
STILL.flags.writeable = False
