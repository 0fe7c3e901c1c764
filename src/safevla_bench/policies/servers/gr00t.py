"""`gr00t:HOST:5555`: the policy behind a GR00T server, asked over ZeroMQ.

One request, one reply, both maps of MessagePack: an endpoint's name with its data goes out, `[action, info]` comes
back, or `{"error": text}`. Cameras, states and actions have a key each ("modality"). The servers of GR00T N1.5, which
have no endpoint `reset`, take the observation alone as the data and answer with the action alone.

`get_modality_config` answers before the first action. The mark of its values tells the two packings of arrays apart.
Its keys are those of the model, `image` or (N1.5) `video.image`, whether the server takes flat or nested requests: the
two differ by `--use-sim-policy-wrapper` alone, which the description does not show (gr00t/policy/gr00t_policy.py at
626af89); the answer to a flat request does.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from safevla_bench.errors import PolicyError, ServerLostError
from safevla_bench.interface.policy import Observation
from safevla_bench.interface.task import Task
from safevla_bench.policies.servers import connection, dialects
from safevla_bench.policies.servers.client import ChunkModel, client_factory
from safevla_bench.policies.servers.codecs import GR00T, GR00T_MAIN, Codec
from safevla_bench.policies.servers.dialects import Dialect, Reply, Request
from safevla_bench.policies.servers.endpoint import Endpoint, sanitize_greeting

if TYPE_CHECKING:
    import zmq

_FAILED = b"ERROR"
"""The answer of a server of another kind of message, such as GR00T N1's, which pickles."""
_NO_RESET = "Unknown endpoint: reset"
_HEARTBEAT_S, _SILENT_S = 5.0, 20.0
"""Seconds between two heartbeats, and without an answer to any. ZeroMQ's own thread in the server answers them while
its model computes or compiles; a process that is stopped, or a machine that is gone, does not."""
VIDEO, STATE, LANGUAGE, ACTION = "video", "state", "language", "action"
_MARK_MAIN, _MARK_TAGS = "__ModalityConfig__", "__ModalityConfig_class__"


class RequestSocket:
    """A ZeroMQ socket that asks one server at a time. After a timeout it is made anew: it could not ask again.

    A monitor beside the socket tells when the connection ends; the socket alone would wait for its reply in silence.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.address, self.key = endpoint.addresses[0], endpoint.key
        self.codec: Codec = GR00T
        self._endpoint = endpoint
        self._socket: zmq.SyncSocket | None = None
        self._monitor: zmq.SyncSocket | None = None

    def open(self) -> None:
        """Find the first server of the list that answers a ping; each gets an equal share of the time to connect.

        Raises `ServerUnreachableError` if none does, and `PolicyError` for an error, such as that of a wrong token.
        """
        self.close()
        self.address = connection.find_server(self._endpoint, self._try_ping)

    def _try_ping(self, address: str, until: float) -> str | None:
        self.address, share_s = address, self._endpoint.connect_s / len(self._endpoint.addresses)
        try:
            self.call("ping", timeout_s=max(0.0, min(share_s, until - time.monotonic())))
        except ServerLostError:
            return f"{address}: no answer to a ping"
        return None

    def call(self, endpoint: str, data: Mapping[str, object] | None = None, timeout_s: float | None = None) -> object:
        """Ask an endpoint, over a new connection if there is none, and return its answer.

        Raises `ServerLostError` if nothing comes in time, `PolicyError` for an answer that is an error or cannot be
        read.
        """
        request = {"endpoint": endpoint, **({} if data is None else {"data": data})}
        message = self.codec.pack({**request, **({"api_token": self.key} if self.key else {})})
        reply = self._exchange(message, self._endpoint.answer_s if timeout_s is None else timeout_s)
        if reply == _FAILED:
            self.close()
            problem = f"the policy server {self.address} cannot read what it was sent"
            raise PolicyError(problem, remedy="GR00T's servers before MessagePack pickle, which is not spoken: update.")
        answer = self.codec.unpack(reply)
        if isinstance(answer, dict) and "error" in answer:
            self.close()
            raise connection.server_error(self.address, str(answer["error"]), self.key)
        return answer

    def _exchange(self, message: bytes, seconds: float) -> bytes:
        import zmq

        socket = self._socket or self._connect()
        until = time.monotonic() + seconds
        try:
            socket.setsockopt(zmq.SNDTIMEO, round(1000 * seconds))
            socket.send(message)
            self._await_reply(socket, until, seconds)
            reply = socket.recv(zmq.NOBLOCK)
            has_more_parts = socket.getsockopt(zmq.RCVMORE)
        except zmq.Again:
            self.close()
            raise connection.silent_error(self.address, seconds) from None
        except zmq.ZMQError as error:
            self.close()
            raise ServerLostError(f"the policy server {self.address}: {error}", remedy="Start it again.") from None
        if has_more_parts:
            self.close()
            problem = f"the policy server {self.address} sent a message of several parts"
            raise PolicyError(problem, remedy="GR00T's servers send one: is it one?")
        return reply

    def _await_reply(self, socket: zmq.SyncSocket, until: float, seconds: float) -> None:
        import zmq

        poller = zmq.Poller()
        poller.register(socket, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)
        events = dict(poller.poll(max(0, round(1000 * (until - time.monotonic())))))
        if socket in events:
            return
        self.close()
        if not events:
            raise connection.silent_error(self.address, seconds)
        large = f"a reply of more than {connection.MAX_REPLY_BYTES // 2**20} MiB is not taken"
        problem = f"the policy server {self.address} closed the connection, or answers no heartbeat"
        raise ServerLostError(problem, remedy=f"Its own messages say why; start it again ({large}).")

    def describe_modalities(self) -> object:
        """Return the server's description of its modalities, None for an error; from now on pack arrays as it does.

        Raises `ServerLostError` if it goes or stays silent.
        """
        try:
            config = self.call("get_modality_config")
        except ServerLostError:
            raise
        except PolicyError:
            return None
        self.codec = choose_codec(config)
        return config

    def close(self) -> None:
        socket, monitor, self._socket, self._monitor = self._socket, self._monitor, None, None
        if socket is not None and monitor is not None:
            socket.disable_monitor()
            monitor.close(linger=0)
            socket.close(linger=0)

    def _connect(self) -> zmq.SyncSocket:
        import zmq

        socket: zmq.SyncSocket = zmq.Context.instance().socket(zmq.REQ)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.MAXMSGSIZE, connection.MAX_REPLY_BYTES)
        socket.setsockopt(zmq.HEARTBEAT_IVL, round(1000 * _HEARTBEAT_S))
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, round(1000 * _SILENT_S))
        self._monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        socket.connect(self.address)
        self._socket = socket
        return socket


class Gr00tModel(ChunkModel):
    """A model behind a GR00T server; its greeting is its modalities, which name no checkpoint."""

    def __init__(self, endpoint: Endpoint, dialect: Dialect, arguments: Mapping[str, str]) -> None:
        super().__init__(dialect)
        self._requests = RequestSocket(endpoint)
        self._bare = False
        """Whether the server is N1.5's, which takes the observation alone."""
        self._session = f"safevla-{uuid.uuid4().hex[:12]}"  # another client of the server has another
        self._is_first = True
        self._nested = False
        """Whether the server takes nested requests; the first action tells."""

    def begin(self, task: Task, seed: int) -> None:
        """Find the server, have it forget the last episode, and see that the dialect fits its modalities.

        Raises what `ChunkModel.begin` raises.
        """
        self._is_first = True
        with connection.guard_handshake(self._requests.close):
            self._requests.open()
            self._bare = not self._supports_reset()
            config = self._requests.describe_modalities()
            described = {} if config is None else {"modality_config": config}
            form = "the observation alone" if self._bare else "observation and options"
            self.greeting = sanitize_greeting({"get_action": form, **described}, self._requests.key)
            check_modalities(parse_modalities(config), self.dialect)

    def query(self, observation: Observation) -> Reply:
        """Return the server's action, with flat keys; raises what `ChunkModel.query` raises.

        If the server complains of its video, asks once more in the other form, nested or flat, and keeps to what it
        answers to.
        """
        request = self.dialect.build_request(observation)
        try:
            return self._request_action(request)
        except ServerLostError:
            raise
        except PolicyError as error:
            if VIDEO not in error.problem.lower():
                raise
            with suppress(PolicyError):
                self._nested = not self._nested
                return self._request_action(request)
            self._nested = not self._nested
            raise

    def _request_action(self, request: dict[str, object]) -> Reply:
        memory = {"reset_memory": [self._is_first], "session_ids": [self._session]}
        options = memory if self.dialect.sessions else None
        observation = nest_request(request) if self._nested else request
        call_input = observation if self._bare else {"observation": observation, "options": options}
        answer = action = self._requests.call("get_action", call_input)
        if not self._bare:
            action = answer[0] if isinstance(answer, list) and answer else None
        if not isinstance(action, dict):
            problem = f"the server {self._requests.address} answered with a {type(answer).__name__}"
            raise PolicyError(problem, remedy="GR00T's servers answer [action, info], N1.5's an action: is it one?")
        self._is_first = False
        return {_flat_key(ACTION, key): value for key, value in action.items()} if self._nested else action

    def close(self) -> None:
        self._requests.close()

    def _supports_reset(self) -> bool:
        """Reset the server and return True; False if it has no endpoint `reset`, as N1.5's."""
        try:
            self._requests.call("reset", {"options": None})
        except ServerLostError:
            raise
        except PolicyError as error:
            if _NO_RESET not in error.problem:
                raise
            return False
        return True


# Modalities


@dataclass(frozen=True, slots=True)
class Modality:
    """One modality of a model: its keys as flat requests and replies have them, and its number of frames."""

    keys: tuple[str, ...]
    frames: int


def choose_codec(config: object) -> Codec:
    """Return a server's codec: `GR00T_MAIN` if a value of its description has main's mark, else `GR00T`."""
    values = config.values() if isinstance(config, Mapping) else ()
    is_main = any(isinstance(value, Mapping) and _MARK_MAIN in value for value in values)
    return GR00T_MAIN if is_main else GR00T


def parse_modalities(config: object) -> dict[str, Modality]:
    """Return the modalities in a GR00T server's get_modality_config reply, by name; skip unreadable ones."""
    described = config.items() if isinstance(config, Mapping) else ()
    parsed = ((str(name), _parse_modality(str(name), value)) for name, value in described)
    return {name: modality for name, modality in parsed if modality is not None}


def _parse_modality(name: str, value: object) -> Modality | None:
    content = value.get("as_json") if isinstance(value, Mapping) and {_MARK_MAIN, _MARK_TAGS} & set(value) else None
    try:
        if isinstance(content, str):  # N1.5 writes JSON into the message
            content = msgspec.json.decode(content)
        described = msgspec.convert(content, _DescribedModality)
    except msgspec.MsgspecError:
        return None
    return Modality(tuple(_flat_key(name, key) for key in described.modality_keys), len(described.delta_indices))


class _DescribedModality(msgspec.Struct):
    modality_keys: list[str]
    delta_indices: list[object]


def _flat_key(modality: str, key: str) -> str:
    return key if modality == LANGUAGE or key.startswith(f"{modality}.") else f"{modality}.{key}"


def check_modalities(modalities: Mapping[str, Modality], dialect: Dialect) -> None:
    """Raise `PolicyError` for a server whose model takes or gives other keys than the dialect, or more than one frame.

    The error names the keys, and a dialect that fits. Modalities that the server does not describe are not checked.
    """
    problem = next(_mismatches(modalities, dialect), None)
    if problem is None:
        return
    rivals = map(dialects.load_dialect, dialects.dialects_of("gr00t"))
    fitting = next((rival.name for rival in rivals if not any(_mismatches(modalities, rival))), None)
    remedy = f"Pass --policy-arg dialect={fitting}." if fitting else "No dialect here fits: serve another checkpoint."
    raise PolicyError(problem, remedy=remedy)


def _mismatches(modalities: Mapping[str, Modality], dialect: Dialect) -> Iterator[str]:
    """Yield a sentence for each way in which a model's modalities differ from what the dialect sends and reads."""
    sent = {".".join(map(str, field.path)) for field in dialect.fields}
    for name in (VIDEO, STATE, LANGUAGE):
        modality = modalities.get(name, Modality((), 1))
        wanted = modality.keys[:1] if name == LANGUAGE else modality.keys  # of several instructions the first is read
        if missing := [key for key in wanted if key not in sent]:
            yield f"the server's model takes {', '.join(missing)}, which the dialect {dialect.name!r} does not send"
        if modality.frames > 1:
            yield f"the server's model takes {modality.frames} frames of {name}, and one is sent"
    action = modalities.get(ACTION)
    wanted_actions = [".".join(part.path) for part in dialect.parts]
    if action and (missing := [key for key in wanted_actions if key not in action.keys]):
        yield f"the server's model gives {', '.join(action.keys)}, and the dialect {dialect.name!r} reads {missing[0]}"


def nest_request(request: Request) -> Request:
    """Return a flat request as a server without --use-sim-policy-wrapper takes it: maps of video, state and language.

    Lists of texts get a time axis too; the request itself is not changed.
    """
    nested: dict[str, dict[str, object]] = {VIDEO: {}, STATE: {}, LANGUAGE: {}}
    for key, value in request.items():
        modality, _, name = key.partition(".")
        if modality in (VIDEO, STATE):
            nested[modality][name] = value
        else:
            nested[LANGUAGE][key] = [[text] for text in value] if isinstance(value, list) else value
    return {**nested}


make = client_factory("gr00t", Gr00tModel)
"""Makes the client; its key is GR00T's `api_token`."""
