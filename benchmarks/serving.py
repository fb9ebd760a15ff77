"""Requests a second of examples/serve.py over HTTP on the loopback, with one client a stream.

python benchmarks/serving.py [--clients 4] [--requests 20] [--batch 8] [--calibrator softmax]
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import platform
import socket
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import torch
from PIL import Image

from sicl.data import load_dataset

SERVER = Path(__file__).resolve().parents[1] / "examples" / "serve.py"


def encoded(pixels: np.ndarray) -> str:
    """Return an image as base64 of a PNG."""
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return base64.b64encode(out.getvalue()).decode()


def wait_for(url: str) -> None:
    """Wait until the server answers."""
    for _ in range(600):
        try:
            httpx.get(f"{url}/health", timeout=2).raise_for_status()
            return
        except httpx.HTTPError:
            time.sleep(0.1)
    raise SystemExit("The server did not start.")


def client(url: str, name: str, body: dict[str, object], requests: int) -> list[float]:
    """Send requests one after the other; return the seconds each took."""
    times = []
    with httpx.Client(timeout=120) as http:
        for _ in range(requests):
            start = time.perf_counter()
            http.post(f"{url}/streams/{name}/predict", json=body).raise_for_status()
            times.append(time.perf_counter() - start)
    return times


def main() -> None:
    """Start a server, load it, print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--requests", type=int, default=20)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--calibrator", default="softmax")
    options = parser.parse_args()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    images = load_dataset("demo").images[np.arange(options.batch)]
    body: dict[str, object] = {"images": [encoded(pixels) for pixels in images]}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(SERVER), "--port", str(port), "--snapshots", folder]
        server = subprocess.Popen([*command, "--calibrator", options.calibrator])
        try:
            wait_for(url)
            names = [f"stream-{i}" for i in range(options.clients)]
            with ThreadPoolExecutor(options.clients) as pool:
                list(pool.map(lambda name: client(url, name, body, 1), names))
                start = time.perf_counter()
                times = list(pool.map(lambda name: client(url, name, body, options.requests), names))
                seconds = time.perf_counter() - start
        finally:
            server.terminate()
            server.wait()
    report(np.concatenate(times), seconds, options)


def report(every: np.ndarray, seconds: float, options: argparse.Namespace) -> None:
    """Print one JSON line."""
    print(
        json.dumps(
            {
                "requests_a_second": round(len(every) / seconds, 1),
                "images_a_second": round(options.batch * len(every) / seconds, 1),
                "median_ms": round(1000 * float(np.median(every)), 1),
                "slowest_in_twenty_ms": round(1000 * float(np.quantile(every, 0.95)), 1),
                **{name: getattr(options, name) for name in ("clients", "requests", "batch", "calibrator")},
                "machine": f"{platform.machine()}, torch {torch.__version__}",
            }
        )
    )


if __name__ == "__main__":
    main()
