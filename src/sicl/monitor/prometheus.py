"""Events as Prometheus metrics, through the official client."""

from __future__ import annotations

from typing import Any

from sicl.errors import OptionError

_GAUGES = {
    "accuracy": "Estimated accuracy of the window.",
    "accuracy_low": "Lower end of its interval.",
    "accuracy_high": "Upper end of its interval.",
    "variety": "Classes in use among the window's predictions (exp of their entropy).",
    "collapse": "Collapse of the adapted network, 0 to 1.",
    "familiarity": "How near the window lies to what the network knows; one half is normal, 0 strange.",
    "evidence": "Evidence against a healthy stream; the alarm goes at 1 / false_alarms.",
    "alarmed": "1 while an alarm is on.",
    "labelled_risk": "Error rate of the labelled samples.",
}
_COUNTS = {
    "samples": "Samples predicted.",
    "alarms": "Alarms raised.",
    "bad_images": "Images with NaN or infinities.",
}


class PrometheusMetrics:
    """An observer of monitors: `Monitor().attach(trusted, observers=[PrometheusMetrics()], name="camera-1")`.

    Every metric has the label `stream`, the monitor's name, so one object serves many monitors.

    Args:
        registry: a `prometheus_client.CollectorRegistry`; None takes the client's default one.

    Raises:
        OptionError: the client is not installed.
    """

    def __init__(self, registry: Any = None) -> None:
        try:
            import prometheus_client as client
        except ImportError as error:
            raise OptionError(
                "`PrometheusMetrics` needs the official client; install it with `pip install 'sicl[prometheus]'`."
            ) from error
        registry = client.REGISTRY if registry is None else registry
        self.gauges = {
            name: client.Gauge(f"sicl_{name}", text, ["stream"], registry=registry)
            for name, text in _GAUGES.items()
        }
        self.counts = {
            name: client.Counter(f"sicl_{name}", text, ["stream"], registry=registry)
            for name, text in _COUNTS.items()
        }

    def __call__(self, event: dict[str, Any]) -> None:
        """Take over what an event says."""
        stream = event["name"]
        for name, gauge in self.gauges.items():
            if event.get(name) is not None:
                gauge.labels(stream).set(float(event[name]))
        if event["event"] == "state":
            self.counts["samples"].labels(stream).inc(event["n"])
        if event["event"] == "alarm":
            self.counts["alarms"].labels(stream).inc()
        if event["event"] == "bad_images":
            self.counts["bad_images"].labels(stream).inc(event["n"])
