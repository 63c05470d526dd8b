"""`asr decode`: a trained recogniser and a manifest to hypotheses."""

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from lhotse import CutSet

from asr.config import option
from asr.console import duration, progress
from asr.data.manifest import load_cuts
from asr.data.module import manifest_path, split_beside, training_folder
from asr.emissions import Emissions, emissions
from asr.environment import git_commit, pick_device
from asr.errors import UserError
from asr.files import write_json
from asr.recognizer import Recognizer
from asr.scoring.hypotheses import Hypothesis, write_hypotheses
from asr.scoring.word_filter import rules_beside
from asr.search.decoder import DECODERS, WEIGHTED, BeamConfig, Weights, text_of, words_of
from asr.search.path import TokenPath
from asr.search.pool import Found, SearchPool
from asr.search.tune import Trial, record, tune, tuned, word_errors

POSITIONAL = "<run folder or checkpoint>"


@dataclass
class Options:
    """What to decode, and how."""

    split: str = option("test", help="split of the data")
    data: str = option("", help="prepared folder or manifest; empty: the run's first training folder")
    attention: str = option("", help="attention mechanism; empty: the one of training")
    backend: str = option("auto", help="auto | reference | native")
    decoder: str = option("greedy", help=" | ".join(DECODERS))
    beam: BeamConfig = field(default_factory=BeamConfig)
    tune: str = option(
        "",
        help="first find lm_weight, word_score and size on this split (dev) or manifest, and record them",
    )
    tune_utterances: int = option(
        300, help="tune on at most so many utterances of the split, drawn at random"
    )
    checkpoint: str = option("auto", help="auto | average | best | last, or a file in checkpoints/")
    output: str = option("", help="folder; empty: <run>/decode/<split>/<attention>-<decoder>[-<lm>]")
    frames_per_batch: int = option(20000, help="feature frames in a batch", unit="frames")
    device: str = option("auto", help="auto | cpu | cuda")
    workers: int = option(0, help="processes that load audio")
    jobs: int = option(1, help="processes that search; 1: search in this one")
    resample: bool = option(True, help="resample audio of another rate with a notice; false: refuse it")


def run(paths: list[Path], options: Options) -> None:
    """Decode one run and say where the hypotheses are."""
    if len(paths) != 1:
        raise UserError(f"asr decode takes one run folder or checkpoint, found {len(paths)}")
    print(f"hypotheses: {decode(Path(paths[0]), options)}")


def decode(
    path: Path,
    options: Options,
    *,
    weights_in: Path | None = None,
    advance: Callable[[float], None] = lambda share: None,
) -> Path:
    """Decode a split.

    Args:
        path: run folder or checkpoint.
        options: split, mechanism, decoder.
        weights_in: folder that keeps the weights that were tuned; None: the run's.
        advance: told the share of the utterances that is done.

    Returns:
        The folder with hyp.jsonl and decode.json (what was decoded how, and the seconds it took).
    """
    device = pick_device(options.device)
    if options.jobs > 1 and options.decoder == "cuda":
        raise UserError(f"jobs={options.jobs}: decoder=cuda searches on the GPU, in this process")
    if options.tune and options.decoder not in WEIGHTED:
        raise UserError(f"tune={options.tune}: decoder={options.decoder} has no weights; beam and prefix do")
    recognizer = Recognizer.load(path, checkpoint=options.checkpoint, device=device)
    recognizer.set_attention(options.attention or recognizer.config.attention, options.backend)
    run_folder = recognizer.run_folder
    assert run_folder is not None
    weights_in = weights_in or run_folder
    data = options.data or training_folder(run_folder)
    manifest = manifest_path(data, options.split)
    cuts = load_cuts(manifest)
    lm = f"-{Path(options.beam.lm).name.partition('.')[0]}" if options.beam.lm else ""
    name = f"{recognizer.config.attention}-{options.decoder}{lm}"
    folder = Path(options.output or run_folder / "decode" / options.split / name)
    folder.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    with SearchPool(options.decoder, recognizer.tokenizer, options.beam, options.jobs) as pool:
        prepare_s = time.perf_counter() - started
        if options.tune:
            _tune(recognizer, _tuning_manifest(data, options.tune), pool, weights_in, options)
        beam, source = tuned(weights_in, options.decoder, options.beam)
        if source:
            print(f"weights of {source}")
        if options.decoder in WEIGHTED:
            pool.reweight(beam.weights(options.decoder))
        started = time.perf_counter()
        found, encode_s = _search(recognizer, cuts, pool, options, advance)
        seconds = time.perf_counter() - started
    hypotheses = [_hypothesis(recognizer, found[cut.id].path, cut, beam.nbest) for cut in cuts]
    write_hypotheses(folder / "hyp.jsonl", hypotheses)
    audio_s = sum(cut.duration for cut in cuts)
    search_s = sum(result.cpu_s for result in found.values())
    lexicon = recognizer.tokenizer.lexicon
    rules = rules_beside(manifest)
    about = {
        "checkpoint": str(recognizer.file),
        "manifest": str(manifest),
        "attention": recognizer.config.attention,
        "backend": recognizer.backend_on(torch.device(device).type),
        "decoder": options.decoder,
        "beam": None if options.decoder == "greedy" else asdict(beam.complete(options.decoder)),
        "weights_from": source,
        "device": device,
        "threads": torch.get_num_threads(),
        "jobs": options.jobs,
        "commit": git_commit(),
        "lexicon": lexicon.digest if lexicon else None,
        "word_filter": rules.as_dict() if rules else None,
        "audio_s": audio_s,
        "decode_s": seconds,
        "real_time_factor": seconds / audio_s,
        "prepare_s": prepare_s,
        "encode_s": encode_s,
        "search_cpu_s": search_s,
        "search_real_time_factor_per_core": search_s / audio_s,
    }
    write_json(about, folder / "decode.json")
    print(
        f"{len(cuts)} utterances, {duration(audio_s)} of audio in {duration(seconds)} "
        f"(RTF {seconds / audio_s:.4f}; encoder {encode_s / audio_s:.4f}, "
        f"search {search_s / audio_s:.4f} on one core)"
    )
    return folder


def _search(
    recognizer: Recognizer,
    cuts: CutSet,
    pool: SearchPool,
    options: Options,
    advance: Callable[[float], None],
) -> tuple[dict[str, Found], float]:
    """Return what was found in each utterance, and the seconds that the encoder took."""
    found: dict[str, Found] = {}
    encode_s = 0.0
    with progress() as bars:
        row = bars.add_task(f"decoding {options.split}", total=len(cuts))

        def collect(results: Iterator[Found]) -> None:
            for result in results:
                found[result.id] = result
                bars.advance(row)
            advance(len(found) / len(cuts))

        for batch in _emissions(recognizer, cuts, options):
            encode_s += batch.encode_s
            pool.put(batch.ids, batch.log_probs_BTV, batch.lengths_B)
            collect(pool.ready())
        collect(pool.results())
    return found, encode_s


def _emissions(recognizer: Recognizer, cuts: CutSet, options: Options) -> Iterator[Emissions]:
    return emissions(
        recognizer,
        cuts,
        frames_per_batch=options.frames_per_batch,
        workers=options.workers,
        resample=options.resample,
    )


def _tuning_manifest(data: str, split: str) -> Path:
    """Return the manifest to tune on: the one named, or a split beside what is decoded."""
    return Path(split) if split.endswith(".jsonl.gz") else split_beside(data, split)


def _tune(
    recognizer: Recognizer, manifest: Path, pool: SearchPool, weights_in: Path, options: Options
) -> None:
    """Find the weights of the decoder on a split and record them."""
    cuts = list(load_cuts(manifest))
    if len(cuts) > options.tune_utterances > 0:
        cuts = random.Random(0).sample(cuts, options.tune_utterances)
    references = {cut.id: cut.supervisions[0].text for cut in cuts}
    started = time.perf_counter()
    batches = list(_emissions(recognizer, CutSet.from_cuts(cuts), options))
    with progress() as bars:
        row = bars.add_task(f"tuning on {options.tune}", total=None)

        def evaluate(weights: Weights) -> Trial:
            pool.reweight(weights)
            for batch in batches:
                pool.put(batch.ids, batch.log_probs_BTV, batch.lengths_B)
            found = list(pool.results())
            texts = [text_of(result.path, recognizer.tokenizer) or "" for result in found]
            errors, length = word_errors([references[result.id] for result in found], texts)
            trial = Trial(weights, errors, length, sum(result.cpu_s for result in found))
            bars.update(row, advance=1, description=f"tuning on {options.tune}: {_shown(trial)}")
            return trial

        best, trials = tune(evaluate, options.beam.weights(options.decoder), with_lm=bool(options.beam.lm))
    about: dict[str, Any] = {
        "split": options.tune,
        "manifest": str(manifest),
        "utterances": len(cuts),
        "attention": recognizer.config.attention,
        "commit": git_commit(),
    }
    path = record(weights_in, options.decoder, options.beam, best, trials, about)
    print(
        f"tuned on {len(cuts)} utterances of {options.tune} in {duration(time.perf_counter() - started)}, "
        f"{len(trials)} trials: {_shown(trials[0])} → {_shown(best)}; {path}"
    )


def _shown(trial: Trial) -> str:
    weights = trial.weights
    return (
        f"WER {100 * trial.rate:.2f} % (lm_weight {weights.lm_weight:g}, word_score {weights.word_score:g}, "
        f"size {weights.size})"
    )


def _hypothesis(recognizer: Recognizer, path: TokenPath, cut: Any, nbest: int) -> Hypothesis:
    tokenizer = recognizer.tokenizer
    supervision = cut.supervisions[0]
    hypotheses = [path, *path.alternatives]
    return Hypothesis(
        id=cut.id,
        speaker=supervision.speaker or "unknown",
        duration_s=cut.duration,
        reference=supervision.text,
        reference_tokens=tokenizer.tokens(tokenizer.encode(supervision.text)),
        tokens=tokenizer.tokens(path.ids),
        times_s=[round(frame * recognizer.frame_s, 3) for frame in path.frames],
        text=text_of(path, tokenizer),
        unit=tokenizer.unit,
        words=_word_times(recognizer, path),
        nbest=[{"text": text_of(other, tokenizer), "score": other.score} for other in hypotheses]
        if nbest > 1
        else None,
    )


def _word_times(recognizer: Recognizer, path: TokenPath) -> list[dict[str, Any]] | None:
    """Each word with its times (s) and the mean confidence of its labels."""
    words = words_of(path, recognizer.tokenizer)
    if words is None:
        return None
    return [
        {
            "word": word.word,
            "start_s": round(path.frames[word.start] * recognizer.frame_s, 3),
            "end_s": round(path.ends[word.end - 1] * recognizer.frame_s, 3),
            "confidence": round(sum(path.confidences[word.start : word.end]) / (word.end - word.start), 4),
        }
        for word in words
    ]
