"""The serving examples over HTTP on the loopback: no mixed streams, no lost request, state survives a death."""

from __future__ import annotations

import base64
import importlib.util
import io
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import sicl
from sicl.data import load_dataset

httpx = pytest.importorskip("httpx")
pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("prometheus_client")
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
BATCH = 8


def encoded(pixels: np.ndarray) -> str:
    """Return an image as base64 of a PNG."""
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return base64.b64encode(out.getvalue()).decode()


def batches(corruption: str, n: int) -> list[np.ndarray]:
    """Return n small batches of corrupted pictures."""
    data = load_dataset("demo")
    return np.split(data.read(np.arange(n * BATCH), corruption, severity=5), n)


def alone(parts: list[np.ndarray]) -> list[list[int]]:
    """Return what a stream of its own answers."""
    trusted = sicl.Softmax().attach(sicl.Tent().attach(sicl.load_model("demo")))
    images = [torch.from_numpy(part).permute(0, 3, 1, 2).float() / 255 for part in parts]
    return [trusted(batch).labels.tolist() for batch in images]


@contextmanager
def serving(script: str, *arguments: str, wait: float = 60) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Run an example on a free port; end its process group afterwards."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable,
        str(EXAMPLES / script),
        "--port",
        str(port),
        "--calibrator",
        "softmax",
        *arguments,
    ]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
    )
    url = f"http://127.0.0.1:{port}"
    try:
        _await(url, process, wait)
        yield url, process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.stderr is not None:
            process.stderr.close()


def _await(url: str, process: subprocess.Popen[bytes], wait: float) -> None:
    for _ in range(int(wait * 5)):
        if process.poll() is not None:
            raise AssertionError(process.stderr.read().decode() if process.stderr else "ended")
        try:
            if httpx.get(f"{url}/health", timeout=2).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise AssertionError("the server did not start")


def ask(url: str, stream: str, part: np.ndarray, request: str = "") -> dict[str, Any]:
    """Send one batch."""
    body = {"images": [encoded(pixels) for pixels in part], "request": request}
    reply = httpx.post(f"{url}/streams/{stream}/predict", json=body, timeout=120)
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


@contextmanager
def in_a_thread(snapshots: Path) -> Iterator[str]:
    """Serve examples/serve.py's application from this process: the same code, without a second start of torch."""
    import prometheus_client
    import uvicorn

    from sicl.monitor import PrometheusMetrics

    spec = importlib.util.spec_from_file_location("serve", EXAMPLES / "serve.py")
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    registry = prometheus_client.CollectorRegistry()
    observers = (PrometheusMetrics(registry),)
    streams = example.Streams("demo", calibrator="softmax", snapshots=snapshots, observers=observers)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    # Clients that come before the server is ready wait in line.
    listener.listen()
    server = uvicorn.Server(uvicorn.Config(example.make_app(streams, registry), log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def test_concurrent_streams_do_not_mix_and_go_on_from_their_snapshots(tmp_path: Path) -> None:
    """Four clients at once get what each would get alone; a new server goes on where the old one was."""
    streams = {"a": "gaussian_noise", "b": "fog", "c": "contrast", "d": "jpeg_compression"}
    parts = {name: batches(corruption, 4) for name, corruption in streams.items()}
    expected = {name: alone(parts[name]) for name in streams}
    with in_a_thread(tmp_path) as url:

        def client(name: str) -> list[list[int]]:
            return [ask(url, name, part)["labels"] for part in parts[name][:3]]

        with ThreadPoolExecutor(4) as pool:
            answers = dict(zip(streams, pool.map(client, streams)))
        assert answers == {name: rows[:3] for name, rows in expected.items()}
        bad = httpx.post(f"{url}/streams/a/predict", json={"images": ["bm9uc2Vuc2U="]})
        assert bad.status_code == 422
        assert "PNG or JPEG" in bad.json()["error"]
        risk = httpx.post(f"{url}/streams/a/labels", json={"samples": [0, 1], "labels": [0, 1]}).json()
        assert 0 <= risk["low"] <= risk["risk"] <= risk["high"] <= 1
        assert httpx.get(f"{url}/health").json()["status"] == "well"
        assert f'sicl_samples_total{{stream="a"}} {3 * BATCH}.0' in httpx.get(f"{url}/metrics").text
    with in_a_thread(tmp_path) as url:
        reply = ask(url, "a", parts["a"][3], request="r1")
        assert reply["labels"] == expected["a"][3]
        assert reply["first"] == 3 * BATCH
        assert ask(url, "a", parts["a"][3], request="r1") == reply


@pytest.mark.slow
def test_a_server_killed_outright_goes_on_from_its_snapshots(tmp_path: Path) -> None:
    """kill -9 after two answers; the next server gives the third as if nothing had happened."""
    parts = batches("fog", 3)
    expected = alone(parts)
    with serving("serve.py", "--snapshots", str(tmp_path)) as (url, process):
        assert [ask(url, "a", part)["labels"] for part in parts[:2]] == expected[:2]
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    with serving("serve.py", "--snapshots", str(tmp_path)) as (url, _):
        assert ask(url, "a", parts[2])["labels"] == expected[2]


@pytest.mark.slow
def test_a_killed_replica_comes_back_with_its_state(tmp_path: Path) -> None:
    """Under Ray Serve: concurrent streams on two shards, one replica killed between and during requests."""
    pytest.importorskip("ray.serve")
    parts = {
        name: batches(corruption, 4) for name, corruption in {"a": "fog", "b": "snow", "c": "frost"}.items()
    }
    expected = {name: alone(rows) for name, rows in parts.items()}
    with serving("serve_ray.py", "--snapshots", str(tmp_path), wait=120) as (url, _):
        before = {one["process"] for one in httpx.get(f"{url}/health", timeout=30).json()}

        def client(name: str) -> list[list[int]]:
            answers = [ask(url, name, part)["labels"] for part in parts[name][:2]]
            if name == "a":
                httpx.post(f"{url}/streams/a/kill", timeout=30)
            return [*answers, *(ask(url, name, part)["labels"] for part in parts[name][2:])]

        with ThreadPoolExecutor(3) as pool:
            assert dict(zip(parts, pool.map(client, parts))) == expected
        after = {one["process"] for one in httpx.get(f"{url}/health", timeout=30).json()}
        assert len(before & after) == 1
