"""Fixed and random references and hypotheses that cover sclite's rules."""

import random
from pathlib import Path
from typing import NamedTuple

from asr.scoring.ctm import CtmWord, write_ctm
from asr.scoring.stm import Stm, StmSegment, plain_words, write_stm

GLM = """;; rules of the tests
* name "tests"
* desc "rules of every form"
* format = 'NIST1'
* max_nrules = '2500'
* copy_no_hit = 'T'
* case_sensitive = 'F'
;; fillers and backchannels
UH-HUH => %BCACK / [ ] __ [ ]
UHHUH  => %BCACK / [ ] __ [ ]
UH   =>  %HESITATION     / [ ] __ [ ] ;; hesitation
UM   =>  %HESITATION     / [ ] __ [ ]
MM   =>  (%HESITATION)   / [ ] __ [ ]
;; spelling
OK => O. K. / [ ] __ [ ] ;; per AHD
OKAY => O. K. / [ ] __ [ ]
ANYMORE => ANY MORE / [ ] __ [ ]
WELL KNOWN => FAMOUS
"COLOUR" => COLOR
SO IT => SUCH / __ [ IS]
SO => [] / [ ] __ [ A ]
;; INPUT_DEPENDENT_APPLICATION = "stm"
IT'S => IT IS / [ ] __ [ ]
;; INPUT_DEPENDENT_APPLICATION = "hyp"
HE'S => [{HE IS / HE HAS / HE'S}] / [ ] __ [ ]
IT'S => [{IT IS / IT HAS}] / [ ] __ [ ]
THAT'S => [{THAT IS / @}] / [ ] __ [ ]
"""
LABELS = [
    ';; CATEGORY "0" "" ""',
    ';; LABEL "O" "Overall" "all"',
    ';; CATEGORY "1" "" ""',
    ';; LABEL "sw" "swbd" "swbd"',
    ';; LABEL "en" "callhm" "callhm"',
]
SUBSETS = {"all": ("",), "swbd": ("sw_",), "callhm": ("en_",)}
WORDS = (
    "he she it is has he's it's well known okay o. k. uh um the a ba- bac- back bad -ck -d well-known "
    "anymore any more uh-huh uhhuh sh- that's mm so colour color"
)
VOCABULARY = WORDS.split()


class Case(NamedTuple):
    """A segment, the words recognised in it, and sclite's counts (SCTK 2.4.10, hubscr.pl -h hub5).

    Attributes:
        counts: words, right, substitutions, deletions, insertions; None: not scored.
    """

    reference: str
    hypothesis: str
    counts: tuple[int, int, int, int, int] | None


CASES = [
    Case(*case)
    for case in [
        ("THE BACK IS BAD", "the back is bad", (4, 4, 0, 0, 0)),
        ("THE BACK IS BAD", "a back bad so", (4, 2, 1, 1, 1)),
        ("(%HESITATION) THE BACK", "the back", (3, 3, 0, 0, 0)),
        ("(%HESITATION) THE BACK", "uh the back", (3, 3, 0, 0, 0)),
        ("(%HESITATION) THE BACK", "so the back", (3, 2, 1, 0, 0)),
        ("(UH-HUH) (MM)", "", (2, 2, 0, 0, 0)),
        ("(UH HUH BACK)", "back", (3, 3, 0, 0, 0)),
        ("", "", (0, 0, 0, 0, 0)),
        ("", "so it", (0, 0, 0, 0, 2)),
        ("BA- THE BACK", "back the back", (3, 3, 0, 0, 0)),
        ("BA- THE BACK", "the back", (3, 2, 0, 1, 0)),
        ("THE -CK", "the back", (2, 2, 0, 0, 0)),
        ("BACK", "ba-", (1, 1, 0, 0, 0)),
        ("BAD", "ba- bad", (1, 1, 0, 0, 1)),
        ("(BA-) BACK", "bad back", (2, 2, 0, 0, 0)),
        ("- THE", "the", (2, 1, 0, 1, 0)),
        ("{ HE IS / HE'S } BAD", "he is bad", (3, 3, 0, 0, 0)),
        ("{ HE IS / HE'S } BAD", "he's bad", (3, 3, 0, 0, 0)),
        ("HE HAS IT", "he's it", (3, 3, 0, 0, 0)),
        ("{ UH / @ } BACK", "back", (1, 1, 0, 0, 0)),
        ("{ UH / @ } BACK", "so back", (1, 1, 0, 0, 1)),
        ("{ @ / UH / THE BACK } BAD", "the bad", (3, 2, 0, 1, 0)),
        ("{ HE / { SHE / IT } IS } BAD", "it is bad", (3, 3, 0, 0, 0)),
        ("{ A / @ } { THE / @ } BACK", "the back", (2, 2, 0, 0, 0)),
        ("IT'S BAD", "it's bad", (3, 3, 0, 0, 0)),
        ("IT IS BAD", "it has bad", (3, 2, 1, 0, 0)),
        ("THAT IS IT", "that's it", (3, 3, 0, 0, 0)),
        ("IT", "that's it", (1, 1, 0, 0, 0)),
        ("OKAY BACK", "ok back", (3, 3, 0, 0, 0)),
        ("O. K.", "okay", (2, 2, 0, 0, 0)),
        ("ANYMORE", "any more", (2, 2, 0, 0, 0)),
        ("WELL-KNOWN", "well known", (2, 2, 0, 0, 0)),
        ("WELL KNOWN", "famous", (1, 1, 0, 0, 0)),
        ("A WELL-KNOWN BACK", "a well-known back", (4, 4, 0, 0, 0)),
        ("THE COLOUR", "the color", (2, 2, 0, 0, 0)),
        ("SO IT IS", "such is", (2, 2, 0, 0, 0)),
        ("SO A BACK", "a back", (2, 2, 0, 0, 0)),
        ("THE* BACK*", "the back", (2, 2, 0, 0, 0)),
        ("BACK;N THE", "back the", (2, 2, 0, 0, 0)),
        ("A B C D", "x a b c", (4, 3, 0, 1, 1)),
        ("A B C D E F", "a c b e d f", (6, 4, 1, 1, 1)),
        ("IGNORE_TIME_SEGMENT_IN_SCORING", "a b", None),
        ("IGNORETIMESEGMENTINSCORING", "a b", None),
        ("UHHUH", "uh-huh", (1, 1, 0, 0, 0)),
        ("(UH) (UM) SO", "um so uh", (3, 3, 0, 0, 1)),
    ]
]


def random_test_set(seed: int, segments: int = 25) -> tuple[Stm, list[CtmWord]]:
    """Return a reference of three conversations with all kinds of markup, and a hypothesis full of errors."""
    generator = random.Random(seed)
    said: list[StmSegment] = []
    heard: list[CtmWord] = []
    for file in ("sw_1", "sw_2", "en_1"):
        for channel in "AB":
            time_s = 0.0
            for _ in range(segments):
                duration_s = round(generator.uniform(0.5, 6), 2)
                end_s = round(time_s + duration_s, 2)
                kind = generator.random()
                text = random_text(generator) if kind < 0.9 else ""
                text = "IGNORE_TIME_SEGMENT_IN_SCORING" if kind > 0.96 else text
                said.append(
                    StmSegment(file, channel, f"{file}_{channel}", time_s, end_s, f"<O,{file[:2]}>", text)
                )
                words = random_words(generator, "yes no" if kind > 0.96 else " ".join(plain_words(text)))
                share_s = duration_s / max(1, len(words))
                heard += [
                    CtmWord(file, channel, round(time_s + share_s * i, 3), round(share_s * 0.9, 3), word)
                    for i, word in enumerate(words)
                ]
                time_s = round(end_s + generator.choice([0, 0, 0.3]), 2)
    if seed % 3 == 0:  # nothing was recognised in a channel
        heard = [word for word in heard if (word.file, word.channel) != ("sw_1", "B")]
    return Stm(said, LABELS), heard


def random_text(generator: random.Random) -> str:
    """Return words, optional words, fragments and alternations."""

    def word() -> str:
        return generator.choice(VOCABULARY).upper()

    def alternation() -> str:
        choices = [
            " ".join(word() for _ in range(generator.randint(1, 3))) if generator.random() < 0.75 else "@"
            for _ in range(generator.randint(2, 3))
        ]
        return "{ " + " / ".join([word(), *choices[1:]]) + " }"

    parts = []
    for _ in range(generator.randint(1, 9)):
        kind = generator.random()
        if kind < 0.1:
            parts.append(f"({word()})")
        elif kind < 0.13:
            parts.append(f"({word()} {word()})")
        else:
            parts.append(alternation() if kind < 0.25 else word())
    return " ".join(parts)


def random_words(generator: random.Random, text: str) -> list[str]:
    """Return the words of a text with deletions, substitutions and insertions."""
    heard = []
    for word in text.lower().split():
        kind = generator.random()
        if kind < 0.1:
            continue
        heard.append(generator.choice(VOCABULARY) if kind < 0.25 else word)
        if kind > 0.9:
            heard.append(generator.choice(VOCABULARY))
    return heard


def write_test_set(folder: Path, stm: Stm, heard: list[CtmWord]) -> tuple[Path, Path, Path]:
    """Write ref.stm, hyp.ctm and rules.glm."""
    paths = folder / "ref.stm", folder / "hyp.ctm", folder / "rules.glm"
    write_stm(paths[0], stm)
    write_ctm(paths[1], heard)
    paths[2].write_text(GLM)
    return paths


def fixed_test_set() -> tuple[Stm, list[CtmWord]]:
    """Return CASES as one conversation, with a segment and a speaker per case."""
    said = [
        StmSegment("sw_1", "A", f"case{i:02d}", 10.0 * i, 10.0 * i + 9.0, "<O,sw>", case.reference)
        for i, case in enumerate(CASES)
    ]
    heard = [
        CtmWord("sw_1", "A", 10.0 * i + 0.5 * (1 + position), 0.4, word)
        for i, case in enumerate(CASES)
        for position, word in enumerate(case.hypothesis.split())
    ]
    return Stm(said, LABELS), heard
