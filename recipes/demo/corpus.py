"""Plans the embedded corpus: random words, and the sentences of each voice."""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from asr.text.cmudict import cmudict_entries, without_stress

from .grammar import grammar_words, make_sentence
from .options import Options
from .pronounce import spoken
from .voices import TRAINING_VOICES, UNSEEN_VOICES, Voice

# Sentences outside this range are redrawn; within it an utterance lasts about 1.5 to 5 seconds.
PHONES_MIN, PHONES_MAX = 18, 56
# For planning only: espeak-ng's pace at 1 word per minute, silence around a sentence, typical duration.
PHONES_PER_S_PER_WPM, SILENCE_S, TYPICAL_S = 0.0765, 0.2, 3.5
SHARD_MINUTES = 3.0


@dataclass(frozen=True)
class SyntheticUtterance:
    """A sentence and its synthesis parameters."""

    id: str
    words: list[str]
    rate: int
    pitch: int
    warp: float
    silence_ms: tuple[int, int]  # before and after: espeak-ng adds hardly any
    noise_level: int  # amplitude of the noise floor, in 16-bit steps
    noise_seed: int


@dataclass(frozen=True)
class VoiceShard:
    """Utterances of one voice, spoken by one fresh process: the unit of resumption."""

    name: str
    split: str
    voice: Voice
    utterances: list[SyntheticUtterance]


def draw_random_words(options: Options) -> list[str]:
    """Return the random words, sorted: 2 to 10 letters, no homophones within the lexicon."""
    words = grammar_words()
    taken = {without_stress(spoken(word)) for word in words}
    # Drawn once with the seed, so that the lexicon is closed.
    candidates = sorted(w for w in cmudict_entries() if w.isascii() and w.isalpha() and 2 <= len(w) <= 10)
    random.Random(f"words {options.seed}").shuffle(candidates)
    drawn: list[str] = []
    for word in candidates:
        if len(drawn) == options.random_words:
            break
        phones = without_stress(spoken(word))
        # No homophones, so that phones determine the words.
        if phones not in taken and len(phones) > 1:
            taken.add(phones)
            drawn.append(word)
    return sorted(drawn)


def plan(options: Options, random_words: list[str]) -> list[VoiceShard]:
    """Return all shards with their sentences; no sentence occurs twice, within or across splits."""
    used: set[str] = set()
    shards = []
    trained, unseen = TRAINING_VOICES[: options.voices], UNSEEN_VOICES[: options.unseen_voices]
    # train comes last, so that its size does not affect the test sets.
    splits = [
        ("test", options.test_minutes, trained),
        ("test_voices", options.test_voices_minutes, unseen),
        ("dev", options.dev_minutes, trained),
        ("train", options.train_minutes, trained),
    ]
    for split, minutes, voices in splits:
        parts = max(1, round(minutes / len(voices) / SHARD_MINUTES))
        for part in range(parts):
            for voice in voices:
                name = f"{split}-{voice.speaker}-{part}"
                rng = random.Random(f"{name} {options.seed}")
                seconds = 60 * minutes / len(voices) / parts
                utterances = list(_draw(rng, name, voice, seconds, options, random_words, used))
                shards.append(VoiceShard(name, split, voice, utterances))
    return shards


def _draw(
    rng: random.Random,
    name: str,
    voice: Voice,
    seconds: float,
    options: Options,
    random_words: list[str],
    used: set[str],
) -> Iterator[SyntheticUtterance]:
    """Draw at least one utterance and about `seconds` of speech; add the sentences to `used`."""
    number = 0
    while number == 0 or seconds > TYPICAL_S / 2:
        words = make_sentence(rng, random_words, options.random_share)
        phones = sum(len(spoken(word)) for word in words)
        if " ".join(words) in used or not PHONES_MIN <= phones <= PHONES_MAX:
            continue
        used.add(" ".join(words))
        rate = round(voice.rate * rng.uniform(0.94, 1.06))
        warp = round(voice.warp * rng.uniform(0.98, 1.02), 3)
        seconds -= phones / (PHONES_PER_S_PER_WPM * rate * warp) + SILENCE_S
        yield SyntheticUtterance(
            id=f"{name}-{number:04d}",
            words=words,
            rate=rate,
            pitch=voice.pitch + rng.randint(-6, 6),
            warp=warp,
            silence_ms=(rng.randint(40, 160), rng.randint(40, 160)),
            noise_level=rng.randint(2, 20),
            noise_seed=rng.getrandbits(32),
        )
        number += 1
