"""Recipe `prompts`: convert the recorded prompts of Asterisk in five languages to manifests and a lexicon."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import soundfile
from rich.console import Console

from asr.data.audio_file import open_audio
from asr.data.facts import audio_facts
from asr.errors import UserError
from asr.files import digest, file_digest
from asr.preparation.cuts import recording, utterance_cut
from asr.preparation.download import debian_packages
from asr.preparation.run import Preparation
from asr.preparation.silence import speech_bounds
from asr.text.cmudict import cmudict_lexicon
from asr.text.files import read_lines
from asr.text.lexicon import Lexicon

from .options import Options
from .transcripts import Prompt, parse_transcripts

if TYPE_CHECKING:  # lhotse loads PyTorch, which takes seconds
    from lhotse import MonoCut

# Language: speaker, licence.
SPEAKERS = {
    "en": ("allison", "CC BY-SA 3.0, © 2003–2010 Allison Smith, funded by Digium, Inc."),
    "es": ("allison", "CC BY-SA 3.0, © 2003–2010 Allison Smith, funded by Digium, Inc."),
    "fr": ("june", "CC BY-SA 3.0, © 2006–2008 June Wallack"),
    "it": ("carlo", "CC BY 3.0, © 2012 Carlo Flora"),
    "ru": ("ivrvoice", "CC BY 3.0, © 2010 Maxim Topal"),
}
# By text, so that no test sentence is in training; by hash, so that new prompts do not move others.
# Split by text hash, in hundredths: below 80 train, below 88 dev, else test.
TRAIN_UNTIL, DEV_UNTIL = 80, 88


@dataclass(frozen=True)
class Recorded:
    """A prompt with its language, its file and, at 16 kHz, the wav file to write."""

    prompt: Prompt
    language: str
    path: Path
    wav: Path | None


def prepare(options: Options, folder: Path) -> None:
    """Write `<split>.cuts.jsonl.gz`, `excluded.tsv` and, for English alone, `lexicon.txt` below `folder`.

    At 8 kHz the audio stays in place (`folder/packages` if downloaded), at 16 kHz it is converted to
    `folder/wav`; the cuts trim silence at both ends. Identical texts share a split, so no test sentence is in
    training.
    """
    if not options.languages or not set(options.languages) <= set(SPEAKERS):
        raise UserError(f"languages={options.languages}: expected some of {', '.join(SPEAKERS)}")
    preparation = Preparation("prompts", folder, options)
    preparation.refuse_shard("recipe prompts")
    source = Path(options.source)
    if not options.source:
        source = _fetch(options, folder / "packages", preparation.console)
    if preparation.is_done([source]):
        return
    usable: list[Recorded] = []
    for language in options.languages:
        prompts = list(_prompts(source, language))
        root = _find_audio_root(source, [prompt.key for prompt in prompts], language, _suffix(options))
        for prompt in prompts:
            name = _name(prompt, language)
            if prompt.excluded:
                preparation.drop(name, prompt.excluded, prompt.text)
                continue
            wav = folder / "wav" / f"{name}.wav" if options.sample_rate == 16000 else None
            usable.append(Recorded(prompt, language, root / f"{prompt.key}{_suffix(options)}", wav))
    splits: dict[str, list[MonoCut]] = {"train": [], "dev": [], "test": []}
    audio: dict[str, str] = {}
    outcomes = preparation.map(partial(_cut, options=options), usable, "reading")
    for item, cut_or_reason in zip(usable, outcomes, strict=True):
        prompt = item.prompt
        if isinstance(cut_or_reason, str):
            preparation.drop(_name(prompt, item.language), cut_or_reason, prompt.text)
        elif cut_or_reason is not None:
            splits[split_of(prompt.text)].append(cut_or_reason)
            if item.wav:
                audio[f"wav/{item.wav.name}"] = file_digest(item.wav)
    licences = dict.fromkeys(SPEAKERS[language][1] for language in options.languages)
    preparation.finish(
        splits,
        # CMUdict is English; other languages have characters or sentence pieces as tokens.
        dictionary=build_dictionary() if options.languages == ["en"] else None,
        sources=[source],
        notes={"Licence": "; ".join(licences)},
        audio=audio,
    )


def split_of(text: str) -> str:
    """Return the split of a normalised text, fixed by its hash."""
    hundredth = int(digest(text, 64), 16) % 100
    return "train" if hundredth < TRAIN_UNTIL else "dev" if hundredth < DEV_UNTIL else "test"


def build_dictionary() -> Lexicon:
    """Return the pronunciations of CMUdict, and those of extra_lexicon.txt in place of its own."""
    extra = Lexicon.load(Path(__file__).with_name("extra_lexicon.txt"))
    return Lexicon(cmudict_lexicon().pronunciations | extra.pronunciations)


def _cut(item: Recorded, options: Options) -> "MonoCut | str":
    """Return the trimmed recording, or the reason why there is none."""
    prompt, path = item.prompt, item.path
    if not path.exists():
        return "no recording"
    if item.wav:  # FFmpeg reads g722, which has no header
        from asr.data.recording import read_recording  # loads PyTorch, which takes seconds

        samples, sample_rate = read_recording(path, options.sample_rate)[0], options.sample_rate
    else:
        _, sample_rate, channels = audio_facts(path)
        if channels != 1:
            raise UserError(f"{path}: expected one channel, found {channels}")
        with open_audio(path) as file:
            samples = file.read()[:, 0]
    bounds = speech_bounds(samples, sample_rate, options.silence_db)
    if bounds is None:
        return "silence"
    length = len(samples) / sample_rate
    start = max(0.0, round(bounds[0] - options.margin_s, 3))
    duration = round(min(length, bounds[1] + options.margin_s) - start, 3)
    if duration > options.max_s:
        return f"longer than {options.max_s:g} s"
    if item.wav:
        item.wav.parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(item.wav, samples, sample_rate, subtype="PCM_16")
    name = _name(prompt, item.language)
    whole = recording(name, item.wav or path, len(samples), sample_rate)
    speaker = SPEAKERS[item.language][0]
    return utterance_cut(
        name, whole, prompt.text, speaker, start_s=start, duration_s=duration, language=item.language
    )


def _name(prompt: Prompt, language: str) -> str:
    return f"{language}-{prompt.key.replace('/', '-')}"


def _suffix(options: Options) -> str:
    return ".g722" if options.sample_rate == 16000 else ".wav"


def _fetch(options: Options, folder: Path, console: Console) -> Path:
    """Download and unpack the Debian packages unless they exist."""
    names = [f"asterisk-core-sounds-{language}" for language in options.languages]
    audio = [name + _suffix(options).replace(".", "-") for name in names]
    size = f"{20 * len(names)} MB"
    return debian_packages(
        [*audio, *names], folder, console, size, "or name a folder with the prompts: source=…"
    )


def _prompts(source: Path, language: str) -> Iterator[Prompt]:
    """Yield the prompts of a language in the order of its transcript file."""
    if not source.is_dir():
        raise UserError(f"source={source}: expected a folder with the prompts, found none")
    names = [f"core-sounds-{language}.txt", f"core-sounds-{language}.txt.gz"]
    lists = [path for name in names for path in sorted(source.rglob(name))]
    if not lists:
        raise UserError(f"{source}: expected {' or '.join(names)} in it, found neither")
    prompts = list(parse_transcripts([line for _, line in read_lines(lists[0])], language))
    entries = Counter(prompt.key for prompt in prompts)
    for prompt in prompts:
        yield replace(prompt, excluded="several entries") if entries[prompt.key] > 1 else prompt


def _find_audio_root(source: Path, keys: list[str], language: str, suffix: str) -> Path:
    """Return the folder in which most keys are recordings; one named for the language comes first."""
    folders = sorted({path.parent for path in source.rglob(f"*{suffix}")})
    hits = {folder: sum((folder / f"{key}{suffix}").exists() for key in keys) for folder in folders}
    if not hits or max(hits.values()) == 0:
        raise UserError(f"{source}: expected the prompts as {suffix[1:]} files in it, found none")

    def rank(folder: Path) -> tuple[bool, int]:
        return bool(hits[folder]) and folder.name.partition("_")[0] == language, hits[folder]

    return max(hits, key=rank)
