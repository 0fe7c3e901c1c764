"""What vla-evaluation-harness sends its servers, as hexadecimal: the cases of tests/policies/servers/test_vla_eval.py.

Runs the harness's own benchmarks' `make_obs` on made-up observations, set up by what a server asks for. The pose of the
controller is the hand's turned by -90 degrees about its z axis, as robosuite's Panda gripper has it. In an environment
of its own:

    pip install vla-eval==0.8.0 && python tests/cases/make_vla_eval_requests.py > tests/cases/vla_eval_requests.json
"""

import json
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
from vla_eval.benchmarks.libero.benchmark import LIBEROBenchmark
from vla_eval.benchmarks.robocasa365.benchmark import STATE_KEYS, VIDEO_KEYS, RoboCasa365Benchmark
from vla_eval.benchmarks.simpler.benchmark import SimplerEnvBenchmark
from vla_eval.protocol.messages import Message, MessageType, pack_message
from vla_eval.protocol.numpy_codec import set_image_format
from vla_eval.rotation import quat_to_matrix

ASKED = {
    "openvla": {"seed": 0},
    "starvla": {"send_wrist_image": True},
    "groot": {"send_state": True, "max_episode_steps": 300, "success_mode": "accumulate"},
    "oft": {"env_seed": 0, "quat_no_antipodal": True, "send_wrist_image": True, "send_state": True},
    "xvla": {"send_wrist_image": True, "send_state": True, "absolute_action": True},
}
"""By `get_observation_params` of the servers in src/vla_eval/model_servers."""
QUATERNIONS_XYZW = ([1.0, 0.0, 0.0, 0.0], [0.6, -0.3, 0.2, -0.7], [0.1, 0.9, -0.2, 0.4], [0.0, 0.0, 0.0, 1.0])
TASK = {"name": "put it there"}


def render(camera):
    return np.random.default_rng(camera).integers(0, 256, (256, 256, 3), dtype=np.uint8)


def libero_request(params, quat_xyzw):
    quat = np.array(quat_xyzw) / np.linalg.norm(quat_xyzw)
    turned = quat_to_matrix(quat) @ np.array([[0.0, 1.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    known = LIBEROBenchmark.__init__.__code__.co_varnames
    benchmark = LIBEROBenchmark(**{name: value for name, value in params.items() if name in known})
    controller = SimpleNamespace(ee_pos=np.array([0.1, -0.2, 0.9]), ee_ori_mat=turned)
    benchmark._env = SimpleNamespace(robots=[SimpleNamespace(controller=controller)])
    seen = {
        "agentview_image": render(0),
        "robot0_eye_in_hand_image": render(1),
        "robot0_eef_pos": np.array([0.1, -0.2, 0.9]),
        "robot0_eef_quat": quat,
        "robot0_gripper_qpos": np.array([0.04, -0.04]),
    }
    return benchmark.make_obs(seen, TASK)


def summary(request):
    """The request without its pixels, which a digest of their sum and place stands for."""
    images = {
        name: int(np.sum(image.astype(np.int64).ravel() * np.arange(1, image.size + 1) % 65521))
        for name, image in request["images"].items()
    }
    return {**request, "images": images}


def pack(request):
    return pack_message(Message(MessageType.OBSERVATION, summary(request), 1, 1.0)).hex()


set_image_format("raw")
cases = {server: [pack(libero_request(params, quat)) for quat in QUATERNIONS_XYZW] for server, params in ASKED.items()}
kitchen = {key: render(k) for k, key in enumerate(VIDEO_KEYS)}
sizes = (3, 4, 2, 3, 4)
states = {key: np.linspace(-1, 1, size).astype(np.float32) for key, size in zip(STATE_KEYS, sizes, strict=True)}
spoken = {"annotation.human.task_description": "put it there"}
whole = RoboCasa365Benchmark().make_obs({**kitchen, **states, **spoken}, TASK)
utils = ModuleType("simpler_env.utils.env.observation_utils")
utils.get_image_from_maniskill2_obs_dict = lambda env, obs: obs["image"]["3rd_view_camera"]["rgb"]  # as SimplerEnv's
sys.modules |= dict.fromkeys(("simpler_env", "simpler_env.utils", "simpler_env.utils.env", utils.__name__), utils)
widowx = SimplerEnvBenchmark(task_name="widowx_carrot_on_plate")
widowx._task_description = "put carrot on plate"
picture = np.random.default_rng(0).integers(0, 256, (480, 640, 3), dtype=np.uint8)
simpler = widowx.make_obs({"image": {"3rd_view_camera": {"rgb": picture}}}, TASK)
made = {"libero": cases, "robocasa": pack(whole), "simpler": pack(simpler)}
print(json.dumps({"asked": ASKED, "quaternions_xyzw": QUATERNIONS_XYZW, **made}, indent=1))
