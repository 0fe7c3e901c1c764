"""`vla-eval:ws://HOST:8000`: a model server of vla-evaluation-harness.

Websocket frames of MessagePack, each a map of `type`, `payload`, `seq` and `timestamp`. The client greets with `hello`,
says `episode_start` and `episode_end`, and sends an `observation` for each `action`; the server itself plays chunks.

The harness sets its benchmark up by the `observation_params` of a server's greeting (src/vla_eval/orchestrator.py at
e1ee9ad), and so does this client: it sends the images and states that are asked for, with the rotation that is asked
for, and has the host take absolute poses. What goes before the server's wishes there, the benchmark's own `params`, is
the argument `params` here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import PolicyError, ServerLostError
from safevla_bench.interface.policy import Observation
from safevla_bench.interface.task import Task
from safevla_bench.policies.chunking import ChunkedPolicy
from safevla_bench.policies.servers import connection
from safevla_bench.policies.servers.client import ClientKind, Endpoint, client_factory
from safevla_bench.policies.servers.codecs import VLA_EVAL
from safevla_bench.policies.servers.dialect import Dialect, Reply
from safevla_bench.policies.servers.dialects import read_reply
from safevla_bench.policies.servers.endpoint import Greeting, redact_key, sanitize_greeting
from safevla_bench.policies.servers.openpi import server_error
from safevla_bench.version import __version__

PROTOCOL = 1
"""The version of the harness's protocol that this client speaks."""
GRIPPERS: Mapping[str, tuple[str, ...]] = {
    "sign": ("binary_close_positive", "raw"),
    "close-is-one": ("binary_close_01", "raw"),
}
"""A dialect's conversion of the gripper, and the formats (`action_spec`) that it is right for."""
PARAMETERS = ("send_state", "send_wrist_image", "quat_no_antipodal", "absolute_action", "env_seed")
"""Of a server's `observation_params` those that this client follows; LIBEROBenchmark.__init__ describes them."""
_SINGLE, _SHORTEST = "eef_axis_angle_single", "eef_axis_angle_shortest"
_KIND = ClientKind(
    "vla-eval", library="websockets", extra="openpi", schemes=("ws", "wss"), port=8000, dialect="vla-eval-libero"
)
_NO_PARAMS: Mapping[str, object] = MappingProxyType({})


class VlaEvalModel:
    """A model behind a server of the harness.

    `params` go before what the server asks for; `chosen` says that the user named the dialect, and so knows the
    conventions of its gripper.
    """

    def __init__(
        self,
        socket: connection.WebsocketClient,
        dialect: Dialect,
        key: str | None = None,
        params: Mapping[str, object] = _NO_PARAMS,
        *,
        chosen: bool = True,
    ) -> None:
        """Keep connection and dialect; nothing is connected before `connect` or `begin`."""
        self.wants = dialect.wants
        self._socket, self._dialect, self._key, self._chosen = socket, dialect, key, chosen
        self._params = params
        self.dialect = dialect
        """The form of requests and replies, from `connect` on with what the server asks for."""
        self.greeting: Greeting = {}
        """The server's description of itself, sanitized for a record."""
        self.env_seed: int | None = None
        """The simulator's seed that the server asks for."""
        self._seq = 0
        self._playing = False
        self._connected = False
        """Whether an environment was made for what the server asks for."""
        self._is_fresh = False
        """Whether the connection was made by `connect` and no episode has used it."""

    def connect(self, task: Task) -> None:
        """Greet the server and adopt what it asks for, before an environment is made, for the episode that comes first.

        Raises what `begin` raises.
        """
        self._end_episode()
        self._connected = False
        with connection.guard_handshake(self._socket.close):
            self._exchange_hello()
        self._connected = self._is_fresh = True

    def begin(self, task: Task, seed: int) -> None:
        """Connect anew, greet, and announce the episode.

        Raises:
            ServerUnreachableError: no server answers.
            ServerLostError: a server closes the connection, stays silent or answers something else.
            ServerRefusedError: what answers is none of the harness, or asks for what the dialect does not send.
        """
        self._end_episode()
        is_fresh, self._is_fresh = self._is_fresh, False
        if not (is_fresh and self._socket.is_open):
            with connection.guard_handshake(self._socket.close):
                self._exchange_hello()
        self._send_message("episode_start", {"task": describe_task(task)})
        self._playing = True

    def _exchange_hello(self) -> None:
        """Connect, greet, and adopt what the server asks for: sets `greeting`, `dialect`, `wants` and `env_seed`.

        Raises `PolicyError` where the dialect does not meet the server's requirements, or the server asks for other
        observations than when `connect` was called.
        """
        self._socket.open()
        self._seq = 0
        hello = self._send_message(
            "hello", {"harness_version": f"safevla-bench {__version__}", "protocol_version": PROTOCOL}
        )
        greeting = self._receive_answer(hello, "hello")
        self.greeting = sanitize_greeting(greeting, self._key)
        params = {**_submap(greeting, "observation_params"), **self._params}
        spoken = adapt_dialect(self._dialect, params)
        check_requirements(params, _submap(greeting, "action_spec"), spoken, chosen=self._chosen)
        if self._connected and spoken.wants != self.wants:
            problem = f"the server {self._socket.address} asks for other observations than when the run began"
            raise PolicyError(problem, remedy="It was started anew with another model: resume the run.")
        self.dialect, self.wants = spoken, spoken.wants
        wish = params.get("env_seed")
        self.env_seed = wish if type(wish) is int and 0 <= wish < 2**32 else None

    def query(self, observation: Observation) -> Reply:
        """Return the server's reply to an observation.

        Raises `ServerLostError` where the server goes, stays silent or answers another message, and `PolicyError` where
        it fails, its answer cannot be read, or the observation is not what the dialect sends.
        """
        seq = self._send_message("observation", self.dialect.build_request(observation))
        return self._receive_answer(seq, "action")

    def infer(self, observation: Observation) -> NDArray[np.float64]:
        """Return one action, [1, A]. Raises what `query` raises, and `ReplyError` for an action that is not read."""
        return read_reply(self.dialect, self.query(observation))

    def close(self) -> None:
        """End the episode at the server and close the connection."""
        self._end_episode()
        self._socket.close()

    def _end_episode(self) -> None:
        playing, self._playing = self._playing, False
        if playing:
            with suppress(PolicyError):
                self._send_message("episode_end", {})

    def _send_message(self, kind: str, payload: object) -> int:
        self._seq += 1
        message = {"type": kind, "payload": payload, "seq": self._seq, "timestamp": time.time()}
        self._socket.send(VLA_EVAL.pack(message))
        return self._seq

    def _receive_answer(self, seq: int, kind: str) -> dict[str, object]:
        """Return the payload of the answer to message `seq`.

        Raises `PolicyError` for an error of the server or another form of message, and `ServerLostError`, the
        connection closed, for an answer of another kind or number.
        """
        frame = self._socket.receive()
        message = VLA_EVAL.unpack(frame) if isinstance(frame, bytes) else None
        if not isinstance(message, dict) or not isinstance(message.get("payload"), dict):
            problem = f"the server {self._socket.address} sent no message of vla-evaluation-harness"
            remedy = (
                f"Is it one of its model servers? An openpi server is asked as --policy openpi:{self._socket.address}"
            )
            raise PolicyError(problem, remedy=remedy)
        payload: dict[str, object] = message["payload"]
        if message.get("type") == "error":
            raise server_error(self._socket.address, redact_key(str(payload.get("error", payload)), self._key))
        if message.get("type") != kind or message.get("seq") != seq:
            self._socket.close()
            got = f"{message.get('type')} {message.get('seq')}"
            problem = f"the server {self._socket.address} sent {got} where {kind} {seq} was to come"
            raise ServerLostError(problem, remedy="Two clients may share one connection; start the server again.")
        return payload


def describe_task(task: Task) -> dict[str, object]:
    """Return a task as the harness's benchmarks name it: its servers choose by the suite, as `chunk_size_map` does.

    `name`, `suite` and `task_id`; of RoboCasa-365 without `task_id`, and its suite is always `atomic_seen`.
    """
    if task.benchmark.startswith("robocasa-365"):
        return {"name": task.name, "suite": "atomic_seen"}
    return {"name": task.instruction, "suite": task.benchmark.replace("-", "_"), "task_id": task.index}


def adapt_dialect(dialect: Dialect, params: Mapping[str, object]) -> Dialect:
    """Return the dialect with the entries, the rotation and the kind of action that the parameters ask for.

    Entries that are sent only where asked for are left out otherwise; `wants` follows.
    """
    fields = tuple(field for field in dialect.fields if field.asked is None or params.get(field.asked))
    if params.get("quat_no_antipodal"):
        fields = tuple(
            replace(field, state=tuple(_SINGLE if name == _SHORTEST else name for name in field.state))
            for field in fields
        )
    cameras = tuple(field.camera for field in fields if field.camera)
    wants = replace(dialect.wants, cameras=cameras, absolute=bool(params.get("absolute_action")))
    return replace(dialect, fields=fields, wants=wants)


def check_requirements(
    params: Mapping[str, object], action_spec: Mapping[str, object], dialect: Dialect, *, chosen: bool
) -> None:
    """Raise `PolicyError` for a server whose requirements the dialect does not meet.

    Args:
        params: what it asks for.
        action_spec: what it says of its actions.
        dialect: the form of requests and replies, adapted to the parameters.
        chosen: whether the user named the dialect, and so knows the conventions of its gripper.

    Raises:
        PolicyError: names the first requirement that is not met, and the remedy.
    """
    for problem, remedy in _unmet_requirements(params, action_spec, dialect, chosen=chosen):
        raise PolicyError(problem, remedy=remedy)


def _unmet_requirements(
    params: Mapping[str, object], action_spec: Mapping[str, object], dialect: Dialect, *, chosen: bool
) -> Iterator[tuple[str, str]]:
    """Yield problem and remedy for each requirement that the dialect does not meet: entries, positions, gripper."""
    for wish, is_sent in (
        ("send_state", any(field.state for field in dialect.fields)),
        ("send_wrist_image", len(dialect.wants.cameras) > 1),
    ):
        if params.get(wish) and not is_sent:
            remedy = f"Pass --policy-arg dialect={_KIND.dialect}, or params={wish}=false if it does not need it."
            yield f"the server asks for {wish}, which the dialect {dialect.name!r} does not send", remedy
    if _submap(action_spec, "position").get("format") == "absolute_xyz" and not dialect.wants.absolute:
        remedy = "Pass --policy-arg params=absolute_action=true, as the harness's own benchmark would be set up."
        yield "the server describes absolute positions, and does not ask for absolute_action", remedy
    conversion = dict(dialect.switches).get(6, "raw")
    gripper = _submap(action_spec, "gripper").get("format", "raw")
    if not chosen and gripper not in GRIPPERS.get(conversion, (gripper,)):
        problem = f"the server describes its gripper as {gripper}, and this client reads it by {conversion!r}"
        remedy = "Serve it with another gripper; or name the dialect, if you know its words to be wrong."
        yield problem, remedy


def parse_params(text: str | None) -> dict[str, object]:
    """Return the parameters of `NAME=VALUE,...`, the harness's, that go before the server's wishes; {} for None.

    Raises:
        PolicyError: a parameter that this client does not know, or a value that is no truth value or number.
    """
    params: dict[str, object] = {}
    for item in text.split(",") if text else ():
        name, equals, value = item.strip().partition("=")
        if name not in PARAMETERS or not equals:
            raise PolicyError(f"params={text} holds {item!r}", remedy=f"Write NAME=VALUE of: {', '.join(PARAMETERS)}.")
        if name == "env_seed" and value.isdecimal():
            params[name] = int(value)
        elif name != "env_seed" and value in ("true", "false"):
            params[name] = value == "true"
        else:
            raise PolicyError(f"params={text} holds {item!r}", remedy="Write true or false, and a number for env_seed.")
    return params


def _submap(outer: Mapping[str, object], key: str) -> Mapping[str, object]:
    inner = outer.get(key)
    return inner if isinstance(inner, Mapping) else {}


def make(
    arg: str | None,
    dialect: str | None = None,
    cameras: str | None = None,
    image_size: str | None = None,
    connect_timeout_s: str | None = None,
    timeout_s: str | None = None,
    key_env: str | None = None,
    key_file: str | None = None,
    params: str | None = None,
) -> ChunkedPolicy:
    """Make the client; the arguments are those of `openpi`, without `replan`: the server plays chunks itself.

    `params` holds the benchmark's parameters that go before what the server asks for, NAME=VALUE with commas between.
    Raises `PolicyError` for a wrong argument, or where the library is not installed.
    """
    own_params = parse_params(params)

    def make_model(endpoint: Endpoint, spoken: Dialect) -> VlaEvalModel:
        socket = connection.WebsocketClient(endpoint.addresses, endpoint.timeouts, endpoint.key)
        return VlaEvalModel(socket, spoken, endpoint.key, own_params, chosen=dialect is not None)

    arguments = (cameras, image_size, connect_timeout_s, timeout_s, key_env, key_file)
    return client_factory(_KIND, make_model)(arg, "all", dialect or _KIND.dialect, *arguments)
