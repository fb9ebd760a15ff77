"""Join a Ray cluster, or say in one sentence and in bounded time why that is not possible."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from sicl.errors import OptionError

PATIENCE_S = 60.0
"""How long a cluster may take to answer."""

FORM = re.compile(r"auto|(ray://)?(?P<host>[^/:\s]+|\[[0-9a-fA-F:]+\]):(?P<port>\d+)")
REFUSED = re.compile(r"InvalidAuthToken|(missing|no) authentication token|authentication token is", re.I)
# Ray itself tries for minutes, tells the reason in its log only, and may end the process it is in.
PROBE = """
import logging, sys, ray
try:
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level=logging.DEBUG)
except Exception as error:
    sys.stdout.write(str(error))
    sys.exit(1)
"""


def import_ray() -> Any:
    """Return the package ray.

    Raises:
        OptionError: it is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise OptionError(
            'executor "ray" needs the package ray; install it with `pip install "sicl[ray]"`.'
        ) from error
    return ray


def connect(ray: Any, address: str | None) -> None:
    """Join the cluster at `address`; None starts one on this machine, which ends with the process.

    Raises:
        OptionError: there is none, it does not answer, or it does not let us in.
    """
    if address is not None:
        require_answer(address)
    options: dict[str, Any] = {} if address else {"include_dashboard": False}
    ours = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(
            # Without "local" Ray would join, or wait for, whatever cluster this machine last had.
            address=address or "local",
            # A machine of the cluster may have modules elsewhere; its own paths stay.
            runtime_env={"env_vars": {"PYTHONPATH": os.pathsep.join((*own_paths(), "${PYTHONPATH}"))}},
            log_to_driver=False,
            logging_level=logging.ERROR,
            **options,
        )
    except (ConnectionError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise OptionError(_refusal(address or "local", str(error))) from error
    finally:
        if ours is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, ours)  # Ray puts in its own, which ends without a word.


def require_answer(address: str) -> None:
    """Raise `OptionError` unless a cluster at `address` lets a process of this user in."""
    form = FORM.fullmatch(address)
    if form is None:
        raise OptionError(f"`address` must be auto, HOST:PORT or ray://HOST:PORT, got {address!r}.")
    if address.startswith("ray://") and importlib.util.find_spec("grpc") is None:
        raise OptionError(
            "an `address` with ray:// needs Ray's client, here and on the cluster's head; install it with "
            '`pip install "ray[client]"`.'
        )
    if form["host"]:
        _require_listener(address, form["host"].strip("[]"), int(form["port"]))
    problem = _ask(address, PATIENCE_S)
    if problem is not None:
        raise OptionError(_refusal(address, problem))


def is_here(ray: Any) -> bool:
    """Say whether the cluster is there, and knows the machine this process joined it from as alive."""
    alive = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    try:
        return ray.get_runtime_context().get_node_id() in alive
    except (AttributeError, RuntimeError):  # Ray's client is on no machine of the cluster.
        return bool(alive)


def bounded(ask: Callable[[], bool], patience: float = 10.0) -> bool:
    """Return what a question to the cluster is answered with; False if it fails or takes too long."""
    answers: list[bool] = []

    def put() -> None:
        with suppress(Exception):
            answers.append(ask())

    asking = threading.Thread(target=put, daemon=True)
    asking.start()
    asking.join(patience)
    return bool(answers and answers[0])


def own_paths() -> list[str]:
    """Return where this process finds modules besides the interpreter's own: a plan may name some of there."""
    known = {os.path.realpath(path) for path in sysconfig.get_paths().values()}
    found = dict.fromkeys(os.path.abspath(path) for path in sys.path)
    library = (*known, *(os.path.join(path, "lib-dynload") for path in known))
    return [path for path in found if os.path.isdir(path) and os.path.realpath(path) not in library]


def _require_listener(address: str, host: str, port: int) -> None:
    # For the local host Ray takes the address that others know this machine by.
    hosts = [host, socket.gethostname()] if host.startswith(("localhost", "127.")) else [host]
    problems = []
    for name in hosts:
        try:
            socket.create_connection((name, port), timeout=10).close()
            return
        except OSError as error:
            problems.append(error.strerror or str(error))
    raise OptionError(_refusal(address, problems[0]))


def _ask(address: str, patience: float) -> str | None:
    """Join the cluster from a process that can be ended; returns what went wrong."""
    with tempfile.TemporaryDirectory() as folder:
        said, log = Path(folder) / "said", Path(folder) / "log"
        with said.open("w") as out, log.open("w") as err:
            probe = subprocess.Popen([sys.executable, "-c", PROBE, address], stdout=out, stderr=err)
        with probe:
            deadline = time.monotonic() + patience
            while probe.poll() is None:
                refused = REFUSED.search(log.read_text(errors="replace"))
                if refused or time.monotonic() > deadline:
                    probe.kill()
                    return refused[0] if refused else f"no answer within {patience:.0f} s"
                time.sleep(0.1)
        return None if probe.returncode == 0 else said.read_text() or f"exit code {probe.returncode}"


def _refusal(address: str, reason: str) -> str:
    if REFUSED.search(reason):
        return (
            f"the Ray cluster at {address!r} wants its authentication token; set RAY_AUTH_MODE=token and have the "
            "token in RAY_AUTH_TOKEN or in ~/.ray/auth_token (on the head, `ray get-auth-token` prints it)."
        )
    told = " ".join(reason.split()).rstrip(".")[:400]
    return (
        f"cannot join the Ray cluster at {address!r} ({told}); check `address`: auto or HOST:PORT from a machine of "
        "the cluster, ray://HOST:10001 from another."
    )
