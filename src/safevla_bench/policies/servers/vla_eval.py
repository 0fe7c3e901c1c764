"""The policy `vla-eval:ws://HOST:8000`, behind a model server of vla-evaluation-harness.

Each websocket frame is a MessagePack map of `type`, `payload`, `seq` and `timestamp`. The client sends `hello`, then
`episode_start` and `episode_end`. It sends an `observation` to get an `action`; the server splits chunks.

This client obeys the `observation_params` in a server's greeting, as the harness does (src/vla_eval/orchestrator.py at
e1ee9ad). It sends the requested images and states with the requested rotation. If the server requests absolute poses,
the client makes the host accept them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from msgspec import structs

from safevla_bench.errors import PolicyError, ReplyError
from safevla_bench.interface.policy import Observation
from safevla_bench.interface.task import SEED_END, Task
from safevla_bench.policies.servers import client_factory, codecs, openpi
from safevla_bench.policies.servers.dialects import Dialect, Reply
from safevla_bench.policies.servers.endpoint import Endpoint, sanitize_greeting, stray_error
from safevla_bench.policies.servers.transforms import SIMPLER_TASKS
from safevla_bench.version import __version__

PROTOCOL = 1
GRIPPERS: Mapping[str, tuple[str, ...]] = {  # a dialect's gripper conversion -> formats in `action_spec` that fit
    "sign": ("binary_close_positive", "raw"),
    "close-is-one": ("binary_close_01", "raw"),
}
CODECS = {"raw": codecs.VLA_EVAL, "png": codecs.VLA_EVAL_PNG}  # codec for each value of `images`; the harness sends PNG
_SINGLE, _SHORTEST = "eef_axis_angle_single", "eef_axis_angle_shortest"


class VlaEvalModel(openpi.WebsocketModel):
    """A model behind a server of vla-evaluation-harness. `connect` adapts `dialect` to the server's requirements. If
    the user names a dialect, the client does not check that dialect's gripper convention.
    """

    kind = "vla-eval"

    def __init__(self, endpoint: Endpoint, dialect: Dialect, arguments: Mapping[str, str]) -> None:
        # The argument `images` is the format in which images are sent: `raw` (default) or `png`.
        super().__init__(endpoint, dialect, arguments)
        self._base_dialect = dialect  # a server's greeting changes `dialect`
        self._is_dialect_chosen = "dialect" in arguments
        images = arguments.get("images", next(iter(CODECS)))
        if images not in CODECS:
            raise PolicyError(f"images={images} is not an image format", remedy=f"Write images={' or '.join(CODECS)}.")
        self.codec = CODECS[images]
        self._seq = 0  # number of the last message; a server's answer repeats it
        self._is_playing = False  # whether an episode has begun on the current connection

    def begin(self, task: Task, seed: int) -> None:
        # Connect, and begin an episode of the task. The policy's `seed` is not sent.
        super().begin(task, seed)
        self._send_message("episode_start", {"task": describe_task(task)})
        self._is_playing = True

    def _greet(self) -> None:
        # Exchange greetings, adapt the dialect to the server's requirements, and set `greeting` and `env_seed`.
        # Raise `PolicyError` if the dialect cannot fulfill the requirements.
        self._seq = 0
        hello = {"harness_version": f"safevla-bench {__version__}", "protocol_version": PROTOCOL}
        greeting = self._receive_answer(self._send_message("hello", hello), "hello")
        self.greeting = sanitize_greeting(greeting, self.key)
        params = _get_map(greeting, "observation_params")
        dialect = adapt_dialect(self._base_dialect, params)
        check_requirements(params, _get_map(greeting, "action_spec"), dialect, chosen=self._is_dialect_chosen)
        self.dialect, self.wants = dialect, dialect.wants
        seed = params.get("env_seed")
        # The seed that the server requests for the simulator; other values, such as a Boolean, are ignored.
        self.env_seed = seed if type(seed) is int and 0 <= seed < SEED_END else None

    def query(self, observation: Observation) -> Reply:
        # Return the server's reply to an observation; the reply contains the actions.
        seq = self._send_message("observation", self.dialect.build_request(observation))
        return self._receive_answer(seq, "action")

    def close(self) -> None:
        """End the current episode, if any, and close the connection. Each new connection begins with such a call."""
        was_playing, self._is_playing = self._is_playing, False  # a failing `_send_message` calls `close` again
        if was_playing:
            with suppress(PolicyError):
                self._send_message("episode_end", {})
        super().close()

    def _send_message(self, kind: str, payload: object) -> int:
        # Send a message and return its number, which the answer repeats.
        self._seq += 1
        self.send({"type": kind, "payload": payload, "seq": self._seq, "timestamp": time.time()})
        return self._seq

    def stray_error(self, frame: bytes) -> PolicyError:
        # A server does not answer `episode_start`, but reports an error in it.
        with suppress(ReplyError):
            message = self.codec.unpack(frame)
            if isinstance(message, dict) and message.get("type") == "error":
                return self.server_error(_get_map(message, "payload").get("error"))
        return super().stray_error(frame)

    def _receive_answer(self, seq: int, kind: str) -> dict[str, object]:
        # Return the payload of the next message, which must be of the type `kind` and answer the message `seq`.
        # Raise `PolicyError` for a server's error or an invalid message, `ServerLostError` for an unexpected answer.
        message = self.receive_map()
        payload = message.get("payload")
        if not isinstance(payload, dict):
            raise self.kind_error("sent a message that does not follow the protocol of vla-evaluation-harness")
        if message.get("type") == "error":
            raise self.server_error(payload.get("error", payload))
        if message.get("type") != kind or message.get("seq") != seq:
            super().close()  # unlike `self.close`, this sends no `episode_end`
            answer = f"{str(message.get('type'))[:60]} {str(message.get('seq'))[:60]}"
            raise stray_error(self.address, f"sent {answer}, not {kind} {seq}")
        return payload


def describe_task(task: Task) -> dict[str, object]:
    """Return a task's description as in the harness's benchmarks; some servers choose settings by suite
    (`chunk_size_map`). Usually, the keys are `name`, `suite` and `task_id`. For SimplerEnv, they are `name` and
    `task_name`. For RoboCasa-365, they are `name` and `suite`, which is always `atomic_seen`.
    """
    if task.benchmark.startswith("robocasa-365"):
        return {"name": task.name, "suite": "atomic_seen"}
    if task.instruction in SIMPLER_TASKS:  # maps instructions of SimplerEnv's tasks to the tasks' names
        return dict.fromkeys(("name", "task_name"), SIMPLER_TASKS[task.instruction])
    return {"name": task.instruction, "suite": task.benchmark.replace("-", "_"), "task_id": task.index}


def adapt_dialect(dialect: Dialect, params: Mapping[str, object]) -> Dialect:
    """Return the dialect with the entries, the rotation and the kind of action that `params` requests. Its `wants` are
    adapted, too. If an entry's `asked` names a parameter that `params` does not set, the entry is omitted.
    """
    # `params` are the server's `observation_params`, such as `send_wrist_image`; {} if the server sends none.
    fields = tuple(field for field in dialect.fields if field.asked is None or params.get(field.asked))
    if params.get("quat_no_antipodal"):  # without a change of the quaternion's sign, so angles may exceed pi
        # Replace the state part with angles up to pi by the part that keeps the quaternion's sign.
        states = [tuple(_SINGLE if name == _SHORTEST else name for name in field.state) for field in fields]
        fields = tuple(structs.replace(field, state=state) for field, state in zip(fields, states, strict=True))
    cameras = tuple(field.camera for field in fields if field.camera)
    wants = replace(dialect.wants, cameras=cameras, absolute=bool(params.get("absolute_action")))
    return replace(dialect, fields=fields, wants=wants)


def check_requirements(
    params: Mapping[str, object], action_spec: Mapping[str, object], dialect: Dialect, *, chosen: bool
) -> None:
    """Raise `PolicyError` if the server requests a control mode, if the dialect, adapted to `params`, lacks requested
    entries, or if its positions or gripper differ from `action_spec`. With `chosen`, the gripper is not checked.
    """
    # `params` and `action_spec` come from the server's greeting; a value that the server does not send is {}.
    # `chosen` is true if the user has chosen the dialect.
    conversion = dialect.switches.get(6, "raw")  # column 6 of an action is the gripper
    gripper = _get_map(action_spec, "gripper").get("format", "raw")
    position = _get_map(action_spec, "position").get("format")
    sends_state, sends_wrist = any(field.state for field in dialect.fields), len(dialect.wants.cameras) > 1
    mode = str(params.get("control_mode"))[:60]  # an untrusted value, shortened for the message
    is_position_wrong = position == "absolute_xyz" and not dialect.wants.absolute
    # Conversions that are not in `GRIPPERS` fit every format.
    is_gripper_wrong = not chosen and gripper not in GRIPPERS.get(conversion, (gripper,))
    # Maps each possible problem to whether the problem exists.
    problems = {
        "asks for send_state, but no state is sent": params.get("send_state") and not sends_state,
        "asks for send_wrist_image, but no wrist image is sent": params.get("send_wrist_image") and not sends_wrist,
        f"asks for the control mode {mode}, which only SimplerEnv has": "control_mode" in params,
        "describes absolute positions, but does not ask for absolute_action": is_position_wrong,
        f"describes its gripper as {gripper}, but the client reads it as {conversion!r}": is_gripper_wrong,
    }
    for problem, has_problem in problems.items():
        if has_problem:
            remedy = "Serve the model with other parameters, or pass a dialect that fits: --policy-arg dialect=NAME."
            raise PolicyError(f"the server {problem} (dialect {dialect.name!r})", remedy=remedy)


def _get_map(outer: Mapping[str, object], key: str) -> Mapping[str, object]:
    # Return the map under `key`; {} if there is no map.
    inner = outer.get(key)
    return inner if isinstance(inner, Mapping) else {}


make = client_factory("vla-eval", VlaEvalModel)
