"""The audit log: events as JSON lines, appended by one monitor at a time, never a reason to stop predicting."""

from __future__ import annotations

import json
import os
import warnings
import weakref
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from sicl.errors import DataError, OptionError

try:
    import fcntl
except ImportError:  # Windows: the log works, a second writer is not noticed.
    fcntl = None  # type: ignore[assignment]

Event = dict[str, Any]
KEPT = 10_000
"""How many events wait in memory while the log cannot be written."""


class LogWarning(UserWarning):
    """The audit log cannot be written; events wait in memory."""


class AuditLog:
    """An append-only file of JSON lines, locked while it is open.

    A log that cannot be written (no such folder, no permission, a full disk) warns once, in one sentence; events
    wait and are written when it can be again. If more had to wait than are kept, an event `lost` says how many.

    Args:
        path: the file; made if it is not there.

    Raises:
        OptionError: another monitor has the file open.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.waiting: deque[bytes] = deque(maxlen=KEPT)
        self.lost = 0
        self._file: IO[bytes] | None = None
        self._warned = False
        self._torn = False
        self._try(self._open)

    def __call__(self, event: Event) -> None:
        """Append an event, or keep it until that is possible."""
        self.lost += len(self.waiting) == KEPT
        self.waiting.append(_line(event))
        self._try(self._flush)

    def close(self) -> None:
        """Let go of the file, and of its lock."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _try(self, work: Any) -> None:
        try:
            work()
            self._warned = False
        except OSError as error:
            if not self._warned:
                warnings.warn(
                    f"The audit log {self.path} cannot be written ({error.strerror or error}); predictions go on, "
                    f"up to {KEPT:,} events wait in memory until it can.",
                    LogWarning,
                    stacklevel=4,
                )
            self._warned = True

    def _open(self) -> None:
        file = open(self.path, "ab", buffering=0)  # noqa: SIM115
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                raise OptionError(
                    f"`log` {self.path} is written by another monitor; give each stream a log of its own."
                ) from None
        self._torn = _ends_torn(self.path)
        self._file = file
        weakref.finalize(self, file.close)  # A monitor that is dropped lets go of its log.

    def _flush(self) -> None:
        if self._file is None:
            self._open()
        if self.lost:
            self._write(
                _line({"event": "lost", "n": self.lost, "seen": json.loads(self.waiting[0]).get("seen", 0)})
            )
            self.lost = 0
        while self.waiting:
            self._write(self.waiting[0])
            self.waiting.popleft()

    def _write(self, line: bytes) -> None:
        assert self._file is not None
        # A line cut off by a full disk or a kill is closed first, so that it spoils no other.
        line = (b"\n" if self._torn else b"") + line
        self._torn = True
        if self._file.write(line) != len(line):
            raise OSError(28, "no space left on device")
        self._torn = False


def _line(event: Event) -> bytes:
    return (json.dumps(event, allow_nan=False) + "\n").encode()


def _ends_torn(path: Path) -> bool:
    with open(path, "rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def read_log(path: Path, *, start: int = 0) -> Iterator[tuple[Event, int]]:
    """Yield the whole events of a log from byte `start`, each with the position after it; torn lines are skipped.

    Raises:
        DataError: there is no such file, or it is no audit log.
    """
    try:
        file = open(path, "rb")  # noqa: SIM115
    except OSError as error:
        raise DataError(
            f"The log {path} cannot be read ({error.strerror}); give the file a `Monitor(log=...)` writes."
        ) from error
    with file:
        file.seek(start)
        for line in file:
            start += len(line)
            if not line.endswith(b"\n"):
                return
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict) and "event" in event:
                yield event, start
