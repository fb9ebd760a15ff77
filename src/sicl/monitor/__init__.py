"""The monitor: whether an adapting classifier still works, said while no labels come in."""

from sicl.monitor.detector import Detector
from sicl.monitor.log import AuditLog, LogWarning, read_log
from sicl.monitor.monitored import Monitored
from sicl.monitor.prometheus import PrometheusMetrics
from sicl.monitor.sequence import MeanSequence
from sicl.monitor.spec import Monitor
from sicl.monitor.tensorboard import TensorBoard
from sicl.monitor.window import Estimate

__all__ = [
    "AuditLog",
    "Detector",
    "Estimate",
    "LogWarning",
    "MeanSequence",
    "Monitor",
    "Monitored",
    "PrometheusMetrics",
    "TensorBoard",
    "read_log",
]
