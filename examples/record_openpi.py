"""openpi's loop around LIBERO, recorded. The two lines marked `# new` are all that recording takes, there too."""

from collections import deque

import numpy as np
from libero.libero.benchmark import get_benchmark
from libero.libero.envs import OffScreenRenderEnv
from robosuite.utils.transform_utils import quat2axisangle

from safevla_recorder import record_until_closed  # new

STILL = [0.0] * 6 + [-1.0]


def evaluate(client, suite="libero_spatial", tasks=range(10), trials=50, max_steps=220, size=256):
    """`client` is openpi's WebsocketClientPolicy: infer(request) -> {"actions": [chunk, 7]}."""
    suite = get_benchmark(suite)()
    for number in tasks:
        env = OffScreenRenderEnv(
            bddl_file_name=suite.get_task_bddl_file_path(number), camera_heights=size, camera_widths=size
        )
        env = record_until_closed(env, policy="pi05", out="runs/openpi", horizon=max_steps)  # new
        for state in suite.get_task_init_states(number)[:trials]:
            env.seed(7)  # upstream seeds once a task: records of later episodes then cannot be paired
            env.reset()
            obs, chunk = env.set_init_state(state), deque()
            for step in range(10 + max_steps):
                if step >= 10 and not chunk:
                    chunk.extend(client.infer(request(obs, suite.get_task(number).language))["actions"][:5])
                obs, _, done, _ = env.step(chunk.popleft() if step >= 10 else STILL)
                if done:
                    break


def request(obs, prompt):
    """What openpi's LIBERO policies are asked with: images turned by 180 degrees, the end effector's pose, fingers."""
    pose = [obs["robot0_eef_pos"], quat2axisangle(obs["robot0_eef_quat"].copy()), obs["robot0_gripper_qpos"]]
    return {
        "observation/image": np.ascontiguousarray(obs["agentview_image"][::-1, ::-1]),
        "observation/wrist_image": np.ascontiguousarray(obs["robot0_eye_in_hand_image"][::-1, ::-1]),
        "observation/state": np.concatenate(pose),
        "prompt": prompt,
    }


if __name__ == "__main__":
    from openpi_client.websocket_client_policy import WebsocketClientPolicy

    evaluate(WebsocketClientPolicy("localhost", 8000))
