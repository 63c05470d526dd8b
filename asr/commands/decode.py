"""`asr decode`: a trained recogniser and a manifest to hypotheses."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from lhotse import CutSet
from omegaconf import OmegaConf
from rich.console import Console
from rich.progress import track
from torch.utils.data import DataLoader

from asr import checkpoint
from asr.config import option
from asr.data.batch import Batch, Utterances
from asr.data.manifest import load_cuts
from asr.data.module import manifest_path
from asr.data.sampler import BatchPlan, plan_by_length
from asr.environment import write_json
from asr.errors import UserError
from asr.recognizer import Recognizer
from asr.scoring.hypotheses import Hypothesis, write_hypotheses
from asr.scoring.word_filter import rules_beside
from asr.search.decoder import BeamConfig, Decoder, build_decoder, text_of
from asr.search.path import TokenPath

HELP = "decode a split: asr decode exp/demo/full split=test attention=i-clustered-25 decoder=beam"
POSITIONAL = "<run folder or checkpoint>"


@dataclass
class Options:
    """What to decode, and how."""

    split: str = option("test", help="split of the data")
    data: str = option("", help="prepared folder or manifest; empty: the run's first training folder")
    attention: str = option("", help="attention mechanism; empty: the one of training")
    backend: str = option("auto", help="auto | reference | native")
    decoder: str = option("greedy", help="greedy | beam")
    beam: BeamConfig = field(default_factory=BeamConfig)
    checkpoint: str = option("auto", help="auto | average | best | last, or a file in checkpoints/")
    output: str = option("", help="folder; empty: <run>/decode/<split>/<attention>-<decoder>")
    frames_per_batch: int = option(20000, help="feature frames in a batch", unit="frames")
    device: str = option("auto", help="auto | cpu | cuda")
    workers: int = option(0, help="processes that load audio")
    resample: bool = option(True, help="resample audio of another rate with a notice; false: refuse it")


def run(paths: list[Path], options: Options) -> None:
    """Decode one run and say where the hypotheses are."""
    if len(paths) != 1:
        raise UserError(f"asr decode takes one run folder or checkpoint, found {len(paths)}")
    print(f"hypotheses: {decode(Path(paths[0]), options)}")


def decode(path: Path, options: Options) -> Path:
    """Decode a split.

    Args:
        path: run folder or checkpoint.
        options: split, mechanism, decoder.

    Returns:
        The folder with hyp.jsonl and decode.json (what was decoded how, and the seconds it took).
    """
    device = options.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    file = checkpoint.find(path, options.checkpoint)
    recognizer = Recognizer.load(file, device=device)
    recognizer.set_attention(options.attention or recognizer.config.attention, options.backend)
    run_folder = path if path.is_dir() else file.parent.parent
    manifest = manifest_path(options.data or _training_folder(run_folder), options.split)
    cuts = load_cuts(manifest)
    decoder = build_decoder(options.decoder, recognizer.tokenizer, options.beam)
    name = f"{recognizer.config.attention}-{options.decoder}"
    folder = Path(options.output or run_folder / "decode" / options.split / name)
    folder.mkdir(parents=True, exist_ok=True)

    started = time.perf_counter()
    hypotheses = dict(_hypotheses(recognizer, cuts, decoder, options))
    seconds = time.perf_counter() - started
    write_hypotheses(folder / "hyp.jsonl", [hypotheses[cut.id] for cut in cuts])
    audio_s = sum(cut.duration for cut in cuts)
    lexicon = recognizer.tokenizer.lexicon
    rules = rules_beside(manifest)
    about = {
        "checkpoint": str(file),
        "manifest": str(manifest),
        "attention": recognizer.config.attention,
        "backend": recognizer.backend_on(torch.device(device).type),
        "decoder": options.decoder,
        "device": device,
        "threads": torch.get_num_threads(),
        "lexicon": lexicon.digest if lexicon else None,
        "word_filter": rules.as_dict() if rules else None,
        "audio_s": audio_s,
        "decode_s": seconds,
        "real_time_factor": seconds / audio_s,
    }
    write_json(about, folder / "decode.json")
    print(
        f"{len(cuts)} utterances, {audio_s:.0f} s of audio in {seconds:.1f} s (RTF {seconds / audio_s:.4f})"
    )
    return folder


def _training_folder(run_folder: Path) -> str:
    config = run_folder / "config.yaml"
    if not config.is_file():
        raise UserError(f"{config}: not there, so name the data: data=<prepared folder or manifest>")
    place = Path(OmegaConf.load(config).data.train[0])
    return str(place.parent if place.name.endswith(".jsonl.gz") else place)


def _hypotheses(
    recognizer: Recognizer, cuts: CutSet, decoder: Decoder, options: Options
) -> Iterator[tuple[str, Hypothesis]]:
    by_id = {cut.id: cut for cut in cuts}
    batches = _batches(recognizer, cuts, options)
    for batch in track(batches, f"decoding {options.split}", console=Console(stderr=True), transient=True):
        batch = batch.to(next(recognizer.parameters()).device)
        with torch.inference_mode():
            log_probs, frames = recognizer(batch.audio, batch.audio_lengths)
        for name, path in zip(batch.ids, decoder(log_probs, frames), strict=True):
            cut = by_id[name]
            supervision = cut.supervisions[0]
            yield (
                name,
                _hypothesis(
                    recognizer, path, name, supervision.speaker or "unknown", supervision.text, cut.duration
                ),
            )


def _batches(recognizer: Recognizer, cuts: CutSet, options: Options) -> DataLoader[Batch]:
    features = recognizer.config.features
    frames = np.array([max(1, round(cut.duration * 1000 / features.frame_shift_ms)) for cut in cuts])
    plans = plan_by_length(frames, options.frames_per_batch, np.argsort(-frames, kind="stable"))
    return DataLoader(
        Utterances(cuts, None, features.sample_rate, resample=options.resample),
        batch_size=None,
        sampler=[BatchPlan(tuple(plan.tolist())) for plan in plans],
        num_workers=options.workers,
    )


def _hypothesis(
    recognizer: Recognizer, path: TokenPath, name: str, speaker: str, reference: str, duration_s: float
) -> Hypothesis:
    tokenizer = recognizer.tokenizer
    return Hypothesis(
        id=name,
        speaker=speaker,
        duration_s=duration_s,
        reference=reference,
        reference_tokens=tokenizer.tokens(tokenizer.encode(reference)),
        tokens=tokenizer.tokens(path.ids),
        times_s=[round(frame * recognizer.frame_s, 3) for frame in path.frames],
        text=text_of(path, tokenizer),
        unit=tokenizer.unit,
    )
