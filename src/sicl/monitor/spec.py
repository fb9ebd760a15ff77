"""The monitor as configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sicl.monitor.options import POLICIES, MonitorOptions

if TYPE_CHECKING:
    from sicl.calibrate import Calibrated
    from sicl.monitor.monitored import Monitored
    from sicl.types import SourceData

__all__ = ["POLICIES", "Monitor"]


@dataclass(frozen=True, kw_only=True)
class Monitor(MonitorOptions):
    """Watch a calibrated classifier without labels: `monitored = sicl.Monitor().attach(trusted)`.

    Four claims make a stream that is well, each about the mean of a score given all that came before: confidence
    is at least `accuracy`, familiarity at least `familiarity`, the adapted network has not collapsed by more than
    `collapse`, and, where labels come in, the share of right labels is at least `accuracy`. An alarm goes when
    bets against these claims win too much (see `Detector`): on a stream that keeps them, at most `false_alarms`
    a sample in the mean.

    Args:
        window: samples over which accuracy, variety and familiarity are said, and a recovery is judged.
        accuracy: the least mean confidence of a stream that is well; None: two thirds of the reference's.
        familiarity: the least mean familiarity; a stream like the reference has one half, one that is stranger
            than all of it 0.
        collapse: the greatest mean level of collapse, as `SICL` reports it; other calibrators report none.
        false_alarms: a sample, on streams that are well.
        policy: what an alarm does. "warn": says so; "freeze": stops adapting until the stream is well again;
            "reset": returns to the network as attached; "rollback": to the last snapshot that was well.
        miscalibration: how far a stream's accuracy is assumed to lie from its mean confidence, as a standard
            deviation (where that is one half); labels replace the assumption.
        level: of the intervals.
        log: a JSON-lines file to append events to; one monitor a file.
        every: samples between two lines of the log about the stream's state.
        remember: predictions kept for labels that come late.

    Raises:
        OptionError: a value is out of range.
    """

    def attach(
        self,
        trusted: Calibrated,
        *,
        source: SourceData | None = None,
        observers: Sequence[Callable[[dict[str, Any]], None]] = (),
        name: str = "stream",
    ) -> Monitored:
        """Return a live monitor; it is called like `trusted`, and gives its predictions.

        Args:
            trusted: the calibrated classifier.
            source: held-out labelled images of the domain the network knows: the reference from the first sample
                on. Without it the stream's first window is the reference: a stream that begins strange, or
                broken, is then taken for well.
            observers: called with every event, a plain dictionary.
            name: of the stream, in events and metrics.

        Raises:
            OptionError: another monitor writes the log.
        """
        from sicl.monitor.monitored import Monitored

        return Monitored(self, trusted, source=source, observers=observers, name=name)
