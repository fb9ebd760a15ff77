"""The audit log, its metrics and its terminal view."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import sicl
from sicl.cli import app
from sicl.errors import DataError, OptionError
from sicl.monitor import AuditLog, LogWarning, Monitored, PrometheusMetrics, read_log

IMAGES = torch.rand(64, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def watched(log: Path | None, **options: object) -> Monitored:
    """Return a monitor of a small network that writes to `log`."""
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 4))
    return sicl.Monitor(log=log, window=64, **options).attach(sicl.Softmax().attach(network))


def test_the_log_says_version_configuration_and_states(tmp_path: Path) -> None:
    """One JSON object a line; the first has all that is needed to know who decided."""
    path = tmp_path / "audit.jsonl"
    monitored = watched(path)
    for _ in range(3):
        monitored(IMAGES)
    monitored.close()
    events = [json.loads(line) for line in path.read_text().splitlines()]
    assert [e["event"] for e in events] == ["start", "reference", "state", "state", "state", "stop"]
    assert events[0]["version"] == sicl.__version__
    assert events[0]["configuration"]["policy"] == "warn"
    assert {"accuracy", "accuracy_low", "accuracy_high", "variety", "familiarity"} <= events[2].keys()


def test_states_are_logged_every_so_often_and_a_log_is_only_ever_appended_to(tmp_path: Path) -> None:
    """Small batches do not fill the disk; a later monitor keeps what an earlier one wrote."""
    path = tmp_path / "audit.jsonl"
    for _ in range(2):
        monitored = watched(path, every=32)
        for part in IMAGES.split(8):
            monitored(part)
        monitored.close()
    names = [event["event"] for event, _ in read_log(path)]
    assert names.count("start") == 2
    assert names.count("state") == 4


def test_a_second_monitor_on_one_log_is_refused(tmp_path: Path) -> None:
    """One sentence; the first goes on, and the log is free again when it closes."""
    path = tmp_path / "audit.jsonl"
    first = watched(path)
    with pytest.raises(OptionError, match="another monitor"):
        watched(path)
    first(IMAGES)
    first.close()
    watched(path).close()


def test_a_log_that_cannot_be_written_costs_a_sentence_and_no_prediction(tmp_path: Path) -> None:
    """Events wait, and are all there once the folder exists."""
    path = tmp_path / "later" / "audit.jsonl"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        monitored = watched(path)
        assert len(monitored(IMAGES)) == 64
    assert [warning.category for warning in caught] == [LogWarning]
    assert "predictions go on" in str(caught[0].message)
    path.parent.mkdir()
    monitored(IMAGES)
    assert [event["event"] for event, _ in read_log(path)][:2] == ["start", "reference"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is always full")
def test_a_full_disk_costs_a_sentence_and_no_prediction() -> None:
    """The system's own full device."""
    with pytest.warns(LogWarning, match="No space left"):
        monitored = watched(Path("/dev/full"))
    assert len(monitored(IMAGES)) == 64


def test_events_beyond_those_that_wait_are_counted_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An audit log may have a gap, but says so."""
    monkeypatch.setattr("sicl.monitor.log.KEPT", 3)
    path = tmp_path / "later" / "audit.jsonl"
    with pytest.warns(LogWarning):
        log = AuditLog(path)
    for i in range(5):
        log({"event": "state", "seen": i})
    path.parent.mkdir()
    log({"event": "state", "seen": 5})
    log({"event": "state", "seen": 6})
    log.close()
    told = [(event["event"], event.get("n"), event["seen"]) for event, _ in read_log(path)]
    assert told == [("lost", 3, 3), *(("state", None, seen) for seen in (3, 4, 5, 6))]


def test_a_line_cut_off_by_a_kill_spoils_no_other(tmp_path: Path) -> None:
    """The torn line is skipped, the next event stands on its own line."""
    path = tmp_path / "audit.jsonl"
    path.write_bytes(b'{"event": "start"}\n{"event": "sta')
    log = AuditLog(path)
    log({"event": "state"})
    log.close()
    assert [event["event"] for event, _ in read_log(path)] == ["start", "state"]
    with pytest.raises(DataError, match="cannot be read"):
        list(read_log(tmp_path / "none.jsonl"))


def test_prometheus_metrics_follow_the_events_of_several_streams() -> None:
    """The official client exposes gauges and counters by stream."""
    client = pytest.importorskip("prometheus_client")
    registry = client.CollectorRegistry()
    metrics = PrometheusMetrics(registry)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 4))
    for name in ("left", "right"):
        trusted = sicl.Softmax().attach(network)
        sicl.Monitor().attach(trusted, observers=[metrics], name=name)(IMAGES)
    text = client.generate_latest(registry).decode()
    assert 'sicl_samples_total{stream="left"} 64.0' in text
    assert 'sicl_alarmed{stream="right"} 0.0' in text
    assert "sicl_accuracy_low" in text


def test_watch_shows_a_log(tmp_path: Path) -> None:
    """`sicl watch LOG --once` prints the state and the alarms; a missing log is one sentence."""
    path = tmp_path / "audit.jsonl"
    monitored = watched(path)
    for _ in range(4):
        monitored(IMAGES)
    monitored.alarm = "the stream is unlike what the network knows."
    monitored._emit("alarm", claim="familiarity", alarm=monitored.alarm, policy="warn")
    monitored.close()
    done = CliRunner().invoke(app, ["watch", "--once", str(path)])
    assert done.exit_code == 0, done.output
    for words in ("Estimated accuracy", "256", "unlike what the network knows"):
        assert words in done.output
    missing = CliRunner().invoke(app, ["watch", "--once", "nowhere.jsonl"])
    assert isinstance(missing.exception, DataError)
