"""A server that makes any policy of this package available by openpi's protocol.

Each connection is one episode. The episode begins with a reset to the server's seed and the instruction of the first
request. At its start, the server makes one or several copies of the policy. From its first request on, an episode has
one copy to itself, so no episode sees another episode's state. Other episodes wait until a copy is free.
"""

from __future__ import annotations

import hmac
import logging
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from http import HTTPStatus
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from safevla_bench.errors import InvalidActionError, Place, PolicyError
from safevla_bench.interface import policy as interface
from safevla_bench.interface.policy import Action, Observation, Policy, Wants, to_real_numbers
from safevla_bench.interface.task import Task
from safevla_bench.plugins import NO_ARGUMENTS
from safevla_bench.policies.servers.codecs import OPENPI
from safevla_bench.policies.servers.endpoint import sanitize_greeting
from safevla_bench.policies.servers.openpi import INVALID_ACTION
from safevla_bench.text import get_logger
from safevla_bench.version import __version__

if TYPE_CHECKING:
    from websockets.http11 import Request, Response
    from websockets.sync.server import Server, ServerConnection

IMAGES = ("observation/image", "observation/wrist_image")  # keys of images, in the policy's camera order
CARRIED = ("cameras", "image_size", "absolute")  # fields of `Wants` that clients read from the greeting
MAX_REQUEST_BYTES = 64 * 2**20
MAX_CONNECTIONS = 64  # maximum number of open connections, even those without a request
OPEN_S = 10.0
SILENT_S = 300.0  # maximum time to wait for a client's next request, or for a free copy of the policy
_STATE, _PROMPT = "observation/state", "prompt"
# Requests contain only the instruction of a task. The assumed action for holding still is that of one arm.
_TASK = Task("served", "task_0", 0, "served", "", (*[0.0] * 6, -1.0))
_LOG = get_logger(__name__)
_LOG.setLevel(logging.INFO)  # at DEBUG, websockets logs all headers, including the key


class ServedPolicy:
    """A policy to serve, and its copies. All copies are made at the start, so that errors appear immediately."""

    def __init__(
        self,
        name: str,
        make: Callable[[], Policy],
        seed: int = 0,
        arguments: Mapping[str, str] = NO_ARGUMENTS,
        copies: int = 1,
    ) -> None:
        """Make `copies` policies; raise `PolicyError` if the policy wants something that a client cannot provide."""
        # `make` makes one copy. `name` and `arguments` only describe the policy; `seed` begins each episode.
        self.name, self.seed, self.arguments, self.copies = name, seed, dict(arguments), copies
        self._free: SimpleQueue[Policy] = SimpleQueue()  # the copies that no client uses
        made: object = None  # the policy of the last copy or, if the policy wraps a user's object, this object
        for _ in range(copies):
            policy = make()
            self._free.put(policy)
            former, made = made, getattr(policy, "made", policy)
            if made is former:
                problem = f"the copies of the policy {name!r} are one object, so episodes would mix their states"
                raise PolicyError(problem, remedy="Name a class or a function that makes a policy, or serve one copy.")
            wanted = _find_unservable(policy)
            if wanted is not None:
                self.close()
                problem = f"policy {name!r} wants {wanted}, which openpi's protocol cannot carry"
                raise PolicyError(problem, remedy=f"Run the policy with its simulator: safevla eval --policy {name}.")
        # All copies have the same attributes; use those of the last copy.
        self.wants, self.clip = policy.wants, bool(getattr(policy, "clip", False))
        self.greeting = sanitize_greeting(getattr(policy, "greeting", None))

    @contextmanager
    def borrow_policy(self) -> Iterator[Policy]:
        """Lend a copy that no other connection uses. Raise `PolicyError` if no copy becomes free within `SILENT_S`."""
        try:
            policy = self._free.get(timeout=SILENT_S)
        except Empty:
            problem = f"the policy is busy with another episode (copies: {self.copies})"
            raise PolicyError(problem, remedy="Serve the policy with more --copies, or use fewer workers.") from None
        try:
            yield policy
        finally:  # return the copy even after an error
            self._free.put(policy)

    def close(self) -> None:
        # Close all copies that are free. `Empty` ends the loop; copies in use are not closed.
        with suppress(Empty):
            while True:
                self._free.get_nowait().close()

    def metadata(self) -> dict[str, object]:
        """Return the server's greeting, which includes defaults for the arguments of this package's client."""
        # `IMAGES` lists the keys of images in requests.
        # If the policy has a greeting, it is sent under the key `greeting`.
        cameras = dict(zip(IMAGES, self.wants.cameras, strict=False))
        identity = {"policy": self.name, "arguments": self.arguments, "seed": self.seed, "safevla-bench": __version__}
        images = {"cameras": cameras, "image_size": [*self.wants.image_size]}
        actions = {"replan": "all", "absolute": self.wants.absolute, "clip": self.clip}
        return {**identity, **images, **actions, **({"greeting": self.greeting} if self.greeting else {})}


def _find_unservable(policy: Policy) -> str | None:
    # Return a text about what the policy wants but clients cannot provide; None if clients can provide everything.
    needs_task = isinstance(policy, interface.SelectiveTaskPolicy | interface.CuedPolicy)
    if isinstance(policy, interface.RemotePolicy) and not needs_task:
        policy.connect(_TASK)  # a policy with its own server, which may change `wants`
    if len(policy.wants.cameras) > len(IMAGES):
        return f"{len(policy.wants.cameras)} cameras"
    # `CARRIED` are the fields of `Wants` that clients can fulfill. With cameras, `as_rendered` has no effect.
    ignored = (*CARRIED, "as_rendered") if policy.wants.cameras else CARRIED
    # Empty values of different types, such as () and [], count as equal.
    for field in fields(Wants):
        value = getattr(policy.wants, field.name)
        if field.name not in ignored and value != field.default and (value or field.default):
            return "the simulator's own state" if field.name == "privileged" else f"{field.name}={value}"
    if needs_task:
        return "the task of each episode"
    env_seed = getattr(policy, "env_seed", None)
    return None if env_seed is None else f"env_seed={env_seed}"


def start_server(served: ServedPolicy, bind: str, port: int, key: str | None = None) -> Server:
    """Return a server that listens at `bind` and `port` (0 = any free port). The caller must call its method
    `serve_forever`. The server answers `GET /healthz` without a key, closes connections beyond `MAX_CONNECTIONS`, and
    refuses those from web pages, which send an `Origin`. Raises `PolicyError` if the server cannot listen.
    """
    # `served` contains the copies of the policy; `key` is the key that clients must send; None = no key.
    from websockets.sync.server import serve as listening

    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    try:
        server = listening(
            lambda connection: _handle_connection(connection, served),
            sock=socket.create_server((bind, port), family=family),
            open_timeout=OPEN_S,
            origins=[None],  # accept only clients that send no `Origin`
            process_request=lambda connection, request: _respond_early(connection, request, key),
            compression=None,
            ping_interval=None,
            max_size=MAX_REQUEST_BYTES,
            logger=_LOG,
        )
    except (OSError, OverflowError) as error:
        remedy = "Choose another --port (0 = any free port) or --bind."
        raise PolicyError(str(error), remedy=remedy, place=Place(file=f"{bind}:{port}")) from None
    # The library has no limit on connections, so wrap its handler of new connections.
    server.handler = _limit_connections(server.handler, threading.BoundedSemaphore(MAX_CONNECTIONS))
    return server


def _limit_connections(handle: Callable[..., None], slots: threading.Semaphore) -> Callable[..., None]:
    # Return the server's connection handler, wrapped so that connections without a free slot are closed.
    def handle_within_limit(connected: socket.socket, address: object) -> None:
        # Handle a new connection, which occupies a slot until it ends. Without a free slot, close it.
        has_slot = slots.acquire(blocking=False)
        try:
            if not has_slot:
                connected.close()
            handle(connected, address)  # called even after `close`, so that the server ends the handshake
        finally:
            if has_slot:
                slots.release()

    return handle_within_limit


def parse_observation(request: Mapping[object, object], wants: Wants) -> Observation:
    """Return a client's request as an observation, with upright images and the state split into its parts. Raises
    `PolicyError` if a field is missing, or has a type or size that the policy does not accept.
    """
    # `wants` lists the policy's cameras and image size. The order of cameras is that of the keys in `IMAGES`.
    state = _require_array(request, _STATE, "f", 1)
    if len(state) < 7:
        raise PolicyError(f"{_STATE!r} has {len(state)} numbers", remedy="Send position [3], axis-angle [3], gripper.")
    prompt = request.get(_PROMPT)
    if not isinstance(prompt, str):
        raise PolicyError(f"{_PROMPT!r} is missing, or not text", remedy="Send the instruction as text.")
    images = {camera: _parse_image(request, key, wants) for key, camera in zip(IMAGES, wants.cameras, strict=False)}
    # The state's numbers: position [0:3], axis-angle [3:6], finger joints [6:].
    return Observation(prompt, state[:3], to_quaternion(state[3:6]), state[6:], images)


def to_quaternion(axis_angle: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the quaternion wxyz [4] of a rotation vector [3]. The vector's length, in rad, may exceed 2π."""
    return np.roll(Rotation.from_rotvec(axis_angle).as_quat(), 1)  # SciPy returns xyzw


def _parse_image(request: Mapping[object, object], key: str, wants: Wants) -> NDArray[np.uint8]:
    # Return a request's image, upright [H, W, 3]; raise `PolicyError` if its type or size does not fit `wants`.
    image = _require_array(request, key, "u", 3)
    if image.dtype != np.uint8 or image.shape != (*wants.image_size, 3):
        remedy = f"Pass --policy-arg image_size=N to safevla's client, or send uint8 of shape {[*wants.image_size, 3]}."
        raise PolicyError(f"{key!r} is {image.dtype} of the shape {list(image.shape)}", remedy=remedy)
    return cast("NDArray[np.uint8]", image[:, ::-1])  # requests contain images mirrored left to right


def _require_array(request: Mapping[object, object], key: str, dtype_kind: str, ndim: int) -> NDArray[Any]:
    # Return the array at `key` in a request. `dtype_kind` is NumPy's letter for the kind of dtype, `f` or `u`.
    # Raise `PolicyError` unless the array has a dtype of this kind and `ndim` axes.
    value = request.get(key)
    if not isinstance(value, np.ndarray) or value.dtype.kind != dtype_kind or value.ndim != ndim:
        problem = f"{key!r} is missing, or is not an array of the right type and dimension"
        raise PolicyError(problem, remedy="See the fields in docs/howto/servers.md.")
    return value.astype(np.float64) if dtype_kind == "f" else value  # floats of any precision are accepted


def _respond_early(connection: ServerConnection, request: Request, key: str | None) -> Response | None:
    # Answer a health check, or a request without the right key, by HTTP. Return None for any other request.
    if request.path == "/healthz":  # a health check needs no key
        return connection.respond(HTTPStatus.OK, "OK\n")
    credentials = request.headers.get("Authorization", "")
    # Compare in constant time, so that the duration does not reveal the key.
    if key and not hmac.compare_digest(credentials.encode(), f"Api-Key {key}".encode()):
        return connection.respond(HTTPStatus.UNAUTHORIZED, "a key is required: Authorization: Api-Key ...\n")
    return None  # the handshake continues


def _handle_connection(connection: ServerConnection, served: ServedPolicy) -> None:
    # Greet a client, and serve one episode. An error is sent as text, as in openpi's protocol.
    from websockets.exceptions import ConnectionClosed

    try:
        connection.send(OPENPI.pack(served.metadata()))
        _serve_episode(connection, served)
    except ConnectionClosed:
        return
    except BaseException as error:  # report any exception of a policy to the client
        reason = f"{error.problem}. {error.remedy or ''}" if isinstance(error, PolicyError) else traceback.format_exc()
        connection.send(reason)
        connection.close(1011, "see the previous message for the reason")


def _serve_episode(connection: ServerConnection, served: ServedPolicy) -> None:
    # Answer each request with a chunk of actions, until the client is silent.
    # A policy is reserved only after the first request, so that clients without a request occupy no policy.
    observation = _receive_observation(connection, served.wants)
    if observation is None:
        return
    with served.borrow_policy() as policy:
        # A client sends only the task's instruction, so the other fields of the task are placeholders.
        policy.reset(replace(_TASK, instruction=observation.instruction), served.seed)
        while observation is not None:
            start_s = time.perf_counter()
            try:
                chunk = [policy.act(observation)]
                if isinstance(policy, interface.ChunkingPolicy):
                    chunk += policy.take_rest()  # the remaining actions that the policy has already computed
                reply: dict[str, object] = {"actions": _to_matrix(chunk)}
            except InvalidActionError as error:
                reply = {INVALID_ACTION: error.problem}
            spent_ms = 1000 * (time.perf_counter() - start_s)
            connection.send(OPENPI.pack({**reply, "server_timing": {"infer_ms": spent_ms}}))
            observation = _receive_observation(connection, served.wants)


def _to_matrix(actions: list[Action]) -> NDArray[np.float64]:
    # Return the actions as an array [H, A]; raise `InvalidActionError` if any action is not a row of real numbers.
    with suppress(TypeError, ValueError):  # an action is not an array
        matrix = to_real_numbers(actions)
        if matrix.ndim == 2:
            return matrix
    raise InvalidActionError("an action that is not an array [A] of numbers")


def _receive_observation(connection: ServerConnection, wants: Wants) -> Observation | None:
    # Return the next request's observation; None if no request arrives within `SILENT_S`.
    try:
        frame = connection.recv(SILENT_S)
    except TimeoutError:
        return None  # ends the episode of a silent client
    request = OPENPI.unpack(frame) if isinstance(frame, bytes) else None  # a text frame is not a request
    if not isinstance(request, dict):
        raise PolicyError("the request is not a map", remedy="Send an observation, like openpi's clients.")
    return parse_observation(request, wants)
