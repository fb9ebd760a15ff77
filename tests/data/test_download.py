"""Downloads against a local server that misbehaves as servers do."""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from sicl.data import get
from sicl.data.download import download, wrong_checksum
from sicl.data.get import Archive, get_dataset
from sicl.errors import DataError, OptionError

CONTENT = np.random.default_rng(0).integers(0, 256, 300_000, np.uint8).tobytes()
MD5 = hashlib.md5(CONTENT, usedforsecurity=False).hexdigest()


class Server(ThreadingHTTPServer):
    """Serves `files`; drops the connection after `drop_after` bytes; may lack ranges or lengths."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {"/data.bin": CONTENT}
        self.drop_after: int | None = None
        self.ranges, self.lengths, self.broken = True, True, 0
        self.requests: list[str | None] = []

    @property
    def url(self) -> str:
        """The server's address."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    """One request to the misbehaving server."""

    server: Server

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Answer with the whole or a range, perhaps cut short."""
        wanted = self.headers.get("Range")
        self.server.requests.append(wanted)
        if self.server.broken:
            self.server.broken -= 1
            self.send_error(503)
            return
        content = self.server.files.get(self.path)
        if content is None:
            self.send_error(404)
            return
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.server.ranges else 0
        if start >= len(content):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(content)}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        if self.server.lengths:
            self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start : start + (self.server.drop_after or len(content))])


@pytest.fixture
def server() -> Iterator[Server]:
    """A running server; it behaves until told otherwise."""
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def _fetch(server: Server, path: Path, **options: object) -> Path:
    return download(f"{server.url}/data.bin", path, **{"md5": MD5, "wait": 0.0, "retries": 3, **options})  # type: ignore[arg-type]


def test_a_file_arrives_whole_and_reports_progress(server: Server, tmp_path: Path) -> None:
    """The bytes are right, and the last report says so."""
    reports: list[tuple[int, int | None]] = []
    path = _fetch(server, tmp_path / "deep" / "data.bin", progress=lambda *report: reports.append(report))
    assert path.read_bytes() == CONTENT
    assert reports[-1] == (len(CONTENT), len(CONTENT))
    assert not path.with_name("data.bin.part").exists()


def test_dropped_connections_cost_only_the_missing_bytes(server: Server, tmp_path: Path) -> None:
    """Each new try asks for the rest, more often than `retries` if every one brings something."""
    server.drop_after = 40_000
    assert _fetch(server, tmp_path / "data.bin", retries=1).read_bytes() == CONTENT
    starts = [int(asked.removeprefix("bytes=")[:-1]) for asked in server.requests if asked]
    assert len(server.requests) == 8
    assert starts == [40_000 * i for i in range(1, 8)]


def test_an_earlier_run_is_continued(server: Server, tmp_path: Path) -> None:
    """A part on disk is not downloaded again."""
    (tmp_path / "data.bin.part").write_bytes(CONTENT[:123_456])
    assert _fetch(server, tmp_path / "data.bin").read_bytes() == CONTENT
    assert server.requests == ["bytes=123456-"]


def test_a_server_without_ranges_starts_over(server: Server, tmp_path: Path) -> None:
    """The answer 200 to a range means the whole file: it replaces the part instead of being appended."""
    server.ranges = False
    (tmp_path / "data.bin.part").write_bytes(CONTENT[:123_456])
    assert _fetch(server, tmp_path / "data.bin").read_bytes() == CONTENT


def test_a_server_without_ranges_that_drops_gives_up_with_the_part_kept(
    server: Server, tmp_path: Path
) -> None:
    """No progress is possible; the message says how far it came."""
    server.ranges, server.drop_after = False, 40_000
    with pytest.raises(DataError, match=r"could not be downloaded after 3 tries .*40,000 bytes are kept"):
        _fetch(server, tmp_path / "data.bin")
    assert not (tmp_path / "data.bin").exists()


def test_a_wrong_file_is_refused_and_dropped(server: Server, tmp_path: Path) -> None:
    """Both checksums are told, and nothing remains to go on from."""
    server.files["/data.bin"] = b"<html>moved</html>"
    with pytest.raises(DataError, match=rf"gave a file with MD5 [0-9a-f]{{32}}, the published one has {MD5}"):
        _fetch(server, tmp_path / "data.bin")
    assert list(tmp_path.iterdir()) == []


def test_a_part_of_another_file_ends_in_the_checksum(server: Server, tmp_path: Path) -> None:
    """Going on from foreign bytes is noticed; the next run starts clean and succeeds."""
    (tmp_path / "data.bin.part").write_bytes(bytes(1000))
    with pytest.raises(DataError, match="MD5"):
        _fetch(server, tmp_path / "data.bin")
    assert _fetch(server, tmp_path / "data.bin").read_bytes() == CONTENT


def test_a_complete_part_needs_no_more_bytes(server: Server, tmp_path: Path) -> None:
    """A run stopped between the last byte and the renaming is finished by the next."""
    (tmp_path / "data.bin.part").write_bytes(CONTENT)
    assert _fetch(server, tmp_path / "data.bin").read_bytes() == CONTENT


def test_a_part_longer_than_the_file_is_dropped(server: Server, tmp_path: Path) -> None:
    """It cannot be the same file; the download starts over."""
    (tmp_path / "data.bin.part").write_bytes(CONTENT + b"more")
    assert _fetch(server, tmp_path / "data.bin").read_bytes() == CONTENT


def test_a_busy_server_is_asked_again(server: Server, tmp_path: Path) -> None:
    """503 twice, then the file."""
    server.broken = 2
    assert _fetch(server, tmp_path / "data.bin").read_bytes() == CONTENT


def test_a_missing_file_is_not_asked_for_again(server: Server, tmp_path: Path) -> None:
    """404 is final; the message offers a mirror or a local copy."""
    server.files.clear()
    with pytest.raises(DataError, match=r"answered 404 .*--mirror URL.*--archive FILE"):
        _fetch(server, tmp_path / "data.bin")
    assert len(server.requests) == 1


def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    """A refused connection ends after the tries, not in a traceback."""
    with pytest.raises(DataError, match="could not be downloaded after 2 tries"):
        download("http://127.0.0.1:9/x", tmp_path / "x", md5=MD5, wait=0.0, retries=2)


def _tar(*members: tuple[str, bytes | str]) -> bytes:
    """A tar archive; a str member is a link to it."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def _publish(server: Server, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    """Make the server the publisher of CIFAR-10."""
    server.files["/cifar-10-python.tar.gz"] = content
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    entry = Archive(f"{server.url}/cifar-10-python.tar.gz", md5, "cifar-10-batches-py")
    monkeypatch.setitem(get.ARCHIVES, "cifar10", {"all": entry})


def test_get_unpacks_and_removes_the_archive(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Afterwards the data are there, the archive and temporary folders are not, and a second run asks nobody."""
    _publish(server, monkeypatch, _tar(("cifar-10-batches-py/test_batch", b"images")))
    server.drop_after = 100
    for _ in range(2):
        assert get_dataset("cifar10", tmp_path, wait=0.0) == [tmp_path / "cifar-10-batches-py"]
    assert (tmp_path / "cifar-10-batches-py" / "test_batch").read_bytes() == b"images"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cifar-10-batches-py", "downloads"]
    assert len(server.requests) == -(-len(server.files["/cifar-10-python.tar.gz"]) // 100)


def test_get_uses_the_cache_the_environment_names(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SICL_DATA is the root when none is given."""
    _publish(server, monkeypatch, _tar(("cifar-10-batches-py/test_batch", b"images")))
    monkeypatch.setenv("SICL_DATA", str(tmp_path / "cache"))
    assert get_dataset("cifar10") == [tmp_path / "cache" / "cifar-10-batches-py"]


def test_get_takes_a_local_archive_and_leaves_it(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy from elsewhere is verified and unpacked; no request is made."""
    _publish(server, monkeypatch, _tar(("cifar-10-batches-py/test_batch", b"images")))
    copy = tmp_path / "copy.tar.gz"
    copy.write_bytes(server.files["/cifar-10-python.tar.gz"])
    get_dataset("cifar10", tmp_path / "data", archive=copy)
    assert copy.exists()
    assert server.requests == []
    copy.write_bytes(b"another file")
    with pytest.raises(DataError, match="it is another file"):
        get_dataset("cifar10", tmp_path / "fresh", archive=copy)


@pytest.mark.parametrize(
    "member",
    [("../outside", b"x"), ("/absolute", b"x"), ("cifar-10-batches-py/link", "/etc/passwd")],
    ids=["parent", "absolute", "link"],
)
def test_an_archive_cannot_write_outside_its_folder(
    member: tuple[str, bytes | str], server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of such an archive is unpacked."""
    _publish(server, monkeypatch, _tar(("cifar-10-batches-py/test_batch", b"images"), member))
    with pytest.raises(DataError, match="a link, device or path outside its folder; it is not unpacked"):
        get_dataset("cifar10", tmp_path / "data", wait=0.0)
    assert not (tmp_path / "outside").exists()
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["downloads"]


def test_a_truncated_archive_leaves_nothing_behind(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unpacking is all or nothing, even when a checksum vouches for half an archive."""
    whole = _tar(("cifar-10-batches-py/a", CONTENT), ("cifar-10-batches-py/b", CONTENT))
    _publish(server, monkeypatch, whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"cifar-10-python.tar.gz` is damaged or truncated"):
        get_dataset("cifar10", tmp_path, wait=0.0)
    assert not (tmp_path / "cifar-10-batches-py").exists()


def test_a_mirror_serves_files_of_the_same_name(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--mirror` replaces the publisher's address, not the checksum."""
    _publish(server, monkeypatch, _tar(("cifar-10-batches-py/test_batch", b"images")))
    entry = get.ARCHIVES["cifar10"]["all"]
    moved = Archive("http://127.0.0.1:9/cifar-10-python.tar.gz", entry.md5, entry.creates)
    monkeypatch.setitem(get.ARCHIVES, "cifar10", {"all": moved})
    assert get_dataset("cifar10", tmp_path, mirror=f"{server.url}/")[0].is_dir()


def test_the_command_downloads_with_a_progress_bar(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sicl data get` shows the file's name and size while it works and says where the data are."""
    from typer.testing import CliRunner

    from sicl.cli.data import app

    _publish(server, monkeypatch, _tar(("cifar-10-batches-py/test_batch", CONTENT)))
    result = CliRunner().invoke(app, ["get", "cifar10", "--data", str(tmp_path), "--mirror", server.url])
    assert result.exit_code == 0, result.output
    assert "cifar-10-batches-py is there." in result.output
    assert "cifar-10-python.tar.gz" in result.stderr
    assert "/300." in result.stderr


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("imagenet", r"account at image-net\.org"),
        ("demo", "needs no download"),
        ("cifar-10", r"unknown data set 'cifar-10'.*Did you mean.*'cifar10'"),
    ],
)
def test_what_cannot_be_downloaded_is_explained(name: str, message: str, tmp_path: Path) -> None:
    """Each refusal says what to do instead."""
    with pytest.raises(OptionError, match=message):
        get_dataset(name, tmp_path)


def test_an_unknown_part_lists_the_parts(tmp_path: Path) -> None:
    """ImageNet-C comes in five."""
    with pytest.raises(OptionError, match="`part` must be one of noise, blur, weather, digital, extra"):
        get_dataset("imagenet-c", tmp_path, parts=["fog"])


def test_every_archive_has_a_checksum_and_a_place() -> None:
    """The table is complete: 32 hex digits, an address, a file name without a query."""
    for parts in get.ARCHIVES.values():
        for entry in parts.values():
            assert len(entry.md5) == 32
            assert int(entry.md5, 16)
            assert entry.url.startswith("http")
            assert entry.filename.endswith((".tar", ".gz", ".mat"))


def test_the_checksums_are_of_the_whole_file(tmp_path: Path) -> None:
    """It is read in blocks; the result is that of the bytes."""
    (tmp_path / "x").write_bytes(CONTENT * 5)
    md5 = hashlib.md5(CONTENT * 5, usedforsecurity=False).hexdigest()
    sha256 = hashlib.sha256(CONTENT * 5).hexdigest()
    assert wrong_checksum(tmp_path / "x", md5, sha256) == ""
    assert wrong_checksum(tmp_path / "x", MD5, sha256).startswith(f"MD5 {md5}, the published")


def test_a_forged_file_with_the_right_md5_is_refused(server: Server, tmp_path: Path) -> None:
    """MD5 can be forged; where the SHA-256 is known it must be right as well."""
    with pytest.raises(DataError, match="gave a file with SHA-256"):
        _fetch(server, tmp_path / "data.bin", sha256="0" * 64)
    right = hashlib.sha256(CONTENT).hexdigest()
    assert _fetch(server, tmp_path / "data.bin", sha256=right).read_bytes() == CONTENT


def test_what_is_published_without_https_has_a_sha256() -> None:
    """Only then does the way it came not matter."""
    entries = [entry for parts in get.ARCHIVES.values() for entry in parts.values()]
    assert all(entry.url.startswith("https://") or len(entry.sha256) == 64 for entry in entries)
    assert sum(bool(entry.sha256) for entry in entries) >= 9


@pytest.mark.parametrize("url", ["nonsense", "http://[bad", "ftp2://x/y", ""])
def test_a_strange_address_is_a_sentence(url: str, tmp_path: Path) -> None:
    """What urllib cannot read is said, not raised."""
    with pytest.raises(DataError, match="could not be downloaded"):
        download(url, tmp_path / "x", md5=MD5, wait=0.0, retries=1)
