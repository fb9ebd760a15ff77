"""The laws that every adaptation method obeys."""

from __future__ import annotations

import copy
import io
import warnings
from dataclasses import replace

import pytest
import torch
from adapt_networks import SPECS, random_images, small_resnet, small_vit, source_data
from torch import Tensor, nn

from sicl.adapt import METHODS, Adapter, Moment
from sicl.engine.norms import norm_layers
from sicl.errors import InputError, OptionError
from sicl.states import same

BOTH = ("before", "after")
LEARNERS = [name for name in SPECS if name not in ("source", "batchnorm", "lame")]
BATCH_STATISTICS = ["batchnorm", "tent", "eata", "sar", "come", "deyo", "cotta", "roid"]
CORRECTED = ["cotta", "roid", "lame"]
"""Methods that say more of a batch than their network does."""

pytestmark = pytest.mark.filterwarnings("error")


def attached(name: str, network: nn.Module | None = None, **changes: object) -> Adapter:
    spec = replace(SPECS[name], **changes)  # type: ignore[arg-type]
    return spec.attach(network or small_resnet(), source=source_data())


def stream(n: int = 3) -> list[Tensor]:
    return [random_images(seed=10 + i) for i in range(n)]


def snapshot(network: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in network.state_dict().items()}


def moved(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    return {name for name in before if not torch.equal(before[name], after[name])}


def test_every_registered_method_is_under_contract() -> None:
    """A method added to the registry must be added to these tests."""
    assert set(METHODS) == set(SPECS)


@pytest.mark.parametrize("predict", BOTH)
@pytest.mark.parametrize("name", SPECS)
def test_the_callers_model_stays_untouched(name: str, predict: str) -> None:
    """Neither values, modes, gradients nor module types of the given model change."""
    network = small_resnet().train()
    before, kinds = snapshot(network), [type(module) for module in network.modules()]
    adapter = attached(name, network, predict=predict)
    for images in stream():
        adapter(images)
    assert not moved(before, snapshot(network))
    assert [type(module) for module in network.modules()] == kinds
    assert all(module.training for module in network.modules())
    assert all(p.requires_grad and p.grad is None for p in network.parameters())


@pytest.mark.parametrize("name", SPECS)
def test_two_attachments_share_no_state(name: str) -> None:
    """What one attachment has seen does not show in the other."""
    network = small_resnet()
    first, second = attached(name, network), attached(name, network)
    alone = [second(images) for images in stream()]
    second.reset()
    for images in stream():
        first(images.flip(-1))
    again = [second(images) for images in stream()]
    assert all(torch.equal(a, b) for a, b in zip(alone, again))


@pytest.mark.parametrize("name", SPECS)
def test_only_the_named_parameters_move(name: str) -> None:
    """Affine parameters of norm layers, running statistics where the method keeps them, and nothing else."""
    adapter = attached(name)
    before = snapshot(adapter.network)
    for images in stream():
        adapter(images)
    changed = moved(before, snapshot(adapter.network))
    norms = {n for n, _ in norm_layers(adapter.network)}
    affine = {f"{n}.{p}" for n in norms for p in ("weight", "bias")}
    running = {f"{n}.{p}" for n in norms for p in ("running_mean", "running_var", "num_batches_tracked")}
    early = {n for n in affine if not n.startswith("layer4")}
    allowed = {
        "source": set(),
        "batchnorm": set(),
        "tent": affine,
        "eata": affine,
        "sar": early,
        "rotta": affine | {n for n in running if not n.endswith("tracked")},
        "sotta": early | running,
        "come": affine,
        "deyo": early,
        "cotta": {n for n, _ in adapter.network.named_parameters()},
        "roid": affine,
        "lame": set(),
    }[name]
    assert changed <= allowed
    # A bias in front of a dead channel may stand still; most of what may move does.
    assert len(changed) >= 0.8 * len(allowed)


@pytest.mark.parametrize("predict", BOTH)
@pytest.mark.parametrize("name", SPECS)
def test_the_same_seed_gives_the_same_detached_logits(name: str, predict: str) -> None:
    """Logits are float32, detached, finite, and equal bit for bit in a second run."""
    runs = [[attached(name, predict=predict), []] for _ in range(2)]
    for adapter, out in runs:
        out.extend(adapter(images) for images in stream())
    for a, b in zip(runs[0][1], runs[1][1]):
        assert torch.equal(a, b)
        assert a.dtype == torch.float32
        assert not a.requires_grad
        assert torch.isfinite(a).all()


@pytest.mark.parametrize("name", SPECS)
def test_the_global_random_state_is_left_alone(name: str) -> None:
    """Methods draw from their own generator."""
    adapter = attached(name)
    before = torch.get_rng_state()
    for images in stream():
        adapter(images)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("name", SPECS)
def test_a_stream_stopped_and_resumed_gives_the_same_logits(name: str) -> None:
    """The state survives `torch.save` and a restricted `torch.load`, also in the middle of a memory."""
    batches = [images[:n] for images, n in zip(stream(5), (8, 5, 8, 3, 8))]
    whole = attached(name)
    for images in batches[:2]:
        whole(images)
    file = io.BytesIO()
    torch.save(whole.state_dict(), file)
    expected = [whole(images) for images in batches[2:]]
    file.seek(0)
    resumed = attached(name)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    assert all(torch.equal(resumed(images), logits) for images, logits in zip(batches[2:], expected))
    assert resumed.counters == whole.counters


@pytest.mark.parametrize("name", SPECS)
def test_a_state_dict_is_a_snapshot(name: str) -> None:
    """Later steps do not change it, so a roll-back is exact."""
    adapter = attached(name)
    adapter(stream()[0])
    state = adapter.state_dict()
    first = [adapter(images) for images in stream()]
    adapter.load_state_dict(state)
    assert all(torch.equal(adapter(images), logits) for images, logits in zip(stream(), first))


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize("name", SPECS)
def test_reset_returns_to_the_start(name: str, resumed: bool) -> None:
    """Also when a later state was loaded first."""
    adapter = attached(name)
    fresh = adapter.state_dict()
    if resumed:
        other = attached(name)
        other(stream()[0])
        adapter.load_state_dict(other.state_dict())
    first = [attached(name)(images) for images in stream()[:1]]
    for images in stream():
        adapter(images)
    adapter.reset()
    assert adapter.counters == fresh["counters"]
    assert not moved(fresh["network"], adapter.state_dict()["network"])
    assert torch.equal(adapter(stream()[0]), first[0])


def test_a_state_of_another_method_is_refused() -> None:
    """The error names both methods."""
    with pytest.raises(InputError, match=r"Tent.*'Sar'"):
        attached("tent").load_state_dict(attached("sar").state_dict())


@pytest.mark.parametrize("predict", BOTH)
@pytest.mark.parametrize("name", SPECS)
def test_the_callers_gradient_mode_does_not_matter(name: str, predict: str) -> None:
    """`no_grad` and `inference_mode` give the logits of plain code."""
    plain = attached(name, predict=predict)
    expected = [plain(images) for images in stream()]
    for context in (torch.no_grad, torch.inference_mode):
        adapter = attached(name, predict=predict)
        with context():
            got = [adapter(images.clone()) for images in stream()]
        assert all(torch.equal(a, b) for a, b in zip(got, expected))


@pytest.mark.parametrize("predict", BOTH)
@pytest.mark.parametrize("name", SPECS)
def test_the_observer_sees_the_state_that_predicts(name: str, predict: str) -> None:
    """The moment's network gives the moment's logits again, and running it changes nothing."""
    adapter = attached(name, predict=predict)
    seen: list[Moment] = []

    def observe(moment: Moment) -> None:
        before = copy.deepcopy(adapter.state_dict())
        with torch.no_grad():
            again = torch.equal(moment.network(moment.images), moment.logits)
        assert again or name in CORRECTED
        assert not moved(before["network"], adapter.state_dict()["network"])
        assert moment.network is adapter.network
        seen.append(moment)

    for images in stream():
        logits = adapter.step(images, observe)
        assert torch.equal(logits, seen[-1].logits)
    assert len(seen) == 3


@pytest.mark.parametrize("name", LEARNERS)
def test_predicting_after_the_update_shows_the_update(name: str) -> None:
    """The first batch's logits differ between the two orders, and both do one update."""
    before, after = attached(name), attached(name, predict="after")
    images = stream()[0]
    assert not torch.equal(before(images), after(images))
    assert before.counters["updates"] == after.counters["updates"] == 1
    # Nothing but the order differs, so the states after one batch agree.
    assert not moved(before.state_dict()["network"], after.state_dict()["network"])


@pytest.mark.parametrize("name", SPECS)
def test_counters_tell_what_happened(name: str) -> None:
    """Plain integers, for every method the same names."""
    adapter = attached(name)
    for images in stream():
        adapter(images)
    counters = adapter.counters
    updates = 3 if name in LEARNERS else 0
    assert (counters["batches"], counters["samples"], counters["updates"]) == (3, 24, updates)
    assert all(type(value) is int for value in counters.values())
    assert (counters["kept"] > 0) == (name in LEARNERS)


@pytest.mark.parametrize("name", SPECS)
def test_a_batch_of_one_works(name: str) -> None:
    """Single images stream through, memories still fill, and a warning says once what to expect."""
    adapter = attached(name)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for image in random_images(9, size=32):
            assert adapter(image.unsqueeze(0)).shape == (1, 10)
    assert adapter.counters["samples"] == 9
    said = [str(warning.message) for warning in caught]
    assert len(said) == (name in BATCH_STATISTICS)
    assert all("batch of one" in text and "`Rotta`" in text for text in said)


@pytest.mark.parametrize("name", [name for name in SPECS if name != "batchnorm"])
def test_a_batch_of_one_gets_no_warning_from_layer_norms(name: str) -> None:
    """Nothing is normalised over the batch there."""
    assert attached(name, small_vit())(random_images(1)).shape == (1, 10)


@pytest.mark.parametrize("name", BATCH_STATISTICS)
def test_statistics_of_one_value_are_refused_in_one_sentence(name: str) -> None:
    """An 8-pixel image reaches the last stage as one pixel; the adapter is usable afterwards."""
    adapter = attached(name)
    before = snapshot(adapter.network)
    with pytest.raises(InputError, match="at least two images a batch"):
        adapter(random_images(1, size=8))
    assert not moved(before, snapshot(adapter.network))
    assert adapter(random_images(8, size=8)).shape == (8, 10)


@pytest.mark.parametrize("name", SPECS)
def test_bfloat16_autocast_works(name: str) -> None:
    """Under autocast logits stay near those of float32, and parameters stay float32."""
    plain, mixed = attached(name), attached(name)
    expected = plain(stream()[0])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = [mixed(images) for images in stream()]
    assert got[0].dtype == torch.float32
    assert torch.allclose(got[0], expected, atol=0.1 * float(expected.abs().max()))
    assert all(p.dtype == torch.float32 for p in mixed.network.parameters())
    assert all(torch.isfinite(logits).all() for logits in got)


@pytest.mark.parametrize("name", [name for name in SPECS if name != "batchnorm"])
def test_transformers_adapt_their_layer_norms(name: str) -> None:
    """The same classes give TENT-LN and SAR-LN; SAR and SoTTA leave the last quarter of the blocks alone."""
    adapter = attached(name, small_vit())
    before = snapshot(adapter.network)
    for images in stream():
        adapter(images)
    changed = moved(before, snapshot(adapter.network))
    assert name == "cotta" or all(".norm" in key or key.startswith("norm.") for key in changed)
    late = {key for key in changed if key.startswith(("blocks.9", "blocks.10", "blocks.11", "norm."))}
    assert bool(changed) == (name in LEARNERS)
    assert bool(late) == (name in ("tent", "eata", "rotta", "come", "cotta", "roid"))


@pytest.mark.parametrize("name", SPECS)
def test_bad_images_are_refused_before_anything_moves(name: str) -> None:
    """NaN, integers, three dimensions and empty batches each get one sentence."""
    adapter = attached(name)
    before = snapshot(adapter.network)
    images = random_images()
    broken = images.clone()
    broken[0, 0, 0, 0] = float("nan")
    for bad in (broken, (255 * images).to(torch.uint8), images[0], images[:0], images.numpy()):
        with pytest.raises(InputError, match="`images`"):
            adapter(bad)  # type: ignore[arg-type]
    assert not moved(before, snapshot(adapter.network))
    assert adapter.counters["batches"] == 0


@pytest.mark.parametrize("name", SPECS)
def test_predict_must_be_before_or_after(name: str) -> None:
    """A typo is refused when the spec is made."""
    with pytest.raises(OptionError, match="`predict` must be one of before, after"):
        replace(SPECS[name], predict="now")  # type: ignore[arg-type]


def test_half_precision_images_do_not_overflow_the_check() -> None:
    """Their sum exceeds what float16 can hold, which is not an infinite value."""
    images = torch.ones(64, 3, 32, 32, dtype=torch.float16)
    assert attached("source")(images).shape == (64, 10)


@pytest.mark.parametrize("predict", BOTH)
@pytest.mark.parametrize("name", SPECS)
def test_warming_up_leaves_no_trace(name: str, predict: str) -> None:
    """Neither at the start nor in the middle of a stream, in nothing that the next step depends on or warns about."""
    warm, cold = attached(name, predict=predict), attached(name, predict=predict)
    for images in stream():
        state, versions = warm.state_dict(), [p._version for p in warm.network.parameters()]
        warm.warm_up(images.shape)
        assert same(warm.state_dict(), state)
        assert [p._version for p in warm.network.parameters()] == versions
        assert warm._warned == cold._warned
        assert torch.equal(warm(images), cold(images))


@pytest.mark.parametrize("shape", [(3, 32, 32), (0, 3, 32, 32), (1, 3, 32, 1.5), "64", 64, None])
def test_only_the_shape_of_a_batch_can_be_warmed_up_for(shape: object) -> None:
    """Anything else is refused in one sentence."""
    with pytest.raises(InputError, match="`shape` must be that of a batch"):
        attached("source").warm_up(shape)  # type: ignore[arg-type]
