"""One step of every method on a tiny network, against numbers derived here with plain torch and numpy."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from adapt_networks import TinyNetwork, tiny_images
from torch import Tensor

from sicl.adapt import Adapter, BatchNorm, Eata, Rotta, Sar, Sotta, Source, Tent
from sicl.types import Prediction, SourceData

EPS = 1e-5
LN3 = math.log(3)


@dataclass
class Affine:
    """The two trained vectors of the tiny network, with the rest of it fixed."""

    weight: Tensor
    bias: Tensor

    @classmethod
    def start(cls) -> Affine:
        return cls(
            torch.tensor([1.5, 0.5], requires_grad=True), torch.tensor([0.1, -0.2], requires_grad=True)
        )

    def logits(self, images: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        white = (images - mean.view(1, 2, 1, 1)) / torch.sqrt(variance.view(1, 2, 1, 1) + EPS)
        features = (white * self.weight.view(1, 2, 1, 1) + self.bias.view(1, 2, 1, 1)).mean(dim=(2, 3))
        head = torch.tensor([[2.0, -1.0], [-1.0, 3.0], [-2.0, -2.0]])
        return features @ head.T + torch.tensor([0.2, 0.0, -0.1])

    def on_batch(self, images: Tensor) -> Tensor:
        return self.logits(images, *batch_statistics(images))

    def gradients(self, loss: Tensor) -> tuple[Tensor, Tensor]:
        weight, bias = torch.autograd.grad(loss, [self.weight, self.bias])
        return weight, bias

    def moved(self, weight: Tensor, bias: Tensor) -> Affine:
        return Affine(
            (self.weight + weight).detach().requires_grad_(), (self.bias + bias).detach().requires_grad_()
        )


def batch_statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    return images.mean(dim=(0, 2, 3)), images.var(dim=(0, 2, 3), unbiased=False)


def entropies(logits: Tensor) -> Tensor:
    p = torch.exp(logits) / torch.exp(logits).sum(dim=1, keepdim=True)
    return -(p * torch.log(p)).sum(dim=1)


def first_adam_step(gradient: Tensor, lr: float) -> Tensor:
    """With bias correction the first step is -lr * g / (|g| + eps), whatever the betas are."""
    g = gradient.detach().double().numpy()
    return torch.from_numpy(-lr * g / (np.abs(g) + 1e-8)).float()


def same(network: torch.nn.Module, expected: Affine) -> None:
    torch.testing.assert_close(network.norm.weight.detach(), expected.weight.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(network.norm.bias.detach(), expected.bias.detach(), rtol=1e-5, atol=1e-6)


def same_gradients(adapter: Adapter, *gradients: Tensor) -> None:
    """The first step of Adam hides a gradient's size; its first moment is a tenth of the gradient."""
    state = adapter.optimizer.state_dict()["state"]
    for i, gradient in enumerate(gradients):
        torch.testing.assert_close(state[i]["exp_avg"], 0.1 * gradient, rtol=1e-4, atol=1e-7)


def test_source_predicts_with_running_statistics() -> None:
    """The source model normalises with what training left."""
    images = tiny_images()
    expected = Affine.start().logits(images, torch.tensor([0.3, 0.6]), torch.tensor([0.05, 0.2]))
    torch.testing.assert_close(Source().attach(TinyNetwork())(images), expected.detach())


def test_batch_norm_predicts_with_the_batchs_statistics() -> None:
    """The biased variance of the batch normalises it."""
    images = tiny_images()
    expected = Affine.start().on_batch(images)
    torch.testing.assert_close(BatchNorm().attach(TinyNetwork())(images), expected.detach())


def test_tent_takes_one_adam_step_on_the_mean_entropy() -> None:
    """The logits are those before the step; the parameters those after it."""
    images, affine = tiny_images(), Affine.start()
    logits = affine.on_batch(images)
    weight, bias = affine.gradients(entropies(logits).mean())
    adapter = Tent(lr=0.02).attach(TinyNetwork())
    torch.testing.assert_close(adapter(images), logits.detach())
    same(adapter.network, affine.moved(first_adam_step(weight, 0.02), first_adam_step(bias, 0.02)))
    same_gradients(adapter, weight, bias)


def eata_limit(logits: Tensor) -> float:
    """A margin that splits the batch in two halves, as a share of ln 3."""
    ordered = entropies(logits).detach().sort().values
    return float(ordered[len(ordered) // 2 - 1] + ordered[len(ordered) // 2]) / 2 / LN3


def eata_loss(logits: Tensor, keep: Tensor, limit: float) -> Tensor:
    chosen = entropies(logits)[keep]
    return (torch.exp(limit - chosen.detach()) * chosen).mean()


def test_eata_filters_weighs_and_ties() -> None:
    """Two steps: the second has the redundancy filter, SGD's momentum and a Fisher term that is not zero."""
    first, second, source = tiny_images(6, seed=1), tiny_images(6, seed=2), tiny_images(8, seed=4)
    start = Affine.start()
    margin, lr, alpha, similarity = eata_limit(start.on_batch(first)), 0.1, 3.0, 0.9
    limit = margin * LN3

    fisher = [torch.zeros(2), torch.zeros(2)]
    order = torch.randperm(8, generator=torch.Generator().manual_seed(0))
    for part in source[order].split(4):
        logits = start.on_batch(part)
        own = logits.argmax(dim=1)
        loss = -torch.log_softmax(logits, dim=1)[torch.arange(4), own].mean()
        fisher = [f + g**2 / 2 for f, g in zip(fisher, start.gradients(loss))]

    logits = start.on_batch(first)
    keep = entropies(logits) < limit
    velocity = start.gradients(eata_loss(logits, keep, limit))
    after_one = start.moved(*(-lr * v for v in velocity))
    average = logits.softmax(dim=1)[keep].mean(dim=0).detach()

    logits = after_one.on_batch(second)
    p = logits.softmax(dim=1).detach()
    cosine = (p @ average) / (p.norm(dim=1) * average.norm())
    keep_two = (entropies(logits) < limit) & (cosine < similarity)
    tie = sum(
        (f * (now - then.detach()) ** 2).sum()
        for f, now, then in zip(
            fisher, (after_one.weight, after_one.bias), (start.weight, start.bias), strict=True
        )
    )
    assert 0 < int(keep_two.sum()) < int((entropies(logits) < limit).sum())
    gradient = after_one.gradients(eata_loss(logits, keep_two, limit) + alpha * tie)
    after_two = after_one.moved(*(-lr * (0.9 * v + g) for v, g in zip(velocity, gradient)))

    spec = Eata(lr=lr, margin=margin, similarity=similarity, fisher_alpha=alpha, fisher_batch=4)
    adapter = spec.attach(TinyNetwork(), source=SourceData(source, torch.zeros(8, dtype=torch.int64)))
    adapter(first)
    same(adapter.network, after_one)
    adapter(second)
    same(adapter.network, after_two)
    torch.testing.assert_close(adapter.average, 0.9 * average + 0.1 * p[keep_two].mean(dim=0))
    assert adapter.counters["kept"] == int(keep.sum()) + int(keep_two.sum())


def test_eata_does_not_move_when_no_sample_is_reliable() -> None:
    """Momentum does not carry on either."""
    adapter = Eata(lr=0.1, margin=1.0, similarity=1.0, fisher_alpha=0).attach(TinyNetwork())
    adapter(tiny_images(4, seed=1))
    moved = adapter.network.norm.weight.detach().clone()
    object.__setattr__(adapter.spec, "margin", 1e-9)
    adapter(tiny_images(4, seed=2))
    assert torch.equal(adapter.network.norm.weight, moved)
    assert adapter.counters["updates"] == 1


def test_sar_descends_with_the_gradient_of_the_ascended_point() -> None:
    """Filter, ascend by rho along the unit gradient, filter again, take the plain SGD step from the start."""
    images, start = tiny_images(6, seed=1), Affine.start()
    lr, rho = 0.1, 0.3
    logits = start.on_batch(images)
    margin = eata_limit(logits)
    keep = entropies(logits) < margin * LN3
    weight, bias = start.gradients(entropies(logits)[keep].mean())
    norm = torch.sqrt((weight**2).sum() + (bias**2).sum())
    up = start.moved(rho * weight / norm, rho * bias / norm)
    second = entropies(up.on_batch(images))
    still = keep & (second < margin * LN3)
    assert 0 < int(still.sum()) < int(keep.sum()), "the second filter drops one more"
    gradient = up.gradients(second[still].mean())
    adapter = Sar(lr=lr, rho=rho, margin=margin, recovery=0.0).attach(TinyNetwork())
    torch.testing.assert_close(adapter(images), logits.detach())
    same(adapter.network, start.moved(*(-lr * g for g in gradient)))
    assert adapter.counters["kept"] == int(keep.sum())
    assert adapter.average == pytest.approx(second[still].mean().item(), rel=1e-5)
    first = adapter.average
    adapter._recover(torch.tensor(0.25), torch.tensor(True))
    adapter._recover(torch.tensor(7.0), torch.tensor(False))
    assert adapter.average == pytest.approx(0.9 * first + 0.1 * 0.25)


def test_sar_recovers_when_its_loss_collapses() -> None:
    """Below the threshold the network, the momentum and the moving average start anew."""
    adapter = Sar(lr=0.1, margin=2.0, recovery=5.0).attach(TinyNetwork())
    before = adapter.network.state_dict()["norm.weight"].clone()
    first = adapter(tiny_images())
    assert adapter.counters["resets"] == 1
    assert torch.equal(adapter.network.norm.weight, before)
    assert adapter.average is None
    assert torch.equal(adapter(tiny_images()), first)
    assert adapter.optimizer.state_dict()["state"] == {}


def test_rotta_teaches_the_student_and_the_teacher_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Robust statistics, timeliness weights, soft cross-entropy, Adam, and the moving average."""
    monkeypatch.setattr("sicl.adapt.rotta.strong_augmentation", lambda images, generator: images.sqrt())
    offsets = torch.tensor([[0.6, 0.0], [0.0, 0.9], [0.0, 0.0], [0.6, 0.1]])
    images = 0.3 * tiny_images() + offsets.view(4, 2, 1, 1)
    mean, variance = torch.tensor([0.3, 0.6]), torch.tensor([0.05, 0.2])
    alpha, nu, lr = 0.25, 0.1, 0.02
    teacher, student = Affine.start(), Affine.start()
    predicted = teacher.logits(images, mean, variance).argmax(dim=1)
    assert int(predicted.bincount(minlength=3).max()) <= 2, "so that the memory admits all four"

    def robust(batch: Tensor) -> tuple[Tensor, Tensor]:
        m, v = batch_statistics(batch)
        return (1 - alpha) * mean + alpha * m, (1 - alpha) * variance + alpha * v

    targets = teacher.logits(images, *robust(images)).softmax(dim=1).detach()
    said = student.logits(images.sqrt(), *robust(images.sqrt())).log_softmax(dim=1)
    age = torch.tensor([4.0, 3.0, 2.0, 1.0]) / 4
    timely = torch.exp(-age) / (1 + torch.exp(-age))
    loss = (-(targets * said).sum(dim=1) * timely).mean()
    gradients = student.gradients(loss)
    steps = [first_adam_step(g, lr) for g in gradients]

    adapter = Rotta(lr=lr, alpha=alpha, nu=nu, capacity=4, update_every=4).attach(TinyNetwork())
    torch.testing.assert_close(adapter(images), teacher.logits(images, mean, variance).detach())
    same(adapter.student, student.moved(*steps))
    same_gradients(adapter, *gradients)
    same(adapter.network, teacher.moved(*(nu * step for step in steps)))
    expected_mean, expected_variance = robust(images)
    torch.testing.assert_close(adapter.network.norm.running_mean, expected_mean)
    torch.testing.assert_close(adapter.network.norm.running_var, expected_variance)
    assert adapter.counters["updates"] == 1


def test_the_robust_norms_gradient_flows_through_the_batchs_share() -> None:
    """Input gradients equal autograd's of the printed formula,."""
    from sicl.adapt._robustbn import RobustBatchNorm

    layer = RobustBatchNorm(TinyNetwork().norm, 0.25).train()
    images = tiny_images().requires_grad_()
    (layer(images) ** 3).sum().backward()
    again = images.detach().clone().requires_grad_()
    mean, variance = batch_statistics(again)
    mean = 0.75 * torch.tensor([0.3, 0.6]) + 0.25 * mean
    variance = 0.75 * torch.tensor([0.05, 0.2]) + 0.25 * variance
    white = (again - mean.view(1, 2, 1, 1)) / torch.sqrt(variance.view(1, 2, 1, 1) + EPS)
    out = white * torch.tensor([1.5, 0.5]).view(1, 2, 1, 1) + torch.tensor([0.1, -0.2]).view(1, 2, 1, 1)
    (out**3).sum().backward()
    torch.testing.assert_close(images.grad, again.grad)


def sotta_step(images: Tensor, *, lr: float, rho: float) -> tuple[Affine, tuple[Tensor, Tensor]]:
    start = Affine.start()
    weight, bias = start.gradients(entropies(start.on_batch(images)).mean())
    norm = torch.sqrt((weight**2).sum() + (bias**2).sum())
    up = start.moved(rho * weight / norm, rho * bias / norm)
    gradients = up.gradients(entropies(up.on_batch(images)).mean())
    return start.moved(*(first_adam_step(g, lr) for g in gradients)), gradients


def test_sotta_learns_from_the_confident_samples_only() -> None:
    """Filter by softmax, SAM around Adam on the memory, and two moves of the running statistics."""
    images = tiny_images(6, seed=1)
    mean, variance = torch.tensor([0.3, 0.6]), torch.tensor([0.05, 0.2])
    logits = Affine.start().logits(images, mean, variance).detach()
    confidence = logits.softmax(dim=1).max(dim=1).values
    threshold = float(confidence.sort().values[2:4].mean())
    sure = images[confidence > threshold]
    adapter = Sotta(lr=0.02, rho=0.3, threshold=threshold, update_every=6).attach(TinyNetwork())
    torch.testing.assert_close(adapter(images), logits)
    assert len(sure) == len(adapter.memory) == adapter.counters["kept"] == 3
    expected, gradients = sotta_step(sure, lr=0.02, rho=0.3)
    same(adapter.network, expected)
    same_gradients(adapter, *gradients)
    batch_mean, batch_variance = sure.mean(dim=(0, 2, 3)), sure.var(dim=(0, 2, 3), unbiased=True)
    for _ in range(2):
        mean, variance = 0.8 * mean + 0.2 * batch_mean, 0.8 * variance + 0.2 * batch_variance
    torch.testing.assert_close(adapter.network.norm.running_mean, mean)
    torch.testing.assert_close(adapter.network.norm.running_var, variance)


class FixedConfidence:
    """A calibrator that trusts the samples it is told to, and its live object at once: no state, no base class."""

    def __init__(self, confidence: Tensor) -> None:
        self.values = confidence

    def calibration(self, adapter: object, *, source: SourceData | None = None) -> FixedConfidence:
        return self

    def predict(self, moment: object) -> Prediction:
        logits = moment.logits  # type: ignore[attr-defined]
        return Prediction(logits.argmax(dim=1), self.values, logits)


def test_sotta_can_filter_with_any_calibrators_confidence() -> None:
    """The memory holds what the calibrator trusts, not what the softmax is sure of."""
    images = tiny_images(6, seed=1)
    trusted = torch.tensor([0.9, 0.1, 0.8, 0.2, 0.3, 0.95])
    calibrator = FixedConfidence(trusted)
    spec = Sotta(lr=0.02, rho=0.3, threshold=0.5, update_every=6, confidence=calibrator, admit="threshold")
    adapter = spec.attach(TinyNetwork())
    adapter(images)
    expected, gradients = sotta_step(images[[0, 2, 5]], lr=0.02, rho=0.3)
    same(adapter.network, expected)
    same_gradients(adapter, *gradients)


def test_sotta_admits_as_many_by_a_calibrator_as_by_the_softmax() -> None:
    """The share of admitted samples is the softmax's; which ones they are is the calibrator's choice."""
    images = tiny_images(6, seed=1)
    mean, variance = torch.tensor([0.3, 0.6]), torch.tensor([0.05, 0.2])
    softmax = Affine.start().logits(images, mean, variance).softmax(dim=1).max(dim=1).values.detach()
    threshold = float(softmax.sort().values[2:4].mean())
    # On another scale altogether: no sample would pass the threshold itself.
    trusted = 0.01 * torch.tensor([0.9, 0.1, 0.8, 0.2, 0.3, 0.95])
    spec = Sotta(lr=0.02, rho=0.3, threshold=threshold, update_every=6, confidence=FixedConfidence(trusted))
    adapter = spec.attach(TinyNetwork())
    adapter(images)
    assert adapter.counters["kept"] == 3
    expected, _ = sotta_step(images[[0, 2, 5]], lr=0.02, rho=0.3)
    same(adapter.network, expected)
