"""The engine's laws: resume what was run, leave no trace, say when it cannot be done."""

from __future__ import annotations

import random
import warnings

import pytest
import torch
from engine_networks import NETWORKS, build, images
from test_norms import same, snapshot
from torch import Tensor, nn

from sicl.engine.norms import batch_norms, batch_statistics
from sicl.engine.split import Split
from sicl.errors import InputError, UnsupportedModelError


def size_of(name: str) -> int:
    """The image size a network takes."""
    return 32 if name == "hf_resnet" else 16


ALL = [*NETWORKS, "hf_resnet", "hf_vit"]


def network(name: str) -> nn.Module:
    """Build a network, or skip if the optional library is missing."""
    if name.startswith("hf_"):
        pytest.importorskip("transformers")
    return build(name)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("training", [False, True])
def test_resuming_unchanged_features_gives_the_logits_of_the_run(name: str, training: bool) -> None:
    """The first law, once and repeated, with running and with batch statistics."""
    model = network(name)
    for module in batch_norms(model):
        module.train(training)
    for statistics, tolerance in (("frozen", 1e-5), (None, 1e-4)):
        split = Split(model, statistics=statistics)
        begun = split.run(images(6, size=size_of(name)))
        assert split.plan in ("thin", "wide")
        assert torch.allclose(split.resume(begun.features, begun), begun.logits, atol=tolerance)
        twice = split.resume(torch.cat([begun.features] * 2), begun, groups=2)
        assert torch.allclose(twice, torch.cat([begun.logits] * 2), atol=tolerance)


@pytest.mark.parametrize("name", ALL)
def test_resuming_changed_features_equals_a_hook_in_a_whole_pass(name: str) -> None:
    """The reference is what anybody would write: a hook that changes the layer's output."""
    model = network(name)
    batch = images(6, size=size_of(name))
    split = Split(model)
    begun = split.run(batch)
    changed = begun.features * 1.3 + 0.2
    module = model.get_submodule(split.point.name)
    if split.point.side == "output":
        handle = module.register_forward_hook(lambda *_: changed)
    else:
        handle = module.register_forward_pre_hook(lambda _m, args: (changed, *args[1:]))
    output = model(batch)
    handle.remove()
    expected = output if isinstance(output, Tensor) else output.logits
    assert torch.allclose(split.resume(changed, begun), expected, atol=1e-5)
    assert not torch.allclose(split.resume(begun.features, begun), expected, atol=1e-5)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("training", [False, True])
def test_nothing_is_left_changed(name: str, training: bool) -> None:
    """State, flags, forwards, hooks, gradients and every global random state are as found."""
    model = network(name)
    for module in batch_norms(model):
        module.train(training)
    before, states = snapshot(model), (torch.get_rng_state(), random.getstate())
    for statistics in ("frozen", "batch", "running", None):
        split = Split(model, statistics=statistics)
        begun = split.run(images(6, size=size_of(name)))
        split.features(images(6, size=size_of(name)))
        again = split.resume(begun.features, begun)
    assert same(before, snapshot(model))
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()
    assert not any(tensor.requires_grad for tensor in (begun.features, begun.logits, again))


def test_the_prefix_is_not_computed_again() -> None:
    """While resuming, no convolution before the cut runs, and the cut's own stage does not either."""
    model = build("resnet18")
    split = Split(model)
    begun = split.run(images())
    called: list[str] = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(lambda _m, _a, out, name=name: called.append((name, len(out))))
    split.resume(torch.cat([begun.features] * 3), begun, groups=3)
    ran = {name for name, rows in called if rows > 1}
    assert ran == {n for n, m in model.named_modules() if isinstance(m, nn.Conv2d) and n >= "layer2"}


def test_features_alone_stop_at_the_cut() -> None:
    """Only the prefix runs, and the features are those of a whole run."""
    model = build("resnet18")
    split = Split(model)
    split.check(images())
    expected = split.run(images()).features
    called: list[str] = []
    model.layer2.register_forward_hook(lambda *_: called.append("layer2"))
    assert torch.equal(split.features(images()), expected)
    assert called == []


def test_a_network_that_reads_the_batch_size_from_its_input_is_resumed_all_the_same() -> None:
    """Stubs of the full batch stand in where one row does not do."""
    split = Split(build("functional"))
    split.check(images())
    assert split.plan == "wide"


def test_a_skip_connection_past_the_layer_means_whole_passes_and_one_warning() -> None:
    """However faint the bypass, it is noticed; the result is that of a hook in a whole pass."""
    model = build("skipping")
    split = Split(model)
    with pytest.warns(UserWarning, match="cannot be resumed at 'bn1'"):
        split.run(images())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        split.run(images(seed=1))
        split.run(images(size=20))
        begun = split.run(images())
    assert split.plan == "whole"
    twice = split.resume(torch.cat([begun.features] * 2), begun, groups=2)
    assert torch.allclose(twice, begun.logits.repeat(2, 1), atol=1e-5)
    rows = torch.tensor([1, 4])
    some = split.resume(begun.features[rows], begun, rows=rows)
    assert torch.allclose(some, begun.logits[rows], atol=1e-5)


def test_a_module_that_does_not_depend_on_the_images_follows_the_parameters() -> None:
    """A table made before the cut and used after it is recomputed, so adaptation is not missed."""
    model = build("positions")
    split = Split(model, "conv")
    split.run(images())
    with torch.no_grad():
        model.table.row.mul_(2)
    begun = split.run(images())
    assert split.plan != "whole"
    assert torch.allclose(split.resume(begun.features, begun), begun.logits, atol=1e-5)


def test_features_that_the_network_overwrites_are_kept() -> None:
    """A cut before an in-place activation gives, and takes, features that stay what they are."""
    split = Split(build("vgg"), "0.1")
    begun = split.run(images())
    assert float(begun.features.min()) < 0
    copy = begun.features.clone()
    assert torch.allclose(split.resume(begun.features, begun), begun.logits, atol=1e-5)
    assert torch.equal(begun.features, copy)


def test_new_image_sizes_are_checked_anew() -> None:
    """Stubs of one size must not answer for another."""
    split = Split(build("functional"))
    for size in (16, 20):
        begun = split.run(images(size=size))
        assert torch.allclose(split.resume(begun.features, begun), begun.logits, atol=1e-5)


def test_a_batch_of_one_can_be_cut() -> None:
    """The first batch may have a single row."""
    split = Split(build("resnet18"))
    begun = split.run(images(1))
    thrice = split.resume(torch.cat([begun.features] * 3), begun, groups=3)
    assert torch.allclose(thrice, begun.logits.expand(3, -1), atol=1e-5)


@pytest.mark.parametrize("plain", [False, True])
def test_batch_norms_with_their_own_forward_are_normalised_apart(plain: bool) -> None:
    """Stacked where the layer calls torch's `batch_norm`, one variant at a time where it does not."""

    class Own(nn.BatchNorm2d):
        def forward(self, x: Tensor) -> Tensor:
            return (x - x.mean((0, 2, 3), keepdim=True) if plain else super().forward(x)) * 2

    model = build("vgg")
    model[0][5] = Own(8)
    model.train()
    split = Split(model)
    begun = split.run(images())
    stacked = torch.cat([begun.features, begun.features * 3])
    with torch.no_grad(), batch_statistics(model):
        tail = model[0][3:]
        expected = torch.cat([model[1:](tail(part.clone())) for part in stacked.chunk(2)])
    sent: list[int] = []
    model[0][4].register_forward_pre_hook(lambda _m, args: sent.append(len(args[0])))
    assert torch.allclose(split.resume(stacked, begun, groups=2), expected, atol=1e-5)
    assert sent == ([6, 6] if plain else [12])


@pytest.mark.parametrize("name", ["resnet18", "functional", "positions"])
@pytest.mark.parametrize("value", [0.0, 0.5])
def test_rows_that_happen_to_be_equal_do_not_mislead(name: str, value: float) -> None:
    """Whether a module depends on the images is not guessed from images that are all alike."""
    split = Split(build(name))
    alike = torch.full((6, 3, 16, 16), value)
    split.begin(alike)
    begun = split.run(images())
    assert split.plan in ("thin", "wide")
    assert torch.allclose(split.resume(begun.features, begun), begun.logits, atol=1e-5)


def test_nan_logits_are_named() -> None:
    """A broken network is not told to name another layer."""
    model = build("resnet18")
    with torch.no_grad():
        model.fc.bias.fill_(float("nan"))
    with pytest.raises(UnsupportedModelError, match="NaN or infinite logits"):
        Split(model).run(images())


def test_two_begun_batches_do_not_disturb_each_other() -> None:
    """A begun batch is a value: what was begun first is resumed as if nothing else had been."""
    model = build("resnet18").train()
    split = Split(model, statistics="frozen")
    first = split.run(images(6, seed=1))
    split.run(images(4, seed=2))
    assert torch.allclose(split.resume(first.features, first), first.logits, atol=1e-5)


def test_a_wrong_number_of_rows_names_groups() -> None:
    """Stacked variants need their count."""
    split = Split(build("resnet18"))
    begun = split.run(images())
    with pytest.raises(InputError, match="set `groups`"):
        split.resume(torch.cat([begun.features] * 2), begun)


def test_a_module_that_is_never_called_is_refused() -> None:
    """A name may exist without ever running."""
    model = build("resnet18")
    model.add_module("idle", nn.Conv2d(1, 1, 1))
    with pytest.raises(UnsupportedModelError, match="never called its module 'idle'"):
        Split(model, "idle").run(images())


def test_a_model_without_logits_is_refused() -> None:
    """Feature maps are no logits."""
    with pytest.raises(UnsupportedModelError, match="N x C logits"):
        Split(nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)), "0").run(images())


def test_the_widest_layer_after_the_cut_is_known() -> None:
    """Bottlenecks are four times as wide inside as what enters the first stage."""
    from sicl.models.cifar import resnet50

    split = Split(resnet50(width=4), "layer1:input")
    assert split.run(torch.rand(2, 3, 32, 32)).features[0].numel() == 4 * 32 * 32
    assert split.widest == 16 * 32 * 32
