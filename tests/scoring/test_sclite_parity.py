"""Error counts equal those of jiwer and of NIST's programs (package sctk); so do significance tests."""

import random
import re
import shutil
import subprocess
from pathlib import Path

import jiwer
import pytest

from asr.scoring.alignment import align_sclite
from asr.scoring.error_rates import ErrorCounts
from asr.scoring.hypotheses import Hypothesis
from asr.scoring.options import ScoreOptions
from asr.scoring.score import score
from asr.scoring.significance import matched_pairs
from asr.scoring.trn import write_trn

# Output of the recipes/prompts model on the 72 held-out prompts (reference | hypothesis).
RECORDED = Path(__file__).with_name("recorded_prompts.txt")


def program(name: str) -> str | None:
    return shutil.which(name, path="/usr/lib/sctk/bin") or shutil.which(name)


needs_sclite = pytest.mark.skipif(
    program("sclite") is None or program("sc_stats") is None,
    reason="sclite and sc_stats (Debian package sctk) are not installed",
)


def spoken(name: str, reference: str, heard: str) -> Hypothesis:
    return Hypothesis(name, f"s{int(name) % 3}", 1.0, reference, None, [], [], heard, "piece")


def random_pairs(count: int, vocabulary: int, seed: int, *, insert_last: bool = True) -> list[Hypothesis]:
    """Return utterances of 1 to 20 words, up to 40 % wrong; with a small vocabulary many alignments tie."""
    rng = random.Random(seed)
    words = [f"w{index}" for index in range(vocabulary)]
    hypotheses = []
    for number in range(count):
        reference = rng.choices(words, k=rng.randint(1, 20))
        errors = rng.choice([0.0, 0.1, 0.4])
        heard = []
        for position, word in enumerate(reference):
            match rng.choice("sdi") if rng.random() < errors else "=":
                case "s":
                    heard.append(rng.choice(words))
                case "i" if insert_last or position < len(reference) - 1:
                    heard += [word, rng.choice(words)]
                case "d" if position < len(reference) - 1:
                    pass
                case _:
                    heard.append(word)
        hypotheses.append(spoken(str(number), " ".join(reference), " ".join(heard)))
    return hypotheses


def sclite(folder: Path, hypotheses: list[Hypothesis], *output: str) -> str:
    """Return sclite's report on exported hypotheses."""
    write_trn(folder, hypotheses)
    return report(folder, "trn", "trn", *output)


def report(folder: Path, reference: str, heard: str, *output: str) -> str:
    """Return sclite's report on the files ref.* and hyp.* of a folder."""
    files = ["-r", folder / f"ref.{reference}", reference, "-h", folder / f"hyp.{heard}", heard]
    command = [program("sclite"), "-i", "spu_id", *files, "-o", *output]
    done = subprocess.run([*map(str, command), "stdout"], capture_output=True, text=True, check=True)
    return done.stdout


def counts_by_utterance(report: str) -> dict[str, ErrorCounts]:
    """Parse sclite's `prf` report."""
    idents = re.findall(r"^id: \(\w+-(\w+)\)", report, re.MULTILINE)
    rows = re.findall(r"^Scores: \(#C #S #D #I\) (\d+) (\d+) (\d+) (\d+)", report, re.MULTILINE)
    assert len(idents) == len(rows)
    return {
        ident: ErrorCounts(sub, deleted, inserted, correct + sub + deleted)
        for ident, row in zip(idents, rows, strict=True)
        for correct, sub, deleted, inserted in [map(int, row)]
    }


@pytest.mark.parametrize("vocabulary", [5, 200])
def test_counts_equal_those_of_jiwer_on_random_pairs(vocabulary):
    """Scored as a corpus of tokens, and by jiwer one string after the other."""
    hypotheses = random_pairs(500, vocabulary, seed=7)
    result = score(hypotheses, ScoreOptions(samples=1))
    ours = {utterance.id: utterance.counts for utterance in result.utterances}
    for pair in hypotheses:
        words = jiwer.process_words(pair.reference, pair.text)
        assert ours[pair.id]["wer"] == ErrorCounts(
            words.substitutions, words.deletions, words.insertions, len(pair.reference.split())
        )
        characters = jiwer.process_characters(pair.reference, pair.text)
        assert ours[pair.id]["cer"].errors == round(characters.cer * len(pair.reference))
    assert result.rates["wer"].rate == jiwer.wer(
        [x.reference for x in hypotheses], [x.text for x in hypotheses]
    )


@pytest.mark.slow
@needs_sclite
def test_counts_equal_those_of_sclite_on_1000_random_pairs(tmp_path):
    hypotheses = random_pairs(500, 200, seed=0) + [
        spoken(str(500 + i), pair.reference, pair.text) for i, pair in enumerate(random_pairs(500, 5, seed=1))
    ]
    theirs = counts_by_utterance(sclite(tmp_path, hypotheses, "prf"))
    assert len(theirs) == 1000
    for utterance in score(hypotheses, ScoreOptions(align="sclite", samples=1)).utterances:
        assert utterance.counts["wer"] == theirs[utterance.id], utterance.id


@needs_sclite
def test_counts_equal_those_of_sclite_on_recorded_prompts(tmp_path):
    lines = RECORDED.read_text(encoding="utf-8").splitlines()
    hypotheses = [spoken(str(i), *(side.strip() for side in line.split("|"))) for i, line in enumerate(lines)]
    theirs = counts_by_utterance(sclite(tmp_path, hypotheses, "prf"))
    result = score(hypotheses, ScoreOptions(align="sclite", samples=1))
    assert {utterance.id: utterance.counts["wer"] for utterance in result.utterances} == theirs
    assert result.rates["wer"].counts.errors > 100


@needs_sclite
@pytest.mark.parametrize("vocabulary", [8, 300])
def test_matched_pairs_equal_those_of_sc_stats(tmp_path, vocabulary):
    """No utterance ends in an insertion, because sc_stats misses those of the second system."""
    first = random_pairs(200, vocabulary, seed=2, insert_last=False)
    rng = random.Random(4)
    second = [
        spoken(pair.id, pair.reference, pair.text if rng.random() < 0.5 else " ".join(pair.text.split()[1:]))
        for pair in first
    ]
    alignments = []
    reports = ""
    for name, system in (("one", first), ("two", second)):
        folder = tmp_path / name
        folder.mkdir()
        reports += sclite(folder, system, "sgml")
        alignments.append([align_sclite(pair.reference.split(), pair.text.split()) for pair in system])
    command = [program("sc_stats"), "-p", "-t", "mapsswe", "-v", "-n", "out", "-O", str(tmp_path)]
    subprocess.run(command, input=reports, text=True, capture_output=True, check=True)
    report = (tmp_path / "out.stats.mapsswe").read_text()
    found = re.search(r"\(# segs: (\d+)\).*\(mean: (\S+)\) \(std dev: (\S+)\) \(Z Stat: (\S+)\)", report)
    assert found is not None
    ours = matched_pairs(*alignments)
    assert (str(ours.segments), *(f"{x:.3f}" for x in (ours.mean, ours.deviation, ours.z))) == found.groups()
    assert ours.segments > 50
    assert ours.z < -2
