"""Serve an adapting classifier with Ray Serve: a stream's requests go to the replica that holds its state.

pip install "sicl[serve,ray]" && python examples/serve_ray.py --model demo --shards 2 --snapshots snapshots

Each shard is a deployment of one replica; a stream belongs to the shard its name hashes to. A replica that dies is
started again by Ray and restores its streams from their snapshots; the router sends the request again, and a request
that had been answered gets the same answer. The requests are those of serve.py.
"""

# No `from __future__ import annotations`: replicas get these classes pickled, and FastAPI must find the types in them.
import argparse
import asyncio
import hashlib
import os
import threading
import uuid
from pathlib import Path
from typing import Annotated, Any

import ray
from fastapi import Body, FastAPI
from fastapi.responses import JSONResponse
from ray import serve
from ray.exceptions import RayActorError, RayTaskError
from serve import Streams

from sicl.errors import SiclError

RETRIES = 60
Images = Annotated[list[str], Body()]
Numbers = Annotated[list[int], Body()]
Request = Annotated[str, Body()]


@serve.deployment(num_replicas=1, max_ongoing_requests=16, ray_actor_options={"num_cpus": 0.5})
class Shard:
    """The streams of one replica."""

    def __init__(self, options: dict[str, Any], snapshots: str) -> None:
        self.streams = Streams(**options, snapshots=Path(snapshots))

    async def call(self, action: str, *arguments: Any) -> dict[str, Any]:
        """Run an action of `Streams` beside the event loop; a user's mistake is an answer, not a failure."""
        try:
            return {"done": await asyncio.to_thread(getattr(self.streams, action), *arguments)}
        except SiclError as error:
            return {"error": str(error)}

    async def die(self) -> None:
        """End this process as a crash would: for tests of the recovery."""
        threading.Timer(0.05, os._exit, (1,)).start()


app = FastAPI(title="sicl on Ray Serve")


@serve.deployment(num_replicas=1, ray_actor_options={"num_cpus": 0.25})
@serve.ingress(app)
class Router:
    """Finds a stream's shard, and asks again while its replica comes back."""

    def __init__(self, shards: list[Any]) -> None:
        self.shards = shards

    def _shard(self, name: str) -> Any:
        return self.shards[int(hashlib.sha256(name.encode()).hexdigest(), 16) % len(self.shards)]

    async def _ask(self, shard: Any, action: str, *arguments: Any) -> JSONResponse:
        for attempt in range(RETRIES):
            try:
                reply = await shard.call.remote(action, *arguments)
                break
            except (RayActorError, RayTaskError, ConnectionError):
                if attempt == RETRIES - 1:
                    return JSONResponse({"error": "The replica does not come back; try later."}, 503)
                await asyncio.sleep(0.5)
        if "error" in reply:
            return JSONResponse({"error": reply["error"]}, 422)
        return JSONResponse(reply["done"])

    @app.post("/streams/{name}/predict")
    async def predict(self, name: str, images: Images, request: Request = "") -> JSONResponse:
        """Predict a batch of a stream."""
        # An id of its own lets the shard recognise a repeated request, so that no batch is adapted to twice.
        return await self._ask(self._shard(name), "predict", name, images, request or uuid.uuid4().hex)

    @app.post("/streams/{name}/labels")
    async def labels(self, name: str, samples: Numbers, labels: Numbers) -> JSONResponse:
        """Take in late labels."""
        return await self._ask(self._shard(name), "label", name, samples, labels)

    @app.get("/health")
    async def health(self) -> JSONResponse:
        """Ask every shard."""
        found = [await shard.call.remote("health") for shard in self.shards]
        return JSONResponse([one["done"] for one in found])

    @app.post("/streams/{name}/kill")
    async def kill(self, name: str) -> dict[str, str]:
        """Kill the replica that holds a stream: try the recovery for yourself."""
        await self._shard(name).die.remote()
        return {"killed": name}


def deploy(options: dict[str, Any], *, snapshots: Path, shards: int, host: str, port: int) -> None:
    """Start Ray (if it does not run) and the application."""
    here = str(Path(__file__).resolve().parent)
    path = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH", "")]))
    if not ray.is_initialized():
        ray.init(runtime_env={"env_vars": {"PYTHONPATH": path}}, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"host": host, "port": port})
    bound = [Shard.options(name=f"shard-{i}").bind(options, str(snapshots.resolve())) for i in range(shards)]
    serve.run(Router.bind(bound), name="sicl")


def main() -> None:
    """Parse the command line and serve until stopped."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="demo", help="what sicl.load_model takes")
    parser.add_argument("--method", default="tent")
    parser.add_argument("--calibrator", default="sicl")
    parser.add_argument("--risk", type=float, default=0.05, help="error rate allowed among the accepted")
    parser.add_argument(
        "--snapshots", type=Path, default=Path("snapshots"), help="folder of the streams' states"
    )
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    given = vars(parser.parse_args())
    place = {name: given.pop(name) for name in ("snapshots", "shards", "host", "port")}
    deploy(given, **place)
    threading.Event().wait()


if __name__ == "__main__":
    main()
