"""Attacks on runs that protect records: each of them once moved a sum by more than the clip of a record."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from torch import nn

from fl_privquant.accounting.accountant import Accountant, Budget
from fl_privquant.accounting.records import record_statement
from fl_privquant.accounting.release import Release
from fl_privquant.codec.record_sampling import RecordSampling
from fl_privquant.errors import BudgetExhaustedError, InvalidSpecError
from fl_privquant.flower import linear_record_update
from fl_privquant.flower._flower_internals import use_server_identity
from fl_privquant.flower._messages.protocol import Request
from fl_privquant.flower.client.record_update import NotFromRecordsError, read_record_sum
from fl_privquant.mechanisms.registry import design
from fl_privquant.planning import Target
from fl_privquant.privacy_loss.additive.sampled_gaussian import sampled_gaussian_losses
from fl_privquant.privacy_loss.composition.compose import Part, compose_epsilon
from fl_privquant.privacy_loss.update_bounds import UpdateNorms
from fl_privquant.sampling.stream import RandomStream
from fl_privquant.secagg import ClientPolicy
from fl_privquant.statement import Relation, Unit, View
from fl_privquant.torch import record_update, sum_clipped_gradients

FEATURES, CLASSES, CLIP = 20, 3, 0.1
LOSS = nn.functional.cross_entropy


def make_message(arrays: dict[str, np.ndarray]) -> Message:
    """A train message in which every record is drawn."""
    dimension = sum(array.size for array in arrays.values())
    target = Target(8.0, rounds=2, num_clients=3, unit="record", records=120, sampling_rate=1.0)
    config = ConfigRecord({"server-round": 1})
    Request(1, target.plan(dimension, CLIP).encoding).write(config)
    sent = {name: Array(array) for name, array in arrays.items()}
    with use_server_identity(1):
        return Message(RecordDict({"arrays": ArrayRecord(sent), "config": config}), 1, "train")


def message_for(model: nn.Module) -> Message:
    return make_message({name: each.numpy() for name, each in model.state_dict().items()})


def linear_message() -> Message:
    return make_message({"coef": np.ones((1, FEATURES)), "intercept": np.zeros(1)})


def records(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    return torch.randn(number, FEATURES, generator=generator), torch.arange(number) % CLASSES


def distance(one: Any, other: Any) -> float:
    """How far two updates, or two sums of gradients, are apart, in clips of a record."""
    if hasattr(one, "record_sum"):
        divisor = one.record_sum.sampling.divisor
        one, other = (each.record_sum.arrays for each in (one, other))
        return divisor / CLIP * math.sqrt(sum(float(((one[k] - other[k]) ** 2).sum()) for k in one))
    return math.sqrt(sum(float(((one[name] - other[name]) ** 2).sum()) for name in one)) / CLIP


@pytest.mark.parametrize("place", [0, 17, 39])
def test_a_record_with_an_impossible_label_does_not_take_the_others_with_it(place: int) -> None:
    """Had the app failed, zeros would have been sent in place of the sum of all records."""
    model = nn.Linear(FEATURES, CLASSES)
    inputs, labels = records(40)
    message = message_for(model)
    without = [each[torch.arange(40) != place] for each in (inputs, labels)]
    labels[place] = CLASSES
    spoiled, clean = (
        record_update(message, model, LOSS, *each, microbatch=16) for each in ((inputs, labels), without)
    )
    assert distance(spoiled, clean) <= 1.0
    # If all fail, the model or the loss is to blame, and the app hears of it.
    with pytest.raises(Exception, match=r"(?i)target|bounds|range"):
        record_update(message, model, LOSS, inputs, torch.full_like(labels, CLASSES))


def test_a_label_that_is_not_a_number_does_not_take_the_others_with_it() -> None:
    inputs, labels = (each.double().numpy() for each in records(40))
    labels = np.minimum(labels, 1.0)
    clean = linear_record_update(linear_message(), inputs[:-1], labels[:-1])
    for bad in (math.nan, math.inf, -1e300):
        labels[-1] = bad
        spoiled = linear_record_update(linear_message(), inputs, labels)
        assert distance(spoiled, clean) <= 1.0


def test_a_cell_that_is_text_does_not_take_other_records_with_it() -> None:
    inputs, labels = (each.numpy() for each in records(10))
    labels = np.minimum(labels, 1)
    clean = linear_record_update(linear_message(), inputs[1:], labels[1:])
    for at in (0, (0, 3)):
        mixed = [inputs.astype(object), labels.astype(object)]
        mixed[isinstance(at, int)][at] = "?"
        assert distance(linear_record_update(linear_message(), *mixed), clean) < 1e-9


def test_a_plan_says_how_a_client_holds_a_lying_server_to_it() -> None:
    target = Target(4.0, rounds=7, num_clients=7, unit="record", records=700, sampling_rate=0.1)
    planned: Any = target.plan(10)
    assert planned.client_policy_as_code in str(planned)
    given = eval(f"dict({planned.client_policy_as_code})", {"ClientPolicy": ClientPolicy})
    policy = given["secure_aggregation"]
    assert policy.min_honest >= planned.num_honest
    assert given["max_participations"] == 7
    # By default a client helps to open sums of fewer silos, with less noise than was planned.
    assert ClientPolicy().min_honest < planned.num_honest


def test_dropout_gives_no_record_a_hold_on_the_masks_of_others() -> None:
    """Masks follow from torch's generator, which starts the same in every process, and from the place."""
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(FEATURES, CLASSES))
    inputs, labels = records(200)
    message = message_for(model)

    def update(rows: slice, seed: int) -> Any:
        torch.manual_seed(3)
        return record_update(message, model, LOSS, inputs[rows], labels[rows], rng=RandomStream.seeded(seed))

    # Whoever knows the state of torch's generator does not know the masks.
    assert distance(update(slice(None), 1), update(slice(None), 2)) > 1.0
    # Draws stay reproducible with a seeded stream, and the app's own randomness stays as it was.
    assert distance(update(slice(None), 1), update(slice(None), 1)) == 0.0
    after = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(after, torch.rand(1))


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_sums_of_many_records_are_precise_whatever_the_type_and_the_microbatch(kind: torch.dtype) -> None:
    model = nn.Linear(FEATURES, CLASSES).to(kind)
    inputs, labels = (each[:1].repeat(30_000, *[1] * (each.ndim - 1)) for each in records(1))
    factors = RecordSampling(CLIP, 1.0, 1.0).clip_factors

    def sums(number: int, microbatch: int) -> Any:
        given = (inputs[:number].to(kind), labels[:number], factors)
        return sum_clipped_gradients(model, LOSS, *given, microbatch=microbatch)

    everything = sums(30_000, 30_000)
    # Equal gradients at the clip: one record fewer moves the sum by the clip, and no more.
    assert 0.999 < distance(everything, sums(29_999, 29_999)) <= 1.0 + 1e-6
    assert distance(everything, sums(30_000, 7_000)) < 1e-6


@pytest.mark.parametrize("microbatch", [0, -1, 2.5])
def test_a_microbatch_that_skips_records_is_refused(microbatch: Any) -> None:
    model = nn.Linear(FEATURES, CLASSES)
    with pytest.raises(InvalidSpecError, match="microbatch"):
        record_update(message_for(model), model, LOSS, *records(4), microbatch=microbatch)


@pytest.mark.parametrize("size", [5e-324, 1e-310, 1e300])
def test_clips_at_which_floats_are_not_precise_are_refused(size: float) -> None:
    """A server that asks for a clip of 5e-324, and divides by as much, had gradients rounded up to it."""
    with pytest.raises(InvalidSpecError, match="clip"):
        RecordSampling(clip=size, rate=1.0, divisor=size)
    with pytest.raises(InvalidSpecError, match="divisor"):
        RecordSampling(clip=1.0, rate=1.0, divisor=size)
    for clip in (1e-30, 1e30):
        sampling = RecordSampling(clip, 1.0, clip)
        norms = np.geomspace(1e-150, 1e150, 301)
        assert (sampling.clip_factors(norms) * norms / sampling.divisor <= sampling.norm).all()


def test_an_app_that_forgets_the_mod_sends_the_model_that_it_got() -> None:
    """It once sent the sum of gradients itself, without any noise."""
    inputs, labels = (each.numpy() for each in records(4))
    message = linear_message()
    update = linear_record_update(message, inputs, np.minimum(labels, 1))
    assert any(step.any() for step in update.record_sum.arrays.values())
    reply = Message(RecordDict({"arrays": update}), reply_to=message)
    sent = recorddict_from_proto(recorddict_to_proto(reply.content))["arrays"]
    for name, array in message.content["arrays"].items():
        np.testing.assert_array_equal(sent[name].numpy(), array.numpy())
    assert not hasattr(pickle.loads(pickle.dumps(sent)), "record_sum")


def test_an_update_is_released_once() -> None:
    """The draw of records must be new in each round, or it hides nothing after the first."""
    inputs, labels = (each.numpy() for each in records(4))
    update = linear_record_update(linear_message(), inputs, np.minimum(labels, 1))
    asked = update.record_sum.sampling
    read_record_sum(update, asked, simulated=False)
    with pytest.raises(NotFromRecordsError, match="released before"):
        read_record_sum(update, asked, simulated=False)


def test_a_draw_from_a_seed_is_refused_where_privacy_is_not_simulated() -> None:
    inputs, labels = (each.numpy() for each in records(4))
    seeded = RandomStream.seeded(1)
    update = linear_record_update(linear_message(), inputs, np.minimum(labels, 1), rng=seeded)
    asked = update.record_sum.sampling
    with pytest.raises(NotFromRecordsError, match="seed"):
        read_record_sum(update, asked, simulated=False)
    assert read_record_sum(update, asked, simulated=True).sampling == asked


def _release(rate: float, norm: float = 0.1) -> Release:
    mechanism = design("rounded_gaussian", spacing=0.03, deviation=2.0, num_clients=10)
    return Release(mechanism, 100, View(9), UpdateNorms(record=norm, record_rate=rate))


def test_a_record_budget_holds_if_the_server_chooses_kinds_by_what_it_saw() -> None:
    """Of several kinds the sum of their losses says too little: a Rényi filter has to stop them."""
    first, second = _release(0.3), _release(0.01, 0.2)
    together = record_statement({first: 10, second: 10}, 1e-5).epsilon
    budget = Budget(together, 1e-5, Unit.RECORD, Relation.ADD_REMOVE)
    accountant = Accountant({first: 10, second: 9})
    accountant.check(1, second, [budget])
    with pytest.raises(BudgetExhaustedError, match="record total"):
        accountant.check(1, second, [budget], chosen=True)
    # One kind is counted as usual, and more of them where there is room.
    alone = Budget(record_statement({first: 10}, 1e-5).epsilon, 1e-5, Unit.RECORD, Relation.ADD_REMOVE)
    Accountant({first: 9}).check(1, first, [alone], chosen=True)
    wide = Budget(3.0 * together, 1e-5, Unit.RECORD, Relation.ADD_REMOVE)
    accountant.check(1, second, [wide], chosen=True)


ODD = [(1.0, 1.0, 1e-5), (0.05, 0.5, 1e-5), (0.5, 1e-4, 1e-5), (0.5, 1e-4, 1e-9), (100.0, 0.9, 1e-10)]


@pytest.mark.parametrize(("multiplier", "rate", "delta"), [*ODD, (1.0, 1e-7, 1e-9), (1.0, 1e-12, 1e-13)])
def test_one_round_at_odd_settings_is_the_closed_form(multiplier: float, rate: float, delta: float) -> None:
    """Of one round the larger order is a single integral: its epsilon is solved with 60 digits."""
    import mpmath

    mpmath.mp.dps = 60
    z, q = mpmath.mpf(multiplier), mpmath.mpf(rate)

    def stick(epsilon: float) -> Any:
        # Beyond x the density of one record more is e^epsilon times that without it.
        least = (mpmath.exp(epsilon) - (1 - q)) / q
        if least <= 0:
            return -mpmath.expm1(epsilon)
        x = z * (mpmath.log(least) + 1 / (2 * z**2))
        more = (1 - q) * mpmath.ncdf(-x) + q * mpmath.ncdf(1 / z - x)
        return more - mpmath.exp(epsilon) * mpmath.ncdf(-x)

    losses = sampled_gaussian_losses(1.0 / multiplier, rate)
    ours = max(compose_epsilon([Part(loss, 1)], delta).epsilon for loss in losses)
    assert stick(ours) <= delta
    assert stick(ours * 0.999 - 1e-9) > delta or ours == 0.0


def test_the_number_of_a_silos_records_changes_nothing_but_the_sum() -> None:
    """The divisor is the plan's; a silo that draws nothing answers as one that draws many."""
    inputs, labels = (each.numpy() for each in records(60))
    labels = np.minimum(labels, 1)
    made = [linear_record_update(linear_message(), inputs[:n], labels[:n]).record_sum for n in (0, 1, 60)]
    assert len({each.sampling for each in made}) == 1
    assert not any(array.any() for array in made[0].arrays.values())
    shapes = [{name: array.shape for name, array in each.arrays.items()} for each in made]
    assert shapes[0] == shapes[1] == shapes[2]


def test_a_draw_does_not_follow_from_a_seed_of_the_client() -> None:
    """A node's seed gives its noise in simulations; records are drawn by secure randomness all the same."""
    sampling = RecordSampling(1.0, 0.5, 1.0)
    assert sampling.draw(200).tolist() != sampling.draw(200).tolist()
    noise = RandomStream.seeded(3, round=1, client=0).words(200)
    mine = RandomStream.seeded(3, round=1, client=0, purpose="records").words(200)
    assert not np.intersect1d(noise, mine).size
