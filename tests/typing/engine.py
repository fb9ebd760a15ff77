"""What type checkers see of the engine: checked by mypy, never run."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn
from typing_extensions import assert_type

import sicl
from sicl.engine.engine import Engine, EngineOptions
from sicl.engine.split import Begun, Split
from sicl.engine.variants import Votes


def resume(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    """Run once, resume many times."""
    engine = Engine(Split(model, statistics="frozen"), EngineOptions(engine="traced"))
    begun = engine.begin(images)
    assert_type(begun, Begun)
    assert_type(engine.votes(begun, engine.view(images.flip(-1)), labels, 0.9), Votes)
    assert_type(engine.logits(begun), Tensor)
    assert_type(sicl.SICL(variants="adaptive").attach(model)(images).signals, Mapping[str, Tensor])


def refused(model: nn.Module) -> None:
    """What mypy must not accept."""
    sicl.SICL(engine="compile")  # type: ignore[arg-type]
    Split(model, statistics="fresh")  # type: ignore[arg-type]
