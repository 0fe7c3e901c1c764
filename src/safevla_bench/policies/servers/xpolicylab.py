"""`xpolicylab:ws://HOST:19000`: a policy server of XPolicyLab.

Websocket frames of MessagePack, each a map of `message_type`, `message_id`, `payload` and what episode it is of
(7198143 client_server/ws). The client says `hello` and, for each episode, `reset`; `infer` is answered by a list of
actions, all of which are carried out.
"""

from __future__ import annotations

from safevla_bench.errors import PolicyError
from safevla_bench.interface.policy import Observation
from safevla_bench.interface.task import Task
from safevla_bench.policies.servers import KINDS, client_factory
from safevla_bench.policies.servers.codecs import GR00T_MAIN
from safevla_bench.policies.servers.dialects import Reply
from safevla_bench.policies.servers.endpoint import sanitize_greeting
from safevla_bench.policies.servers.openpi import WebsocketModel

ANSWERS = {"hello": "hello_ack", "reset": "reset_result", "infer": "infer_result"}


class XpolicylabModel(WebsocketModel):
    """A model behind such a server, which names no checkpoint."""

    kind, codec = "xpolicylab", GR00T_MAIN
    _trial, _step, _number = "", 0, 0

    def begin(self, task: Task, seed: int) -> None:
        super().begin(task, seed)
        self._trial, self._step = f"{task.benchmark}/{task.task_id}/{seed}", 0
        self._ask("reset", {"trial_id": self._trial})

    def _greet(self) -> None:
        self.greeting = sanitize_greeting(self._ask("hello", {}), self.key)

    def query(self, observation: Observation) -> Reply:
        reply = self._ask("infer", {"observation": self.dialect.build_request(observation)})
        self._step += 1
        return reply

    def _ask(self, kind: str, payload: dict[str, object]) -> dict[str, object]:
        self._number += 1
        frame = {"message_type": kind, "message_id": str(self._number), "payload": payload, "step": self._step}
        self.send({**frame, "evaluation_id": "safevla-bench", "trial_id": self._trial or None})
        answer = self.receive_map()
        content = answer.get("payload")
        if isinstance(content, dict) and answer.get("message_type") == "error":
            raise self.server_error(content)
        if not isinstance(content, dict) or answer.get("message_type") != ANSWERS[kind]:
            problem = f"the server {self.address} sent no {ANSWERS[kind]} of XPolicyLab"
            raise PolicyError(problem, remedy=f"Is it {KINDS[self.kind].about}?")
        return content


make = client_factory("xpolicylab", XpolicylabModel)
