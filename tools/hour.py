"""An hour of joined utterances whose text disagrees with it, and what `asr segment` finds of it."""

import time
from dataclasses import dataclass
from pathlib import Path

import jiwer
import numpy as np
import soundfile
from numpy.typing import NDArray

from asr import Recognizer
from asr.cli import main as asr
from asr.config import option
from asr.data.audio import load_cut
from asr.data.manifest import read_cuts
from asr.errors import UserError


@dataclass
class Hour:
    """Options of `hour`."""

    model: str = option("exp/demo/full", help="run folder or checkpoint", affects="result")
    manifest: str = option("data/prompts_16k/train.cuts.jsonl.gz", help="utterances", affects="result")
    folder: str = option("exp/prompts/hour", help="new folder for recording, text and parts", affects="place")
    minutes: float = option(60.0, help="shortest recording", affects="result", unit="min")
    chapter: int = option(100, help="utterances in a chapter", affects="result", minimum=1)
    share: float = option(0.1, help="skipped sentences, and as many untold ones", affects="result")
    seed: int = option(0, help="random seed of order, pauses and skipped sentences", affects="result")


@dataclass
class Spoken:
    """An utterance of the long recording, in seconds; `given` if the text has it."""

    text: str
    start_s: float
    end_s: float
    given: bool


def write_hour(options: Hour, rate: int) -> list[Spoken]:
    """Write `hour.flac` and `hour.txt`, and return what is spoken: all utterances, in new orders."""
    random, cuts = np.random.default_rng(options.seed), list(read_cuts(Path(options.manifest)))
    audio: list[NDArray[np.float32]] = []
    lines: list[str] = []
    spoken: list[Spoken] = []
    samples, read = 0, 0
    while samples < options.minutes * 60 * rate:
        for index in random.permutation(len(cuts)):
            if read % options.chapter == 0:
                lines += ["", "the next chapter of this book begins here", ""]
                pause_s = 2.0
            else:
                pause_s = random.uniform(0.3, 1.0)
            read += 1
            text, own = cuts[index].supervisions[0].text, load_cut(cuts[index], rate)
            kind = random.random()
            if kind >= options.share:  # the text has it
                lines.append(text)
            if options.share <= kind < 2 * options.share:  # the reader skips it
                continue
            audio += [np.zeros(round(pause_s * rate), np.float32), own]
            samples += len(audio[-2])
            spoken.append(Spoken(text, samples / rate, (samples + len(own)) / rate, kind >= options.share))
            samples += len(own)
            if samples >= options.minutes * 60 * rate:
                break
    soundfile.write(Path(options.folder, "hour.flac"), np.concatenate(audio), rate)
    Path(options.folder, "hour.txt").write_text("\n".join(lines) + "\n")
    return spoken


def measure_hour(options: Hour) -> None:
    """Print utterances found, lost and wrongly cut by `asr segment`, and the error of their texts."""
    folder = Path(options.folder)
    if folder.exists():
        raise UserError(f"folder={folder}: expected a new folder")
    folder.mkdir(parents=True)
    spoken = write_hour(options, Recognizer.load(options.model).model.sample_rate)
    start = time.process_time()
    asr(["segment", options.model, str(folder / "hour.flac"), str(folder / "hour.txt")])
    cpu_s = time.process_time() - start
    parts: dict[int, list[tuple[float, float, str]]] = {}
    for path in sorted((folder / "hour.segments").glob("*.flac")):
        start_s = int(path.stem.split("-")[-1]) / 1000
        end_s = start_s + soundfile.info(path).duration
        shared = [min(end_s, x.end_s) - max(start_s, x.start_s) for x in spoken]
        parts.setdefault(int(np.argmax(shared)), []).append(
            (start_s, end_s, path.with_suffix(".txt").read_text().strip())
        )
    print_found(spoken, parts)
    print(f"{spoken[-1].end_s / 60:.1f} minutes, {cpu_s:.0f} CPU s")


def print_found(spoken: list[Spoken], parts: dict[int, list[tuple[float, float, str]]]) -> None:
    """Print the figures of `hour`; a cut is wrong by more than 0.2 s, 0.1 s of which is silence."""
    given = [index for index, x in enumerate(spoken) if x.given]
    found = [index for index in given if index in parts]
    wrong = 0
    for index in found:
        start_s, end_s = parts[index][0][0], parts[index][-1][1]
        earlier = spoken[index - 1].end_s if index else 0.0
        later = spoken[index + 1].start_s if index + 1 < len(spoken) else float("inf")
        own = spoken[index]
        wrong += not (
            earlier - 0.2 <= start_s <= own.start_s + 0.2 and own.end_s - 0.2 <= end_s <= later + 0.2
        )
    texts = [" ".join(part[2] for part in parts[index]) for index in found]
    untold = len(spoken) - len(given)
    print(f"given {len(given)}: found {len(found)}, lost {len(given) - len(found)}, wrongly cut {wrong}")
    if found:
        print(f"CER of the texts found {jiwer.cer([spoken[index].text for index in found], texts):.2%}")
        other = sum(text != spoken[index].text for index, text in zip(found, texts, strict=True))
        print(f"other texts {other} of {len(found)}")
    print(f"parts over {untold} utterances that the text lacks: {sum(i not in set(given) for i in parts)}")
