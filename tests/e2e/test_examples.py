"""Both examples, as they are, on the inline engine."""

import pytest

from fl_privquant.flower.engines import Federation, InlineEngine

pytest.importorskip("sklearn")

CONFIG = {"epsilon": 4.0, "bits": 2, "local-epochs": 5}
EXAMPLES = {
    "pytorch": {"num-rounds": 8, "clip": 0.1, "learning-rate": 0.5},
    "scikit_learn": {"num-rounds": 4, "clip": 0.2, "learning-rate": 0.05},
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_and_learns(name):
    if name == "pytorch":
        pytest.importorskip("torch")
    package = f"simulations.examples.{name}"
    federation = Federation(10, {**CONFIG, **EXAMPLES[name]})
    result = InlineEngine().run(f"{package}.server_app:app", f"{package}.client_app:app", federation)
    # Chance is 0.1; both reach more than 0.8 with this many clients and this much noise.
    assert result.state["metrics"]["accuracy"] > 0.6


def test_the_examples_add_two_lines():
    """What a person copies: one line on each side, besides imports and the design."""
    import inspect

    from simulations.examples.pytorch import client_app, server_app

    assert inspect.getsource(client_app).count("PrivQuantMod(") == 1
    assert inspect.getsource(server_app).count("PrivQuantStrategy(") == 1
