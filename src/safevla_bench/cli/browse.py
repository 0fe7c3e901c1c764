"""`safevla open`: reports and comparisons of runs in a browser."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path

import click

from safevla_bench.browse import RunServer, RunSite, start_server
from safevla_bench.cli import make_printable, sections


@sections.command("open")
@click.argument("folder", type=click.Path(path_type=Path), metavar="RUN|FOLDER", default=Path())
@click.option(
    "--port", type=click.IntRange(0, 65535), metavar="N", help="Listen there; default 8642, else any free one."
)
@click.option("--no-browser", is_flag=True, help="Print the address and open nothing.")
def open_command(folder: Path, port: int | None, no_browser: bool) -> None:
    """Serve the report of a run, or an index of the runs in a folder, and open it in the browser.

    The index lists each run by policy and suite with n, SR, Safety and VSI; any two are compared by a click, with
    the numbers of `safevla compare`. A run without a report is judged for it, and nothing is written. Only this machine
    can reach the server, and only files of these runs are sent. Ctrl-C ends it.
    """
    site = RunSite(folder)
    with start_server(site, port) as server:
        address = server.address + site.start
        click.echo(make_printable(f"{address}   (Ctrl-C ends)"))
        if not no_browser:
            _open_browser(address, server)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            click.echo()


def _open_browser(address: str, server: RunServer) -> None:
    """Open the address, or say how to reach it where this machine shows no browser."""
    if not (_has_display() and _opens(address)):
        port = server.server_address[1]
        click.echo("No browser opened here. From another machine:", err=True)
        click.echo(f"  ssh -L {port}:127.0.0.1:{port} THIS-MACHINE, and open the address there", err=True)


def _has_display() -> bool:
    return sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def _opens(address: str) -> bool:
    try:
        return webbrowser.open(address)
    except (webbrowser.Error, OSError):
        return False
