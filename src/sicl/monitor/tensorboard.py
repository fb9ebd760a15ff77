"""Streams in TensorBoard: a monitor's events, or the predictions of a calibrated classifier."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sicl.errors import OptionError, require_path
from sicl.monitor.window import effective_classes
from sicl.types import Prediction

_SCALARS = (
    "accuracy",
    "accuracy_low",
    "accuracy_high",
    "variety",
    "collapse",
    "familiarity",
    "evidence",
    "alarmed",
    "labelled_risk",
)


class TensorBoard:
    """An observer of monitors, and a log of predictions: `tensorboard --logdir FOLDER` shows each stream as a run.

    ```python
    board = TensorBoard("boards")
    watched = sicl.Monitor().attach(trusted, observers=[board], name="camera-1")  # its events, by themselves
    board.add(out, name="camera-1")  # a prediction: mean confidence, classes, collapse, say
    ```

    The step is the number of samples seen.

    Args:
        folder: where the runs go, one folder a stream.

    Raises:
        OptionError: TensorBoard is not installed.
    """

    def __init__(self, folder: Path | str) -> None:
        require_path(folder=folder)
        try:
            import tensorboard  # noqa: F401
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise OptionError(
                "`TensorBoard` needs the package tensorboard; install it with `pip install 'sicl[tensorboard]'`."
            ) from error
        self.folder = Path(folder)
        self._new: Any = SummaryWriter
        self._writers: dict[str, Any] = {}
        self._seen: dict[str, int] = {}

    def __call__(self, event: dict[str, Any]) -> None:
        """Take over what a monitor's event says."""
        writer, step = self._writer(event["name"]), event["seen"]
        for name in _SCALARS:
            if event.get(name) is not None:
                writer.add_scalar(f"monitor/{name}", float(event[name]), step)
        if event["event"] == "alarm":
            writer.add_text("monitor/alarm", event["alarm"], step)
        if event["event"] in ("alarm", "stop"):
            writer.flush()

    def add(self, out: Prediction, *, name: str = "stream") -> None:
        """Write a batch's prediction: the mean confidence is the accuracy that it expects of itself."""
        step = self._seen[name] = self._seen.get(name, 0) + len(out)
        writer = self._writer(name)
        scalars = {
            "confidence": float(out.confidence.mean()),
            "variety": effective_classes(out.labels.double().cpu().numpy()),
        }
        for signal, values in out.signals.items():
            if signal == "collapse":
                scalars[signal] = float(values.float().mean())
            elif signal.startswith("say_"):
                scalars[f"say/{signal.removeprefix('say_')}"] = float(values.float().mean())
        for tag, value in scalars.items():
            writer.add_scalar(f"prediction/{tag}", value, step)
        writer.add_histogram("prediction/confidences", out.confidence, step)

    def close(self) -> None:
        """Write what is left and let go of the files."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def __enter__(self) -> TensorBoard:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _writer(self, name: str) -> Any:
        if name not in self._writers:
            # A stream may have any name, a folder may not.
            self._writers[name] = self._new(
                str(self.folder / (re.sub(r"[^\w.-]", "_", name).lstrip(".") or "_"))
            )
        return self._writers[name]
