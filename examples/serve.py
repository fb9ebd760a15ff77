"""Serve an adapting classifier over HTTP: one adapting state a stream, watched, saved, restored.

pip install "sicl[serve]" && python examples/serve.py --model demo --port 8000 --snapshots snapshots

POST /streams/NAME/predict   {"images": [base64 of a PNG or JPEG, ...], "request": "an id of your own"}
POST /streams/NAME/labels    {"samples": [0, 1], "labels": [3, 5]}
GET  /health   GET /metrics
"""

from __future__ import annotations

import argparse
import base64
import binascii
import io
import os
import re
import threading
import warnings
from collections.abc import Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
from fastapi import Body, FastAPI, Response
from fastapi.responses import JSONResponse
from PIL import Image

import sicl
from sicl.errors import InputError, SiclError
from sicl.predict.pictures import preprocess_of

Images = Annotated[list[str], Body()]
Numbers = Annotated[list[int], Body()]
Request = Annotated[str, Body()]


class Stream:
    """One watched, adapting classifier, and the reply to its last request."""

    def __init__(self, monitored: Any, path: Path | None) -> None:
        self.monitored, self.path = monitored, path
        self.lock = (
            threading.Lock()
        )  # Batches of a stream come one after the other; streams run side by side.
        self.last: tuple[str, dict[str, Any]] | None = None
        if path is not None and path.exists():
            state = torch.load(path, weights_only=True)
            monitored.load_state_dict(state["monitored"])
            self.last = state["last"]

    def save(self) -> None:
        """Write the state aside and rename it: a kill leaves the old one or the new one, whole."""
        if self.path is not None:
            part = self.path.with_suffix(".part")
            try:
                torch.save({"monitored": self.monitored.state_dict(), "last": self.last}, part)
                part.replace(self.path)
            except (OSError, RuntimeError) as error:  # A full disk costs the snapshot, not the answer.
                part.unlink(missing_ok=True)
                warnings.warn(f"{self.path} cannot be written ({error}); the state lives on.", stacklevel=2)


class Streams:
    """The states by stream name; a new name begins with the model as it was loaded."""

    def __init__(
        self,
        model: str = "demo",
        *,
        method: str = "tent",
        calibrator: str = "sicl",
        risk: float = 0.05,
        snapshots: Path | None = None,
        observers: tuple[Callable[[dict[str, Any]], None], ...] = (),
        most: int = 64,
    ) -> None:
        from sicl.adapt import METHODS
        from sicl.calibrate import CALIBRATORS

        self.model = sicl.load_model(model)
        self.preprocess = preprocess_of(self.model)
        self.method, self.calibrator = METHODS[method](), CALIBRATORS[calibrator]()
        self.risk, self.snapshots, self.observers, self.most = risk, snapshots, observers, most
        if snapshots is not None:
            snapshots.mkdir(parents=True, exist_ok=True)
        self.streams: dict[str, Stream] = {}
        self._lock = threading.Lock()

    def get(self, name: str) -> Stream:
        """Return a stream, restored from its snapshot or new."""
        if not re.fullmatch(r"[\w.-]{1,64}", name):
            raise InputError(f"A stream's name is 1 to 64 letters, digits, dots or dashes, got {name!r}.")
        with self._lock:
            if name not in self.streams:
                if len(self.streams) >= self.most:
                    raise InputError(f"This server holds {self.most} streams already; ask another one.")
                trusted = self.calibrator.attach(self.method.attach(self.model))
                monitored = sicl.Monitor().attach(trusted, observers=self.observers, name=name)
                path = None if self.snapshots is None else self.snapshots / f"{name}.pt"
                self.streams[name] = Stream(monitored, path)
            return self.streams[name]

    def predict(self, name: str, images: list[str], request: str = "") -> dict[str, Any]:
        """Predict, adapt, save, answer; a request that was answered already gets the same answer again."""
        batch = torch.stack([self._decoded(image) for image in images]) if images else torch.empty(0)
        stream = self.get(name)
        with stream.lock:
            if request and stream.last is not None and stream.last[0] == request:
                return stream.last[1]
            first = stream.monitored.seen
            out = stream.monitored(batch)
            accepted = out.accept(risk=self.risk) if not out.alarm else out.confidence > 1
            reply = {
                "stream": name,
                "first": first,
                "labels": out.labels.tolist(),
                "confidence": [round(value, 4) for value in out.confidence.tolist()],
                "accepted": accepted.tolist(),
                "alarm": out.alarm,
            }
            stream.last = (request, reply)
            stream.save()  # Before the answer: what the client has seen is never forgotten.
            return reply

    def label(self, name: str, samples: list[int], labels: list[int]) -> dict[str, float]:
        """Take in late labels; return the error rate and its interval."""
        stream = self.get(name)
        with stream.lock:
            risk = stream.monitored.label(samples, labels)
            stream.save()
        return {"risk": risk.accuracy, "low": risk.low, "high": risk.high}

    def health(self) -> dict[str, Any]:
        """Return every stream's estimated accuracy and alarm."""
        watched = {name: stream.monitored for name, stream in list(self.streams.items())}
        alarms = {name: one.alarm for name, one in watched.items() if one.alarm}
        estimates = {name: one.estimate._asdict() for name, one in watched.items() if one.estimate}
        status = "alarmed" if alarms else "well"
        return {"status": status, "streams": estimates, "alarms": alarms, "process": os.getpid()}

    def _decoded(self, image: str) -> torch.Tensor:
        try:
            with Image.open(io.BytesIO(base64.b64decode(image, validate=True))) as file:
                return self.preprocess(file.convert("RGB"))
        except (OSError, ValueError, binascii.Error) as error:
            raise InputError(f"`images` must be base64 of PNG or JPEG files ({error}).") from error


def make_app(streams: Streams, registry: Any) -> Any:
    """Return the HTTP application."""
    import prometheus_client

    @asynccontextmanager
    async def lifespan(_app: Any) -> Any:
        yield
        for stream in streams.streams.values():
            stream.save()

    app = FastAPI(title="sicl", lifespan=lifespan)

    @app.exception_handler(SiclError)
    async def say(_request: Any, error: SiclError) -> JSONResponse:
        return JSONResponse({"error": str(error)}, status_code=422)

    # Plain functions: FastAPI runs them in threads, so that one stream's batch does not hold up the others.
    def predict(name: str, images: Images, request: Request = "") -> dict[str, Any]:
        return streams.predict(name, images, request)

    def labels(name: str, samples: Numbers, labels: Numbers) -> dict[str, float]:
        return streams.label(name, samples, labels)

    def metrics() -> Response:
        content = prometheus_client.generate_latest(registry)
        return Response(content, media_type=prometheus_client.CONTENT_TYPE_LATEST)

    app.post("/streams/{name}/predict")(predict)
    app.post("/streams/{name}/labels")(labels)
    app.get("/health")(streams.health)
    app.get("/metrics")(metrics)
    return app


def main() -> None:
    """Parse the command line and serve until stopped."""
    import prometheus_client
    import uvicorn

    from sicl.monitor import PrometheusMetrics

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="demo", help="what sicl.load_model takes")
    parser.add_argument("--method", default="tent")
    parser.add_argument("--calibrator", default="sicl")
    parser.add_argument("--risk", type=float, default=0.05, help="error rate allowed among the accepted")
    parser.add_argument("--snapshots", type=Path, help="folder that keeps each stream's state")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    registry = prometheus_client.CollectorRegistry()
    streams = Streams(
        options.model,
        method=options.method,
        calibrator=options.calibrator,
        risk=options.risk,
        snapshots=options.snapshots,
        observers=(PrometheusMetrics(registry),),
    )
    uvicorn.run(make_app(streams, registry), host=options.host, port=options.port, log_level="warning")


if __name__ == "__main__":
    main()
