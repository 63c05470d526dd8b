"""Time and peak memory of `asr prepare` on fabricated corpora of the real size, with tiny audio.

    python tools/preparation_benchmark.py wsj workers=2

Each corpus is a function that fabricates it and returns the words of the command line; the same number of
files, index entries and transcripts as the distribution has, a tenth of a second of noise in each file.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY))  # the encoders of the tests
TOKENS = (
    "THE OF PRICES ROSE FELL BONDS COMPANY SAID IT WOULD SELL SHARES IN A NEW MARKET YESTERDAY ,COMMA "
    ".PERIOD [loud_breath] <and> ZORKMIDS QUARTER MILLION DOLLARS TWENTY-FIVE U. S. <five> --DASH"
)
# Files of WSJ by split: index, folder of the audio, folder of the transcripts, files, files of a speaker.
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
    """Write the discs of WSJ: 39,523 shorten-compressed files, their indices and transcripts."""
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
    return ["wsj", f"corpus={root / 'corpus'}", "language_models=false", "allow_partial=true"]


CORPORA: dict[str, Callable[[Path], list[str]]] = {"wsj": fabricate_wsj}


def measure(words: list[str]) -> tuple[float, float, int]:
    """Run `asr` with these words; return seconds, peak memory of its processes together in MiB, status."""
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "asr", *words])
    peak = 0
    while process.poll() is None:
        peak = max(peak, sum(_resident(pid) for pid in _family(process.pid)))
        time.sleep(0.1)
    return time.perf_counter() - started, peak / 1024, process.returncode


def _family(pid: int) -> Iterator[int]:
    yield pid
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return
    for child in children:
        yield from _family(int(child))


def _resident(pid: int) -> int:
    """Resident memory in KiB, memory shared with other processes counted in each."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmRSS")), 0)


def _write(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(lines))


def main(words: list[str]) -> None:
    """Fabricate a corpus, prepare it twice, print what both took."""
    if not words or words[0] not in CORPORA:
        sys.exit(f"usage: preparation_benchmark.py {'|'.join(CORPORA)} [options of asr prepare …]")
    root = Path(tempfile.mkdtemp(prefix="preparation-"))
    try:
        started = time.perf_counter()
        command = CORPORA[words[0]](root)
        print(f"fabricated in {time.perf_counter() - started:.0f} s", flush=True)
        for label in ("prepared", "called again"):
            prepare = ["prepare", *command, f"folder={root / 'data'}", *words[1:]]
            seconds, peak, status = measure(prepare)
            print(f"{label} in {seconds:.1f} s, peak memory {peak:.0f} MiB, exit status {status}", flush=True)
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main(sys.argv[1:])
