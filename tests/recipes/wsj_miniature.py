"""Fabricate a miniature WSJ in both layouts: a few utterances of tones with invented sentences."""

import gzip
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.data.shorten_encoder import write_sphere

RATE = 16000
ARPA = """\\data\\
ngram 1=5
ngram 2=2

\\1-grams:
-0.6\t<s>\t-0.3
-0.6\t</s>
-0.6\tPRICES\t-0.3
-0.6\tROSE
-2.0\t<UNK>

\\2-grams:
-0.3\t<s> PRICES
-0.3\tPRICES ROSE

\\end\\
"""


@dataclass(frozen=True)
class Utterance:
    """A fabricated utterance: disc and folder of its audio, id, transcript as written, expected words."""

    disc: str
    folder: str
    name: str
    written: str
    words: str


# Every case of markup, spread over the splits.
UTTERANCES = {
    "si84": [
        Utterance(
            "11-1.1",
            "wsj0/si_tr_s/01i",
            "01ic0201",
            "Prices rose ,COMMA .PERIOD",
            "PRICES ROSE ,COMMA .PERIOD",
        ),
        Utterance(
            "11-1.1",
            "wsj0/si_tr_s/01i",
            "01ic0202",
            r"He said \"DOUBLE\-QUOTE no .",
            'HE SAID "DOUBLE-QUOTE NO',
        ),
        Utterance(
            "11-2.1",
            "wsj0/si_tr_s/40a",
            "40ac0201",
            "[loud_breath] Prices [<cough] fell",
            "<NOISE> PRICES FELL",
        ),
        Utterance("11-2.1", "wsj0/si_tr_s/40a", "40ac0202", "[cough>] It's [ring/] up [/ring] ~", "IT'S UP"),
    ],
    "si200": [
        Utterance(
            "13-1.1", "wsj1/si_tr_s/460", "460c0201", "<five> --DASH six %PERCENT", "FIVE -DASH SIX PERCENT"
        ),
        Utterance(
            "13-2.1", "wsj1/si_tr_s/461", "461c0201", "five .POINT two zorkmids", "FIVE POINT TWO ZORKMIDS"
        ),
        Utterance(
            "13-2.1",
            "wsj1/si_tr_s/461",
            "461c0202",
            "MR. *Smith* sol:d U. S. bonds",
            "MR. *SMITH* SOL:D U. S. BONDS",
        ),
    ],
    "dev93": [
        Utterance("13-16.1", "wsj1/si_dt_20/4k0", "4k0c0301", "Prices rose", "PRICES ROSE"),
        Utterance(
            "13-16.1",
            "wsj1/si_dt_20/4k0",
            "4k0c0302",
            "No [tongue_click] bonds fell",
            "NO <NOISE> BONDS FELL",
        ),
    ],
    "eval92": [Utterance("11-14.1", "wsj0/si_et_20/440", "440c0401", "Six bonds rose", "SIX BONDS ROSE")],
    "eval93": [
        Utterance("13-33.1", "wsj1/si_et_h1/4oa", "4oac0201", "The compaign fell", "THE COMPAIGN FELL")
    ],
    "dev93_5k": [Utterance("13-16.1", "wsj1/si_dt_05/4k0", "4k0c0401", "He rose", "HE ROSE")],
    "eval92_5k": [Utterance("11-14.1", "wsj0/si_et_05/440", "440c0201", "No prices fell", "NO PRICES FELL")],
    "eval93_5k": [Utterance("13-33.1", "wsj1/si_et_h2/4oa", "4oac0301", "It rose", "IT ROSE")],
}
# In the index, but customarily excluded.
LEFT_OUT = Utterance("11-2.1", "wsj0/si_tr_s/401", "401c0201", "never heard", "")

INDICES = {
    "si84": ("11-13.1", "wsj0/doc/indices/train/tr_s_wv1.ndx"),
    "si200": ("13-34.1", "wsj1/doc/indices/si_tr_s.ndx"),
    "dev93": ("13-34.1", "wsj1/doc/indices/h1_p0.ndx"),
    "eval92": ("11-13.1", "wsj0/doc/indices/test/nvp/si_et_20.ndx"),
    "eval93": ("13-32.1", "wsj1/doc/indices/wsj1/eval/h1_p0.ndx"),
    "dev93_5k": ("13-34.1", "wsj1/doc/indices/h2_p0.ndx"),
    "eval92_5k": ("11-13.1", "wsj0/doc/indices/test/nvp/si_et_05.ndx"),
    "eval93_5k": ("13-32.1", "wsj1/doc/indices/wsj1/eval/h2_p0.ndx"),
}
# Disc and folder of the transcripts by corpus; they are not beside the audio.
DOTS = {"wsj0": ("11-4.1", "wsj0/transcrp/dots"), "wsj1": ("13-34.1", "wsj1/trans/wsj1")}

COUNTS = {"si84": 4, "si284": 7, "dev93": 2, "eval92": 1, "eval93": 1}
COUNTS |= {"dev93_5k": 1, "eval92_5k": 1, "eval93_5k": 1}
SI284 = UTTERANCES["si84"] + UTTERANCES["si200"]
SPLITS = {name: UTTERANCES[name] for name in UTTERANCES if name != "si200"} | {"si284": SI284}


@dataclass
class Miniature:
    """A fabricated copy.

    Attributes:
        root: folder for `corpus=`.
        merged: whether the layout is `wsj0` and `wsj1` instead of discs.
        samples: 16-bit samples of each utterance.
    """

    root: Path
    merged: bool
    samples: dict[str, NDArray[np.int16]] = field(default_factory=dict)

    def path(self, disc: str, name: str) -> Path:
        """Return the path of a file of the distribution."""
        if self.merged:
            return self.root / name
        # This disc has upper-case names.
        return self.root / disc / (name.upper() if disc == "13-16.1" else name)

    def audio(self, name: str) -> Path:
        """Return the audio file of an utterance."""
        utterance = next(u for u in all_utterances() if u.name == name)
        return self.path(utterance.disc, f"{utterance.folder}/{utterance.name}.wv1")

    def index(self, name: str) -> Path:
        """Return an index by its name in `INDICES`."""
        return self.path(*INDICES[name])

    def dot(self, name: str) -> Path:
        """Return the transcript file of an utterance's session."""
        utterance = next(u for u in all_utterances() if u.name == name)
        disc, place = DOTS[utterance.folder[:4]]
        return self.path(disc, f"{place}/{utterance.folder.partition('/')[2]}/{utterance.name[:6]}00.dot")

    def edit(self, path: Path, old: str, new: str) -> None:
        """Replace text that must occur in a file."""
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))


def all_utterances() -> Iterator[Utterance]:
    """Yield each fabricated utterance once."""
    for members in UTTERANCES.values():
        yield from members
    yield LEFT_OUT


def fabricate(root: Path, *, merged: bool) -> Miniature:
    """Write a fabricated distribution."""
    copy = Miniature(root, merged)
    random = np.random.default_rng(0)
    for number, utterance in enumerate(all_utterances()):
        samples = tones(utterance.words, random)
        copy.samples[utterance.name] = samples
        # Real copies are compressed; here a third is plain and a third uses linear prediction.
        write_sphere(copy.audio(utterance.name), samples, RATE, compressed=number % 3 > 0, lpc=number % 3)
        dot = copy.dot(utterance.name)
        dot.parent.mkdir(parents=True, exist_ok=True)
        with open(dot, "a") as file:
            file.write(f"{utterance.written} ({utterance.name})\n")
    for name, members in UTTERANCES.items():
        listed = [*members, LEFT_OUT] if name == "si84" else members
        _write(copy.index(name), "; a comment\n" + "".join(_index_line(name, member) for member in listed))
    _write_language_models(copy)
    if not merged:
        for disc in ("11-13.1", "13-32.1"):
            _write(root / disc / "readme.doc", "about this disc\n")
    return copy


def _index_line(index: str, utterance: Utterance) -> str:
    disc = utterance.disc.replace("-", "_").replace(".", "_")
    path = f"{utterance.folder}/{utterance.name}.wv1"
    if index.startswith("eval92"):
        return f"{disc}:{path.removesuffix('.wv1')}\n"
    if index.startswith("eval93"):
        disc = "13_32_1"  # as in the distribution, although the audio is on 13-33.1
    return f"{disc}: {path}\n" if index == "dev93" else f"{disc}:{path}\n"


def _write_language_models(copy: Miniature) -> None:
    base = "wsj1/doc/lng_modl"
    preamble = "This is a language model.\nngram counts follow\n"
    for name in ("bcb20onp", "tcb20onp", "bcb05onp", "tcb05cnp"):
        path = copy.path("13-32.1", f"{base}/base_lm/{name}.z")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(compress((preamble + ARPA).encode()))
    for year, sentence in (("87", "Prices rose"), ("88", "No bonds fell"), ("89", "Six rose")):
        path = copy.path("13-32.1", f"{base}/lm_train/np_data/{year}/{year}1.z")
        path.parent.mkdir(parents=True, exist_ok=True)
        text = f"<art.{year}>\n<p>\n<s>\n{sentence}\n</s>\n</p>\n"
        path.write_bytes(gzip.compress(text.encode()) if year == "89" else compress(text.encode()))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def compress(content: bytes) -> bytes:
    """Return LZW data in the format of the program compress, in blocks short enough for 9-bit codes."""
    packed = bytearray(b"\x1f\x9d\x90")
    for start in range(0, len(content), 247):
        codes = [*content[start : start + 247], 256]  # 256 clears the dictionary
        bits = sum(code << (9 * position) for position, code in enumerate(codes))
        packed += bits.to_bytes(9 * len(codes) + 7 >> 3, "little")
    return bytes(packed)


def tones(words: str, random: np.random.Generator) -> NDArray[np.int16]:
    """Return a tone per letter, with a pitch for each letter, so that the words are learnable."""
    time_s = np.arange(int(0.05 * RATE)) / RATE
    letters = [ord(letter) % 32 for letter in words or "none"]
    wave = np.concatenate([np.sin(2 * np.pi * (200 + 100 * letter) * time_s) for letter in letters])
    return (3000 * wave + random.normal(0, 30, len(wave))).astype(np.int16)


def copy_of(miniature: Miniature, root: Path) -> Miniature:
    """Return a copy that may be damaged."""
    shutil.copytree(miniature.root, root)
    return Miniature(root, miniature.merged, miniature.samples)
