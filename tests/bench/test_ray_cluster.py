"""Real Ray clusters: one of our own, and one that is there already, whose workers and machines die."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from own_parts import TINY, deadly_plan

from sicl.bench.executors import Settings
from sicl.bench.plan.plan import BenchPlan
from sicl.bench.run.runner import run_plan

pytest.importorskip("ray")

PROGRAM = (
    "import json, sys; from sicl.bench.executors import Settings, make_executor\n"
    "from sicl.bench.plan.plan import load_plan; from sicl.bench.run.runner import run_plan\n"
    "table, folder, address, workers = sys.argv[1:]\n"
    "executor = make_executor('ray', workers=int(workers), address=address or None)\n"
    "run_plan(load_plan(json.loads(table)), folder, executor=executor, settings=Settings(threads=1))"
)
HERE = {"PYTHONPATH": os.pathsep.join((str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")))}


@dataclass
class Cluster:
    """Ray processes of one test, with a token and folders of their own."""

    folder: str
    address: str
    environment: dict[str, str]
    nodes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, *options: str, node: str = "head") -> None:
        """Start a machine's worth of Ray, which ends when its process is told to."""
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--num-cpus", "1"]
        quiet = ["--disable-usage-stats", "--dashboard-agent-listen-port", "0"]
        environment = {**self.environment, "SICL_TEST_NODE": node}
        with open(f"{self.folder}/{node}.log", "wb") as log:
            started = subprocess.Popen([*command, *quiet, *options], env=environment, stdout=log, stderr=log)
        self.nodes.append(started)
        self._wait_for(f"{self.folder}/{node}.log", b"Ray runtime started")

    def _wait_for(self, path: str, text: bytes) -> None:
        late = time.monotonic() + 60
        while text not in (said := Path(path).read_bytes()):
            assert time.monotonic() < late, said.decode()
            assert self.nodes[-1].poll() is None, said.decode()
            time.sleep(0.1)

    def stop(self) -> None:
        """End what is left, machines before the head."""
        for node in reversed(self.nodes):
            node.send_signal(signal.SIGTERM)
            node.wait(30)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """A cluster with one CPU that asks for a token; its folder's name is short, for sockets lie in it."""
    folder = tempfile.mkdtemp(prefix="sicl-ray-", dir="/tmp")
    with socket.socket() as free:
        free.bind(("", 0))
        port = free.getsockname()[1]
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "5" * 64}
    environment = {**os.environ, **token, "HOME": folder, "RAY_TMPDIR": folder}
    made = Cluster(folder, f"127.0.0.1:{port}", environment)
    try:
        made.start("--head", "--port", str(port), "--include-dashboard", "false", "--temp-dir", folder)
        yield made
    finally:
        made.stop()
        shutil.rmtree(folder, ignore_errors=True)


def run(
    plan: BenchPlan, folder: Path, environment: dict[str, str], address: str = "", workers: int = 1
) -> subprocess.CompletedProcess[str]:
    # Ray warns and forks as it likes; its own process keeps that away from the other tests.
    command = [sys.executable, "-c", PROGRAM, json.dumps(plan.table), str(folder), address, str(workers)]
    environment = {**environment, **HERE}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=240)


def require_same_as_alone(plan: BenchPlan, folder: Path, alone: Path) -> None:
    undisturbed = run_plan(plan, alone, settings=Settings(threads=1))
    clustered = run_plan(plan, folder)
    assert clustered.ran == 0
    assert not clustered.failed
    for ours, theirs in zip(clustered.records, undisturbed.records, strict=True):
        assert (ours.label, ours.calibrators) == (theirs.label, theirs.calibrators)


def test_ray_replaces_dead_workers_and_agrees_with_one_process(tmp_path: Path) -> None:
    """A worker of a cluster of our own is killed in the middle of a cell; another takes it, nothing is lost."""
    plan = deadly_plan(tmp_path / "marks", times=1)
    done = run(plan, tmp_path / "ray", dict(os.environ))
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "marks").iterdir())) == 1
    require_same_as_alone(plan, tmp_path / "ray", tmp_path / "alone")


def test_an_existing_cluster_wants_its_token_runs_the_plan_and_stays(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Without the token there is one sentence soon; with it a killed worker costs nothing; the cluster lives on."""
    plan = deadly_plan(tmp_path / "marks", times=1)
    begun = time.monotonic()
    stranger = {**cluster.environment, "RAY_AUTH_MODE": "disabled"}
    refused = run(plan, tmp_path / "refused", stranger, cluster.address)
    assert "wants its authentication token; set RAY_AUTH_MODE=token" in refused.stderr.splitlines()[-1]
    assert time.monotonic() - begun < 20
    assert not list((tmp_path / "refused").glob("*seed*.json"))

    done = run(plan, tmp_path / "ray", cluster.environment, cluster.address)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "marks").iterdir())) == 1
    require_same_as_alone(plan, tmp_path / "ray", tmp_path / "alone")
    assert cluster.nodes[0].poll() is None


@pytest.mark.slow
def test_a_machine_of_the_cluster_dies_and_its_cells_are_run_elsewhere(
    cluster: Cluster, tmp_path: Path
) -> None:
    """The second machine's Ray is killed with its worker; every cell is done once, as if nothing had been."""
    cluster.start("--address", cluster.address, node="second")
    plan = deadly_plan(tmp_path / "marks", times=1, node="second")
    done = run(plan, tmp_path / "ray", cluster.environment, cluster.address, workers=2)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "marks").iterdir())) == 1
    require_same_as_alone(plan, tmp_path / "ray", tmp_path / "alone")
    assert cluster.nodes[0].poll() is None


@pytest.mark.slow
def test_a_killed_raylet_ends_the_run_in_a_sentence(tmp_path: Path) -> None:
    """The machine's own Ray is gone and nothing would ever come back; the run says so instead of waiting."""
    table = {**TINY, "methods": [{"name": "own_parts:Sleeper", "label": "sleeper"}]}
    (tmp_path / "out").mkdir()
    command = [sys.executable, "-c", PROGRAM, json.dumps(table), str(tmp_path / "run"), "", "1"]
    environment = {**os.environ, **HERE, "RAY_enable_metrics_collection": "0"}
    with subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    ) as process:
        late = time.monotonic() + 120
        while not (raylets := _children(process.pid, "raylet")) and time.monotonic() < late:
            time.sleep(0.5)
        time.sleep(10)
        os.kill(raylets[0], signal.SIGKILL)
        _, said = process.communicate(timeout=180)
    assert "SetupError: the Ray cluster does not answer any more" in said
    assert not list((tmp_path / "run").glob("*seed*.json"))


def _children(parent: int, name: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, rest = path.read_text().split(" (", 1)
        except OSError:
            continue
        comm, _, fields = rest.rpartition(") ")
        if comm == name and int(fields.split()[1]) == parent:
            found.append(int(pid))
    return found
