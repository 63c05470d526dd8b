"""Decoding of a split: hypotheses for all utterances of a manifest."""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from asr.config import option, refuse, to_dict
from asr.console import duration, progress
from asr.data.cuts import Cuts
from asr.data.manifest import manifest_digest, read_cuts
from asr.data.places import manifest_path, split_beside, training_folder
from asr.environment import git_commit
from asr.errors import UserError
from asr.files import file_digest, locked
from asr.model.acoustic_model import AcousticModel
from asr.model.checkpoint import LoadOptions
from asr.scoring.error_rates import ErrorCounts
from asr.scoring.hypotheses import HYPOTHESES, hypothesis_line, write_decoded
from asr.scoring.score import scored_words
from asr.scoring.word_filter import rules_beside
from asr.search.decoded import hypothesis_of, reference_tokens
from asr.search.decoder import DECODERS, WEIGHTED, WITH_LM, BeamConfig, Weights, text_of
from asr.search.emissions import Emissions, emissions
from asr.search.pool import Found, SearchPool
from asr.search.tune import Trial, record, tune, tuned
from asr.shards import Result, Shard, Work, job, write_shard
from asr.text.pronunciation import ReferencePhones
from asr.text.tokenizer import PhoneTokenizer, Tokenizer

SUMMED = ("audio_s", "decode_s", "prepare_s", "encode_s", "search_cpu_s")


@dataclass
class SearchOptions:
    """Options of the search, shared by `asr decode` and `asr compare`."""

    decoder: str = option("greedy", help=" | ".join(DECODERS), choices=DECODERS)
    beam: BeamConfig = field(default_factory=BeamConfig)
    tune: str = option(
        "",
        help="split (e.g. dev) or manifest to tune beam.lm_weight, beam.word_score and beam.size on first; "
        "asr decode stores the result in the run folder; empty: the stored weights (asr compare: defaults)",
    )
    tune_utterances: int = option(
        300, help="maximum number of utterances to tune on, drawn at random; 0: all"
    )
    jobs: int = option(
        1, help="number of search processes; 1: search in the main process", minimum=1, maximum=1024
    )

    def check(self) -> None:
        """Raise UserError for a search on the GPU in several processes, or options without effect."""
        self.beam.check_used(self.decoder)
        if not self.tune:
            refuse(self, ("tune_utterances",), "without tune")
        if self.jobs > 1 and self.decoder == "cuda":
            raise UserError(f"jobs={self.jobs}: expected 1 with decoder=cuda, which searches on the GPU")
        if self.tune and self.decoder not in WEIGHTED:
            raise UserError(
                f"tune={self.tune}: decoder={self.decoder} has no weights to tune; use beam or prefix"
            )


@dataclass
class DecodeOptions(SearchOptions, LoadOptions):
    """Options of decoding."""

    split: str = option("test", help="split of the data")
    data: str = option("", help="prepared folder or manifest; empty: the run's first training folder")
    output: str = option("", help="folder; empty: <run>/decode/<split>/<attention>-<decoder>[-<lm>]")
    frames_per_batch: int = option(
        20000, help="maximum number of feature frames per batch, padding included", unit="frames", minimum=1
    )
    resample: bool = option(True, help="resample audio with another sample rate; false: stop with an error")
    g2p: bool = option(
        True,
        help="phone models: pronounce reference words that neither the model's lexicon nor the data's has "
        "with g2p_en, if installed",
    )


def decode_split(
    model: AcousticModel,
    tokenizer: Tokenizer,
    options: DecodeOptions,
    *,
    checkpoint: Path,
    run_folder: Path,
    weights_in: Path | None = None,
    shard: Shard | None = None,
    advance: Callable[[float], None] = lambda share: None,
) -> Path:
    """Decode a split.

    Args:
        model: acoustic model, on the device to decode on.
        tokenizer: tokenizer of the model.
        options: split, decoder and batches.
        checkpoint: file that the model was loaded from.
        run_folder: run folder of the model.
        weights_in: folder for tuned weights; None: the run folder.
        shard: decode only the batches of a shard, and write its results for `asr merge`.
        advance: called with the fraction of utterances decoded, 0 … 1.

    Returns:
        The folder with hyp.jsonl and decode.json (settings and decoding time).

    Raises:
        UserError: conflicting options, a missing manifest, or audio that can't be read.
    """
    weights_in = weights_in or run_folder
    data = options.data or training_folder(run_folder)
    manifest = manifest_path(data, options.split)
    cuts = read_cuts(manifest)
    references = None
    if isinstance(tokenizer, PhoneTokenizer):
        languages = (cut.supervisions[0].language for cut in cuts)
        references = ReferencePhones.of_data(tokenizer, manifest.parent, languages, options.g2p)
    lm = f"-{Path(options.beam.lm).name.partition('.')[0]}" if options.beam.lm else ""
    name = f"{model.config.attention}-{options.decoder}{lm}"
    folder = Path(options.output or run_folder / "decode" / options.split / name)
    with nullcontext() if shard else locked(folder, "asr decode"):
        started = time.perf_counter()
        topology = model.config.topology
        with SearchPool(options.decoder, tokenizer, options.beam, options.jobs, topology) as pool:
            prepare_s = time.perf_counter() - started
            if options.tune:
                split = options.tune
                dev = Path(split) if split.endswith(".jsonl.gz") else split_beside(str(manifest), split)
                _tune(model, tokenizer, dev, pool, weights_in, options)
            beam, source = tuned(weights_in, options.decoder, options.beam)
            if source:
                print(f"decoder weights from {source}")
            if options.decoder in WEIGHTED:
                pool.reweight(beam.weights(options.decoder))
            started = time.perf_counter()
            found, encode_s = _search(model, cuts, pool, options, shard, advance)
            seconds = time.perf_counter() - started
        # All shards count all words.
        spoken = [reference_tokens(tokenizer, cut, references) for cut in cuts]
        lines = {
            position: hypothesis_line(
                hypothesis_of(tokenizer, model.frame_s, found[cut.id].path, cut, tokens, beam.nbest)
            )
            for position, (cut, tokens) in enumerate(zip(cuts, spoken, strict=True))
            if cut.id in found
        }
        audio_s = sum(cut.duration for cut in cuts if cut.id in found)
        search_s = sum(result.cpu_s for result in found.values())
        rules = rules_beside(manifest)
        about = {
            "checkpoint": str(checkpoint),
            "manifest": str(manifest),
            "attention": model.config.attention,
            "backend": model.backend_on(model.device.type),
            "decoder": options.decoder,
            "beam": None if options.decoder == "greedy" else asdict(beam.complete(options.decoder)),
            "weights_from": source,
            "device": str(model.device),
            "threads": torch.get_num_threads(),
            "jobs": options.jobs,
            "commit": git_commit(),
            "lexicon": references.digest if references else None,
            "pronunciations": asdict(references.counts) if references else None,
            "word_filter": asdict(rules) if rules else None,
            "audio_s": audio_s,
            "decode_s": seconds,
            "prepare_s": prepare_s,
            "encode_s": encode_s,
            "search_cpu_s": search_s,
        }
        if not shard:
            write_decoded(folder, "".join(lines.values()), joined_record([about]))
    print(
        f"decoded {len(lines)} utterances, {duration(audio_s)} of audio, in {duration(seconds)} "
        f"(real-time factor {_ratio(seconds, audio_s):.4f}; encoder {_ratio(encode_s, audio_s):.4f}, "
        f"search on one core {_ratio(search_s, audio_s):.4f})"
    )
    if shard:
        inputs = {"model": model.digest(), "data": manifest_digest(manifest), "device": model.device.type}
        if options.beam.lm:
            inputs["lm"] = file_digest(options.beam.lm)
        same = job("decode", to_dict(options) | {"beam": about["beam"]}, **inputs)
        results = {position: Result({HYPOTHESES: line}) for position, line in lines.items()}
        write_shard(shard, folder, Work(same, len(cuts), results, [about]))
        return folder
    if references:
        references.report(manifest)
    return folder


def joined_record(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the record of all shards, decode.json: durations are summed, the rest is that of the first."""
    sums = {name: sum(record[name] for record in records) for name in SUMMED}
    return {
        **records[0],
        **sums,
        "real_time_factor": _ratio(sums["decode_s"], sums["audio_s"]),
        "search_real_time_factor_per_core": _ratio(sums["search_cpu_s"], sums["audio_s"]),
    }


def _ratio(seconds: float, audio_s: float) -> float:
    return seconds / audio_s if audio_s else 0.0


def _search(
    model: AcousticModel,
    cuts: Cuts,
    pool: SearchPool,
    options: DecodeOptions,
    shard: Shard | None,
    advance: Callable[[float], None],
) -> tuple[dict[str, Found], float]:
    """Return the result of each utterance, and the encoder's time in seconds."""
    found: dict[str, Found] = {}
    encode_s = 0.0
    with progress() as bars:
        row = bars.add_task(f"decoding {options.split}", total=len(cuts))

        def collect(results: Iterator[Found]) -> None:
            for result in results:
                found[result.id] = result
                bars.advance(row)
            advance(len(found) / len(cuts))

        for batch in _emissions(model, cuts, options, shard):
            encode_s += batch.encode_s
            pool.put(batch.ids, batch.log_probs_BTV, batch.lengths_B)
            collect(pool.ready())
        collect(pool.results())
    return found, encode_s


def _emissions(
    model: AcousticModel, cuts: Cuts, options: DecodeOptions, shard: Shard | None = None
) -> Iterator[Emissions]:
    return emissions(
        model, cuts, frames_per_batch=options.frames_per_batch, resample=options.resample, shard=shard
    )


def _tune(
    model: AcousticModel,
    tokenizer: Tokenizer,
    manifest: Path,
    pool: SearchPool,
    weights_in: Path,
    options: DecodeOptions,
) -> None:
    """Tune the decoder's weights on a split and store them."""
    cuts = read_cuts(manifest)
    if len(cuts) > options.tune_utterances > 0:
        cuts = cuts.select(random.Random(0).sample(range(len(cuts)), options.tune_utterances))
    references = {cut.id: cut.supervisions[0].text for cut in cuts}
    rules = rules_beside(manifest)
    started = time.perf_counter()
    batches = list(_emissions(model, cuts, options))
    with progress() as bars:
        row = bars.add_task(f"tuning on {options.tune}", total=None)

        def evaluate(weights: Weights) -> Trial:
            pool.reweight(weights)
            for batch in batches:
                pool.put(batch.ids, batch.log_probs_BTV, batch.lengths_B)
            found = list(pool.results())
            texts = [text_of(result.path, tokenizer) or "" for result in found]
            spoken = [references[result.id] for result in found]
            counts = ErrorCounts.between(scored_words(spoken, rules), scored_words(texts, rules))
            trial = Trial(weights, counts.errors, counts.length, sum(result.cpu_s for result in found))
            bars.update(row, advance=1, description=f"tuning on {options.tune}: {_describe(trial)}")
            return trial

        unused = () if options.beam.lm else WITH_LM[options.decoder]
        names = [name for name in ("word_score", "lm_weight") if name not in unused]
        best, trials = tune(evaluate, options.beam.weights(options.decoder), names)
    about: dict[str, Any] = {
        "split": options.tune,
        "manifest": str(manifest),
        "utterances": len(cuts),
        "attention": model.config.attention,
        "commit": git_commit(),
    }
    path = record(weights_in, options.decoder, options.beam, best, trials, about)
    print(
        f"tuned on {len(cuts)} utterances of {options.tune} in {duration(time.perf_counter() - started)}, "
        f"{len(trials)} trials: {_describe(trials[0])} → {_describe(best)}, stored in {path}"
    )


def _describe(trial: Trial) -> str:
    weights = trial.weights
    return (
        f"WER {100 * trial.rate:.2f} % (lm_weight {weights.lm_weight:g}, word_score {weights.word_score:g}, "
        f"size {weights.size})"
    )
