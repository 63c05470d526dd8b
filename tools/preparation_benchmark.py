"""Benchmark time and peak memory of `asr prepare` on fabricated corpora of real size with tiny audio files.

    python tools/preparation_benchmark.py wsj workers=2

A fabricated corpus has as many files, index entries and transcripts as the real one. Audio files contain
0.1 s of noise (WSJ, LibriSpeech) or are sparse files of real length (Switchboard). CPU seconds approximate
the time on an idle machine.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))  # for the encoders in tests/
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
    """Write the discs of WSJ (39,523 compressed files, indices, transcripts); return the command."""
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
    """Write Switchboard and eval2000; return the command.

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
    """Write all 292,367 utterances of LibriSpeech (33 words each, 51 per chapter); return the command."""
    import soundfile
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


CORPORA: dict[str, Callable[[Path], list[str]]] = {
    "wsj": fabricate_wsj,
    "switchboard": fabricate_switchboard,
    "librispeech": fabricate_librispeech,
}


def measure(command: list[str]) -> tuple[float, float, float, int]:
    """Run a command; return seconds, CPU seconds, peak memory in MiB and exit status.

    CPU time and memory are sampled ten times per second and summed over all its processes.
    """
    started = time.perf_counter()
    process = subprocess.Popen(command)
    peak = 0
    used_s: dict[int, float] = {}
    while process.poll() is None:
        family = list(_family(process.pid))
        peak = max(peak, sum(_memory(pid) for pid in family))
        used_s |= {pid: used for pid in family if (used := _cpu_s(pid))}
        time.sleep(0.1)
    return time.perf_counter() - started, sum(used_s.values()), peak / 1024, process.returncode


def _family(pid: int) -> Iterator[int]:
    yield pid
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    for child in children:
        yield from _family(int(child))


def _memory(pid: int) -> int:
    """Resident memory in KiB, with a process's share of what it shares with others."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def _cpu_s(pid: int) -> float:
    """CPU seconds used by a process, without its children."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _write(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines))


def main(arguments: list[str]) -> None:
    """Fabricate a corpus, prepare it twice and print time and memory of both runs."""
    if not arguments or arguments[0] not in CORPORA:
        sys.exit(f"usage: preparation_benchmark.py {'|'.join(CORPORA)} [options of asr prepare …]")
    root = Path(tempfile.mkdtemp(prefix="preparation-"))
    try:
        started = time.perf_counter()
        command = CORPORA[arguments[0]](root)
        print(f"fabricated in {time.perf_counter() - started:.0f} s", flush=True)
        for label in ("prepared", "prepared again"):
            prepare = [sys.executable, "-m", "asr", "prepare", *command]
            prepare += [f"folder={root / 'data'}", *arguments[1:]]
            seconds, cpu_s, peak, status = measure(prepare)
            memory = f"peak memory {peak:.0f} MiB"
            print(
                f"{label} in {seconds:.1f} s ({cpu_s:.1f} CPU s), {memory}, exit status {status}", flush=True
            )
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main(sys.argv[1:])
