"""Calibrators: frozen specs that turn an adapter's predictions into trustworthy confidence."""

from sicl.calibrate._base import Calibrated, Calibration, Calibrator, Panel, require_source
from sicl.calibrate._passes import as_it_predicts, batches, device_of
from sicl.calibrate.mc_dropout import McDropout
from sicl.calibrate.pseudocal import PseudoCal
from sicl.calibrate.sicl.spec import SICL
from sicl.calibrate.softmax import Softmax
from sicl.calibrate.temperature_scaling import TemperatureScaling
from sicl.calibrate.transcal import TransCal

CALIBRATORS: dict[str, type[Calibrator]] = {
    "softmax": Softmax,
    "temperature_scaling": TemperatureScaling,
    "mc_dropout": McDropout,
    "transcal": TransCal,
    "pseudocal": PseudoCal,
    "sicl": SICL,
}
"""Calibrators by the name that plans and the command line use."""

__all__ = [
    "CALIBRATORS",
    "SICL",
    "Calibrated",
    "Calibration",
    "Calibrator",
    "McDropout",
    "Panel",
    "PseudoCal",
    "Softmax",
    "TemperatureScaling",
    "TransCal",
    "as_it_predicts",
    "batches",
    "device_of",
    "require_source",
]
