"""An audit log as a terminal view."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from sicl.monitor.log import Event, read_log

BARS = "▁▂▃▄▅▆▇█"
SHOWN = 48


@dataclass
class LogView:
    """What a log has said so far; `read` takes in what is new.

    Args:
        path: the log.
    """

    path: Path
    position: int = 0
    start: Event = field(default_factory=dict)
    last: Event = field(default_factory=dict)
    labels: Event = field(default_factory=dict)
    accuracy: deque[float] = field(default_factory=lambda: deque(maxlen=SHOWN))
    news: deque[Event] = field(default_factory=lambda: deque(maxlen=8))

    def read(self) -> None:
        """Read the lines written since the last time."""
        for event, position in read_log(self.path, start=self.position):
            self.position, kind = position, event["event"]
            if kind == "state":
                self.last = event
                if event.get("accuracy") is not None:
                    self.accuracy.append(event["accuracy"])
            elif kind == "labels":
                self.labels = event
            else:
                self.start = event if kind == "start" else self.start
                self.news.append(event)

    def frame(self) -> RenderableType:
        """Return the view as it stands."""
        latest = self.news[-1] if self.news else {}
        newest = max((self.last, latest), key=lambda event: event.get("seen", -1))
        alarmed = bool(newest.get("alarmed"))
        head = Text(
            f" {self.start.get('name', self.path.name)} ", style="bold reverse red" if alarmed else "bold"
        )
        head.append("  ALARM" if alarmed else "  well", style="bold red" if alarmed else "bold green")
        head.append(f"   {newest.get('seen', 0):,} samples   {newest.get('time', '')}", style="dim")
        return Panel(
            Group(head, Text(), self._numbers(), Text(), self._news()),
            title=f"sicl watch {self.path}",
            title_align="left",
            border_style="red" if alarmed else "green",
        )

    def _numbers(self) -> Table:
        state, table = self.last, Table.grid(padding=(0, 3))
        limits = self.start.get("configuration", {})
        low, high = state.get("accuracy_low"), state.get("accuracy_high")
        between = "" if low is None or high is None else f"{100 * low:.0f} to {100 * high:.0f} %"
        table.add_row(
            "Estimated accuracy", _percent(state.get("accuracy")), between, _sparkline(self.accuracy)
        )
        familiar = f"normal 0.50, alarm below {limits.get('familiarity', 0.2)}"
        table.add_row("Familiarity", _number(state.get("familiarity")), familiar, "")
        table.add_row("Classes in use", _number(state.get("variety")), "", "")
        table.add_row(
            "Collapse", _number(state.get("collapse")), f"alarm above {limits.get('collapse', 0.5)}", ""
        )
        goal = 1 / limits.get("false_alarms", 1e-5)
        table.add_row("Evidence of trouble", _number(state.get("evidence")), f"alarm at {goal:,.0f}", "")
        if self.labels:
            ends = f"{100 * self.labels['risk_low']:.1f} to {100 * self.labels['risk_high']:.1f} %"
            table.add_row("Errors, by labels", _percent(self.labels["labelled_risk"]), ends, "")
        return table

    def _news(self) -> Table:
        table = Table.grid(padding=(0, 2))
        for event in self.news:
            said = event.get("alarm") or event.get("did") or event.get("why") or event.get("origin") or ""
            style = (
                "red" if event["event"] == "alarm" else "green" if event["event"] == "recovered" else "dim"
            )
            place = f"{event.get('seen', 0):,}"
            table.add_row(
                event.get("time", "")[11:19], place, Text(event["event"], style=style), Text(str(said))
            )
        return table


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{100 * value:.1f} %"


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.2f}" if value < 100 else f"{value:,.0f}"


def _sparkline(values: deque[float]) -> str:
    return "".join(BARS[min(len(BARS) - 1, int(value * len(BARS)))] for value in values)
