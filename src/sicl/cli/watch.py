"""`sicl watch`: a monitor's log as a live terminal view."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer


def watch(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="The audit log that `Monitor(log=...)` writes.")],
    once: Annotated[bool, typer.Option("--once", help="Print the present state and leave.")] = False,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks at the log.")] = 1.0,
) -> None:
    """Watch a monitored classifier: estimated accuracy, familiarity, alarms. Ctrl-C leaves."""
    from rich.console import Console
    from rich.live import Live

    from sicl.monitor.view import LogView

    console = Console()
    view = LogView(log)
    view.read()
    if once:
        console.print(view.frame())
        return
    with Live(view.frame(), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(interval)
            view.read()
            live.update(view.frame(), refresh=True)
