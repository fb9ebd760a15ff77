"""What type checkers see of the public API: checked by mypy (`make types`), never run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PIL import Image
from torch import Tensor, nn
from typing_extensions import assert_type

import sicl
from sicl.adapt import Adapter
from sicl.calibrate import Calibrated
from sicl.metrics import OperatingPoint, expected_calibration_error, threshold_for_risk


def a_stranger_uses_it(images: Tensor, labels: Tensor, picture: Image.Image) -> None:
    """The lines of the README, with their types."""
    model = sicl.load_model("demo", device="cpu")
    assert_type(model, nn.Module)
    wrapped = sicl.Normalized(model, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    assert_type(wrapped(images), Any)
    assert_type(sicl.Preprocess(size=32)(picture), Tensor)
    adapted = sicl.Tent(lr=1e-3).attach(wrapped)
    assert_type(adapted, Adapter)
    trusted = sicl.SICL().attach(adapted)
    assert_type(trusted, Calibrated)
    out = trusted(images)
    assert_type(out, sicl.Prediction)
    assert_type(out.accept(0.9), Tensor)
    assert_type(out.confidence, Tensor)
    assert_type(trusted.state_dict(), dict[str, Any])
    assert_type(trusted.explain(), str)
    panel = sicl.Panel({"softmax": sicl.Softmax()}, adapted, source=sicl.SourceData(images, labels))
    assert_type(panel(images), dict[str, sicl.Prediction])
    assert_type(expected_calibration_error(out.confidence, labels), float)
    assert_type(threshold_for_risk(out.confidence, labels, risk=0.1), OperatingPoint | None)


def wrong_uses_are_seen(model: nn.Module) -> None:
    """Each line must be an error to a type checker; an unused ignore fails the check."""
    sicl.Tent(1e-3)  # type: ignore[arg-type, call-arg]
    sicl.load_model(model)  # type: ignore[arg-type]
    sicl.load_model(Path("m.pt"), devise="cpu")  # type: ignore[call-arg]
    sicl.Preprocess(size="32")  # type: ignore[arg-type]
