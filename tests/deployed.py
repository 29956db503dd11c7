"""What :mod:`tests.deployment` runs in Flower's processes: apps by name, and the server's state to a file."""

from __future__ import annotations

from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.common.serde import recorddict_to_proto
from flwr.serverapp import Grid, ServerApp

from fl_privquant.flower.simulation.engine import load_app, seed_sampling

__all__ = ["client_app", "server_app"]


class _NamedClientApp(ClientApp):
    """The client app that the run's config names."""

    def __call__(self, message: Message, context: Context) -> Message:
        return load_app(str(context.run_config["privquant-client-app"]), ClientApp)(message, context)


client_app = _NamedClientApp()
"""What SuperNodes load: the client app that the run's config names."""

server_app = ServerApp()
"""What the SuperLink loads: the server app that the run's config names."""


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the named server app, and keep its state."""
    seed = context.run_config.get("privquant-sampling-seed")
    app = load_app(str(context.run_config["privquant-server-app"]), ServerApp)
    with seed_sampling(None if seed is None else int(seed)):
        app(grid, context)
    result = Path(str(context.run_config["privquant-result"]))
    temporary = result.with_name(result.name + ".new")
    temporary.write_bytes(recorddict_to_proto(context.state).SerializeToString())
    temporary.replace(result)
