"""Run cells on this machine: one after the other in this process, or in several at once."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait

from sicl.bench.executors.base import Emit, Finished, Settings, Started, Stepped, Waiting
from sicl.bench.plan.cell import Cell
from sicl.bench.run.machine import choose_device
from sicl.errors import SetupError, SiclError


@dataclass(frozen=True, kw_only=True)
class Inline:
    """One cell at a time, here: no other process, the easiest to debug."""

    def check(self, settings: Settings) -> None:
        """Refuse a device that is not here."""
        choose_device(settings.device)

    def run(self, cells: Sequence[Cell], settings: Settings, emit: Emit) -> None:
        from sicl.bench.run.run import Progress, run_cell

        shelf = settings.shelf()
        for cell in cells:
            emit(Started(cell, 0))

            def step(progress: Progress, cell: Cell = cell) -> None:
                emit(Stepped(cell, 0, progress))

            outcome = run_cell(cell, shelf, predictions=settings.predictions, on_batch=step)
            emit(Finished(cell, 0, outcome))
            if outcome.spent:
                raise SiclError(
                    f"{shelf.device} does not answer this process any more, after {cell.label} failed "
                    f"({outcome.record.error}); the same command goes on with the next cell."
                )


START_S = 120.0
"""How long a worker may take to start."""

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True, kw_only=True)
class Processes:
    """Several workers, each with its own loaded data and models; they may share one GPU.

    Args:
        workers: how many.
        retries: how often a cell is tried again after its worker died or took too long.
        cell_timeout: seconds a cell may take once its worker is there; None: as long as it likes.
    """

    workers: int = 2
    retries: int = 2
    cell_timeout: float | None = None

    def check(self, settings: Settings) -> None:
        """Refuse a device that is not here."""
        choose_device(settings.device)

    def run(self, cells: Sequence[Cell], settings: Settings, emit: Emit) -> None:
        count = min(self.workers, len(cells))
        threads = settings.threads or share_of_threads(count)
        # A device that is not here is one sentence now, not a failure of every cell.
        settings = replace(settings, threads=threads, device=choose_device(settings.device))
        _Pool(Waiting(cells, self.retries), settings, emit, self.cell_timeout).run(count)


def share_of_threads(workers: int) -> int:
    """Return the CPU threads of each worker: what OMP_NUM_THREADS says, or the cores divided among them."""
    wanted = os.environ.get(THREADS[0], "")
    if wanted.isdecimal() and int(wanted) > 0:
        return int(wanted)
    # A container or batch system may give this process fewer cores than the machine has.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // max(workers, 1))


class _Pool:
    """Hands cells to workers, one each, and replaces workers that die."""

    def __init__(self, waiting: Waiting, settings: Settings, emit: Emit, limit: float | None) -> None:
        self._waiting, self._settings, self._emit, self._limit = waiting, settings, emit, limit
        self._workers: dict[int, _Worker] = {}

    def run(self, count: int) -> None:
        try:
            for index in range(count):
                self._workers[index] = _Worker(index, self._settings)
                self._hand_out(index)
            while self._workers:
                for connection in wait([w.connection for w in self._workers.values()], self._patience()):
                    index = next(i for i, w in self._workers.items() if w.connection is connection)
                    self._receive(index)
                self._end_late()
        finally:
            for worker in self._workers.values():
                worker.kill()

    def _hand_out(self, index: int) -> None:
        worker = self._workers[index]
        if not self._waiting:
            worker.retire()
            del self._workers[index]
            return
        worker.start(self._waiting.pop())
        assert worker.cell is not None
        self._emit(Started(worker.cell, index))

    def _patience(self) -> float | None:
        """Return the seconds until the next cell is late."""
        if self._limit is None:
            return None
        first = min(worker.begun for worker in self._workers.values())
        return max(0.0, first + self._limit - time.monotonic())

    def _end_late(self) -> None:
        for index, worker in list(self._workers.items()):
            if self._limit is not None and time.monotonic() - worker.begun > self._limit:
                self._replace(index, f"it took longer than {self._limit:g} s")

    def _receive(self, index: int) -> None:
        worker = self._workers[index]
        assert worker.cell is not None
        try:
            kind, content = worker.connection.recv()
        except (EOFError, OSError):  # OSError: it died in the middle of a message.
            self._replace(index)
            return
        if kind == "fault":
            raise SetupError(f"a worker cannot start: {content}")
        if kind == "begun":
            worker.begun = time.monotonic()
            return
        if kind == "step":
            self._emit(Stepped(worker.cell, index, content))
            return
        self._emit(Finished(worker.cell, index, content))
        if content.spent:
            worker.kill()
            self._renew(index)
        else:
            self._hand_out(index)

    def _replace(self, index: int, late: str | None = None) -> None:
        """A worker died in the middle of a cell, or is late: try the cell again in a new one, but not for ever."""
        worker = self._workers[index]
        cell, code = worker.cell, worker.kill()
        assert cell is not None
        outcome = self._waiting.lose(cell, late or "its worker died", "" if late else f" (exit code {code})")
        if outcome is not None:
            self._emit(Finished(cell, index, outcome))
        self._renew(index)

    def _renew(self, index: int) -> None:
        """Put a new worker in an ended one's place, if there is something left for it."""
        del self._workers[index]
        if self._waiting:
            self._workers[index] = _Worker(index, self._settings)
            self._hand_out(index)


class _Worker:
    """One process and the pipe to it."""

    def __init__(self, index: int, settings: Settings) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, other = context.Pipe()
        self.cell: Cell | None = None
        self.begun = time.monotonic()
        self.process = context.Process(
            target=_work, args=(other, index, settings), name=f"sicl-{index}", daemon=True
        )
        with _environment(settings.threads or 1):
            self.process.start()
        # Held open here, the pipe would never report the worker's death.
        other.close()

    def start(self, cell: Cell) -> None:
        # Until it says that it has begun: a new worker has first to import torch.
        self.cell, self.begun = cell, time.monotonic() + START_S
        # A worker that has died meanwhile is seen, and replaced, when the pool next listens to it.
        with suppress(OSError):
            self.connection.send(cell)

    def retire(self) -> None:
        with suppress(OSError):
            self.connection.send(None)
        self.process.join()
        self.connection.close()

    def kill(self) -> int | None:
        self.process.kill()
        self.process.join()
        self.connection.close()
        return self.process.exitcode


def _work(connection: Connection, index: int, settings: Settings) -> None:
    """The life of a worker: take a cell, tell its progress, give its outcome, until there are no more."""
    import signal

    # Ctrl-C and a closed terminal reach the whole group; the parent decides, and ends its workers.
    for name in ("SIGINT", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    from sicl.bench.run.run import Progress, run_cell

    try:
        shelf = settings.shelf(index)
    except Exception as error:
        with suppress(OSError):
            connection.send(("fault", f"{type(error).__name__}: {error}"))
        return
    last = 0.0

    def tell(progress: Progress) -> None:
        # At most a few times a second: a small model makes hundreds of batches in that time.
        nonlocal last
        if time.monotonic() - last > 0.2:
            last = time.monotonic()
            connection.send(("step", progress))

    # An error of the pipe: the parent was killed, and nobody wants this any more.
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        for cell in iter(connection.recv, None):
            connection.send(("begun", None))
            outcome = run_cell(cell, shelf, predictions=settings.predictions, on_batch=tell)
            connection.send(("done", outcome))


@contextmanager
def _environment(threads: int) -> Iterator[None]:
    """Set what a child reads when it imports numpy and torch."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update({name: str(threads) for name in THREADS})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
