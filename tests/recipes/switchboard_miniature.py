"""Fabricate a miniature of Switchboard and eval2000: two-channel µ-law SPHERE files of tones."""

import io
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import soundfile
from tone_corpora import LEXICON, tones

RATE = 8000
PILOT_HZ = {"A": 130, "B": 230}  # a quiet low tone identifies the side
WORDS = list(LEXICON.pronunciations)

# One segment each: as written, and as trained on.
MARKED = [
    ("[laughter-tea] be", "tea be"),
    ("[be/bee] cat", "be cat"),
    ("-[ca]t sea", "-t sea"),
    ("ba[ck]- back", "ba- back"),
    ("{sea} a", "sea a"),
    ("tea_1 tea", "tea tea"),
    ("ba[c]k tea", "ba-k tea"),
    ("[noise] a [laughter]", "[noise] a [laughter]"),
    ("<b_aside> back <e_aside> [silence] [vocalized-noise]", "back [vocalized-noise]"),
    ("[silence]", ""),
]
DICTIONARY = """ file: $SWB/data/dictionary/sw-ms98-dict.text
# the dictionary of the distribution
B ay zh aa n iy z
I aa
alien x7 aa
a aa
be b iy
cat k aa t
sea s iy
tea t iy
tea_1 t iy
back b aa k
ba[ck]- b aa
-[ca]t t
[laughter-cat] k aa t
broken
"""
GLM = """;; global mapping rules of the miniature
* name "miniature"
* desc "mappings"
* format = 'NIST1'
* max_nrules = '100'
* copy_no_hit = 'T'
* case_sensitive = 'F'
UH       => %HESITATION / [ ] __ [ ] ;; hesitation
TEATIME  => TEA TIME / [ ] __ [ ]
;; INPUT_DEPENDENT_APPLICATION = "ctm"
CAT'S    => [{CAT IS / CAT'S}] / [ ] __ [ ]
"""
COMMENTS = """;; CATEGORY "0" "" ""
;; LABEL "O" "Overall" "Overall"
;; CATEGORY "1" "Corpus" ""
;; LABEL "sw" "Switchboard" "Switchboard"
;; LABEL "en" "CallHome" "CallHome"
"""
# Reference markup, and words spoken in addition.
REFERENCES = [
    ("{text}", None),
    ("(%HESITATION) {text}", None),
    ("{{ {text} / @ BACK }}", None),
    ("<B_ASIDE> {text} <E_ASIDE>", None),
    ("{text} ((BE)", "be"),
    ("CA- {text}", None),
]


@dataclass
class Said:
    """A fabricated segment."""

    side: str  # sw02001-A
    start_s: float
    end_s: float
    text: str


@dataclass
class Miniature:
    """The folders and their contents."""

    corpus: Path
    evaluation: Path
    segments: list[Said] = field(default_factory=list)
    references: list[Said] = field(default_factory=list)


def sphere_bytes(audio: np.ndarray, rate: int = RATE, **changes: str) -> bytes:
    """Return a µ-law SPHERE file of `audio` [samples, channels]; `changes` override header fields."""
    coded = io.BytesIO()
    soundfile.write(coded, audio, rate, format="RAW", subtype="ULAW")
    channels = 1 if audio.ndim == 1 else audio.shape[1]
    fields = {
        "conversation_id": "-s4 2001",
        "sample_count": f"-i {len(audio)}",
        "sample_n_bytes": "-i 1",
        "channel_count": f"-i {channels}",
        "sample_rate": f"-i {rate}",
        "sample_coding": "-s4 ulaw",
    } | changes
    lines = ["NIST_1A", "   1024", *(f"{name} {value}" for name, value in fields.items()), "end_head", ""]
    return "\n".join(lines).encode().ljust(1024) + coded.getvalue()


def build(root: Path, seed: int = 0, conversations: int = 3, plain: int = 8) -> Miniature:
    """Write the corpora below `root`."""
    random = np.random.default_rng(seed)
    made = Miniature(root / "LDC97S62", root / "hub5_2000")
    transcripts = made.corpus / "swb_ms98_transcriptions"
    for number in range(conversations):
        name = f"{2001 + number}"
        sides = []
        for side in "AB":
            written = [MARKED[i] for i in random.permutation(len(MARKED))]
            written += [(text, text) for text in _sentences(random, plain)]
            audio, spans = _side(random, [text for _, text in written], side)
            sides.append(audio)
            lines = []
            for i, ((raw, text), (start_s, end_s)) in enumerate(zip(written, spans, strict=True), start=1):
                lines.append(f"sw{name}{side}-ms98-a-{i:04d} {start_s:.6f} {end_s:.6f} {raw}\n")
                made.segments.append(Said(f"sw0{name}-{side}", start_s, end_s, text))
            path = transcripts / name[:2] / name / f"sw{name}{side}-ms98-a-trans.text"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(lines))
        path = made.corpus / f"swb1_d{1 + number % 2}" / "data" / f"sw0{name}.sph"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(sphere_bytes(_both(sides)))
    (transcripts / "sw-ms98-dict.text").write_text(DICTIONARY)
    _build_evaluation(made, random)
    return made


def _build_evaluation(made: Miniature, random: np.random.Generator) -> None:
    english = made.evaluation / "english"
    reference = made.evaluation / "2000_hub5_eng_eval_tr" / "reference"
    english.mkdir(parents=True)
    reference.mkdir(parents=True)
    pem, stm = [";; hub5e_00.pem\n"], [COMMENTS]
    for name in ("sw_4390", "en_4156"):
        sides = []
        for side in "AB":
            texts = _sentences(random, len(REFERENCES) + 1)
            said = [
                f"{text} {extra or ''}".strip() for text, (_, extra) in zip(texts, REFERENCES, strict=False)
            ]
            audio, spans = _side(random, [*said, texts[-1]], side)
            sides.append(audio)
            written = [
                form.format(text=text.upper()) for text, (form, _) in zip(texts, REFERENCES, strict=False)
            ]
            written.append("IGNORE_TIME_SEGMENT_IN_SCORING")
            for text, (start_s, end_s), words in zip(written, spans, [*said, ""], strict=True):
                times = f"{start_s:.2f} {end_s:.2f}"
                pem.append(f"{name} {side} unknown_speaker {times}\n")
                stm.append(f"{name} {side} {name}_{side} {times} <O,{name[:2]}> {text}\n")
                made.references.append(Said(f"{name}-{side}", round(start_s, 2), round(end_s, 2), words))
        (english / f"{name}.sph").write_bytes(sphere_bytes(_both(sides)))
    (english / "hub5e_00.pem").write_text("".join(pem))
    (reference / "hub5e00.english.000405.stm").write_text("".join(stm))
    (reference / "en20000405_hub5.glm").write_text(GLM)


def _sentences(random: np.random.Generator, count: int) -> list[str]:
    return [" ".join(random.choice(WORDS, random.integers(2, 5))) for _ in range(count)]


def _side(
    random: np.random.Generator, texts: list[str], side: str
) -> tuple[np.ndarray, list[tuple[float, float]]]:
    """Return the audio of a conversation side, and start and end of each text in seconds."""
    parts, spans = [np.zeros(RATE // 2, np.float32)], []
    for text in texts:
        spoken = " ".join(word for word in text.split() if word in LEXICON) or "a"
        audio = tones(spoken, RATE, random)
        start = sum(map(len, parts))
        spans.append((round(start / RATE, 2), round((start + len(audio)) / RATE, 2)))
        parts += [audio, np.zeros(int(RATE * random.uniform(0.1, 0.5)), np.float32)]
    audio = np.concatenate([*parts, np.zeros(RATE // 2, np.float32)])
    pilot = 0.02 * np.sin(2 * np.pi * PILOT_HZ[side] * np.arange(len(audio)) / RATE)
    return audio + pilot.astype(np.float32), spans


def _both(sides: list[np.ndarray]) -> np.ndarray:
    length = max(map(len, sides))
    return np.stack([np.pad(side, (0, length - len(side))) for side in sides], axis=1)
