"""Data in Lhotse Shar format, written by lhotse: what is read, and what is refused."""

import gzip
import io
import json
import re
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lhotse
import numpy as np
import pytest
import soundfile
from lhotse import CutSet, Fbank, MonoCut, Recording, SupervisionSegment
from lhotse.shar import SharWriter
from numpy.typing import NDArray
from speech_data import speech_data
from tone_corpora import TINY

from asr import Recognizer
from asr.data.audio import load_cut
from asr.data.manifest import manifest_digest, read_cuts
from asr.data.module import load_training_cuts
from asr.data.places import manifest_path, prepared_folder, split_beside
from asr.errors import UserError
from asr.training.config import train_options
from asr.training.run import train

Corpus = tuple[Path, Path]  # prepared folder, exported folder
Sound = NDArray[np.floating]


@pytest.fixture(scope="module")
def exported(tone_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    folder = tmp_path_factory.mktemp("shar")
    for split in ("train", "dev"):
        (folder / split).mkdir()
        cuts = CutSet.from_cuts(read_cuts(tone_corpus / f"{split}.cuts.jsonl.gz"))
        cuts.to_shar(folder / split, {"recording": "flac"}, shard_size=7)
    return tone_corpus, folder


@pytest.fixture
def shar(exported: Corpus, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported[1] / "dev", tmp_path / "dev"))


def test_exported_cuts_have_the_audio_and_text_of_the_manifest(exported: Corpus) -> None:
    corpus, folder = exported
    found = read_cuts(folder / "train")
    assert len(list((folder / "train").glob("recording.*.tar"))) > 1
    expected = read_cuts(corpus / "train.cuts.jsonl.gz")
    order = np.random.default_rng(0).permutation(len(found)).tolist()
    assert list(found.ids()) == list(expected.ids())
    for i in order:
        cut, other = found[i], expected[i]
        assert (cut.id, cut.duration, cut.supervisions[0].text) == (
            other.id,
            other.duration,
            other.supervisions[0].text,
        )
        np.testing.assert_array_equal(load_cut(cut, 16000), load_cut(other, 16000))


def test_training_data_are_found_by_folder_and_by_split(exported: Corpus, tmp_path: Path) -> None:
    _, folder = exported
    for place in (folder, folder / "train"):
        assert manifest_path(str(place), "train") == folder / "train"
        assert split_beside(str(place), "dev") == folder / "dev"
        assert prepared_folder(str(place)) == folder


@pytest.mark.slow
def test_batches_are_those_of_the_manifests(exported: Corpus, recognizer: Recognizer) -> None:
    batches = []
    for folder in exported:
        data = speech_data(folder, recognizer, (0.9, 1.1), workers=1)
        data.batches = data.epoch_batches(0) + 2
        batches.append([(x.ids, x.audio.tolist(), x.tokens.tolist()) for x in data.train_dataloader()])
    assert batches[0] == batches[1]


@pytest.mark.slow
def test_training_on_shards_resumes_exactly(exported: Corpus, tmp_path: Path) -> None:
    overrides = [*TINY, f"data.train=[{exported[1]}]", "tokenizer.kind=character", "trainer.validate_every=3"]
    overrides += ["trainer.checkpoint_every=2", "optimizer.schedule=constant"]
    for name, lengths in (("whole", [6]), ("resumed", [3, 6])):
        for steps in lengths:
            train(
                train_options(
                    [*overrides, f"run={tmp_path / name}", f"trainer.max_steps={steps}", "resume=auto"]
                )
            )
    whole, resumed = (
        Recognizer.load(str(tmp_path / name / "checkpoints" / "last.ckpt")) for name in ("whole", "resumed")
    )
    for (name, one), other in zip(
        whole.model.state_dict().items(), resumed.model.state_dict().values(), strict=True
    ):
        assert one.equal(other), name


def change_manifest(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "cuts.000000.jsonl.gz"
    first, *others = gzip.decompress(path.read_bytes()).decode().splitlines()
    entry = json.loads(first)
    change(entry)
    path.write_bytes(gzip.compress("\n".join([json.dumps(entry), *others]).encode()))


def change_archive(folder: Path, change: Callable[[int, tarfile.TarInfo, bytes], tuple[Any, bytes]]) -> None:
    """Rewrite the archive with what `change` makes of every member."""
    path = folder / "recording.000000.tar"
    with tarfile.open(path) as old:
        members = [(x, old.extractfile(x).read()) for x in old]  # type: ignore[union-attr]
    with tarfile.open(path, "w") as new:
        for number, (info, content) in enumerate(members):
            info, content = change(number, info, content)
            if info:
                info.size = len(content)
                new.addfile(info, io.BytesIO(content))


SOURCES = [
    {"type": "command", "channels": [0], "source": "touch planted"},
    {"type": "file", "channels": [0], "source": "/etc/hostname"},
    {"type": "file", "channels": [0], "source": "recording.000000.tar#0+512"},
    {"type": "url", "channels": [0], "source": "http://localhost/x.wav"},
    {"type": "memory", "channels": [0], "source": "x"},
]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("place", ["manifest", "archive"])
def test_audio_outside_the_archive_is_refused(
    shar: Path, source: dict[str, Any], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A manifest of another origin must not make training run a command or read any file."""
    monkeypatch.chdir(shar)

    def described(number: int, info: tarfile.TarInfo, content: bytes) -> tuple[tarfile.TarInfo, bytes]:
        if number == 1:
            content = json.dumps(json.loads(content) | {"sources": [source]}).encode()
        return info, content

    if place == "manifest":
        change_manifest(shar, lambda entry: entry["recording"].update(sources=[source]))
    else:
        change_archive(shar, described)
    with pytest.raises(
        UserError, match=r"utterance 'dev-0': expected audio in the shard's archive, found a"
    ) as e:
        read_cuts(shar)
    assert len(str(e.value).splitlines()) == 1
    assert not (shar / "planted").exists()


def test_other_stored_data_is_left_out(shar: Path) -> None:
    """Such folders were refused with advice for manifests; what is left out is never loaded."""
    stored = {"storage_type": "numpy", "storage_path": "/"}
    change_manifest(shar, lambda entry: entry.update(custom={"x": stored, "note": "a"}, features=stored))
    assert read_cuts(shar)[0].custom == {"note": "a"}
    assert not read_cuts(shar)[0].has_features
    within = {"x": [stored, {"y": stored}], "note": "b"}
    change_manifest(shar, lambda entry: entry.update(custom=within))
    change_manifest(shar, lambda entry: entry["supervisions"][0].update(custom={"z": stored, "note": "c"}))
    cut = read_cuts(shar)[0]
    assert (cut.custom, cut.supervisions[0].custom) == ({"x": [{}], "note": "b"}, {"note": "c"})
    deep: Any = stored
    for _ in range(25):
        deep = [deep]
    change_manifest(shar, lambda entry: entry.update(custom={"x": deep}))
    with pytest.raises(UserError, match=r"utterance 'dev-0': expected at most 20 levels of fields"):
        read_cuts(shar)


def utterances(folder: Path, sounds: list[Sound], rate: int = 8000) -> list[MonoCut]:
    """Write wav files of floats, and return an utterance of each."""
    made = []
    for i, sound in enumerate(sounds):
        soundfile.write(folder / f"{i}.wav", sound, rate, subtype="FLOAT")
        spoken = SupervisionSegment(f"u{i}", f"{i}", 0, len(sound) / rate, text="go")
        recording = Recording.from_file(folder / f"{i}.wav")
        made.append(MonoCut(f"u{i}", 0, len(sound) / rate, 0, [spoken], None, recording))
    return made


def test_lhotses_folders_with_features_and_further_recordings_are_read(tmp_path: Path) -> None:
    noise = 0.1 * np.random.default_rng(0).standard_normal(16000)
    cuts = utterances(tmp_path, [noise, noise], 16000)
    for cut in cuts:
        cut.clean, cut.note = cut.recording, "a"
    featured = CutSet.from_cuts(cuts).compute_and_store_features(Fbank(), tmp_path / "features")
    for number, fields in enumerate(({}, {"features": "numpy", "clean": "flac"})):
        folder = tmp_path / f"out{number}"
        folder.mkdir()
        with SharWriter(folder, {"recording": "flac", **fields}, warn_unused_fields=False) as writer:
            for cut in featured:
                writer.write(cut)
        found = read_cuts(folder)
        assert [(cut.id, cut.custom) for cut in found] == [("u0", {"note": "a"}), ("u1", {"note": "a"})]
        assert load_cut(found[1], 16000) == pytest.approx(noise, abs=2e-4)


def test_the_placeholder_of_a_missing_recording_is_named_and_the_advice_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error advised something about a file of JSON, then what couldn't be run: long paths were cut."""
    tmp_path = tmp_path / ("long" * 15)
    tmp_path.mkdir()
    monkeypatch.chdir(tmp_path)
    one, other = utterances(tmp_path, [np.full(800, 0.1)] * 2)
    other = MonoCut(other.id, 0, other.duration, 0, other.supervisions)
    (tmp_path / "out").mkdir()
    with SharWriter(tmp_path / "out", {"recording": "flac"}) as writer:
        writer.write(one)
        writer.write(other)
    with pytest.raises(
        UserError, match=r"000\.tar: utterance 'u1': expected its audio, found .* for a missing recording"
    ) as error:
        read_cuts(tmp_path / "out")
    advice = re.search(r"(lhotse\..*\)) leaves such cuts out$", str(error.value))
    assert advice
    (tmp_path / "out-audible").mkdir()
    eval(advice[1], {"lhotse": lhotse})
    (cut,) = read_cuts(tmp_path / "out-audible")
    assert cut.id == "u0"
    assert load_cut(cut, 8000) == pytest.approx(load_cut(one, 8000), abs=2e-5)


def test_a_manifest_can_not_name_a_place_in_an_archive(shar: Path, tone_corpus: Path, tmp_path: Path) -> None:
    entry = json.loads(gzip.decompress((tone_corpus / "dev.cuts.jsonl.gz").read_bytes()).splitlines()[0])
    entry["recording"]["sources"][0]["source"] = f"{shar}/recording.000000.tar#512+4096"
    path = tmp_path / "x.cuts.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(entry).encode()))
    with pytest.raises(UserError, match="expected an audio file, found none"):
        read_cuts(path)


def shorten(size: int) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "recording.000000.tar"
        path.write_bytes(path.read_bytes()[:size])

    return change


def keep(*numbers: int) -> Callable[[Path], None]:
    return lambda folder: change_archive(
        folder, lambda number, info, content: (info if number in numbers else None, content)
    )


def rename_first(folder: Path) -> None:
    change_manifest(folder, lambda entry: entry.update(id="other"))


def link(folder: Path) -> None:
    def first(number: int, info: tarfile.TarInfo, content: bytes) -> tuple[tarfile.TarInfo, bytes]:
        if number == 0:
            info.type, info.linkname, content = tarfile.SYMTYPE, "/etc/hostname", b""
        return info, content

    change_archive(folder, first)


DAMAGES: list[tuple[Callable[[Path], object], str]] = [
    (shorten(5000), "expected a whole tar"),
    (shorten(700), "expected a whole tar"),
    (shorten(100), "expected a whole tar archive"),
    (lambda folder: (folder / "recording.000000.tar").write_bytes(b"no tar" * 200), "expected a whole tar"),
    (lambda folder: (folder / "recording.000000.tar").unlink(), "expected the archive of a shard"),
    (keep(0, 1), "found more cuts"),
    (keep(0), "expected dev-0.json after 'dev-0.flac', found none"),
    (rename_first, "expected the audio of utterance 'other', found 'dev-0'"),
    (link, "expected plain files"),
]


@pytest.mark.parametrize(("damage", "message"), DAMAGES)
def test_a_damaged_archive_is_named_in_one_line(
    shar: Path, damage: Callable[[Path], object], message: str
) -> None:
    damage(shar)
    with pytest.raises(UserError, match=message) as error:
        read_cuts(shar)
    assert str(shar / "recording.000000.tar") in str(error.value)
    assert len(str(error.value).splitlines()) == 1


def test_an_archive_that_shrinks_during_training_is_named(shar: Path) -> None:
    cuts = read_cuts(shar)
    shorten(2000)(shar)
    with pytest.raises(
        UserError, match=r"recording\.000000\.tar: expected a whole tar archive, found it shorter"
    ):
        load_cut(cuts[1], 16000)


def test_the_digest_follows_manifests_and_archives(shar: Path) -> None:
    before = manifest_digest(shar)
    assert manifest_digest(shar) == before
    with open(shar / "recording.000000.tar", "ab") as file:
        file.write(bytes(512))
    assert manifest_digest(shar) != before


@pytest.mark.parametrize(
    "place", ["ftp://host/shar", "file:///shar", "pipe:touch planted", "s3://bucket/shar"]
)
def test_addresses_and_commands_are_refused(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="expected a path, found an address or a command: copy or mount"):
        load_training_cuts(train_options([f"data.train=['{place}']"]).data)
    assert not list(tmp_path.iterdir())
