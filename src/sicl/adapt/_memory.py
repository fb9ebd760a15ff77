"""The two sample memories: category-balanced with timeliness and uncertainty (RoTTA), high-confidence (SoTTA)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


def due_parts(seen: int, n: int, every: int) -> Iterator[tuple[slice, bool]]:
    """Cut a batch of `n` where the count of samples reaches a multiple of `every`; True: an update is due."""
    start = 0
    while start < n:
        stop = min(n, start + every - (seen + start) % every)
        yield slice(start, stop), (seen + stop) % every == 0
        start = stop


class Memory(ABC):
    """At most `capacity` images with their predicted classes, in fixed slots of one tensor.

    The bookkeeping is a few numbers a sample on the host; images are written on their device, once a batch.

    Args:
        capacity: the most samples kept.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.clock = 0
        self.labels: list[int] = []
        self.born: list[int] = []
        self.by_class: dict[int, list[int]] = {}
        self._images: Tensor | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def images(self) -> Tensor:
        """The stored images, by slot; at least one sample must have been admitted."""
        if self._images is None:
            raise RuntimeError("nothing has been stored yet")
        return self._images[: len(self)]

    @property
    def ages(self) -> list[int]:
        """For each slot, how many samples have been offered since (and with) the stored one."""
        return [self.clock - born for born in self.born]

    def offer(self, images: Tensor, labels: Tensor, scores: Tensor) -> int:
        """Offer images with predicted classes and uncertainties or confidences, one after the other.

        Return how many were admitted (and maybe dropped again).
        """
        rows: dict[int, int] = {}
        n_admitted = 0
        # Both by one copy from the device; doubles hold labels exactly.
        known = torch.stack([labels.double(), scores.double()]).T.tolist()
        for row, (label, score) in enumerate((int(label), score) for label, score in known):
            slot = self._choose(label, score)
            if slot is not None:
                self._put(slot, label, score)
                rows[slot] = row
                n_admitted += 1
            self.clock += 1
        self._write(images, rows)
        return n_admitted

    @abstractmethod
    def _choose(self, label: int, score: float) -> int | None:
        """Return the slot the sample goes to (a stored one is dropped for it), or None to refuse it."""

    def _put(self, slot: int, label: int, score: float) -> None:
        if slot == len(self):
            self.labels.append(label)
            self.born.append(self.clock)
        else:
            self.by_class[self.labels[slot]].remove(slot)
            self.labels[slot], self.born[slot] = label, self.clock
        self.by_class.setdefault(label, []).append(slot)

    def _largest_classes(self) -> list[int]:
        largest = max(map(len, self.by_class.values()))
        return sorted(label for label, slots in self.by_class.items() if len(slots) == largest)

    def _write(self, images: Tensor, rows: dict[int, int]) -> None:
        if not rows:
            return
        if self._images is None:
            self._images = images.new_zeros(self.capacity, *images.shape[1:])
        where = torch.tensor([list(rows), list(rows.values())]).to(images.device, non_blocking=True)
        self._images.index_copy_(0, where[0], images.detach().index_select(0, where[1]))

    def state_dict(self) -> dict[str, Any]:
        """Return the samples and what is known about them."""
        images = None if self._images is None else self.images.clone()
        return {"images": images, "labels": list(self.labels), "born": list(self.born), "clock": self.clock}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        self.labels, self.born, self.clock = list(state["labels"]), list(state["born"]), state["clock"]
        self.by_class = {}
        # Within a class slots stand in order of arrival, which decides ties and random draws.
        for slot in sorted(range(len(self.born)), key=self.born.__getitem__):
            self.by_class.setdefault(self.labels[slot], []).append(slot)
        self._images = None
        if state["images"] is not None:
            self._write(state["images"], {slot: slot for slot in range(len(self.labels))})


class BalancedMemory(Memory):
    """CSTU: category-balanced, and young and certain samples preferred (Yuan et al., 2023).

    A stored sample's score is lambda_t / (1 + exp(-age / capacity)) + lambda_u * H / ln C. A class holds
    fewer than capacity / C + 1 samples. A new sample goes to a free slot; or, if its class or the memory is
    full, to the slot of the worst sample of its class or of the largest classes, if that one scores higher.

    Args:
        capacity: the most samples kept.
        lambda_t: weight of the age.
        lambda_u: weight of the uncertainty.
    """

    def __init__(self, capacity: int, *, lambda_t: float = 1.0, lambda_u: float = 1.0) -> None:
        super().__init__(capacity)
        self.lambda_t, self.lambda_u = lambda_t, lambda_u
        self.uncertainty: list[float] = []
        self.n_classes = 1

    def offer(self, images: Tensor, labels: Tensor, scores: Tensor, *, n_classes: int = 1) -> int:
        """Offer a batch with its entropies over ln C, see `Memory.offer`."""
        self.n_classes = n_classes
        return super().offer(images, labels, scores)

    def score(self, age: int, uncertainty: float) -> float:
        """Return how dispensable a sample is."""
        return self.lambda_t / (1 + math.exp(-age / self.capacity)) + self.lambda_u * uncertainty

    def _choose(self, label: int, score: float) -> int | None:
        own = self.by_class.get(label, [])
        if len(own) >= self.capacity / self.n_classes:
            candidates = own
        elif len(self) < self.capacity:
            return len(self)
        else:
            candidates = [slot for name in self._largest_classes() for slot in self.by_class[name]]
        scores = [self.score(self.clock - self.born[slot], self.uncertainty[slot]) for slot in candidates]
        worst = max(range(len(scores)), key=lambda i: (scores[i], i))
        return candidates[worst] if scores[worst] > self.score(0, score) else None

    def _put(self, slot: int, label: int, score: float) -> None:
        if slot == len(self):
            self.uncertainty.append(score)
        else:
            self.uncertainty[slot] = score
        super()._put(slot, label, score)

    def state_dict(self) -> dict[str, Any]:
        """Return the samples and what is known about them."""
        return {**super().state_dict(), "uncertainty": list(self.uncertainty)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        super().load_state_dict(state)
        self.uncertainty = list(state["uncertainty"])


class ConfidentMemory(Memory):
    """HUS: high-confidence samples, uniform over classes (Gong et al., 2023).

    A sample with confidence above the threshold is admitted. When the memory is full it replaces a random
    sample of its own class if that is one of the largest, else of a random largest class.

    Args:
        capacity: the most samples kept.
        threshold: of the confidence, exclusive.
        generator: on the host; draws what is dropped.
    """

    def __init__(self, capacity: int, *, threshold: float, generator: torch.Generator) -> None:
        super().__init__(capacity)
        self.threshold = threshold
        self.generator = generator

    def _choose(self, label: int, score: float) -> int | None:
        if not score > self.threshold:
            return None
        if len(self) < self.capacity:
            return len(self)
        largest = self._largest_classes()
        slots = self.by_class[label if label in largest else largest[self._draw(len(largest))]]
        return slots[self._draw(len(slots))]

    def _draw(self, n: int) -> int:
        return int(torch.randint(n, (), generator=self.generator))
