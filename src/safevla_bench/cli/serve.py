"""`safevla serve`: a policy behind a server."""

from __future__ import annotations

import click

from safevla_bench.cli.run_options import policy_arguments
from safevla_bench.policies import make_policy
from safevla_bench.policies.servers import connection, endpoint, serve

_OWN = ("127.0.0.1", "::1", "localhost")


@click.command("serve")
@click.option("--policy", "name", required=True, metavar="NAME[:ARG]", help="What acts, such as python:module:factory.")
@click.option("--policy-arg", "arguments", multiple=True, metavar="KEY=VALUE", help="An argument for it. Repeatable.")
@click.option("--port", default=8000, type=click.IntRange(0, 65535), show_default=True, help="0 = any that is free.")
@click.option(
    "--bind",
    default="127.0.0.1",
    metavar="ADDRESS",
    show_default=True,
    help="Where to listen; 0.0.0.0 lets other machines in, who should then need a key.",
)
@click.option("--seed", default=0, show_default=True, help="Of the policy's randomness, in every episode.")
@click.option(
    "--key-env", metavar="NAME", help=f"The environment variable with the key that clients need; else {endpoint.KEY}."
)
@click.option("--key-file", type=click.Path(), metavar="FILE", help="A file with that key.")
def serve_command(
    name: str, arguments: tuple[str, ...], port: int, bind: str, seed: int, key_env: str | None, key_file: str | None
) -> None:
    """Serve a policy over openpi's protocol until Ctrl-C: one that needs an environment of its own, or to try a client.

    A connection is an episode. Policies that see the simulator's own state cannot be served.
    """
    connection.require_library("websockets", "openpi")
    given = policy_arguments(arguments, name)
    served = serve.ServedPolicy(name, lambda: make_policy(name, given), seed, given)
    key = endpoint.read_key(key_env, key_file)
    server = serve.start_server(served, bind, port, key)
    host, chosen = server.socket.getsockname()[:2]
    host = f"[{host}]" if ":" in host else host
    click.echo(f"Serving {name} on ws://{host}:{chosen} (GET /healthz says OK). Ctrl-C ends it.")
    click.echo(f"To look at it: safevla doctor --server ws://{host}:{chosen}")
    size = f" --policy-arg image_size={served.wants.image_size[0]}" if served.wants.cameras else ""
    click.echo(f"Next: safevla eval --policy openpi:ws://{host}:{chosen} --policy-arg replan=1{size} ...")
    if key is None and bind not in _OWN:
        click.echo(f"Anyone who can reach {bind} may use it: set a key in {endpoint.KEY}.", err=True)
    try:
        server.serve_forever()
    finally:
        server.shutdown()
        served.close()
