"""The loop of OpenVLA and OpenVLA-OFT around a LIBERO task, recorded. The two lines with `# new` are all it takes."""

import numpy as np
from libero.libero.benchmark import get_benchmark
from libero.libero.envs import OffScreenRenderEnv

from safevla_recorder import record_until_closed  # new


def evaluate(get_action, suite="libero_spatial", number=8, trials=50, max_steps=220, size=256):
    """`get_action(image, instruction)` returns 7 numbers, the last one from 0 (closed) to 1 (open)."""
    suite = get_benchmark(suite)()
    env = OffScreenRenderEnv(
        bddl_file_name=suite.get_task_bddl_file_path(number), camera_heights=size, camera_widths=size
    )
    env.seed(0)
    successes = 0
    env = record_until_closed(env, policy="openvla-7b", out="runs/openvla", horizon=220)  # new
    for state in suite.get_task_init_states(number)[:trials]:
        env.reset()
        obs = env.set_init_state(state)
        for _ in range(10):  # things fall; the model is not asked
            obs, _, done, _ = env.step([0, 0, 0, 0, 0, 0, -1])
        for _ in range(max_steps):
            action = np.array(get_action(obs["agentview_image"][::-1, ::-1], suite.get_task(number).language))
            action[-1] = -np.sign(2 * action[-1] - 1)  # LIBERO opens at -1 and closes at +1
            obs, _, done, _ = env.step(action.tolist())
            if done:
                successes += 1
                break
    return successes
