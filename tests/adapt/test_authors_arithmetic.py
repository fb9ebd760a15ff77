"""The methods of today against their published arithmetic, restated in float64 without our code, batch by batch.

Sixteen batches, the last one short, on a network with batch norms and one with layer norms; ten classes.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from adapt_networks import small_resnet, small_vit
from torch import Tensor, nn

from sicl.adapt import Adapter, Come, Cotta, Deyo, Eata, Lame, Method, Roid, Sar, Tent
from sicl.types import SourceData

pytestmark = pytest.mark.filterwarnings("error")

K = 10
N = 12
E0 = 0.4 * math.log(K)
Step = Callable[[Tensor], Tensor]
NETWORKS = pytest.mark.parametrize("kind", ["batch norms", "layer norms"])
OPTIMIZERS = pytest.mark.parametrize("optimizer", ["sgd", "adam"])


def draw(n: int, seed: int) -> Tensor:
    """Images with a coarse pattern each, so that predictions differ."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(n, 3, 4, 4, generator=generator).repeat_interleave(4, 2).repeat_interleave(4, 3)
    return 0.7 * coarse + 0.3 * torch.rand(n, 3, 16, 16, generator=generator)


def batches() -> list[Tensor]:
    return [draw(N if i < 15 else 5, seed=100 + i) for i in range(16)]


@functools.cache
def _network(kind: str) -> nn.Module:
    """Untrained, but with a head that says this and that, as sure as a trained one: entropies from 0 to ln K."""
    network, scale = (small_resnet(), 15.0) if kind == "batch norms" else (small_vit(), 90.0)
    head = network.fc if kind == "batch norms" else network.head
    assert isinstance(head, nn.Linear)
    with torch.no_grad():
        head.weight *= scale
        head.bias -= network(draw(64, seed=1)).mean(dim=0)
    return network


def made(kind: str) -> nn.Module:
    return copy.deepcopy(_network(kind))


# What follows knows the papers and their authors' habits, and nothing of `sicl`.


def theirs(kind: str) -> nn.Module:
    """A copy in float64 and training mode, whose batch norms have lost their running statistics."""
    network = made(kind).double().train().requires_grad_(False)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.track_running_stats = False
            module.running_mean = module.running_var = None
    return network


def affine(network: nn.Module, *, top: bool = True) -> list[nn.Parameter]:
    """Scale and shift of norm layers; without `top` not layer4, blocks 9 to 11 and the final norm."""
    late = ("layer4", "blocks.9", "blocks.10", "blocks.11")
    found = []
    for name, module in network.named_modules():
        skipped = not top and (name == "norm" or any(part in name for part in late))
        if isinstance(module, nn.BatchNorm2d | nn.LayerNorm) and not skipped:
            found += [module.weight.requires_grad_(), module.bias.requires_grad_()]
    return found


class Descent:
    """SGD with momentum 0.9 (Nesterov's or plain) or Adam, written out."""

    def __init__(
        self, name: str, parameters: Sequence[nn.Parameter], lr: float, nesterov: bool = False
    ) -> None:
        self.name, self.parameters, self.lr, self.nesterov, self.t = name, parameters, lr, nesterov, 0
        self.first = [torch.zeros_like(p) for p in parameters]
        self.second = [torch.zeros_like(p) for p in parameters]

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor]) -> None:
        self.t += 1
        for p, g, m, v in zip(self.parameters, gradients, self.first, self.second):
            if self.name == "adam":
                m.copy_(0.9 * m + 0.1 * g)
                v.copy_(0.999 * v + 0.001 * g * g)
                p -= self.lr * (m / (1 - 0.9**self.t)) / ((v / (1 - 0.999**self.t)).sqrt() + 1e-8)
            else:
                m.copy_(0.9 * m + g)
                p -= self.lr * (g + 0.9 * m if self.nesterov else m)

    def gradients(self, loss: Tensor) -> list[Tensor]:
        found = torch.autograd.grad(loss, self.parameters, allow_unused=True)
        return [torch.zeros_like(p) if g is None else g for p, g in zip(self.parameters, found)]


def entropy(z: Tensor) -> Tensor:
    return -(z.softmax(1) * z.log_softmax(1)).sum(1)


def opinion(z: Tensor, k: int = K) -> Tensor:
    """H(b, u) over K + 1 outcomes with the norm of the logits held."""
    r = (z * z).sum(1, keepdim=True).sqrt()
    evidence = torch.exp(z / r * r.detach())
    strength = evidence.sum(1, keepdim=True) + k
    mass = torch.cat([evidence / strength, k / strength], dim=1) + 1e-7
    return -(mass * mass.log()).sum(1)


def come(network: nn.Module, optimizer: str, lr: float, k: int) -> Step:
    descent = Descent(optimizer, affine(network), lr)

    def step(x: Tensor) -> Tensor:
        z = network(x)
        descent.step(descent.gradients(opinion(z, k).mean()))
        return z

    return step


def eata(
    network: nn.Module, lr: float, limit: float, d: float, beta: float, source: Tensor, kept: list[int]
) -> Step:
    """EATA with COME's entropy in filter, weight and loss; the similarity filter keeps the softmax."""
    parameters = affine(network)
    descent = Descent("sgd", parameters, lr)
    start = [p.detach().clone() for p in parameters]
    z = network(source)
    fisher = [g * g for g in descent.gradients(nn.functional.cross_entropy(z, z.argmax(1)))]
    average: list[Tensor] = []

    def step(x: Tensor) -> Tensor:
        z = network(x)
        h, p = opinion(z), z.softmax(1).detach()
        ids = [i for i in range(len(x)) if h[i] < limit]
        if average:
            ids = [i for i in ids if abs(float(torch.cosine_similarity(average[-1], p[i], dim=0))) < d]
        kept.append(len(ids))
        if ids:
            loss = sum(h[i] * torch.exp(limit - h[i].detach()) for i in ids) / len(ids)
            tie = sum((f * (a - b) ** 2).sum() for f, a, b in zip(fisher, parameters, start))
            descent.step(descent.gradients(loss + beta * tie))
            average.append(0.9 * average[-1] + 0.1 * p[ids].mean(0) if average else p[ids].mean(0))
        return z

    return step


def sar(
    network: nn.Module,
    lr: float,
    limit: float,
    recovery: float,
    *,
    official: bool,
    kept: list[int],
    resets: list[int],
    averages: list[float],
) -> Step:
    """SAR with COME's entropy; the official code keeps average and momentum when it recovers."""
    parameters = affine(network, top=False)
    start = [p.detach().clone() for p in parameters]
    state: dict[str, float | None] = {"average": None}
    descent = Descent("sgd", parameters, lr)

    def step(x: Tensor) -> Tensor:
        z = network(x)
        h = opinion(z)
        ids = torch.where(h < limit)[0]
        gradients = descent.gradients(h[ids].sum() / max(len(ids), 1))
        length = math.sqrt(sum(float((g * g).sum()) for g in gradients)) + 1e-12
        before = [p.detach().clone() for p in parameters]
        for p, g in zip(parameters, gradients):
            p.data += 0.05 * g / length
        again = opinion(network(x))[ids]
        still = again[again < limit]
        gradients = descent.gradients(still.sum() / max(len(still), 1))
        for p, b in zip(parameters, before):
            p.data = b
        descent.step(gradients)
        kept.append(len(still))
        if len(still):
            loss, old = float(still.detach().mean()), state["average"]
            state["average"] = loss if old is None else 0.9 * old + 0.1 * loss
        averages.append(state["average"] or 0.0)
        resets.append(int(state["average"] is not None and state["average"] < recovery))
        if resets[-1]:
            for p, s in zip(parameters, start):
                p.data = s.clone()
            if not official:
                state["average"] = None
                descent.first = [torch.zeros_like(p) for p in parameters]
        return z

    return step


def deyo(
    network: nn.Module,
    optimizer: str,
    lr: float,
    limit: float,
    tau: float,
    h_of: Callable[[Tensor], Tensor],
    kept: list[int],
) -> Step:
    """DeYO with its occlusion, the one destruction that draws nothing at random."""
    descent = Descent(optimizer, affine(network, top=False), lr)

    def step(x: Tensor) -> Tensor:
        z = network(x)
        h, p = h_of(z), z.softmax(1).detach()
        sure = [i for i in range(len(x)) if h[i] < limit]
        kept.append(0)
        if not sure:
            return z
        hidden = x[sure].clone()
        for image, own in zip(hidden, x[sure]):
            for channel in range(3):
                image[channel, 4:12, 4:12] = own[channel].mean()
        with torch.no_grad():
            q = network(hidden).softmax(1)
        terms = []
        for row, i in enumerate(sure):
            label = int(p[i].argmax())
            plpd = float(p[i, label] - q[row, label])
            if plpd > tau:
                terms.append((math.exp(E0 - float(h[i].detach())) + math.exp(plpd)) * h[i])
        kept[-1] = len(terms)
        if terms:
            descent.step(descent.gradients(torch.stack(terms).mean()))
        return z

    return step


def cotta(
    kind: str, optimizer: str, lr: float, threshold: float, *, symmetric: bool, seen: list[float]
) -> Step:
    """CoTTA that restores nothing, its view a square root; all three copies normalise with the batch."""
    student, teacher, anchor = theirs(kind), theirs(kind), theirs(kind)
    names = [n for n, _ in student.named_parameters() if n.split(".")[-1] in ("weight", "bias")]
    learned = [student.get_parameter(n).requires_grad_() for n in names]
    descent = Descent(optimizer, learned, lr, nesterov=True)

    def step(x: Tensor) -> Tensor:
        z = student(x)
        seen.append(float(anchor(x).softmax(1).max(1).values.mean()))
        t = teacher(x.sqrt() if seen[-1] < threshold else x)
        loss = -(t.softmax(1) * z.log_softmax(1)).sum(1)
        if symmetric:
            loss = 0.5 * loss - 0.5 * (z.softmax(1) * t.log_softmax(1)).sum(1)
        descent.step(descent.gradients(loss.mean()))
        for n, p in zip(names, learned):
            mean = teacher.get_parameter(n)
            mean.data = 0.9 * mean.data + 0.1 * p.data
        return t

    return step


def roid(network: nn.Module, optimizer: str, lr: float) -> Step:
    """ROID whose second view is the image itself; sums are divided by N whatever the batch's size is."""
    parameters = affine(network)
    source = [p.detach().clone() for p in parameters]
    descent = Descent(optimizer, parameters, lr, nesterov=True)
    mean = [torch.full((K,), 1 / K, dtype=torch.float64)]

    def cross(p: Tensor, q: Tensor) -> Tensor:
        return -(p.softmax(1) * q.log_softmax(1)).sum(1)

    def step(x: Tensor) -> Tensor:
        z = network(x)
        p = z.softmax(1).detach()
        d = torch.stack([1 - mean[-1] @ row / (mean[-1].norm() * row.norm()) for row in p])
        d = (d - d.min()) / (d.max() - d.min())
        c = -entropy(z.detach())
        c = (c - c.min()) / (c.max() - c.min())
        kept = torch.where(d >= d.mean())[0]
        w = torch.exp(3 * d * c)[kept]
        mean.append(0.9 * mean[-1] + 0.1 * p.mean(0))
        q = z[kept].softmax(1).clamp(max=0.99)
        ratio = -(q * torch.log(q / (1 - q) + 1e-5)).sum(1)
        other = network(x[kept])
        pair = 0.5 * (cross(z[kept], other) + cross(other, z[kept]))
        descent.step(descent.gradients((w * ratio).sum() / N + (w * pair).sum() / N))
        for parameter, s in zip(parameters, source):
            parameter.data = 0.99 * parameter.data + 0.01 * s
        prior = p.mean(0)
        smooth = max(1 / len(x), 1 / K) / prior.max()
        return z * (prior + smooth) / (1 + smooth * K)

    return step


def lame(kind: str, affinity: str, k: int) -> Step:
    """LAME in evaluation mode, source statistics; gives probabilities."""
    network = made(kind).double().eval()
    seen: list[Tensor] = []
    head = network.fc if kind == "batch norms" else network.head
    head.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach()))

    def weights(x: Tensor) -> Tensor:
        n = len(x)
        distance = torch.tensor([[float((a - b).norm()) for b in x] for a in x], dtype=torch.float64)
        if affinity == "linear":
            return torch.tensor([[float(a @ b) for b in x] for a in x], dtype=torch.float64)
        if affinity == "rbf":
            sigma = sum(sorted(row.tolist())[min(k, n) - 1] for row in distance) / n
            return torch.exp(-(distance**2) / (2 * sigma**2))
        out = torch.zeros(n, n, dtype=torch.float64)
        for i in range(n):
            others = sorted((j for j in range(n) if j != i), key=lambda j: float(distance[i, j]))
            out[i, others[:k]] = 1.0
        return out

    def step(images: Tensor) -> Tensor:
        p = network(images).softmax(1).detach()
        features = seen[-1].flatten(1)
        w = weights(features / features.norm(dim=1, keepdim=True))
        y, old = p, math.inf
        for i in range(100):
            pull = w @ y
            y = (torch.log(p + 1e-10) + pull).softmax(1)
            energy = float((-torch.log(p + 1e-10) * y - pull * y + y * y.log()).sum())
            if i >= 2 and abs(energy - old) <= 1e-8 * abs(old):
                break
            old = energy
        return y

    return step


# And here both meet.


def compared(spec: Method, kind: str, step: Step, **attach: SourceData) -> Adapter:
    """Our logits are theirs to 1e-3 at every batch, and not those of a network that stands still."""
    adapter, still = spec.attach(made(kind), **attach), theirs(kind)
    largest = 0.0
    for images in batches():
        expected = step(images.double()).detach()
        largest = max(largest, _apart(adapter(images), expected))
    assert largest < 1e-3
    assert _apart(still(images.double()), expected) > 5e-3
    assert adapter.counters["refused"] == 0
    return adapter


def _apart(ours: Tensor, expected: Tensor) -> float:
    return float((ours.detach().double() - expected).norm() / expected.norm())


def quantile(kind: str, share: float, h_of: Callable[[Tensor], Tensor]) -> float:
    """The uncertainty below which a share of the first batches' samples lies, away from all of them."""
    values = h_of(torch.cat([theirs(kind)(x.double()) for x in batches()[:4]])).sort().values
    place = int(share * len(values))
    return float(values[place - 1 : place + 1].mean())


@NETWORKS
@OPTIMIZERS
@pytest.mark.parametrize(("objective", "k"), [("come", K), ("come-1000", 1000)])
def test_come_step_by_step(kind: str, optimizer: str, objective: str, k: int) -> None:
    """TENT's step on the entropy of opinions, with the network's number of classes or the authors' 1000."""
    lr = {"sgd": 5e-3, "adam": 3e-3}[optimizer]
    spec = Come(lr=lr, optimizer=optimizer, objective=objective)  # type: ignore[arg-type]
    compared(spec, kind, come(theirs(kind), optimizer, lr, k))
    same = Tent(lr=lr, optimizer=optimizer, objective=objective)  # type: ignore[arg-type]
    assert torch.equal(spec.attach(made(kind))(batches()[0]), same.attach(made(kind))(batches()[0]))


@NETWORKS
def test_eata_with_comes_objective_step_by_step(kind: str) -> None:
    """Both filters, weights, the tie to the source and the average; some batches have no sample that counts."""
    limit, source, kept = quantile(kind, 0.3, opinion), draw(16, seed=7), list[int]()
    spec = Eata(lr=0.05, margin=limit / math.log(K), similarity=0.8, fisher_alpha=20.0, fisher_batch=16)
    step = eata(theirs(kind), 0.05, limit, 0.8, 20.0, source.double(), kept)
    data = SourceData(source, torch.arange(16) % K)
    adapter = compared(replace(spec, objective="come"), kind, step, source=data)
    assert 0 in kept
    assert adapter.counters["kept"] == sum(kept) > 0


@NETWORKS
@pytest.mark.parametrize("official", [True, False])
def test_sar_with_comes_objective_step_by_step(kind: str, official: bool) -> None:
    """SAM, both filters, empty selections that let the momentum move on, and recovery in both ways."""
    limit, kept, resets, losses = quantile(kind, 0.15, opinion), list[int](), list[int](), list[float]()
    never = sar(theirs(kind), 0.02, limit, 0.0, official=True, kept=[], resets=[], averages=losses)
    for images in batches():
        never(images.double())
    recovery = sum(sorted(losses)[7:9]) / 2
    spec = Sar(lr=0.02, margin=limit / math.log(K), recovery=recovery, objective="come")
    spec = replace(spec, average_restarts=not official, momentum_restarts=not official)
    step = sar(theirs(kind), 0.02, limit, recovery, official=official, kept=kept, resets=resets, averages=[])
    adapter = compared(spec, kind, step)
    assert 0 in kept or not official
    assert 0 < adapter.counters["resets"] == sum(resets) < 16


@NETWORKS
@OPTIMIZERS
@pytest.mark.parametrize("objective", ["entropy", "come"])
def test_deyo_step_by_step(kind: str, optimizer: str, objective: str) -> None:
    """Two filters and two weights; the occluded images pass batch norms by themselves; nothing kept, no step."""
    h_of = entropy if objective == "entropy" else opinion
    lr, limit, kept = {"sgd": 0.02, "adam": 3e-3}[optimizer], quantile(kind, 0.1, h_of), list[int]()
    tau = 0.02 if kind == "batch norms" else 0.01
    spec = Deyo(lr=lr, optimizer=optimizer, margin=limit / math.log(K), threshold=tau)  # type: ignore[arg-type]
    spec = replace(spec, destroy="occlusion", objective=objective)  # type: ignore[arg-type]
    adapter = compared(spec, kind, deyo(theirs(kind), optimizer, lr, limit, tau, h_of, kept))
    assert 0 in kept
    assert adapter.counters["kept"] == sum(kept) > 0
    assert adapter.counters["updates"] == sum(n > 0 for n in kept)


@NETWORKS
@OPTIMIZERS
@pytest.mark.parametrize("loss", ["cross_entropy", "symmetric"])
def test_cotta_step_by_step(kind: str, optimizer: str, loss: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source by its batch's statistics decides on views; student, teacher and what is said come in order."""
    monkeypatch.setattr("sicl.adapt._views.strong_augmentation", lambda images, generator: images.sqrt())
    lr, seen = {"sgd": 2e-3, "adam": 2e-4}[optimizer], list[float]()
    sure = [float(theirs(kind)(x.double()).softmax(1).max(1).values.mean()) for x in batches()]
    threshold = sum(sorted(sure)[7:9]) / 2
    spec = Cotta(lr=lr, optimizer=optimizer, momentum=0.9, restore=0.0, views=2)  # type: ignore[arg-type]
    spec = replace(spec, threshold=threshold, loss=loss)  # type: ignore[arg-type]
    step = cotta(kind, optimizer, lr, threshold, symmetric=loss == "symmetric", seen=seen)
    compared(spec, kind, step)
    assert sum(c < threshold for c in seen) == 8


@NETWORKS
@OPTIMIZERS
def test_cotta_without_views_step_by_step(kind: str, optimizer: str) -> None:
    """By the symmetric loss: a student that equals its teacher learns nothing from its cross-entropy but rounding."""
    lr = {"sgd": 2e-3, "adam": 2e-4}[optimizer]
    spec = Cotta(lr=lr, optimizer=optimizer, momentum=0.9, restore=0.0, views=0, loss="symmetric")  # type: ignore[arg-type]
    compared(spec, kind, cotta(kind, optimizer, lr, 0.0, symmetric=True, seen=[]))


@NETWORKS
@OPTIMIZERS
def test_roid_step_by_step(kind: str, optimizer: str) -> None:
    """Weights, both losses over the configured batch size, the way back, and logits times the prior."""
    lr = {"sgd": 0.01, "adam": 3e-3}[optimizer]
    spec = Roid(lr=lr, optimizer=optimizer, batch_size=N, augment=False, prior="multiply")  # type: ignore[arg-type]
    compared(spec, kind, roid(theirs(kind), optimizer, lr))


@NETWORKS
@pytest.mark.parametrize("affinity", ["rbf", "knn", "linear"])
@pytest.mark.parametrize("neighbours", [5, 3])
def test_lame_batch_by_batch(kind: str, affinity: str, neighbours: int) -> None:
    """The softmax of our logits is the authors' probabilities, for a batch smaller than k as well."""
    adapter = Lame(affinity=affinity, neighbours=neighbours).attach(made(kind))  # type: ignore[arg-type]
    step, network = lame(kind, affinity, neighbours), made(kind).double().eval()
    for images in [*batches(), draw(2, seed=3)]:
        expected = step(images.double()).detach()
        assert _apart(adapter(images).softmax(1), expected) < 1e-3
        assert _apart(network(images.double()).softmax(1), expected) > 1e-3
