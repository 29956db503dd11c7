"""The exact sum under secure aggregation, on every engine, whoever is lost and whenever."""

import pytest
from typer.testing import CliRunner

from fl_privquant.cli._identity_commands import identity_app
from fl_privquant.flower._messages.stages import KEY_IDENTITY, KEY_KNOWN_CLIENTS
from fl_privquant.flower.simulation import Federation, InlineEngine, RayEngine
from tests.e2e.secure_app import CLIENTS, schedule, without_masks
from tests.ray_cluster import WARNINGS

pytestmark = WARNINGS

APP = "tests.e2e.secure_app"

# One at each stage: what four clients withstand.
WITHSTOOD = "advertise:0; share:1; train:2; unmask:1"
# Two at each stage, and after each a round that must work again, with nobody lost.
PAST = "advertise:0,1; -; share:1,2; -; train:0,2; -; unmask:0,1; -"
# Every message starts a process in a deployment: a round that withstands a loss stands for all. Keys are
# signed, which is what else a deployment must get right.
DEPLOYED = "train:2"


def node_config_of(known_clients):
    """What tells each client its key and the list."""
    return {
        KEY_IDENTITY: str(known_clients.parent / "{partition-id}.pem"),
        KEY_KNOWN_CLIENTS: str(known_clients),
    }


def app_of(text, secure=True, known_clients=None):
    """Server, client and federation, as engines take them."""
    prefix = "" if secure else "plain_"
    run_config, node_config = {"schedule": text}, {}
    if known_clients is not None:
        run_config["known-clients"] = str(known_clients)
        node_config = node_config_of(known_clients)
    federation = Federation(CLIENTS, run_config, node_config, seed=5)
    return f"{APP}:{prefix}server_app", f"{APP}:{prefix}client_app", federation


def check(state, text):
    """Compare what a run with this schedule has left with a run without masks."""
    expected = InlineEngine().run(*app_of(without_masks(text), secure=False)).state
    models = dict(state["models"])
    assert models == dict(expected["models"])
    survivors = dict(state["survivors"])
    assert survivors == dict(expected["survivors"])
    for number, (stage, lost) in enumerate(schedule(text), start=1):
        changed = models[str(number)] != models[str(number - 1)]
        assert changed == (len(lost) < 2), (number, stage)
        in_sum = CLIENTS - (len(lost) if stage != "unmask" else 0)
        assert survivors[str(number)] == (in_sum if changed else 0)


def test_schedules_are_told_apart():
    """Negative control: losing another client gives another model, so equal ones mean something."""
    one, other = (InlineEngine().run(*app_of(f"train:{client}")) for client in (0, 1))
    assert dict(one.state["models"]) != dict(other.state["models"])


def test_inline():
    text = f"{WITHSTOOD}; {PAST}"
    check(InlineEngine().run(*app_of(text)).state, text)


@pytest.mark.slow
def test_on_ray(ray_cluster):
    text = f"{WITHSTOOD}; {PAST}"
    check(RayEngine(address=ray_cluster.address).run(*app_of(text)).state, text)


def make_known_clients(folder):
    """Keys and list as an operator makes them, by the commands."""

    def command(*arguments):
        result = CliRunner().invoke(identity_app, list(arguments), catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output.strip()

    path = folder / "clients.json"
    for client in range(CLIENTS):
        key = command("new", str(folder / f"{client}.pem"))
        command("list", "add", str(path), f"clinic {client}", key)
    return path


def test_signed_inline(tmp_path):
    """All take part in signed rounds, each with a key file and a list of its own configuration."""
    text = f"unmask:0,1; {WITHSTOOD}"
    check(InlineEngine().run(*app_of(text, known_clients=make_known_clients(tmp_path))).state, text)
