"""Fabricated corpora of the size of real ones, with tiny audio files, sparse ones or a single one.

A corpus has as many files, index entries and transcripts as the real one. Audio files contain 0.1 s of noise
(WSJ, LibriSpeech) or are sparse files of real length (Switchboard). All utterances of manifests are cut from
one recording.
"""

import gzip
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # for the encoders in tests/
AUDIO_S, RATE = 40.0, 16_000  # duration and rate of the recording that all manifests share
WORDS_PER_S = 2.7
TOKENS = (
    "THE OF PRICES ROSE FELL BONDS COMPANY SAID IT WOULD SELL SHARES IN A NEW MARKET YESTERDAY ,COMMA "
    ".PERIOD [loud_breath] <and> ZORKMIDS QUARTER MILLION DOLLARS TWENTY-FIVE U. S. <five> --DASH"
)
# By split: index, audio folder, transcript folder, number of files, files per speaker.
WSJ = [
    ("11-13.1/wsj0/doc/indices/train/tr_s_wv1.ndx", "11-1.1/wsj0/si_tr_s", "11-4.1/wsj0/dots", 7138, 90),
    ("13-34.1/wsj1/doc/indices/si_tr_s.ndx", "13-1.1/wsj1/si_tr_s", "13-34.1/wsj1/trans", 30278, 150),
    ("13-34.1/wsj1/doc/indices/h1_p0.ndx", "13-16.1/wsj1/si_dt_20", "13-34.1/wsj1/trans", 503, 50),
    ("11-13.1/wsj0/doc/indices/test/nvp/si_et_20.ndx", "11-14.1/wsj0/si_et_20", "11-4.1/wsj0/dots", 333, 42),
    ("13-32.1/wsj1/doc/indices/wsj1/eval/h1_p0.ndx", "13-33.1/wsj1/si_et_h1", "13-34.1/wsj1/trans", 213, 22),
    ("13-34.1/wsj1/doc/indices/h2_p0.ndx", "13-16.1/wsj1/si_dt_05", "13-34.1/wsj1/trans", 513, 50),
    ("11-13.1/wsj0/doc/indices/test/nvp/si_et_05.ndx", "11-14.1/wsj0/si_et_05", "11-4.1/wsj0/dots", 330, 42),
    ("13-32.1/wsj1/doc/indices/wsj1/eval/h2_p0.ndx", "13-33.1/wsj1/si_et_h2", "13-34.1/wsj1/trans", 215, 22),
]  # fmt: skip


def fabricate_wsj(root: Path) -> list[str]:
    """Write the discs of WSJ (39,523 files, indices, transcripts); return options of `asr prepare`."""
    from tests.data.shorten_encoder import write_sphere

    random = np.random.default_rng(0)
    tokens = TOKENS.split()
    sample = root / "sample.wv1"
    write_sphere(sample, random.integers(-300, 300, 1600), compressed=True)
    audio = sample.read_bytes()
    (root / "corpus" / "11-2.1").mkdir(parents=True)
    speaker = 0
    for index, folder, dots, files, per_speaker in WSJ:
        disc, _, place = folder.partition("/")
        entries = []
        for first in range(0, files, per_speaker):
            name = np.base_repr(speaker + 1296, 36).lower()  # three characters
            speaker += 1
            (root / "corpus" / folder / name).mkdir(parents=True)
            transcripts = []
            for number in range(first, min(files, first + per_speaker)):
                utterance = f"{name}c02{np.base_repr(number - first + 36, 36).lower()}"
                (root / "corpus" / folder / name / f"{utterance}.wv1").write_bytes(audio)
                entries.append(f"{disc.replace('-', '_').replace('.', '_')}:{place}/{name}/{utterance}.wv1\n")
                transcripts.append(f"{' '.join(random.choice(tokens, 18))} ({utterance})\n")
            _write(root / "corpus" / dots / name / f"{name}c0200.dot", transcripts)
        _write(root / "corpus" / index, entries)
    accepted = "allow_partial=[counts,missing_parts]"
    return ["wsj", f"corpus={root / 'corpus'}", "language_models=false", accepted]


def fabricate_switchboard(root: Path) -> list[str]:
    """Write Switchboard and eval2000; return options of `asr prepare`.

    There are 2,438 conversations with 264,333 speech segments and as many silences: the real counts, so
    that preparation succeeds without allow_partial.
    """
    random = np.random.default_rng(0)
    vocabulary = _vocabulary(25_000, random)
    corpus, evaluation = root / "LDC97S62", root / "hub5_2000"
    transcripts = corpus / "swb_ms98_transcriptions"
    segments = _shared_out(264_333, 2 * 2438)
    for number in range(2001, 2001 + 2438):
        for side in "AB":
            lines = list(_switchboard_side(f"sw{number}{side}", next(segments), vocabulary, random))
            _write(transcripts / f"{number}"[:2] / f"{number}" / f"sw{number}{side}-ms98-a-trans.text", lines)
        _hole(corpus / f"swb1_d{1 + number % 23}" / f"sw0{number}.sph", seconds=600)
    _write(transcripts / "sw-ms98-dict.text", [f"{word} {' '.join(word)}\n" for word in vocabulary])
    _fabricate_eval2000(evaluation, vocabulary, random)
    return ["switchboard", f"corpus={corpus}", f"eval2000={evaluation}"]


def _switchboard_side(
    name: str, segments: int, vocabulary: list[str], random: np.random.Generator
) -> Iterator[str]:
    step_s = 590 / segments
    for i in range(segments):
        start_s, end_s = i * step_s, (i + 0.7) * step_s
        # Frequent backchannels: train_nodup leaves out those beyond 300.
        text = "uh-huh" if i % 12 == 0 else _sentence(vocabulary, 1 + i % 23, random)
        if i % 20 == 5:
            text += " [laughter-yes] w[ell]- [noise]"
        yield f"{name}-ms98-a-{2 * i + 1:04d} {start_s:.6f} {end_s:.6f} {text}\n"
        yield f"{name}-ms98-a-{2 * i + 2:04d} {end_s:.6f} {(i + 1) * step_s:.6f} [silence]\n"


def _fabricate_eval2000(folder: Path, vocabulary: list[str], random: np.random.Generator) -> None:
    pem, stm = [], [';; LABEL "O" "Overall" "Overall"\n']
    for prefix, first, utterances in (("en_", 4156, 2628), ("sw_", 4390, 1831)):
        shares = _shared_out(utterances, 40)
        for number in range(first, first + 20):
            for side in "AB":
                count = next(shares)
                for i in range(count):
                    times = f"{i * 300 / count:.2f} {(i + 0.8) * 300 / count:.2f}"
                    text = _sentence(vocabulary, 10, random).upper()
                    pem.append(f"{prefix}{number} {side} unknown_speaker {times}\n")
                    stm.append(f"{prefix}{number} {side} {prefix}{number}_{side} {times} <O> (UH) {text}\n")
            _hole(folder / "english" / f"{prefix}{number}.sph", seconds=310)
    _write(folder / "english" / "hub5e_00.pem", pem)
    _write(folder / "hub5e00.english.000405.stm", stm)
    _write(folder / "en20000405_hub5.glm", [";; rules\n", "UH => %HESITATION / [ ] __ [ ]\n"])


def _sentence(vocabulary: list[str], words: int, random: np.random.Generator) -> str:
    # The square of a uniform number makes a few words frequent, as in speech.
    return " ".join(vocabulary[int(len(vocabulary) * x)] for x in random.random(words) ** 2)


def _shared_out(total: int, parts: int) -> Iterator[int]:
    """Yield `parts` integers that sum to `total` and differ by at most one."""
    yield from (total // parts + (i < total % parts) for i in range(parts))


def _hole(path: Path, seconds: int) -> None:
    """Write a two-channel µ-law SPHERE file of silence as a sparse file."""
    samples = seconds * 8000
    fields = [f"sample_count -i {samples}", "sample_n_bytes -i 1", "channel_count -i 2"]
    fields += ["sample_rate -i 8000", "sample_coding -s4 ulaw", "end_head"]
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        file.write("\n".join(["NIST_1A", "   1024", *fields, ""]).encode().ljust(1024))
        file.truncate(1024 + 2 * samples)


def fabricate_librispeech(root: Path) -> list[str]:
    """Write LibriSpeech (292,367 utterances, 51 per chapter); return options of `asr prepare`."""
    from asr_recipes.librispeech.parts import PARTS

    random = np.random.default_rng(0)
    vocabulary = _vocabulary(80_000, random)
    sample = root / "sample.flac"
    soundfile.write(sample, random.integers(-300, 300, 1600).astype(np.int16), 16000)
    audio = sample.read_bytes()
    chapter = 0
    for part, facts in PARTS.items():
        if facts.resource != 12:  # mini LibriSpeech
            continue
        for first in range(0, facts.utterances, 51):
            chapter += 1
            speaker = chapter // 2
            folder = root / "LibriSpeech" / part / str(speaker) / str(chapter)
            folder.mkdir(parents=True)
            lines = []
            for number in range(min(51, facts.utterances - first)):
                name = f"{speaker}-{chapter}-{number:04d}"
                (folder / f"{name}.flac").write_bytes(audio)
                lines.append(f"{name} {_sentence(vocabulary, 33, random).upper()}\n")
            (folder / f"{speaker}-{chapter}.trans.txt").write_text("".join(lines))
    return ["librispeech", f"corpus={root / 'LibriSpeech'}", "subset=960"]


def _vocabulary(words: int, random: np.random.Generator) -> list[str]:
    letters = np.array(list("etaoinshrdlu"))
    return sorted({"".join(random.choice(letters, random.integers(2, 10))) for _ in range(words)})


def _write(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines))


def fabricate_manifests(folder: Path, utterances: int) -> None:
    """Write train and dev manifests, a vocabulary of 1,000 words and the audio file."""
    random = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    noise = 0.1 * random.standard_normal(round(AUDIO_S * RATE))
    soundfile.write(folder / "shared.wav", noise, RATE, subtype="PCM_16")
    words = _vocabulary(1000, random)
    for split, count in (("train", utterances), ("dev", 20)):
        with gzip.open(folder / f"{split}.cuts.jsonl.gz", "wt", compresslevel=6) as file:
            # Like LibriSpeech: most utterances last 10 to 16 s, none more than 35 s.
            lengths_s = random.uniform(1.5, 12, count), random.normal(14, 1.8, count)
            durations_s = np.clip(np.where(random.random(count) < 0.3, *lengths_s), 1, 35)
            for i, duration_s in enumerate(durations_s.round(3).tolist()):
                text = _sentence(words, max(1, round(WORDS_PER_S * duration_s)), random)
                file.write(json.dumps(_entry(f"{split}-{i:07}", text, duration_s)) + "\n")


def _entry(name: str, text: str, duration_s: float) -> dict[str, Any]:
    """Return a line of a manifest, with a recording of its own as in most corpora."""
    speaker = name[-7:-3]
    supervision = {"id": name, "recording_id": name, "start": 0.0, "duration": duration_s, "channel": 0}
    source = {"type": "file", "channels": [0], "source": "shared.wav"}
    samples = round(AUDIO_S * RATE)
    sound = {"id": name, "sources": [source], "sampling_rate": RATE, "num_samples": samples}
    return {
        "id": name,
        "start": 0.0,
        "duration": duration_s,
        "channel": 0,
        "supervisions": [supervision | {"text": text, "language": "en", "speaker": speaker}],
        "recording": sound | {"duration": AUDIO_S, "channel_ids": [0]},
        "type": "MonoCut",
    }


CORPORA: dict[str, Callable[[Path], list[str]]] = {
    "wsj": fabricate_wsj,
    "switchboard": fabricate_switchboard,
    "librispeech": fabricate_librispeech,
}
