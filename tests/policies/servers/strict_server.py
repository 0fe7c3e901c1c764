"""A policy server on loopback that refuses every request but the one its policy's project sends.

The wire is the package's own, which has tests against the projects' in `tests/policies`.
"""

from __future__ import annotations

from policies.servers.expected_requests import WIRES, refusal, reply
from policies.servers.stub_servers import Gr00tServer, Websockets, openpi, vla_eval


class StrictServer:
    """Serves one entry until it is closed; `requests` holds the requests that were answered."""

    def __init__(self, entry, steps=16):
        self.entry, self.steps, self.requests = entry, steps, []
        self._is_older = entry.startswith("gr00t-n1.5")  # its servers know no reset, nor options and info
        server = {
            "openpi": lambda: Websockets(openpi(lambda request, _: self._answer(request), expected=dict)),
            "vla-eval": lambda: Websockets(vla_eval(lambda payload, _: self._vla_eval(payload), [])),
            "gr00t": lambda: Gr00tServer(self._gr00t),
        }[WIRES.get(entry, "openpi")]()
        self.url, self.close = server.url, server.close

    def _answer(self, request):
        """The reply, or a text that says why there is none."""
        reason = refusal(self.entry, request)
        if reason is not None:
            return f"ValueError: {reason}"
        self.requests.append(request)
        return reply(self.entry, self.steps)

    def _vla_eval(self, payload):
        answer = self._answer(payload)
        return {"type": "error", "payload": {"error": answer}} if isinstance(answer, str) else {"payload": answer}

    def _gr00t(self, endpoint, data):
        if endpoint != "get_action":
            return {"error": "Unknown endpoint: reset"} if endpoint == "reset" and self._is_older else {"status": "ok"}
        answer = self._answer(data if self._is_older else data["observation"])
        return {"error": answer} if isinstance(answer, str) else answer if self._is_older else [answer, {}]
