"""`xvla:http://HOST:8010`: X-VLA's own server, `deploy.py`, which answers POSTs to `/act` as OpenVLA's does.

A request is JSON, with images and the pose as texts of json_numpy. A reply has `action`, rows of 20 numbers of which
one arm uses ten, or HTTP 400 if the model raised.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import PolicyError, ReplyError
from safevla_bench.interface.policy import Observation
from safevla_bench.interface.task import Task
from safevla_bench.policies.servers import connection
from safevla_bench.policies.servers.client import ChunkModel, client_factory
from safevla_bench.policies.servers.codecs import XVLA
from safevla_bench.policies.servers.dialects import Dialect, Reply
from safevla_bench.policies.servers.endpoint import Endpoint
from safevla_bench.policies.servers.openvla import DIALECTS, HttpClient

_POSE = 9
"""Numbers of `proprio`, a position and a rotation, that a reply's last row replaces."""


class XvlaModel(ChunkModel):
    """A model behind such a server, which names no checkpoint and is told where its last chunk was to end."""

    def __init__(self, endpoint: Endpoint, dialect: Dialect, arguments: Mapping[str, str]) -> None:
        super().__init__(dialect)
        self._client = HttpClient(endpoint, "xvla")
        self._end: NDArray[np.float64] | None = None

    def begin(self, task: Task, seed: int) -> None:
        self._end = None
        with connection.guard_handshake(lambda: None):
            operation = self._client.open()
            if operation in DIALECTS:
                problem = f"the server {self._client.address} answers by {operation}, as OpenVLA's do, and not X-VLA's"
                raise PolicyError(problem, remedy=f"Ask it as --policy openvla:{self._client.address}.")
            self.greeting = {} if operation is None else {"act": operation}

    def query(self, observation: Observation) -> Reply:
        request = self.dialect.build_request(observation)
        if self._end is not None:
            request["proprio"] = np.concatenate([self._end, np.asarray(request["proprio"])[_POSE:]])
        reply = XVLA.unpack(self._client.post(XVLA.pack(request)))
        if not isinstance(reply, dict):
            problem = f"the server {self._client.address} answers a {type(reply).__name__}"
            raise ReplyError(problem, remedy="Is it X-VLA's own server?")
        with suppress(ReplyError):  # `infer` raises it
            self._end = self.dialect.parts[0].read_rows(reply)[-1, :_POSE]
        return reply


make = client_factory("xvla", XvlaModel)
