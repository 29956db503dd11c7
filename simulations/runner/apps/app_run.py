"""A Flower app of the user's, run unchanged: its client app inside our mods, its server app on our grid.

Both sides read the whole run from ``run_config["config"]``, as JSON, and hand the app a context of its own,
with its own run config. The app sees neither requests nor mods.

Without a mechanism (``mechanism=none``, no secure aggregation, no clips) there is nothing to encode: mods and
private grid are left out, and the app does to the last bit what it does in plain Flower. Clients are then
weighed as the app says. In private rounds every client has weight 1.
"""

from __future__ import annotations

import contextlib
import math
import random
import sys
import traceback
from collections.abc import Iterator, Mapping
from functools import lru_cache, partial

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fl_privquant.codec.array_layout import Layout
from fl_privquant.errors import MISSING, BudgetExhaustedError, InvalidSpecError, PrivQuantError, one_line
from fl_privquant.flower import PrivQuantMod, StoppedResult
from fl_privquant.flower._messages.arrays import read_arrays, records_of
from fl_privquant.flower._messages.clear_replies import is_training
from fl_privquant.flower._messages.protocol import KEY_ROUND
from fl_privquant.flower.server.grid import RECORD_REQUEST
from simulations.runner.apps.user_app import UserApp
from simulations.runner.apps.watched_grid import WatchedGrid
from simulations.runner.config import RunConfig, configured_app
from simulations.runner.recording import OnRow, make_ending
from simulations.runner.results import RunDirectory
from simulations.runner.run_setup import Outputs, PrivateSetup, get_probe, get_seed, load_config, make_policy

_CALLS = "simulation-calls"
_MAX_CHARACTERS = 300


def passes_through(config: RunConfig) -> bool:
    """Whether nothing is encoded, so that messages pass as they are.

    Mods and private grid enforce the limits of a run, so they are not left out if the run has a limit.
    """
    encoding, privacy = config.encoding, config.privacy
    limits = (privacy.epsilon, privacy.max_epsilon, privacy.budget)
    lossless = config.mechanism["name"] == "none" and "fixed_point_bits" not in config.mechanism
    stages = (encoding.l2_clip, encoding.rotate, encoding.keep, encoding.include, encoding.exclude)
    plain = lossless and not config.secagg.enabled and not any(stages) and not encoding.clip_scales
    return plain and limits == (None, None, None)


class _ClientInMods(ClientApp):
    """The client app of the run that a message belongs to, inside the mod of the run."""

    def __call__(self, message: Message, context: Context) -> Message:
        text = str(context.run_config["config"])
        call = partial(_call_app, _app(text).client())
        # What the app evaluates at its clients is what a simulation measures; statements name it.
        mod = _mod(text) if is_training(message) else None
        return call(message, context) if mod is None else mod(message, context, call)


client_app = _ClientInMods()
server_app = ServerApp()


@lru_cache(maxsize=4)
def _mod(text: str) -> PrivQuantMod | None:
    config = RunConfig.from_json(text)
    if passes_through(config):
        return None
    # The node config tightens the limits: see simulations.run.
    masked = config.secagg.enabled and config.secagg.masked
    return PrivQuantMod(
        max_epsilon=math.inf,
        max_delta=1e-3,
        metrics=config.app_metrics.train,
        seed=get_seed,
        secure_aggregation=make_policy if masked else False,
    )


# The files of the app are read once for a run, not for each message.
@lru_cache(maxsize=4)
def _app(text: str) -> UserApp:
    return configured_app(RunConfig.from_json(text))


def _call_app(app: ClientApp, message: Message, context: Context) -> Message:
    """The app's reply to a message, in a context of its own; its update or its failure is recorded."""
    config = load_config(context)
    partition = int(context.node_config["partition-id"])
    request = message.content.pop(RECORD_REQUEST, None)
    calls = context.state.pop(_CALLS, ConfigRecord({"calls": 0}))
    number = int(calls["calls"])  # type: ignore[arg-type]
    own = Context(
        run_id=context.run_id,
        node_id=context.node_id,
        node_config={key: context.node_config[key] for key in ("partition-id", "num-partitions")},
        state=context.state,
        run_config=dict(config.app_config),
    )
    records = records_of(message.content, ArrayRecord) if isinstance(request, ConfigRecord) else ()
    received = {name: Layout.of(read_arrays(record)) for name, record in records}
    try:
        with _seeded([config.seed, partition, number]):
            reply = app(message, own)
        if isinstance(request, ConfigRecord):
            _keep_trained(config, int(request[KEY_ROUND]), partition, received, reply)  # type: ignore[arg-type]
        return reply
    except Exception as error:
        if isinstance(request, ConfigRecord):
            get_probe(config).store_failure(partition, _reason(error))
        raise
    finally:
        context.state = own.state
        context.state[_CALLS] = ConfigRecord({"calls": number + 1})


def _keep_trained(
    config: RunConfig, number: int, client: int, received: Mapping[str, Layout], reply: Message
) -> None:
    """Leave what a client trained in the probe; raises PrivQuantError if it cannot be encoded."""
    if reply.has_error():
        raise InvalidSpecError(
            "app", MISSING, f"its client replied with error {reply.error.code}: {reply.error.reason}"
        )
    replied = dict(records_of(reply.content, ArrayRecord))
    if list(replied) != list(received):
        raise InvalidSpecError(
            "app",
            MISSING,
            f"its reply has arrays in records {list(replied)}, but the model came in {list(received)}",
            "a private reply must use the records of the message",
        )
    ((name, layout),) = received.items()
    trained = {key: np.array(array) for key, array in read_arrays(replied[name]).items()}
    layout.check(trained)
    get_probe(config).store(number, client, trained)


@contextlib.contextmanager
def _seeded(words: list[int], sampling: bool = True) -> Iterator[None]:
    """Seed the global generators of Python, numpy and torch while an app runs, and restore them after.

    Apps that seed them themselves draw the same numbers as without this. Without ``sampling``, Python's
    generator, with which Flower's strategies sample clients, is left as it is.
    """
    seeds = np.random.SeedSequence(words).generate_state(3)
    torch = sys.modules.get("torch")
    legacy = np.random.get_state()  # noqa: NPY002
    before = random.getstate(), legacy, torch.get_rng_state() if torch else None
    if sampling:
        random.seed(int(seeds[0]))
    np.random.seed(seeds[1])  # noqa: NPY002
    if torch:
        torch.manual_seed(int(seeds[2]))
    try:
        yield
    finally:
        if sampling:
            random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        if torch and before[2] is not None:
            torch.set_rng_state(before[2])


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the app's server on a watched grid; results go to the run's directory."""
    config = load_config(context)
    directory = RunDirectory.of(config)
    _check_unfinished(config, directory)
    app = _app(str(context.run_config["config"]))
    server = app.server()
    with contextlib.ExitStack() as stack:
        outputs: list[Outputs] = []

        def begin(model: ArrayRecord) -> tuple[PrivateSetup, OnRow]:
            layout = config.encoding.arrays.layout(read_arrays(model))
            setup = PrivateSetup.of(config, layout.dimension)
            outputs.append(stack.enter_context(Outputs(config, directory, setup)))
            return setup, outputs[0].on_row

        plain, probe = passes_through(config), get_probe(config)
        # An interrupted run may have left failures, which do not belong to this run.
        probe.pop_failures()
        watched = WatchedGrid(grid, config.app_metrics, begin, probe, plain, get_seed(context))
        state, stopped = _serve_app(server, watched, config, context, app)
        watched.close_round()
    if not outputs or not watched.num_rounds:
        raise InvalidSpecError("app", MISSING, "its server app trained nothing: it sent no train messages")
    private = None if watched.private is None else watched.private.private
    if private is not None:
        private.uncounted |= watched.uncounted
    statements = outputs[0].statements() if private is None else private.statements()
    lines = [str(statement) for statement in statements] if private is None else private.privacy_statement()
    watched.finish(statements)
    records = list(state.array_records.values())
    model = records[0] if len(records) == 1 else watched.model
    outputs[0].finish(watched.rows, statements, lines, model, private)
    context.state["arrays"] = model
    context.state["ending"] = make_ending(watched.rows[-1], stopped)


def _serve_app(
    server: ServerApp, grid: WatchedGrid, config: RunConfig, context: Context, app: UserApp
) -> tuple[RecordDict, str]:
    """Run the app's server: the state that it leaves, and the reason if a budget ended the run early."""
    own = Context(
        run_id=context.run_id,
        node_id=context.node_id,
        node_config={},
        state=RecordDict(),
        run_config=dict(config.app_config),
    )
    try:
        # Flower's strategies sample clients with Python's generator, which the engine has seeded.
        with _seeded([config.seed], sampling=False):
            server(grid, own)
    except BudgetExhaustedError as error:
        done = grid.num_rounds
        if done == 0:
            raise
        result = StoppedResult(stopped=error, rounds=done, planned_rounds=config.federation.rounds)
        return own.state, result.reason
    except PrivQuantError:
        raise
    except (Exception, SystemExit) as error:
        problem, remedy = f"its server app failed{_where(error, app)}: {_reason(error)}", ""
        if isinstance(error, KeyError) and grid.private is not None:
            remedy = "private replies have the metrics that app_metrics.train lists, and the weight"
        raise InvalidSpecError("app", MISSING, problem, remedy) from error
    return own.state, ""


def _check_unfinished(config: RunConfig, directory: RunDirectory) -> None:
    """Start an interrupted run again, or refuse to: the loop of an app cannot be entered in the middle."""
    if not (directory.path / "rounds.csv").exists():
        return
    if config.privacy.randomness != "seeded":
        raise InvalidSpecError(
            "app",
            directory.path,
            "holds an interrupted run, whose releases still count",
            "the loop of an app cannot be resumed, so delete the folder to start again from the beginning",
        )
    print(f"{config.run_name}: was interrupted and starts again: the loop of an app cannot be resumed")


def _reason(error: BaseException) -> str:
    return one_line(f"{type(error).__name__}: {error}", _MAX_CHARACTERS)


def _where(error: BaseException, app: UserApp) -> str:
    """The last line of the app's own code that an error passed through."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename.startswith(str(app.folder))
    ]
    if not frames:
        return ""
    return f" ({frames[-1].filename.removeprefix(f'{app.folder}/')}, line {frames[-1].lineno})"
