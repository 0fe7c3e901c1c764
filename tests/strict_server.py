"""A policy server on loopback that refuses every request but the one its policy's project sends.

The wire is the package's own, which has tests against the projects' in `tests/policies`.
"""

from __future__ import annotations

import contextlib
import threading

import zmq
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import serve

from expected import WIRES, refusal, reply
from safevla_bench.policies.servers.codecs import GR00T, OPENPI, VLA_EVAL


class _Websocket:
    """Frames over a websocket; `answer` gives what is sent back for one, None for nothing."""

    def __init__(self, greeting, answer):
        self._greeting, self._answer = greeting, answer
        self._server = serve(self._talk, "127.0.0.1", 0, compression=None, max_size=None)
        self.url = f"ws://127.0.0.1:{self._server.socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self):
        self._server.shutdown()
        self._thread.join(10)

    def _talk(self, connection):
        with contextlib.suppress(ConnectionClosed):
            if self._greeting is not None:
                connection.send(self._greeting)
            for frame in connection:
                said = self._answer(frame)
                if said is not None:
                    connection.send(said)


class _Requests:
    """Requests and replies over ZeroMQ."""

    def __init__(self, answer):
        self._answer, self._over = answer, threading.Event()
        self._socket = zmq.Context.instance().socket(zmq.REP)
        self._socket.setsockopt(zmq.LINGER, 0)
        self.url = f"tcp://127.0.0.1:{self._socket.bind_to_random_port('tcp://127.0.0.1')}"
        self._thread = threading.Thread(target=self._talk, daemon=True)
        self._thread.start()

    def close(self):
        self._over.set()
        self._thread.join(10)
        self._socket.close()

    def _talk(self):
        while not self._over.is_set():
            if self._socket.poll(50):
                self._socket.send(self._answer(self._socket.recv()))


class StrictServer:
    """Serves one entry until it is closed; `seen` holds the requests that were answered."""

    def __init__(self, entry, steps=16):
        self.entry, self.steps, self.seen = entry, steps, []
        self._wire = {
            "openpi": lambda: _Websocket(OPENPI.pack({}), self._openpi),
            "vla-eval": lambda: _Websocket(None, self._vla_eval),
            "gr00t": lambda: _Requests(self._gr00t),
        }[WIRES.get(entry, "openpi")]()
        self.url, self.close = self._wire.url, self._wire.close

    def _judged(self, request):
        """The reply and None, or None and the reason why there is none."""
        reason = refusal(self.entry, request)
        if reason is not None:
            return None, reason
        self.seen.append(request)
        return reply(self.entry, self.steps), None

    def _openpi(self, frame):
        answer, reason = self._judged(OPENPI.unpack(frame))
        return OPENPI.pack(answer) if reason is None else f"Traceback:\n  ...\nValueError: {reason}"

    def _vla_eval(self, frame):
        said = VLA_EVAL.unpack(frame)
        if said["type"] not in ("hello", "observation"):
            return None
        kind, payload = "hello", {}
        if said["type"] == "observation":
            answer, reason = self._judged(said["payload"])
            kind, payload = ("action", answer) if reason is None else ("error", {"error": reason})
        return VLA_EVAL.pack({"type": kind, "payload": payload, "seq": said["seq"], "timestamp": 0.0})

    def _gr00t(self, frame):
        said = GR00T.unpack(frame)
        older = self.entry.startswith("gr00t-n1.5")  # its servers know no reset, nor options and info
        if said["endpoint"] == "reset" and older:
            return GR00T.pack({"error": "Unknown endpoint: reset"})
        if said["endpoint"] != "get_action":
            return GR00T.pack({"status": "ok"})
        answer, reason = self._judged(said["data"] if older else said["data"]["observation"])
        return GR00T.pack({"error": reason} if reason else answer if older else [answer, {}])
