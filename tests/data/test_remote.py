"""Shar folders by address: the copy is that of the server, made once, whole or not at all."""

import http.server
import shutil
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from tone_corpora import TINY

from asr.commands.export_data import run
from asr.data import interchange
from asr.data.audio import load_cut
from asr.data.manifest import manifest_digest
from asr.data.module import load_training_cuts
from asr.data.options import DataConfig
from asr.data.options import ExportDataOptions as Options
from asr.data.places import manifest_path, prepared_folder, split_beside, training_folder
from asr.data.remote import STORES, copy_of
from asr.errors import UserError
from asr.files import write_text
from asr.training.config import train_options
from asr.training.run import train
from tests.runs import assert_same_weights, killed


class Server(http.server.ThreadingHTTPServer):
    """Serves a folder; counts requests, and fails for names in `broken`."""

    def __init__(self, folder: Path) -> None:
        self.asked: list[str] = []
        self.broken: dict[str, int] = {}
        super().__init__(("127.0.0.1", 0), partial(Handler, directory=str(folder)))


class Handler(http.server.SimpleHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        status = self.server.broken.get(self.path.rpartition("/")[2])
        if status == 200:  # ends early
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"x")
        elif status:
            self.send_error(status)
        else:
            super().do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def exported(tone_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shar") / "tones"
    patch = pytest.MonkeyPatch()
    patch.setattr(interchange, "SHARD_UTTERANCES", 7)
    for split in ("train", "dev"):
        run([str(tone_corpus / f"{split}.cuts.jsonl.gz")], Options(to="shar", out=str(folder)))
    patch.undo()
    return folder


@pytest.fixture
def server(exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.chdir(tmp_path)
    served = Server(exported.parent)
    threading.Thread(target=served.serve_forever, daemon=True).start()
    yield served
    served.shutdown()
    served.server_close()


@pytest.mark.parametrize("place", ["tones", "tones/", "tones/train"])
def test_an_address_gives_the_data_of_its_folder(place: str, server: Server, exported: Path) -> None:
    address = f"http://127.0.0.1:{server.server_port}/{place}"
    found = load_training_cuts(DataConfig(train=[address]))
    expected = load_training_cuts(DataConfig(train=[str(exported)]))
    assert list(found.ids()) == list(expected.ids())
    for i in np.random.default_rng(0).permutation(len(found))[:9].tolist():
        np.testing.assert_array_equal(load_cut(found[i], 16000), load_cut(expected[i], 16000))
    copies = Path("data", "copies", f"127.0.0.1:{server.server_port}", "tones")
    assert prepared_folder(address) == copies
    write_text(f"data: {{train: ['{address}']}}", Path("run", "config.yaml"))
    assert training_folder(Path("run")) == f"http://127.0.0.1:{server.server_port}/tones"
    dev = split_beside(address, "dev")
    assert (dev, manifest_digest(dev)) == (copies / "dev", manifest_digest(exported / "dev"))
    assert (copies / "lexicon.txt").read_bytes() == (exported / "lexicon.txt").read_bytes()
    assert not list(copies.glob(".*unfinished"))
    asked = len(server.asked)
    assert manifest_path(address, "train") == copies / "train"  # without the server
    assert split_beside(address, "dev") == dev
    assert len(server.asked) == asked


@pytest.mark.parametrize(
    ("name", "status", "message"),
    [
        ("recording.000001.tar", 404, "recording.000001.tar: expected the archive of a shard, found none"),
        ("cuts.000001.jsonl.gz", 500, "cuts.000001.jsonl.gz: the server answers 500"),
        ("recording.000001.tar", 200, "recording.000001.tar: expected 1000 bytes, found 1: run the command"),
    ],
)
def test_a_copy_goes_on_after_a_failure(name: str, status: int, message: str, server: Server) -> None:
    """A shard that could not be fetched must not be taken for the end of the data."""
    address = f"http://127.0.0.1:{server.server_port}/tones/train"
    server.broken[name] = status
    with pytest.raises(UserError, match=message):
        manifest_path(address, "train")
    assert not copy_of(address).exists()
    server.broken.clear()
    server.asked.clear()
    folder = manifest_path(address, "train")
    assert len(list(folder.glob("cuts.*"))) == len(list(folder.glob("recording.*"))) > 2
    assert not any("000000" in path for path in server.asked)


def test_addresses_without_data(server: Server, exported: Path) -> None:
    address = f"http://127.0.0.1:{server.server_port}"
    with pytest.raises(UserError, match=r"expected a folder in Lhotse Shar format, found no cuts\.000000"):
        manifest_path(f"{address}/elsewhere", "train")
    with pytest.raises(UserError, match=r"<host>/<folder>, found an empty name or dots"):
        manifest_path(f"{address}/../tones", "train")
    shutil.rmtree(Path("data"))
    server.shutdown()
    server.server_close()
    with pytest.raises(UserError, match=r"it can't be copied .*: run the command again"):
        manifest_path(f"{address}/tones", "train")


@pytest.mark.slow
def test_training_resumes_exactly_without_the_server(server: Server) -> None:
    """The first start copies each archive, once; after that, the server may be gone."""
    overrides = [*TINY, f"data.train=[http://127.0.0.1:{server.server_port}/tones]"]
    overrides += [
        "trainer.validate_every=3",
        "trainer.checkpoint_every=2",
        "trainer.max_steps=6",
        "resume=auto",
    ]
    with killed(3):
        train(train_options([*overrides, "run=resumed"]))
    archives = [path for path in server.asked if path.endswith("0.tar")]
    assert archives == ["/tones/train/recording.000000.tar", "/tones/dev/recording.000000.tar"]
    server.shutdown()
    server.server_close()
    for run_folder in ("resumed", "whole"):
        train(train_options([*overrides, f"run={run_folder}"]))
    assert_same_weights(Path("resumed"), Path("whole"))


@pytest.fixture
def store(exported: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryFileSystem]:
    """Replace Amazon S3 by fsspec's store in memory, with a bucket `speech` that holds the data."""
    memory = MemoryFileSystem()
    memory.put(str(exported), "/speech/tones", recursive=True)
    monkeypatch.setattr(fsspec, "filesystem", {"s3": memory}.__getitem__)
    yield memory
    memory.rm("/speech", recursive=True)


def test_a_store_of_objects_gives_the_data_of_its_folder(
    store: MemoryFileSystem, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    archive = "/speech/tones/train/recording.000001.tar"
    store.mv(archive, "/speech/elsewhere")
    with pytest.raises(UserError, match=r"s3:/.*000001\.tar: expected the archive of a shard, found none"):
        manifest_path("s3://speech/tones", "train")
    store.mv("/speech/elsewhere", archive)
    found = load_training_cuts(DataConfig(train=["s3://speech/tones"]))
    expected = load_training_cuts(DataConfig(train=[str(exported)]))
    assert list(found.ids()) == list(expected.ids())
    np.testing.assert_array_equal(load_cut(found[9], 16000), load_cut(expected[9], 16000))
    assert prepared_folder("s3://speech/tones") == Path("data/copies/s3:speech/tones")
    with pytest.raises(UserError, match=r"found no cuts\.000000"):
        manifest_path("s3://speech/elsewhere", "train")


@pytest.mark.parametrize(("scheme", "package"), STORES.items())
def test_a_missing_package_is_named(
    scheme: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError, match=f"expected the package {package}, found none: pip install {package}"):
        manifest_path(f"{scheme}://speech/tones", "train")
