"""The policy `gr00t:HOST:5555`, behind a GR00T server that is queried over ZeroMQ.

Requests and replies are MessagePack. A request is a map with the name of an endpoint and data; its reply is `[action,
info]` or `{"error": text}`. Each camera, state and action has a key in its modality (video, state or action). Servers
of GR00T N1.5 have no endpoint `reset`. Their requests contain only the observation, and their replies only the action.

The client queries the endpoint `get_modality_config` before the first action. Marks in the reply's values show which of
two array encodings the server uses. The reply's keys are the model's keys, such as `image` or, for N1.5, `video.image`.
The server's option `--use-sim-policy-wrapper` decides whether requests are flat or nested (gr00t/policy/gr00t_policy.py
at 626af89). The reply does not show this; only the answer to a flat request does.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from safevla_bench.errors import PolicyError, ServerLostError
from safevla_bench.interface.policy import Observation
from safevla_bench.interface.task import Task
from safevla_bench.policies.servers import RemoteModel, client_factory
from safevla_bench.policies.servers import endpoint as servers
from safevla_bench.policies.servers.codecs import GR00T, GR00T_MAIN, Codec
from safevla_bench.policies.servers.dialects import Dialect, Reply, Request

if TYPE_CHECKING:
    import zmq

_NO_RESET = "Unknown endpoint: reset"  # part of an error message from servers of GR00T N1.5
VIDEO, STATE, LANGUAGE, ACTION = "video", "state", "language", "action"
_MAIN_MARK = "__ModalityConfig__"  # a key that only servers of GR00T's main branch send
_MODALITY_MARKS = {_MAIN_MARK, "__ModalityConfig_class__"}


class Gr00tModel(RemoteModel):
    """A model behind a GR00T server. The greeting lists the model's modalities, but no checkpoint. A ZeroMQ socket
    serves one request at a time. A socket is unusable after a timeout, so a new one replaces it.
    """

    kind = "gr00t"

    def __init__(self, endpoint: servers.Endpoint, dialect: Dialect, arguments: Mapping[str, str]) -> None:
        # No connection is made yet. `arguments` are the policy's arguments.
        super().__init__(endpoint, dialect, arguments)
        self.codec = GR00T  # used until `_greet` knows the server's codec
        self._socket: zmq.SyncSocket | None = None  # None = not connected
        self._is_n15 = False  # whether the server is of GR00T N1.5; if so, requests contain only the observation
        self._session_id = f"safevla-{uuid.uuid4().hex[:12]}"  # an id that only this client uses
        self._is_first = True  # whether the next request is the first of its episode
        self._is_nested = False  # whether the server takes nested requests; known after its first answer

    def begin(self, task: Task, seed: int) -> None:
        """Find a server, reset it, and check that the dialect fits the model's modalities. Each server
        gets an equal share of the connection timeout. Raises the errors of `ChunkModel.begin`.
        """
        self._is_first = True  # the first request of an episode resets the server's memory
        super().begin(task, seed)

    def _greet(self) -> None:
        # Reset the server, ask it for its model's modalities, and set `greeting`, `codec` and `_is_n15`.
        # Raise `PolicyError` if the server refuses the reset, or if the server's model does not fit the dialect.
        reset_answer = self._call_or_return_error("reset", {"options": None})
        if isinstance(reset_answer, PolicyError) and _NO_RESET not in reset_answer.problem:
            raise reset_answer
        self._is_n15 = isinstance(reset_answer, PolicyError)  # only servers of N1.5 have no endpoint `reset`
        request_form = "the observation alone" if self._is_n15 else "observation and options"
        greeting: dict[str, object] = {"get_action": request_form}
        config = self._call_or_return_error("get_modality_config")
        # If the server cannot describe its modalities, modalities are not checked.
        if not isinstance(config, PolicyError):
            self.codec = choose_codec(config)
            greeting["modality_config"] = config
        self.greeting = servers.sanitize_greeting(greeting, self.key)
        check_modalities(parse_modalities(config), self.dialect)

    def query(self, observation: Observation) -> Reply:
        """Return the server's action, with flat keys. If the server rejects the video of a flat request, try a nested
        request, and vice versa. Later requests have the form that works. Raises the errors of `ChunkModel.query`.
        """
        request = self.dialect.build_request(observation)
        try:
            return self._request_action(request)
        except ServerLostError:
            raise
        except PolicyError as error:
            # Only an error that mentions the video can be about the form of the request.
            if VIDEO not in error.problem.lower():
                raise
            self._is_nested = not self._is_nested
            with suppress(PolicyError):
                return self._request_action(request)
            self._is_nested = not self._is_nested  # the server rejects both forms, so raise the first error
            raise

    def _request_action(self, request: Request) -> Reply:
        # Send a flat request, converted to a nested one if necessary, and return the action with flat keys.
        # Session options make a server keep a separate memory for this client; other servers get no options.
        session_options = {"reset_memory": [self._is_first], "session_ids": [self._session_id]}
        options = session_options if self.dialect.file.sessions else None
        observation = nest_request(request) if self._is_nested else request
        data = observation if self._is_n15 else {"observation": observation, "options": options}
        answer = action = self.call("get_action", data)  # a server of N1.5 answers with the action alone
        if not self._is_n15:  # newer servers answer with [action, info]
            action = answer[0] if isinstance(answer, list) and answer else None
        if not isinstance(action, dict):
            raise self.kind_error(f"answered with a {type(answer).__name__}")
        self._is_first = False  # only an episode's first request resets the server's memory
        return {_flat_key(ACTION, key): value for key, value in action.items()} if self._is_nested else action

    def call(self, endpoint: str, data: Mapping[str, object] | None = None, timeout_s: float | None = None) -> object:
        """Call an endpoint and return its answer; connect first if there is no connection. Raises `ServerLostError` if
        the answer does not arrive in time, and `PolicyError` if the answer is unreadable or reports an error.
        """
        # `endpoint` is the name of a server's function, such as `get_action`. Without `timeout_s`, `answer_s` applies.
        seconds = self._endpoint.answer_s if timeout_s is None else timeout_s
        fields = {"endpoint": endpoint, "data": data, "api_token": self.key}
        request = {name: value for name, value in fields.items() if value is not None}
        answer = self.codec.unpack(self._exchange(self.codec.pack(request), seconds))
        if isinstance(answer, dict) and "error" in answer:
            self.close()  # the next call begins with a new connection
            raise self.server_error(str(answer["error"]))
        return answer

    def _call_or_return_error(self, endpoint: str, data: Mapping[str, object] | None = None) -> object:
        # Return an endpoint's answer, or the `PolicyError` if the call fails. Raise the error if the server is lost.
        try:
            return self.call(endpoint, data)
        except ServerLostError:
            raise
        except PolicyError as error:
            return error

    def _try_connect(self, address: str, until: float) -> str | None:
        # Ping a server. Return None if it answers, else the reason for the failure.
        # The time for the connection is limited by the server's share of the connection timeout, not by `until`.
        self.close()
        self.address = address
        try:
            self.call("ping", timeout_s=self._endpoint.first_answer_s)
        except ServerLostError:
            return "no answer to a ping"
        return None

    def _exchange(self, message: bytes, seconds: float) -> bytes:
        # Send a message and return the answer, over a new socket if there is none.
        # Raise `ServerLostError` if the server is silent for `seconds`, is gone, or sent an unrequested message.
        # Raise `ReplyError` if the answer has several parts.
        import zmq

        try:
            if self._socket is None:
                self._socket = self._open_socket()
                monitor = self._socket.get_monitor_socket()
                # The monitor's first event means that the server has accepted the connection.
                # Each later event means that the connection was lost. ZeroMQ may then have connected to a new server.
                if not monitor.poll(round(1000 * self._endpoint.connect_s / len(self._endpoint.addresses))):
                    raise servers.lost_error(self.address, "does not accept the connection")
                monitor.recv_multipart()
            socket, monitor = self._socket, self._socket.get_monitor_socket()
            if socket.poll(0):  # an unread message; a REQ socket would drop it, but a DEALER socket does not
                raise servers.stray_error(self.address, "sent a message that was not requested")
            if not monitor.poll(0):
                socket.send_multipart([b"", message])  # the server expects an empty first part, as from a REQ socket
                poller = zmq.Poller()
                poller.register(socket, zmq.POLLIN)
                poller.register(monitor, zmq.POLLIN)
                poller.poll(round(1000 * seconds))
            if monitor.poll(0):
                raise servers.lost_error(self.address, "closed the connection")
            if not socket.poll(0):
                raise servers.silent_error(self.address, seconds)
            _, *parts = socket.recv_multipart()  # the answer's first part is also empty
            if len(parts) != 1:
                raise self.kind_error("sent a message that has several parts")
        except zmq.ZMQError as error:
            self.close()
            raise servers.lost_error(self.address, f"is gone: {error}") from None
        except PolicyError:
            self.close()
            raise
        return parts[0]

    def _open_socket(self) -> zmq.SyncSocket:
        # Return a new socket that connects to the server in the background; this raises no error without a server.
        import zmq

        socket: zmq.SyncSocket = zmq.Context.instance().socket(zmq.DEALER)
        socket.setsockopt(zmq.LINGER, 0)  # closing discards unsent messages instead of waiting
        socket.setsockopt(zmq.MAXMSGSIZE, servers.MAX_REPLY_BYTES)
        socket.setsockopt(zmq.IPV6, int("[" in self.address))  # otherwise ZeroMQ never reaches an IPv6 address
        socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED, f"inproc://{uuid.uuid4()}")
        socket.connect(self.address)
        return socket

    def close(self) -> None:
        # Close the connection, if there is one. A later call opens a new one.
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.get_monitor_socket().close(linger=0)
            socket.disable_monitor()
            socket.close(linger=0)


# Modalities


class Modality(msgspec.Struct, frozen=True):
    """One modality of a model: its keys, and the time offsets of the frames that the model reads."""

    modality_keys: tuple[str, ...]
    delta_indices: tuple[object, ...] = (0,)


def choose_codec(config: object) -> Codec:
    """Return a server's codec: `GR00T_MAIN` if a value of `config` has the key `_MAIN_MARK`, else `GR00T`."""
    # `config` is the reply to `get_modality_config`. Only newer servers (GR00T's main branch) send `_MAIN_MARK`.
    values = config.values() if isinstance(config, Mapping) else ()
    is_main = any(isinstance(value, Mapping) and _MAIN_MARK in value for value in values)
    return GR00T_MAIN if is_main else GR00T


def parse_modalities(config: object) -> dict[str, Modality]:
    """Return a model's modalities by name, from a GR00T server's reply to get_modality_config. Unreadable modalities
    are omitted. Keys are converted to the keys of flat requests and replies.
    """
    # A modality (video, state, language or action) contains the keys of a model's inputs or outputs, such as cameras.
    modalities = {}
    for name, value in config.items() if isinstance(config, Mapping) else ():
        # A map with one of these keys describes a modality. Each of the two array encodings uses its own key.
        if not isinstance(value, Mapping) or not _MODALITY_MARKS & value.keys():
            continue
        with suppress(msgspec.MsgspecError):  # unreadable: omit the modality
            content = value.get("as_json")
            if isinstance(content, str):  # N1.5 sends the content as JSON
                content = msgspec.json.decode(content)
            modality = msgspec.convert(content, Modality)
            keys = tuple(_flat_key(str(name), key) for key in modality.modality_keys)
            modalities[str(name)] = Modality(keys, modality.delta_indices)
    return modalities


def _flat_key(modality: str, key: str) -> str:
    # Return a key as in flat requests, such as `video.image`. Keys of the modality language get no prefix.
    # Keys of servers of N1.5 already contain the prefix.
    return key if modality == LANGUAGE or key.startswith(f"{modality}.") else f"{modality}.{key}"


def check_modalities(modalities: Mapping[str, Modality], dialect: Dialect) -> None:
    """Raise `PolicyError` if the server's model needs keys that the dialect does not send, lacks an action that the
    dialect reads, or takes more than one frame. Modalities without a description by the server are not checked.
    """
    # A dialect determines the keys of a request, and which actions of a reply are read.
    remedy = "Choose the dialect that safevla doctor --server finds for this model, or serve another checkpoint."
    sent = {".".join(map(str, field.path)) for field in dialect.fields}
    for name in (VIDEO, STATE, LANGUAGE):
        modality = modalities.get(name, Modality(()))  # if it is unknown, check no keys
        keys = modality.modality_keys[:1] if name == LANGUAGE else modality.modality_keys  # one text is sent
        missing = [key for key in keys if key not in sent]
        if missing:
            problem = f"the server's model takes {', '.join(missing)}, which the dialect {dialect.name!r} does not send"
            raise PolicyError(problem, remedy=remedy)
        if len(modality.delta_indices) > 1:  # one time offset for each frame that the model takes
            frames = f"{len(modality.delta_indices)} frames of {name}"
            raise PolicyError(f"the server's model takes {frames}, but the client sends one", remedy=remedy)
    actions = modalities.get(ACTION, Modality(())).modality_keys  # () if the server does not describe its actions
    read_keys = [".".join(part.path) for part in dialect.file.reply]
    missing = [key for key in read_keys if key not in actions]
    if actions and missing:
        problem = f"the server's model gives {', '.join(actions)}, but the dialect {dialect.name!r} reads {missing[0]}"
        raise PolicyError(problem, remedy=remedy)


def nest_request(request: Request) -> Request:
    """Convert a flat request to a nested request, for servers without --use-sim-policy-wrapper. A nested request has
    one map each for video, state and language. Lists of texts also get a time axis. `request` is not changed.
    """
    nested: dict[str, dict[str, object]] = {VIDEO: {}, STATE: {}, LANGUAGE: {}}
    for key, value in request.items():
        modality, _, name = key.partition(".")
        if modality in (VIDEO, STATE):  # keys such as `video.image`; values of all other keys are texts
            nested[modality][name] = value
        else:
            nested[LANGUAGE][key] = [[text] for text in value] if isinstance(value, list) else value
    return {**nested}  # a new map, because mypy refuses `nested` as a `Request`


make = client_factory("gr00t", Gr00tModel)  # the client sends the server's secret key as GR00T's `api_token`
