"""The public API as a user writes it, with the types that mypy must find: checked by `mypy`, never run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from typing_extensions import assert_type

import sicl
from sicl.adapt import Adapter, Method
from sicl.calibrate import Calibrated, Calibrator
from sicl.engine.engine import Engine, EngineOptions
from sicl.engine.split import Begun, Split
from sicl.engine.variants import Votes


def use(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    """Attach, predict, save."""
    method: Method = sicl.Tent(lr=1e-3)
    adapted = method.attach(model)
    assert_type(adapted, Adapter)
    assert_type(adapted(images), Tensor)
    spec: Calibrator = sicl.SICL(variants="adaptive", engine="traced")
    trusted = spec.attach(adapted, source=sicl.SourceData(images, labels))
    assert_type(trusted, Calibrated)
    out = trusted(images)
    assert_type(out, sicl.Prediction)
    assert_type(out.confidence, Tensor)
    assert_type(out.signals, Mapping[str, Tensor])
    assert_type(out.accept(0.9), Tensor)
    assert_type(trusted.state_dict(), dict[str, Any])
    panel = sicl.Panel({"sicl": sicl.SICL.paper(), "softmax": sicl.Softmax()}, model)
    assert_type(panel(images), dict[str, sicl.Prediction])
    assert_type(sicl.load_model("demo"), nn.Module)


def resume(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    """Run once, resume many times."""
    engine = Engine(Split(model, statistics="frozen"), EngineOptions())
    begun = engine.begin(images)
    assert_type(begun, Begun)
    assert_type(engine.votes(begun, engine.view(images.flip(-1)), labels, 0.9), Votes)
    assert_type(engine.logits(begun), Tensor)


def refused(model: nn.Module) -> None:
    """What mypy must not accept."""
    sicl.SICL(engine="compile")  # type: ignore[arg-type]
    sicl.SICL(votes="loud")  # type: ignore[arg-type]
    sicl.Tent(rate=1e-3)  # type: ignore[call-arg]
    Split(model, statistics="fresh")  # type: ignore[arg-type]
