"""Runs in a browser of this machine: an index of the runs of a folder, their reports, and comparisons of any two.

The server is for this machine alone: it listens on 127.0.0.1 and answers GET and HEAD.
"""

from __future__ import annotations

import errno
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from safevla_bench.errors import RunError
from safevla_bench.jobs.browse.site import Reply, RunSite
from safevla_bench.version import __version__

LOOPBACK = "127.0.0.1"
PORT = 8642
"""The port where none is asked for, and it is free."""


class RunServer(ThreadingHTTPServer):
    """Serves a `RunSite`; `address` is where it is."""

    daemon_threads = True

    def __init__(self, site: RunSite, port: int) -> None:
        self.site = site
        super().__init__((LOOPBACK, port), _Handler)

    @property
    def address(self) -> str:
        """Return the address without a path, such as `http://127.0.0.1:8642`."""
        return f"http://{LOOPBACK}:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do nothing: a browser that goes away in the middle of an answer is no news."""


def start_server(site: RunSite, port: int | None = None) -> RunServer:
    """Return a server bound to a port of 127.0.0.1; requests are answered once its `serve_forever` runs.

    Without a port it is 8642, or any free port where 8642 is taken; port 0 is any free port.

    Raises:
        RunError: the port cannot be used: the port that was asked for is taken, or is not allowed.
        OverflowError: the port is not from 0 to 65535.
    """
    try:
        return RunServer(site, PORT if port is None else port)
    except OSError as error:
        if port is None and error.errno == errno.EADDRINUSE:
            return RunServer(site, 0)
        remedy = "Choose another by --port, or leave it out for any free one."
        raise RunError(f"port {port} cannot be used: {error.strerror}", remedy=remedy) from None


class _Handler(BaseHTTPRequestHandler):
    server: RunServer
    server_version, sys_version = f"safevla/{__version__}", ""
    timeout = 60

    def do_GET(self) -> None:
        self._send(with_content=True)

    def do_HEAD(self) -> None:
        self._send(with_content=False)

    def _send(self, *, with_content: bool) -> None:
        """Send status, headers and, if `with_content`, the page of the request's path.

        A request whose `Host` is not this machine, or that has several, gets 403.
        """
        reply = self.server.site.reply(self.path) if self._is_for_us() else _refuse()
        self.send_response(reply.status)
        headers = {
            "Content-Type": reply.content_type,
            "Content-Length": str(len(reply.content)),
            "Content-Security-Policy": f"{reply.policy}; frame-ancestors 'none'",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cache-Control": "no-store",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if with_content:
            self.wfile.write(reply.content)

    def _is_for_us(self) -> bool:
        port = self.server.server_address[1]
        return self.headers.get_all("Host") in ([f"{LOOPBACK}:{port}"], [f"localhost:{port}"])

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing: requests are the user's own."""


def _refuse() -> Reply:
    return Reply(HTTPStatus.FORBIDDEN, b"This server is for this machine alone.\n", "text/plain; charset=utf-8")
