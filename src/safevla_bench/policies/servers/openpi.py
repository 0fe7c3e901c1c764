"""The policies `openpi:ws://HOST:8000` and `xpolicylab:ws://HOST:19000`, clients of openpi's and XPolicyLab's servers.

openpi's websocket frames contain MessagePack. The greeting is the server's metadata. Each request is a map of the
observation, and each reply a map with `actions` [H, A]. A text frame is the traceback of an error in the server.
starVLA's servers use the same protocol with three differences: the greeting has the key `env`, a reply has its content
under `data`, and an error is a map (0ed0aad deployment/model_server/tools/websocket_policy_server.py).

XPolicyLab's frames are maps with `message_type`, `message_id`, `payload` and the episode (7198143 client_server/ws).
The client sends `hello`, then `reset` for each episode. The reply to `infer` is a list of actions, all of which are
executed.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec
from msgspec import structs

from safevla_bench.errors import InvalidActionError, PolicyError, ServerRefusedError
from safevla_bench.interface.policy import Observation
from safevla_bench.interface.task import Task
from safevla_bench.policies.servers import RemoteModel, client_factory
from safevla_bench.policies.servers import endpoint as servers
from safevla_bench.policies.servers.codecs import GR00T_MAIN, OPENPI
from safevla_bench.policies.servers.dialects import NONE, Dialect, Reply, RequestEntry
from safevla_bench.text import get_logger

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

INVALID_ACTION = "invalid_action"  # key in replies of `safevla serve`: why the action is invalid
_TOO_BIG = 1009  # the websocket protocol's close code for a message that is too large
_LOG = get_logger(__name__)
_LOG.setLevel(logging.CRITICAL)  # at DEBUG, websockets logs all headers, including the key


class WebsocketModel(RemoteModel):
    """A model behind a websocket: one connection per episode, no compression, no proxy. All answers are maps."""

    kind = "openpi"
    codec = OPENPI

    def __init__(self, endpoint: servers.Endpoint, dialect: Dialect, arguments: Mapping[str, str]) -> None:
        # No connection is made yet.
        super().__init__(endpoint, dialect, arguments)
        self._connection: ClientConnection | None = None
        self._open_connections = ExitStack()  # closes the connection by its context manager

    def send(self, message: object) -> None:
        """Send a message. Raises `ServerLostError` if the server is gone. Also raises it if the server has sent an
        unrequested message, because its replies may then belong to earlier requests. Raises `PolicyError` if the server
        has sent a text frame, which contains an error, or if the message is too large for the server.
        """
        from websockets.exceptions import ConnectionClosed

        # A stray frame is a message that arrived before this request; None = there is none.
        connection, stray_frame = self._require_connection(), None
        # This timer limits the time to send the message. A timeout of the socket would also end idle connections.
        expired = threading.Event()

        def hang_up() -> None:
            expired.set()
            self._shut_down()

        timer = threading.Timer(self._endpoint.answer_s, hang_up)
        timer.daemon = True
        timer.start()
        try:
            with suppress(TimeoutError):  # a timeout means that no message is waiting
                stray_frame = connection.recv(timeout=0)
            if stray_frame is None:
                connection.send(self.codec.pack(message))
        except (ConnectionClosed, OSError) as error:
            if expired.is_set():  # the server did not read the message in time
                self.close()
                raise servers.silent_error(self.address, self._endpoint.answer_s) from None
            raise self._closed_error(error) from None
        except AssertionError:  # websockets may raise this error after a timeout, when messages are out of order
            stray_frame = b""  # not None, so that the error below is raised
        finally:
            timer.cancel()
        if isinstance(stray_frame, str):
            self.close()
            raise self.server_error(stray_frame)
        if stray_frame is not None:
            self._hang_up()
            raise self.stray_error(stray_frame)

    def stray_error(self, frame: bytes) -> PolicyError:
        # Return the error for a message that was not requested.
        event = "sent a message that was not requested, so its replies cannot be matched to requests"
        return servers.stray_error(self.address, event)

    def receive_map(self) -> dict[str, object]:
        """Return the next message. Raises `ServerLostError` if the server closes the connection or does not answer in
        time. Raises `PolicyError` for a text frame (the server's traceback), for a message that is not a map or is too
        large, and before the first episode.
        """
        # A message is a frame of bytes; a text frame holds an error.
        from websockets.exceptions import ConnectionClosed

        try:
            frame = self._require_connection().recv(timeout=self._endpoint.answer_s)
        except (TimeoutError, AssertionError):  # websockets may raise AssertionError after a timeout
            self._hang_up()
            raise servers.silent_error(self.address, self._endpoint.answer_s) from None
        except (ConnectionClosed, OSError) as error:
            raise self._closed_error(error) from None
        if isinstance(frame, str):
            self.close()
            raise self.server_error(frame)
        message = self.codec.unpack(frame)
        if not isinstance(message, dict):
            raise self.kind_error(f"sent a {type(message).__name__} instead of a map")
        return message

    def close(self) -> None:
        # Close the connection, if there is one.
        self._connection = None
        self._open_connections.close()

    def _require_connection(self) -> ClientConnection:
        # Return the open connection; raise `PolicyError` if there is none.
        if self._connection is None:
            raise PolicyError("the policy was called before an episode began", remedy="Call reset first.")
        return self._connection

    def _try_connect(self, address: str, until: float) -> str | None:
        # Open a connection until the monotonic time `until`. Return None on success, else the reason for the failure.
        # Raise `PolicyError` if the server answers with an HTTP status that another attempt would not change.
        from websockets.exceptions import InvalidStatus, WebSocketException
        from websockets.sync.client import connect

        url = urlsplit(address)  # addresses are complete: they have a host and a port
        left_s, first_answer_s = max(until - time.monotonic(), servers.PAUSE_S), self._endpoint.first_answer_s
        try:
            sock = socket.create_connection((url.hostname or "", url.port or 0), left_s)
        except OSError as error:
            return servers.describe_lost_connection(error)
        sock.settimeout(None)  # websockets before 17 would end connections that are idle for this time
        try:
            connection = connect(
                address,
                sock=sock,  # prevents redirects
                additional_headers={"Authorization": f"Api-Key {self.key}"} if self.key else {},
                compression=None,
                proxy=None,
                open_timeout=first_answer_s,
                close_timeout=1.0,
                ping_interval=None,  # no pings, because a server does not answer them while it compiles its model
                max_size=servers.MAX_REPLY_BYTES,
                logger=_LOG,
            )
            self._connection = self._open_connections.enter_context(connection)
        except (OSError, EOFError, ValueError, WebSocketException, AssertionError) as error:
            if isinstance(error, TimeoutError):
                return f"accepts the connection, but gives no answer within timeout_s={first_answer_s:g}"
            # websockets 17 may raise AssertionError for other servers; later versions raise ValueError for redirects.
            cause = error.__cause__ if isinstance(error, ValueError) else error
            status = cause.response.status_code if isinstance(cause, InvalidStatus) else None
            if status is None or status >= 500:  # no server, or a proxy without a running server: try again later
                prefix = "answers, but not over WebSocket: " if isinstance(error, WebSocketException) else ""
                return prefix + servers.describe_lost_connection(error)
            raise servers.status_error(address, status, self.key) from None
        return None

    def _closed_error(self, error: Exception) -> PolicyError:
        # Close the connection, and return the error for a lost connection, or for a message that is too large.
        # Only a `ConnectionClosed` contains the close frames `sent` and `rcvd`.
        # The code in a close frame is the reason.
        self._hang_up()
        close_frames = getattr(error, "sent", None), getattr(error, "rcvd", None)
        if any(frame is not None and frame.code == _TOO_BIG for frame in close_frames):
            return servers.size_error(self.address)
        return servers.lost_error(self.address, f"closed the connection ({servers.describe_lost_connection(error)})")

    def _hang_up(self) -> None:
        # Close the connection without waiting for the server, which may not answer.
        self._shut_down()
        self.close()

    def _shut_down(self) -> None:
        # Close TCP without closing TLS; another thread's call on the connection then fails.
        if self._connection is not None:
            with suppress(OSError):
                socket.socket.shutdown(self._connection.socket, socket.SHUT_RDWR)


class OpenpiModel(WebsocketModel):
    """A model behind an openpi server. Only for starVLA: `unnorm_key` names the statistics for scaling actions."""

    def __init__(self, endpoint: servers.Endpoint, dialect: Dialect, arguments: Mapping[str, str]) -> None:
        # `unnorm_key`, an argument for starVLA's servers, names statistics for scaling actions.
        # All requests contain this name.
        if "unnorm_key" in arguments:
            dialect = dialect.add_fixed("unnorm_key", arguments["unnorm_key"])
        super().__init__(endpoint, dialect, arguments)
        self._base_dialect = dialect  # a server's greeting changes `dialect`

    def ask_arguments(self) -> Mapping[str, str]:
        # Return the client arguments that the server requests, such as its cameras; {} for most servers.
        with suppress(ServerRefusedError):  # `greeting` is set even if the dialect does not fit the server
            self._connect()
        self.close()
        served = _parse_served_greeting(self.greeting)
        if served:
            return served.arguments(self.dialect)
        chunk_size = self.greeting.get("action_chunk_size")  # only starVLA's servers send this key
        # In a dialect with `replan` "server", the server decides how many actions of a chunk are executed.
        requests_replan = isinstance(chunk_size, int) and self.dialect.inference.replan == "server"
        return {"replan": str(chunk_size)} if requests_replan else {}

    def query(self, observation: Observation) -> Reply:
        # Return the server's reply, and set `infer_s`, the model's time. Raise `PolicyError` for an error reply.
        self.send(self.dialect.build_request(observation))
        reply = self.receive_map()
        timing = reply.get("server_timing")
        infer_ms = timing.get("infer_ms") if isinstance(timing, Mapping) else None
        self.infer_s = infer_ms / 1000 if isinstance(infer_ms, int | float) and infer_ms >= 0 else None
        if reply.get("ok") is False:  # starVLA's servers report errors in this form
            raise self.server_error(reply.get("error"))
        problem = reply.get(INVALID_ACTION)
        if isinstance(problem, str):
            self.has_answered = True  # the kind of server is right, so only the current episode fails
            raise InvalidActionError(problem, remedy="Fix the actions of the served policy.")
        return reply

    def _greet(self) -> None:
        # Receive the greeting, and adapt the dialect to it. Raise `PolicyError` if the dialect lacks required images.
        self.greeting = servers.sanitize_greeting(self.receive_map(), self.key)
        self.dialect = self._base_dialect  # another server may have answered before
        if served := _parse_served_greeting(self.greeting):
            served.require_images(self.dialect)
            self.dialect = served.adapt_dialect(self.dialect)
        self.wants = self.dialect.wants


_SERVED_FIELDS = (  # entries of each request to `safevla serve`, in addition to images
    RequestEntry(("observation/state",), state=("eef_pos", "eef_axis_angle", "gripper_qpos")),
    RequestEntry(("prompt",), text="instruction"),
)


class _ServedGreeting(msgspec.Struct, frozen=True):
    # The greeting of `safevla serve`.
    version: str = msgspec.field(name="safevla-bench")
    cameras: dict[str, str]  # maps a request's key to a camera's name
    image_size: tuple[int, int]
    replan: str | None = None
    absolute: bool = False
    clip: bool = True

    def adapt_dialect(self, dialect: Dialect) -> Dialect:
        # Return the dialect with the kind of actions, and the clipping, that the served policy declares.
        # `absolute`: actions are poses, not changes of pose; `clip`: actions are clipped to the host's range.
        # The server reads the same images, state and prompt on every host, and sends the gripper in the host's units.
        inference = structs.replace(dialect.inference, clip=self.clip, flip="180", gripper="raw")
        images = (structs.replace(field, flip=None) for field in dialect.fields if field.camera)
        wants = replace(dialect.wants, absolute=self.absolute, extra=())
        return replace(dialect, wants=wants, fields=(*images, *_SERVED_FIELDS), inference=inference)

    def arguments(self, dialect: Dialect) -> dict[str, str]:
        """Return the server's requirements as client arguments. Omit the cameras if the dialect lacks any of them."""
        # `self.cameras` maps keys of a request's images to cameras.
        # The argument names a camera or `NONE` for each image.
        # An empty text means: the server does not require a value, or the dialect cannot use the required value.
        keys = _list_image_keys(dialect)
        cameras = ",".join(self.cameras.get(key, NONE) for key in keys) if self.cameras.keys() <= set(keys) else ""
        image_size = self._format_size() if self.cameras else ""
        arguments = {"cameras": cameras, "image_size": image_size, "replan": self.replan or ""}
        return {name: value for name, value in arguments.items() if value}

    def require_images(self, dialect: Dialect) -> None:
        # Raise `PolicyError` if the served policy needs an image that the dialect does not send, or another size.
        missing = [f"{key!r} ({self.cameras[key]})" for key in self.cameras if key not in _list_image_keys(dialect)]
        if missing or (self.cameras and self.image_size != dialect.inference.image_size):
            wanted = missing[0] if missing else f"images of {self._format_size()} pixels"
            remedy = "Omit --policy-arg cameras, image_size and dialect, so that the server's values are used."
            raise PolicyError(f"the client does not send {wanted}, which the served policy needs", remedy=remedy)

    def _format_size(self) -> str:
        # Return the size as `HxW`, or as `N` if height and width are equal: `dict.fromkeys` removes the repetition.
        return "x".join(map(str, dict.fromkeys(self.image_size)))


def _list_image_keys(dialect: Dialect) -> list[str]:
    # Return the request's keys for images, such as `observation/image`, in the dialect's order.
    return [field.place for field in dialect.fields if field.camera]


def _parse_served_greeting(greeting: servers.Greeting) -> _ServedGreeting | None:
    # Return the greeting of a server started by `safevla serve`; None for a greeting of another server.
    try:
        return msgspec.convert(greeting, _ServedGreeting)
    except msgspec.ValidationError:
        return None


# XPolicyLab


ANSWERS = {"hello": "hello_ack", "reset": "reset_result", "infer": "infer_result"}


class XpolicylabModel(WebsocketModel):
    """A model behind an XPolicyLab server. The server does not name its checkpoint."""

    kind, codec = "xpolicylab", GR00T_MAIN
    _trial_id, _step, _message_id = "", 0, 0

    def begin(self, task: Task, seed: int) -> None:
        # Connect, and begin an episode (a trial in the protocol). `_step` counts the episode's answered observations.
        super().begin(task, seed)
        self._trial_id, self._step = f"{task.benchmark}/{task.task_id}/{seed}", 0
        self._ask("reset", {"trial_id": self._trial_id})

    def _greet(self) -> None:
        # Exchange greetings, and store the server's description of itself without secrets.
        self.greeting = servers.sanitize_greeting(self._ask("hello", {}), self.key)

    def query(self, observation: Observation) -> Reply:
        # Return the server's answer to an observation; the answer contains the actions.
        reply = self._ask("infer", {"observation": self.dialect.build_request(observation)})
        self._step += 1
        return reply

    def _ask(self, kind: str, payload: dict[str, object]) -> dict[str, object]:
        # Send a message of the type `kind`, a key of `ANSWERS`, and return the answer's payload.
        # Raise `PolicyError` for the server's error, and `ServerLostError` for an answer to an earlier message.
        self._message_id += 1
        request = {"message_type": kind, "message_id": str(self._message_id), "payload": payload, "step": self._step}
        self.send({**request, "evaluation_id": "safevla-bench", "trial_id": self._trial_id or None})
        answer = self.receive_map()
        content = answer.get("payload")  # in valid answers, `content` is a map
        if isinstance(content, dict) and answer.get("message_type") == "error":
            raise self.server_error(content)
        is_answer = isinstance(content, dict) and answer.get("message_type") == ANSWERS[kind]
        # An answer must repeat the request's id. A different id means that the message answers an earlier request.
        if (is_answer or "message_id" in answer) and answer.get("message_id") != request["message_id"]:
            self._hang_up()
            event = f"answered message {str(answer.get('message_id'))[:60]}, not {request['message_id']}"
            raise servers.stray_error(self.address, event)
        if not isinstance(content, dict) or not is_answer:
            raise self.kind_error(f"sent no {ANSWERS[kind]} of XPolicyLab")
        return content


make = client_factory("openpi", OpenpiModel)
make_xpolicylab = client_factory("xpolicylab", XpolicylabModel)
