"""A model on a folder of pictures: labels, trust, and one page that says what to look at first."""

from sicl.predict.job import FolderJob, run_job
from sicl.predict.outcome import Outcome, Row
from sicl.predict.page import predict_page

__all__ = ["FolderJob", "Outcome", "Row", "predict_page", "run_job"]
