"""Record, for every open reading of SICL, what each variant family says about each sample of a stream.

One run adapts once a stream and measures all readings on the state that predicts, so they can be compared,
combined and scored later without the network (`--out` gets one npz a stream, 8 bits a value).

    python benchmarks/readings.py --data DIR --model cifar10=FILE --corruptions validation --methods tent,eata
"""

from __future__ import annotations

import argparse
import re
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import sicl
from sicl import perturb
from sicl.adapt import METHODS, Moment
from sicl.calibrate.sicl.variants import beta
from sicl.corruptions import CORRUPTIONS, VALIDATION_CORRUPTIONS
from sicl.data import load_dataset, source_data
from sicl.engine.norms import batch_statistics
from sicl.engine.split import Begun, Split
from sicl.engine.variants import predicted_probability
from sicl.streams import Benign

LAYERS = {
    "stem": "layer1:input",
    "layer1": "layer1",
    "layer2": "layer2",
    "layer3": "layer3",
    "layer4": "layer4",
}
# layer, family, parameter; each with frozen and batch statistics unless `frozen` ends the name
READINGS = [
    *[("layer1", "channel", s) for s in (0.5, 1.0, 1.5, 2.0, 3.0)],
    *[("layer1", "global", s) for s in (1.0, 2.0)],
    ("layer1", "mix", 0.1),
    ("layer1", "swap", 0.0),
    *[("layer1", "content", s) for s in (1.0, 2.0, 3.0, 5.0, 10.0)],
    ("stem", "channel", 1.0),
    ("stem", "channel", 2.0),
    ("stem", "mix", 0.1),
    ("stem", "swap", 0.0),
    ("layer2", "channel", 1.0),
    ("layer2", "swap", 0.0),
    ("layer3", "channel", 1.0),
    ("layer4", "channel", 1.0),
    *[(layer, "keep", s) for layer in ("stem", "layer1") for s in (1.0, 1.5, 2.0)],
    *[(layer, "half", 0.5) for layer in ("stem", "layer1")],
    ("stem", "content", 1.0),
]


class Readings:
    """All readings of one adapter's moments."""

    def __init__(
        self, adapter: sicl.adapt.Adapter, plain: sicl.adapt.Adapter, options: argparse.Namespace
    ) -> None:
        self.splits = {
            name: {kind: Split(adapter.network, layer, statistics=kind) for kind in (None, "frozen")}
            for name, layer in LAYERS.items()
        }
        self.plain, self.variants, self.max_batch = plain, options.variants, options.max_batch
        self.skip, self.norms = re.compile(options.skip), options.norms.split(",")
        device = next(adapter.network.parameters()).device
        self.generator = torch.Generator(device).manual_seed(0)
        self.rows: list[dict[str, Tensor]] = []

    @torch.no_grad()
    def observe(self, moment: Moment) -> None:
        labels = moment.logits.argmax(dim=1)
        out = {"softmax": predicted_probability(moment.logits, labels), "labels": labels.float() / 255}
        other = self.plain.step(moment.images)
        out["plain.soft"] = predicted_probability(other, labels)
        out["plain.hard"] = (other.argmax(dim=1) == labels).float()
        flipped = moment.network(moment.images.flip(-1))
        out["flip.soft"], out["flip.hard"] = (
            predicted_probability(flipped, labels),
            (flipped.argmax(1) == labels).float(),
        )
        for layer, splits in self.splits.items():
            begun = splits["frozen"].run(moment.images)
            splits[None].check(moment.images)
            features = begun.features
            mean, std = perturb.style_statistics(features)
            for where, family, parameter in READINGS:
                if where == layer and not self.skip.search(f"{layer}.{family}{parameter:g}"):
                    variants = self._make(family, parameter, features, mean, std)
                    for norm in self.norms:
                        hard, soft = self._votes(splits, variants, begun, labels, norm)
                        key = f"{layer}.{family}{parameter:g}.{norm}"
                        out[f"{key}.hard"], out[f"{key}.soft"] = hard, soft
        self.rows.append({name: (value * 255).round().to(torch.uint8).cpu() for name, value in out.items()})

    def _make(self, family: str, parameter: float, f: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        v, n = self.variants, len(f)
        if family == "content":
            noise = torch.randn((v, *f.shape), generator=self.generator, device=f.device, dtype=f.dtype)
            return perturb.content_variants(f, parameter * std, noise)
        if family == "keep":
            # Content noise that leaves the channel statistics as they were: f' has the old mean and deviation.
            noise = torch.randn((v, *f.shape), generator=self.generator, device=f.device, dtype=f.dtype)
            centre, wide = mean[:, :, None, None], std[:, :, None, None]
            shrunk = (f - centre + parameter * wide * noise) / (1 + parameter**2) ** 0.5
            return (centre + shrunk).flatten(0, 1)
        if family in ("channel", "global"):
            delta = parameter * perturb.spread(mean, per=family)
            noise = delta * torch.randn((2, v, *mean.shape), generator=self.generator, device=f.device)
            return perturb.apply_map(f, *perturb.style_map(mean, std, noise[0], noise[1]))
        partner = torch.rand((v, n), generator=self.generator, device=f.device).argsort(dim=1)
        share = torch.full((v, n), parameter, device=f.device)
        if family == "mix":
            share = beta(parameter, (v, n), self.generator)
        return perturb.apply_map(f, *perturb.mixstyle_map(mean, std, partner, share))

    def _votes(
        self, splits: dict[str | None, Split], variants: Tensor, begun: Begun, labels: Tensor, norm: str
    ) -> tuple[Tensor, Tensor]:
        split = splits["frozen" if norm == "frozen" else None]
        rows, step = len(labels), max(1, self.max_batch // len(labels))
        hard, soft = [], []
        for chunk in variants.view(self.variants, rows, *variants.shape[1:]).split(step):
            n = len(chunk)
            with torch.autocast(chunk.device.type, torch.bfloat16, enabled=chunk.is_cuda):
                # "pooled": one set of batch statistics over all variants in the chunk.
                if norm == "pooled":
                    with batch_statistics(split.network, modules=split.batch_dependent()):
                        logits = split.resumed(chunk.flatten(0, 1), n)
                else:
                    logits = split.resume(chunk.flatten(0, 1), begun, groups=n)
            logits = logits.float().view(n, rows, -1)
            hard.append((logits.argmax(-1) == labels).float())
            soft.append(predicted_probability(logits, labels.expand(n, rows)))
        return torch.cat(hard).mean(0), torch.cat(soft).mean(0)


def record(
    options: argparse.Namespace, name: str, path: str, method: str, corruption: str, out: Path
) -> None:
    """Run one stream and write its readings."""
    started = time.perf_counter()
    spec_name, _, change = method.partition("@")
    cls = METHODS[spec_name]
    spec = cls.for_dataset(name, preset=options.preset) if hasattr(cls, "for_dataset") else cls()
    changes = {"predict": options.predict} | ({"lr": float(change)} if change else {})
    spec = type(spec)(**{**vars(spec), **changes})
    model = sicl.load_model(path, device=options.device)
    data = load_dataset(name, options.data)
    source = source_data(load_dataset(name, options.data, "val"), n=2000, device=options.device)
    adapter = spec.attach(model, source=source)
    readings = Readings(adapter, sicl.BatchNorm().attach(model), options)
    labels = []
    stream = Benign(corruption=corruption, batch_size=options.batch_size, n=options.n, order=options.order)
    for batch in stream.open(data, device=options.device):
        adapter.step(batch.images, readings.observe)
        labels.append(batch.labels.cpu())
    arrays = {key: torch.cat([row[key] for row in readings.rows]).numpy() for key in readings.rows[0]}
    arrays["target"] = torch.cat(labels).to(torch.uint8).numpy()
    out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(out, **arrays)
    accuracy = (arrays["labels"] == arrays["target"]).mean()
    print(f"{out.name}: accuracy {accuracy:.3f}, {time.perf_counter() - started:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data")
    parser.add_argument("--model", action="append", required=True, metavar="DATASET=FILE")
    parser.add_argument("--methods", default="tent,eata,sar,rotta,sotta")
    parser.add_argument("--corruptions", default="validation")
    parser.add_argument("--predict", default="after")
    parser.add_argument("--preset", default="paper")
    parser.add_argument("--order", default="iid")
    parser.add_argument("--n", type=int, default=5120)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--variants", type=int, default=20)
    parser.add_argument("--max-batch", type=int, default=4096)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--norms", default="frozen,batch,pooled")
    parser.add_argument("--skip", default="^$", help="leave out readings whose name matches this pattern")
    parser.add_argument("--part", default="0/1", help="this process's share of the streams, K/N")
    parser.add_argument("--out", type=Path, default=Path("readings"))
    options = parser.parse_args()
    lists = {"validation": VALIDATION_CORRUPTIONS, "test": CORRUPTIONS}
    corruptions = lists.get(options.corruptions) or options.corruptions.split(",")
    models = [m.partition("=")[::2] for m in options.model]
    jobs = [(n, p, m, c) for n, p in models for m in options.methods.split(",") for c in corruptions]
    part, parts = map(int, options.part.split("/"))
    for name, path, method, corruption in jobs[part::parts]:
        out = options.out / f"{name}-{Path(path).stem}-{method}-{corruption}-{options.order}.npz"
        if not out.exists():
            record(options, name, path, method, corruption, out)


if __name__ == "__main__":
    main()
