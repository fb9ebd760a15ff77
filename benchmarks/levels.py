"""What could set the level of SICL's votes while a network drifts: record candidates on streams, then score them.

Recorded for each sample: the members' votes by the adapted network (at powers of the temperature that fits mixed
images), by the network as attached (with the batch's statistics), and the softmax at that temperature.

    python benchmarks/levels.py score levels --json results/levels-validation.json
    python benchmarks/levels.py show results/levels-validation.json
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from recording import Job, Signals, study
from torch import Tensor

GONE = "levels.py: the rule that this study chose is no longer part of SICL; `score` and `show` read what was recorded."
POWERS = (0.0, 0.15, 0.3)


def record(job: Job) -> None:
    """Say that there is nothing to record any more."""
    raise SystemExit(GONE)


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
