"""How much each vote counts: a witness whose answers agree with each other on the stream knows something."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from sicl.calibrate._memory import Recent
from sicl.calibrate.sicl.options import Who

WINDOW = 512
"""How many recent samples agreement is measured on."""
PRIOR, DOUBT = 0.5, 16
"""The agreement that is assumed before anything was seen, and how many samples that counts as."""
LEARNER = 1 / 3
"""What a network that adapts to its own predictions counts beside the anchor: it becomes too sure of them."""
MOST = 0.97
"""The highest agreement that is believed: a witness whose answers are all the same is not infinitely sure."""


class Say:
    """Learns from the recent stream, without labels, how much the answers of each witness count.

    A wrong prediction survives one question and fails the next; a right one survives them all. So where answers
    carry information about correctness they go up and down together, from sample to sample, and where they do not
    (a question that destroys everything or nothing, a network by statistics that do not fit) they are unrelated.
    The agreement of a question is its mean correlation r with the other questions put to the same witness: within a
    witness, answers count by r; witnesses count by the square of the odds r / (1 - r) of their mean.

    The network by its own statistics and by the batch's has the same parameters, so how sure it is in both cases can be
    compared too: statistics that do not fit make it less sure, question after question. The batch's say is multiplied
    by the square of the ratio of the odds p / (1 - p), p being the mean probability of the likeliest class.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget the recent answers."""
        self._recent: dict[Who, Recent] = {}
        self._sure: dict[Who, Recent] = {}

    def observe(self, answers: dict[Who, Tensor], sure: dict[Who, Tensor]) -> None:
        """Take the answers to a batch: by witness, Q questions x N samples; and how sure each witness was (N)."""
        for name, votes in answers.items():
            self._recent.setdefault(name, Recent(WINDOW)).add(votes.T)
            self._sure.setdefault(name, Recent(WINDOW)).add(sure[name])

    def weights(self, name: Who) -> tuple[Tensor, Tensor]:
        """Return how the questions to a witness count (Q, in all 1), and how much the witness does (one number)."""
        seen = self._recent[name].values()
        agreement = agreements(seen)
        share = agreement / agreement.sum()
        say = odds((share * agreement).sum()).square()
        if name == "batch":
            mine, theirs = (odds(self._sure[who].values().mean()) for who in ("batch", "network"))
            # A few samples are not believed at once.
            say = say * (mine / theirs) ** (2 * len(seen) / (len(seen) + DOUBT))
        return share, say

    def state_dict(self) -> dict[str, Any]:
        """Return the recent answers."""
        parts = {"answers": self._recent, "sure": self._sure}
        return {
            part: {name: recent.state_dict() for name, recent in kept.items()} for part, kept in parts.items()
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state that `state_dict` gave."""
        self._recent, self._sure = (_loaded(state[part]) for part in ("answers", "sure"))


def _loaded(state: dict[Who, Any]) -> dict[Who, Recent]:
    kept = {name: Recent(WINDOW) for name in state}
    for name, recent in kept.items():
        recent.load_state_dict(state[name])
    return kept


def odds(probability: Tensor) -> Tensor:
    """Return p / (1 - p), of a probability kept away from 0 and 1."""
    p = probability.clamp(1e-3, 0.999)
    return p / (1 - p)


def agreements(answers: Tensor) -> Tensor:
    """Return each question's mean correlation with the others (N x Q answers give Q), between nearly 0 and `MOST`."""
    n, questions = answers.shape
    if questions == 1:
        return answers.new_full((1,), PRIOR)
    centred = answers - answers.mean(dim=0)
    covariance = centred.T @ centred / n
    deviation = covariance.diagonal().sqrt().clamp_min(1e-4)
    correlation = covariance / (deviation * deviation.unsqueeze(1))
    mean = (correlation.sum(dim=1) - correlation.diagonal()) / (questions - 1)
    return ((n * mean + DOUBT * PRIOR) / (n + DOUBT)).clamp(1e-3, MOST)
