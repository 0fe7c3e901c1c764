"""`vla-eval:ws://HOST:8000`: a model server of vla-evaluation-harness.

Websocket frames of MessagePack, each a map of `type`, `payload`, `seq` and `timestamp`. The client greets with `hello`,
says `episode_start` and `episode_end`, and sends an `observation` for each `action`; the server itself plays chunks.

The harness sets its benchmark up by the `observation_params` of a server's greeting, and warns where its `action_spec`
differs from the benchmark's. A client that did neither would be wrong in silence, so this one refuses such a server.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import PolicyError, ServerLostError
from safevla_bench.interface import Observation, Task
from safevla_bench.policies.chunking import ChunkedPolicy
from safevla_bench.policies.servers import connection
from safevla_bench.policies.servers.client import ClientKind, Endpoint, client_factory
from safevla_bench.policies.servers.codecs import VLA_EVAL
from safevla_bench.policies.servers.dialect import Dialect
from safevla_bench.policies.servers.endpoint import redact_key
from safevla_bench.policies.servers.metadata import Greeting, sanitize_greeting
from safevla_bench.policies.servers.openpi import server_error
from safevla_bench.version import __version__

PROTOCOL = 1
"""The version of the harness's protocol that this client speaks."""
CLOSES = ("binary_close_positive", "raw")
"""Descriptions of a gripper that opens below 0 and closes else."""
_SHORTEST, _KEPT = "vla-eval-libero-shortest", "vla-eval-libero"
_ROTATION = "eef_axis_angle"
_KIND = ClientKind("vla-eval", library="websockets", extra="openpi", schemes=("ws", "wss"), port=8000, dialect=_KEPT)


class VlaEvalModel:
    """A model behind a server of the harness."""

    def __init__(
        self, socket: connection.WebsocketClient, dialect: Dialect, key: str | None = None, *, chosen: bool = True
    ) -> None:
        self.wants = dialect.wants
        self._socket, self._dialect, self._key, self._chosen = socket, dialect, key, chosen
        self.greeting: Greeting = {}
        """The server's description of itself, sanitized for a record."""
        self._seq = 0
        self._playing = False

    def begin(self, task: Task, seed: int) -> None:
        """Connect anew, greet, and announce the episode.

        Raises:
            ServerUnreachableError: no server answers.
            ServerRefusedError: what answers is none of the harness, or asks for what the dialect does not send.
        """
        self._end_episode()
        with connection.guard_handshake(self._socket.close):
            self._exchange_hello()
        described = {"name": task.instruction, "suite": task.benchmark, "task_id": task.index}
        self._send_message("episode_start", {"task": described})
        self._playing = True

    def _exchange_hello(self) -> None:
        self._socket.open()
        self._seq = 0
        hello = self._send_message(
            "hello", {"harness_version": f"safevla-bench {__version__}", "protocol_version": PROTOCOL}
        )
        greeting = self._receive_answer(hello, "hello")
        self.greeting = sanitize_greeting(greeting, self._key)
        check_requirements(greeting, self._dialect, chosen=self._chosen)

    def infer(self, observation: Observation) -> NDArray[np.float64]:
        """Return one action, [1, A]. Raises what `openpi`'s client raises."""
        return self._dialect.read_actions(
            self._receive_answer(self._send_message("observation", self._dialect.build_request(observation)), "action")
        )

    def close(self) -> None:
        self._end_episode()
        self._socket.close()

    def _end_episode(self) -> None:
        """Announce the end of the episode; errors do not matter, the server may be gone."""
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
        """Receive the answer to message `seq` and return its payload."""
        frame = self._socket.receive()
        message = VLA_EVAL.unpack(frame) if isinstance(frame, bytes) else None
        if not isinstance(message, dict) or not isinstance(message.get("payload"), dict):
            problem = f"the server {self._socket.address} sent no message of vla-evaluation-harness"
            raise PolicyError(problem, remedy="Is it one of its model servers?")
        payload: dict[str, object] = message["payload"]
        if message.get("type") == "error":
            raise server_error(self._socket.address, redact_key(str(payload.get("error", payload)), self._key))
        if message.get("type") != kind or message.get("seq") != seq:
            self._socket.close()
            got = f"{message.get('type')} {message.get('seq')}"
            problem = f"the server {self._socket.address} sent {got} where {kind} {seq} was to come"
            raise ServerLostError(problem, remedy="Two clients may share one connection; start the server again.")
        return payload


def check_requirements(greeting: Mapping[str, object], dialect: Dialect, *, chosen: bool) -> None:
    """Refuse a server whose requirements the dialect does not meet.

    Args:
        greeting: the payload of its `hello`.
        dialect: the form of requests and replies.
        chosen: whether the user named the dialect, and so knows the conventions of its state and gripper.

    Raises:
        PolicyError: names the requirement, and the dialect that meets it where there is one.
    """
    params, action_spec = _submap(greeting, "observation_params"), _submap(greeting, "action_spec")
    for problem, remedy in (*_absolute_actions(params, action_spec), *_missing_inputs(params, dialect)):
        raise PolicyError(problem, remedy=remedy)
    for problem, remedy in () if chosen else _convention_conflicts(params, action_spec, dialect):
        raise PolicyError(problem, remedy=remedy)


def _absolute_actions(params: Mapping[str, object], action_spec: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    if params.get("absolute_action") or _submap(action_spec, "position").get("format") == "absolute_xyz":
        yield (
            "the server gives absolute poses, and this host takes changes of pose",
            "Serve a checkpoint of the latter.",
        )


def _missing_inputs(params: Mapping[str, object], dialect: Dialect) -> Iterator[tuple[str, str]]:
    for wish, is_sent in (
        ("send_state", any(field.state for field in dialect.fields)),
        ("send_wrist_image", len(dialect.wants.cameras) > 1),
    ):
        if params.get(wish) and not is_sent:
            remedy = f"Pass --policy-arg dialect={_SHORTEST} or dialect={_KEPT}: docs/servers.md says which."
            yield f"the server asks for {wish}, which the dialect {dialect.name!r} does not send", remedy


def _convention_conflicts(
    params: Mapping[str, object], action_spec: Mapping[str, object], dialect: Dialect
) -> Iterator[tuple[str, str]]:
    keeps_rotation = any(_ROTATION in field.state for field in dialect.fields)
    if params.get("send_state") and keeps_rotation and not params.get("quat_no_antipodal"):
        problem = "the server asks for states without quat_no_antipodal: the harness would make their rotation shortest"
        where = f"dialect={_KEPT} where the evaluation it is compared with sets quat_no_antipodal"
        yield problem, f"Pass --policy-arg dialect={_SHORTEST}, as the harness does; or {where}."
    gripper = _submap(action_spec, "gripper").get("format", CLOSES[0])
    if gripper not in CLOSES:
        problem = f"the server describes its gripper as {gripper}, and this client opens below 0 and closes else"
        yield problem, "Serve it with a gripper of that kind; or name the dialect, if you know its words to be wrong."


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
) -> ChunkedPolicy:
    """Make the client; the arguments are those of `openpi`, without `replan`: the server plays chunks itself.

    Without a `dialect`, `vla-eval-libero` is spoken where the server asks for no other.
    """

    def make_model(endpoint: Endpoint, spoken: Dialect) -> VlaEvalModel:
        socket = connection.WebsocketClient(endpoint.addresses, endpoint.timeouts, endpoint.key)
        return VlaEvalModel(socket, spoken, endpoint.key, chosen=dialect is not None)

    arguments = (cameras, image_size, connect_timeout_s, timeout_s, key_env, key_file)
    return client_factory(_KIND, make_model)(arg, "all", dialect or _KIND.dialect, *arguments)
