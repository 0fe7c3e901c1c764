"""`xvla:http://HOST:8010`: X-VLA's own server, `deploy.py`, which answers POSTs to `/act` as OpenVLA's does.

A request is JSON, with images and the pose as texts of json_numpy. A reply has `action`, rows of 20 numbers of which
one arm uses ten, or HTTP 400 if the model raised.
"""

from __future__ import annotations

from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from safevla_bench.errors import ReplyError
from safevla_bench.interface.policy import Observation
from safevla_bench.interface.task import Task
from safevla_bench.policies.servers import client_factory
from safevla_bench.policies.servers.codecs import XVLA
from safevla_bench.policies.servers.dialects import Reply
from safevla_bench.policies.servers.openvla import HttpModel

_POSE = 9
"""Numbers of `proprio`, a position and a rotation, that a reply's last row replaces."""


class XvlaModel(HttpModel):
    """A model behind such a server, which is told where its last chunk was to end."""

    kind, codec = "xvla", XVLA
    _end: NDArray[np.float64] | None = None

    def begin(self, task: Task, seed: int) -> None:
        self._end = None
        super().begin(task, seed)

    def query(self, observation: Observation) -> Reply:
        request = self.dialect.build_request(observation)
        if self._end is not None:
            request["proprio"] = np.concatenate([self._end, np.asarray(request["proprio"])[_POSE:]])
        answer = self.ask(request)
        reply = answer if isinstance(answer, dict) else {"answer": answer}
        with suppress(ReplyError):  # `infer` raises it
            self._end = self.dialect.file.reply[0].read_rows(reply)[-1, :_POSE]
        return reply


make = client_factory("xvla", XvlaModel)
