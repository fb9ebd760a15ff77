"""What could set the level of SICL's votes while a network drifts: record candidates on streams, then score them.

Recorded for each sample: the members' votes by the adapted network (at powers of the temperature that fits mixed
images), by the network as attached (with the batch's statistics), and the softmax at that temperature.

    python benchmarks/levels.py record --data DIR --model cifar10=FILE --device cuda --out levels
    python benchmarks/levels.py score levels --json results/levels-validation.json
    python benchmarks/levels.py show results/levels-validation.json
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from recording import Job, Signals, study
from torch import Tensor

import sicl
from sicl.adapt import Moment
from sicl.calibrate.sicl.calibration import SiclCalibration
from sicl.engine.variants import predicted_probability

POWERS = (0.0, 0.15, 0.3)


class Recorder(SiclCalibration):
    """The three members' votes at several temperatures, with the same noise."""

    @torch.no_grad()
    def record(self, moment: Moment, powers: tuple[float, ...], prefix: str = "") -> Signals:
        """Return the votes on a batch, by name, and the softmax at the fitted temperature."""
        labels = moment.logits.argmax(dim=1)
        self.anchor.follow()
        self.temperature(moment, labels)
        fitted = self.temper.temperature
        before = self.state_dict()
        out = {f"{prefix}softmax at T": predicted_probability(moment.logits.float() / fitted, labels)}
        for power in powers:
            self.load_state_dict(before)
            temperature = fitted.clamp_max(1.0) * fitted.clamp_min(1.0) ** power
            votes, _, _ = self.ask(moment.images, labels, temperature)
            for member in self.spec.members:
                out[f"{prefix}{member} {power:g}"] = votes[member].mean(self.spec.votes)
        return out


def record(job: Job) -> None:
    """Adapt over one stream, and write what every candidate needs."""
    model, adapter = job.attach()
    plain = sicl.BatchNorm().attach(model)
    asked = sicl.SICL(content_by="adapted")
    adapted, attached = Recorder(asked, adapter), Recorder(asked, plain)

    def look(moment: Moment) -> Signals:
        labels = moment.logits.argmax(dim=1)
        row = {"label": labels, "softmax": predicted_probability(moment.logits, labels)}
        row |= adapted.record(moment, POWERS)
        return row | attached.record(replace(moment, network=plain.network), (0.0,), "attached ")

    job.record(adapter, look)


def candidates() -> dict[str, Callable[[Signals], Tensor]]:
    """Return what could be the confidence, by name."""

    def mean(*names: str) -> Callable[[Signals], Tensor]:
        return lambda s: torch.stack([s[name] for name in names]).mean(dim=0)

    found = {"softmax": mean("softmax"), "softmax at T": mean("softmax at T")}
    found["all votes by the attached network"] = mean(
        "attached style 0", "attached content 0", "attached mirror 0"
    )
    for power in POWERS:
        style, content, mirror = (f"{member} {power:g}" for member in ("style", "content", "mirror"))
        at = f", at T^{power:g}" if power else ""
        found[f"all votes by the adapted network{at}"] = mean(style, content, mirror)
        found[f"content by the attached network{at}"] = mean(style, "attached content 0", mirror)
        found[f"mirror by the attached network{at}"] = mean(style, content, "attached mirror 0")
    both = ("style 0", "content 0", "mirror 0")
    found["style by the attached network"] = mean("attached style 0", *both[1:])
    found["content and mirror by the attached network"] = mean(
        "style 0", "attached content 0", "attached mirror 0"
    )
    found["content half by each network"] = mean(*both, "style 0", "attached content 0", "mirror 0")
    found["votes and softmax at T, a quarter"] = mean(*both, "softmax at T")
    return found


if __name__ == "__main__":
    study(__doc__, record, candidates(), methods="tent,eata,sar,rotta,sotta", n=5120, out="levels")
