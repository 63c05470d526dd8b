"""Decoding of a split: hypotheses for all utterances of a manifest."""

import random
import time
from collections.abc import Callable, Container, Iterator
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from asr.config import values_affecting
from asr.console import duration, progress
from asr.data.cuts import Cuts
from asr.data.manifest import manifest_digest, read_cuts
from asr.data.places import is_manifest, manifest_path, split_beside, training_folder
from asr.environment import git_commit
from asr.files import locked
from asr.model.acoustic_model import AcousticModel
from asr.records.job import Job, identity
from asr.records.options import Shard
from asr.records.results import Result, Results
from asr.records.run_folder import HYPOTHESES, RunFolder
from asr.scoring.error_rates import ErrorCounts
from asr.scoring.hypotheses import hypothesis_line, write_decoded
from asr.scoring.score import scored_words
from asr.scoring.word_filter import rules_beside
from asr.search.decoded import hypothesis_of, reference_tokens
from asr.search.decoder import Decoder, WeightedDecoder, Weights
from asr.search.options import DecodeOptions
from asr.search.path import TokenPath, text_of
from asr.search.pool import Found, SearchPool
from asr.search.tune import Trial, record, tune, tuned
from asr.text.known_words import KnownWords
from asr.text.pronunciation import ReferencePhones
from asr.text.tokenizer import PhoneTokenizer, Tokenizer
from asr.transcription.batches import groups_by_length, unfinished
from asr.transcription.pipeline import Encoded, encoded
from asr.transcription.sources import CutSource


def system_name(attention: str, decoder: Decoder, frames: str = "1") -> str:
    """Return the name of the folder with the output of a decoder: `full-beam-3-gram.pruned-names`."""
    system = attention if frames == "1" else f"{attention}-frames-{frames}"
    return f"{system.replace('*', 'x')}-{decoder.label}"


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
    """Decode a split; after an interruption, only the batches that are left.

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
    frames = model.config.model.frames
    name = system_name(model.config.attention, options.chosen_decoder, frames)
    folder = Path(options.output or RunFolder(run_folder).decoded(options.split, name))
    with nullcontext() if shard else locked(folder, "asr decode"):
        started = time.perf_counter()
        topology = model.config.topology
        with SearchPool(options.chosen_decoder, tokenizer, options.jobs, topology) as pool:
            prepare_s = time.perf_counter() - started
            if options.tune:
                split = options.tune
                dev = Path(split) if is_manifest(split) else split_beside(str(manifest), split)
                _tune(model, tokenizer, dev, pool, weights_in, options)
            decoder, source = tuned(weights_in, options.chosen_decoder)
            if source:
                print(f"decoder weights from {source}")
            if isinstance(decoder, WeightedDecoder):
                pool.reweight(decoder.weights())
            # All shards count all words.
            spoken = [reference_tokens(tokenizer, cut, references) for cut in cuts]
            words = pool.search.vocabulary
            texts = (cut.supervisions[0].text or "" for cut in cuts)
            known = None if words is None else KnownWords.of(words, texts)
            rules = rules_beside(manifest)
            beam = asdict(decoder.complete()) or None
            about = {
                "checkpoint": str(checkpoint),
                "manifest": str(manifest),
                "attention": model.config.attention,
                "frames": frames,
                "backend": model.backend_on(model.device.type),
                "decoder": options.decoder,
                "beam": beam,
                "weights_from": source,
                "device": str(model.device),
                "precision": asdict(model.precision),
                "threads": torch.get_num_threads(),
                "jobs": options.jobs,
                "commit": git_commit(),
                "lexicon": references.digest if references else None,
                "pronunciations": asdict(references.counts) if references else None,
                "known_words": asdict(known) if known else None,
                "word_filter": asdict(rules) if rules else None,
                "prepare_s": prepare_s,
            }
            inputs = {"model": model.digest(), "data": manifest_digest(manifest), "device": model.device.type}
            inputs["computed"] = model.precision.name
            inputs |= decoder.digests()
            if references:
                inputs["pronunciations"] = references.digest
            same = identity("decode", values_affecting(options, "result") | {"beam": beam}, **inputs)
            work = Results(Job.in_folder(folder, same, shard), [str(i) for i in range(len(cuts))])

            def line(position: int, path: TokenPath) -> str:
                return hypothesis_line(
                    hypothesis_of(
                        tokenizer, model.frame_s, path, cuts[position], spoken[position], decoder.nbest
                    )
                )

            _search(model, cuts, pool, options, work, line, advance)
        times = joined_record(about, work)
        if not shard:
            write_decoded(folder, work.files().get(HYPOTHESES, ""), times)
        work.job.finish(about)
    audio_s = times["audio_s"]
    print(
        f"decoded {len(work.found)} utterances, {duration(audio_s)} of audio, in "
        f"{duration(times['decode_s'])} (real-time factor {times['real_time_factor']:.4f}; encoder "
        f"{_ratio(times['encode_s'], audio_s):.4f}, search {_ratio(times['search_s'], audio_s):.4f})"
    )
    if known and not shard:
        print(known)
    if references and not shard:
        references.report(manifest)
    return folder


def joined_record(record: dict[str, Any], work: Results) -> dict[str, Any]:
    """Return the record of all shards, decode.json: durations are summed, the rest is that of the first."""
    names = ("audio_s", "decode_s", "encode_s", "search_s", "search_cpu_s")
    sums = dict.fromkeys(names, 0.0) | work.seconds()
    return {
        **record,
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
    work: Results,
    line: Callable[[int, TokenPath], str],
    advance: Callable[[float], None],
) -> None:
    """Add the hypothesis of each utterance that is left, with its share of the time.

    Args:
        model, cuts, pool, options, advance: see `decode_split`.
        work: where to add the results.
        line: returns the line of hyp.jsonl of a cut, given its position and the path found.
    """
    encode_s: dict[int, float] = {}
    with progress() as bars:
        row = bars.add_task(f"decoding {options.split}", total=len(cuts), completed=len(work.found))
        started = time.perf_counter()

        def collect(results: Iterator[Found]) -> None:
            nonlocal started
            for result in results:
                position, now = result.key, time.perf_counter()
                seconds = {
                    "audio_s": float(cuts.durations_s[position]),
                    "decode_s": now - started,
                    "encode_s": encode_s[position],
                    "search_s": result.cpu_s / options.jobs,
                    "search_cpu_s": result.cpu_s,
                }
                started = now  # with the time to write lines, beside which encoder and search run
                work.add(position, Result({HYPOTHESES: line(position, result.path)}, seconds=seconds))
            bars.update(row, completed=len(work.found))
            advance(len(work.found) / len(cuts))

        for batch in _encoded(model, cuts, options, work.job.shard, work.found):
            encode_s |= dict.fromkeys(batch.positions, batch.encode_s / len(batch.positions))
            _put(pool, batch)
            collect(pool.ready())
        collect(pool.results())


def _encoded(
    model: AcousticModel,
    cuts: Cuts,
    options: DecodeOptions,
    shard: Shard | None = None,
    done: Container[int] = (),
) -> Iterator[Encoded]:
    """Yield the cuts in batches by length, as known from the manifest, so that they are planned unread."""
    shift_ms = model.config.features.frame_shift_ms
    frames = np.maximum(1, np.rint(cuts.durations_s * 1000 / shift_ms)).astype(np.int64)
    groups = unfinished(groups_by_length(frames, options.frames_per_batch), shard, done)
    return encoded(model, [CutSource(cuts, i, options.resample) for i in range(len(cuts))], groups)


def _put(pool: SearchPool, batch: Encoded) -> None:
    pool.put(batch.positions, batch.posteriors.log_probs_BTV, batch.posteriors.lengths_B)


def _tune(
    model: AcousticModel,
    tokenizer: Tokenizer,
    manifest: Path,
    pool: SearchPool,
    weights_in: Path,
    options: DecodeOptions,
) -> None:
    """Tune the decoder's weights on a split and store them."""
    decoder = options.chosen_decoder
    assert isinstance(decoder, WeightedDecoder)
    cuts = read_cuts(manifest)
    if len(cuts) > options.tune_utterances > 0:
        cuts = cuts.select(random.Random(0).sample(range(len(cuts)), options.tune_utterances))
    references = [cut.supervisions[0].text for cut in cuts]
    rules = rules_beside(manifest)
    started = time.perf_counter()
    batches = list(_encoded(model, cuts, options))
    with progress() as bars:
        row = bars.add_task(f"tuning on {options.tune}", total=None)

        def evaluate(weights: Weights) -> Trial:
            pool.reweight(weights)
            for batch in batches:
                _put(pool, batch)
            found = list(pool.results())
            texts = [text_of(result.path, tokenizer) or "" for result in found]
            spoken = [references[result.key] for result in found]
            counts = ErrorCounts.between(scored_words(spoken, rules), scored_words(texts, rules))
            trial = Trial(weights, counts.errors, counts.length, sum(result.cpu_s for result in found))
            bars.update(row, advance=1, description=f"tuning on {options.tune}: {_describe(trial)}")
            return trial

        best, trials = tune(evaluate, decoder.weights(), pool.search.tunable)
    about: dict[str, Any] = {
        "split": options.tune,
        "manifest": str(manifest),
        "utterances": len(cuts),
        "attention": model.config.attention,
        "commit": git_commit(),
    }
    path = record(weights_in, decoder, best, trials, about)
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
