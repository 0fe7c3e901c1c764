"""Any policy of this package behind a server that speaks openpi's protocol; what the client `openpi` is tried on.

A connection is an episode: it begins with a reset, which gets the served seed and the instruction of the first request.
Connections at the same time have a policy each, so that none sees another's state.
"""

from __future__ import annotations

import hmac
import logging
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import Place, PolicyError
from safevla_bench.interface import Observation, Policy, Task, Wants
from safevla_bench.policies import NO_ARGUMENTS
from safevla_bench.policies.servers.codecs import OPENPI
from safevla_bench.version import __version__

if TYPE_CHECKING:
    from websockets.http11 import Request, Response
    from websockets.sync.server import Server, ServerConnection

IMAGES = ("observation/image", "observation/wrist_image")
"""Where a request holds the images of the policy's cameras, in their order."""
MAX_REQUEST_BYTES = 64 * 2**20
MAX_CONNECTIONS = 64
"""At one time, those that have not said yet what they want among them; each may cost a policy."""
OPEN_S = 10.0
"""Seconds that a connection has to say what it wants."""
_STATE, _PROMPT = "observation/state", "prompt"
_LOG = logging.getLogger(__name__)
_LOG.setLevel(logging.INFO)  # the library below writes every header, and so the key, at DEBUG


class Served:
    """A policy to serve: made once now, so that a mistake is seen at once, and again for each further connection.

    Raises `PolicyError` for a policy that cannot be served.
    """

    def __init__(
        self, name: str, make: Callable[[], Policy], seed: int = 0, arguments: Mapping[str, str] = NO_ARGUMENTS
    ) -> None:
        self.name, self.seed, self.arguments = name, seed, dict(arguments)
        self._make = make
        self._free = [make()]
        self._lock = threading.Lock()
        self.wants = self._free[0].wants
        if self.wants.privileged:
            self.close()
            problem = f"policy {name!r} sees the simulator's own state, which no request of openpi's protocol holds"
            raise PolicyError(problem, remedy=f"Run it beside its simulator: safevla eval --policy {name}.")
        if len(self.wants.cameras) > len(IMAGES):
            self.close()
            problem = f"policy {name!r} wants {len(self.wants.cameras)} cameras, and a request holds {len(IMAGES)}"
            raise PolicyError(problem, remedy=f"Serve one that wants at most {len(IMAGES)}.")

    @contextmanager
    def borrowed(self) -> Iterator[Policy]:
        """A policy that nobody else uses meanwhile."""
        with self._lock:
            policy = self._free.pop() if self._free else self._make()
        try:
            yield policy
        finally:
            with self._lock:
                self._free.append(policy)

    def close(self) -> None:
        """Close the policies that are not in use."""
        while self._free:
            self._free.pop().close()

    def metadata(self) -> dict[str, object]:
        """What the server says of itself."""
        height, width = self.wants.image_size
        cameras = dict(zip(IMAGES, self.wants.cameras, strict=False))
        own = {"policy": self.name, "arguments": self.arguments, "seed": self.seed}
        return {**own, "safevla-bench": __version__, "cameras": cameras, "image_size": [height, width]}


def serve(served: Served, bind: str, port: int, key: str | None = None) -> Server:
    """A server that listens; run `serve_forever` of it. `GET /healthz` answers without a key.

    Raises:
        PolicyError: nothing can listen there.
    """
    from websockets.sync.server import serve as listening

    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    try:
        server = listening(
            lambda connection: _handle(connection, served),
            sock=socket.create_server((bind, port), family=family),
            open_timeout=OPEN_S,
            process_request=lambda _, request: _admitted(_, request, key),
            compression=None,
            ping_interval=None,
            max_size=MAX_REQUEST_BYTES,
            logger=_LOG,
        )
    except (OSError, OverflowError) as error:
        remedy = "Choose another --port (0 = any that is free) or --bind."
        raise PolicyError(str(error), remedy=remedy, place=Place(file=f"{bind}:{port}")) from None
    server.handler = _few(server.handler, threading.BoundedSemaphore(MAX_CONNECTIONS))
    return server


def _few(handle: Callable[..., None], places: threading.Semaphore) -> Callable[..., None]:
    """Takes a connection while there is a place for it, and hangs up on any other."""

    def bounded(connected: socket.socket, address: object) -> None:
        free = places.acquire(blocking=False)
        try:
            if not free:
                connected.close()
            handle(connected, address)  # of one that is closed it takes leave
        finally:
            if free:
                places.release()

    return bounded


def observed(request: Mapping[object, object], wants: Wants) -> Observation:
    """A request as the observation that its client was given: images upright again, the state taken apart.

    Raises:
        PolicyError: a field is missing, of another kind or of another size than the policy wants.
    """
    state = _array(request, _STATE, "f", 1)
    if len(state) < 7:
        raise PolicyError(f"{_STATE!r} has {len(state)} numbers", remedy="It is position 3, axis-angle 3, gripper.")
    prompt = request.get(_PROMPT)
    if not isinstance(prompt, str):
        raise PolicyError(f"{_PROMPT!r} is missing, or no text", remedy="It is the instruction.")
    images = {camera: _image(request, key, wants) for key, camera in zip(IMAGES, wants.cameras, strict=False)}
    return Observation(prompt, state[:3], quaternion(state[3:6]), state[6:], images)


def quaternion(axis_angle: NDArray[np.float64]) -> NDArray[np.float64]:
    """[4] wxyz of a rotation vector [3] in rad, of any length."""
    angle = float(np.linalg.norm(axis_angle))
    if angle == 0.0:
        return np.array([1.0, 0.0, 0.0, 0.0])
    return np.concatenate([[np.cos(angle / 2)], axis_angle * (np.sin(angle / 2) / angle)])


def _image(request: Mapping[object, object], key: str, wants: Wants) -> NDArray[np.uint8]:
    image = _array(request, key, "u", 3)
    if image.dtype != np.uint8 or image.shape != (*wants.image_size, 3):
        remedy = f"It is to be uint8 of {[*wants.image_size, 3]}: safevla's client takes --policy-arg image_size=N."
        raise PolicyError(f"{key!r} is {image.dtype} of {list(image.shape)}", remedy=remedy)
    return cast("NDArray[np.uint8]", image[:, ::-1])


def _array(request: Mapping[object, object], key: str, kind: str, axes: int) -> NDArray[Any]:
    value = request.get(key)
    if not isinstance(value, np.ndarray) or value.dtype.kind != kind or value.ndim != axes:
        raise PolicyError(f"{key!r} is missing, or no array of the right kind", remedy="docs/servers.md lists all.")
    return value.astype(np.float64) if kind == "f" else value


def _admitted(connection: ServerConnection, request: Request, key: str | None) -> Response | None:
    """What answers a request at once; None lets it in."""
    if request.path == "/healthz":
        return connection.respond(HTTPStatus.OK, "OK\n")
    given = request.headers.get("Authorization", "")
    if key and not hmac.compare_digest(given.encode(), f"Api-Key {key}".encode()):
        return connection.respond(HTTPStatus.UNAUTHORIZED, "a key is wanted: Authorization: Api-Key ...\n")
    return None


def _handle(connection: ServerConnection, served: Served) -> None:
    from websockets.exceptions import ConnectionClosed

    try:
        with served.borrowed() as policy:
            connection.send(OPENPI.pack(served.metadata()))
            _episode(connection, served, policy)
    except ConnectionClosed:
        return
    except Exception as error:  # whatever a policy raises is its client's to know
        connection.send(_told(error) if isinstance(error, PolicyError) else traceback.format_exc())
        connection.close(1011, "the text before says why")


def _told(error: PolicyError) -> str:
    """In one line, for clients show the last of a server's text first."""
    return f"{error.problem}. {error.remedy or ''}".strip()


def _episode(connection: ServerConnection, served: Served, policy: Policy) -> None:
    begun = False
    for frame in connection:
        start = time.perf_counter()
        request = OPENPI.unpack(frame) if isinstance(frame, bytes) else None
        if not isinstance(request, dict):
            raise PolicyError("a request that is no map", remedy="Send what openpi's clients send.")
        observation = observed(request, served.wants)
        if not begun:
            policy.reset(Task("served", "task_0", 0, "served", observation.instruction), served.seed)
            begun = True
        action = np.asarray(policy.act(observation), dtype=np.float64)
        spent = 1000 * (time.perf_counter() - start)
        connection.send(OPENPI.pack({"actions": action[np.newaxis], "server_timing": {"infer_ms": spent}}))
