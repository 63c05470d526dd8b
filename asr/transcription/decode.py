"""Decodes a split: hypotheses for all utterances of a manifest."""

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from asr.config import values_affecting
from asr.console import counted, duration, progress
from asr.data.cuts import Cuts
from asr.data.manifest import read_cuts
from asr.data.places import chosen_manifest, is_manifest, place_in_run, split_beside
from asr.environment import git_commit
from asr.files import locked
from asr.model.acoustic_model import AcousticModel
from asr.records.job import Job, identity
from asr.records.options import Shard
from asr.records.results import Result, Results
from asr.records.run_folder import DECODING, HYPOTHESES, RunFolder
from asr.scoring.hypotheses import hypothesis_line, write_decoded
from asr.scoring.word_filter import WordFilterRules, rules_beside
from asr.search.decoded import hypothesis_of, reference_tokens
from asr.search.decoder import Decoder, WeightedDecoder
from asr.search.options import DecodeOptions
from asr.search.path import TokenPath
from asr.search.pool import Found, SearchPool
from asr.search.tune import tuned
from asr.text.known_words import KnownWords
from asr.text.pronunciation import ReferencePhones
from asr.text.tokenizer import PhoneTokenizer, Tokenizer
from asr.transcription.batches import length_groups, unfinished
from asr.transcription.pipeline import encoded_cuts
from asr.transcription.posteriors import identity_of
from asr.transcription.replacing import check_replaced, origin_of
from asr.transcription.tuning import tune_weights


def system_name(system: str, decoder: Decoder) -> str:
    """Return the name of the folder with the output of a decoder: `full-beam-3-gram.pruned-names`."""
    return f"{system.replace('*', 'x')}-{decoder.label}"


def _variant(model: AcousticModel, checkpoint: Path, run: RunFolder) -> str:
    """Return how a run's model is used: its mechanism and, unless they are the usual ones, frames, precision
    and checkpoint.
    """
    frames, precision = model.config.model.frames, model.precision.name
    parts = [model.config.attention]
    if frames != "1":
        parts.append(f"frames-{frames}")
    if precision != "fp32":
        parts.append(precision)
    if checkpoint in run.saved() and checkpoint != run.checkpoint():
        parts.append("best" if checkpoint in run.best()[:1] else checkpoint.stem)
    return "-".join(parts)


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
    """Decode a split; after an interruption, decode only the remaining batches.

    Args:
        model: acoustic model, on the device to decode on.
        tokenizer: tokenizer of the model.
        options: split, decoder and batches.
        checkpoint: file that the model was loaded from.
        run_folder: run folder of the model.
        weights_in: folder for tuned weights; None: the run folder.
        shard: shard whose batches to decode, and whose results to write for `asr merge`; None: the whole.
        advance: called with the fraction of utterances decoded, 0 … 1.

    Returns:
        The folder with hyp.jsonl and decode.json (settings and decoding time).

    Raises:
        UserError: conflicting options, a missing manifest, or audio that can't be read;
            the default folder has hypotheses of other data.
    """
    weights_in = weights_in or run_folder
    split = _Split.read(chosen_manifest(options.data, options.split, run_folder))
    references = split.pronounced(tokenizer, options.g2p)
    run = RunFolder(run_folder)
    name = system_name(_variant(model, checkpoint, run), options.chosen_decoder)
    folder = Path(options.output or run.decoded(place_in_run(split.manifest, run_folder), name))
    origin = origin_of(model, checkpoint, split.manifest, options)
    check_replaced(folder / DECODING, origin, chosen=bool(options.output))
    with nullcontext() if shard else locked(folder, "asr decode"):
        started = time.perf_counter()
        with SearchPool(options.chosen_decoder, tokenizer, options.jobs, model.config.topology) as pool:
            prepare_s = time.perf_counter() - started
            if options.tune:
                tune_weights(model, tokenizer, pool, split.beside(options.tune), weights_in, options)
            decoder, source = tuned(weights_in, options.chosen_decoder)
            if source:
                print(f"decoder weights from {source}")
            if isinstance(decoder, WeightedDecoder):
                pool.reweight(decoder.weights())
            # Every shard counts the words and pronounces the references of the whole split.
            spoken = [reference_tokens(tokenizer, cut, references) for cut in split.cuts]
            known = split.known_words(pool.search.vocabulary)
            job = _job(folder, shard, model, decoder, origin["data"], references, options)
            work = Results(job, [str(i) for i in range(len(split.cuts))])

            def line(position: int, path: TokenPath) -> str:
                cut, said = split.cuts[position], spoken[position]
                return hypothesis_line(
                    hypothesis_of(tokenizer, model.frame_s, path, cut, said, decoder.nbest)
                )

            _search(model, split.cuts, pool, options, work, line, advance)
        about = {
            **origin,
            **_system(model, decoder),
            "weights_from": source,
            "threads": torch.get_num_threads(),
            "jobs": options.jobs,
            "commit": git_commit(),
            "lexicon": references.digest if references else None,
            "pronunciations": asdict(references.counts) if references else None,
            "known_words": asdict(known) if known else None,
            "word_filter": asdict(split.rules) if split.rules else None,
            "prepare_s": prepare_s,
        }
        times = joined_record(about, work)
        if not shard:
            write_decoded(folder, work.files().get(HYPOTHESES, ""), times)
        work.job.finish(about)
    print(_summary(len(work.found), times))
    if known and not shard:
        print(known)
    if references and not shard:
        references.report(split.manifest)
    return folder


@dataclass(frozen=True)
class _Split:
    """A manifest with its utterances and the scoring rules beside it."""

    manifest: Path
    cuts: Cuts
    rules: WordFilterRules | None

    @classmethod
    def read(cls, manifest: Path) -> "_Split":
        return cls(manifest, read_cuts(manifest), rules_beside(manifest))

    def beside(self, split: str) -> Path:
        """Return the manifest of another split: beside this one, unless given as a path."""
        return Path(split) if is_manifest(split) else split_beside(str(self.manifest), split)

    def pronounced(self, tokenizer: Tokenizer, g2p: bool) -> ReferencePhones | None:
        """Return the pronunciations of the references for a phone model, or None."""
        if not isinstance(tokenizer, PhoneTokenizer):
            return None
        languages = (cut.supervisions[0].language for cut in self.cuts)
        return ReferencePhones.of_data(tokenizer, self.manifest.parent, languages, g2p)

    def known_words(self, vocabulary: Collection[str] | None) -> KnownWords | None:
        """Return how many reference words are in the search's vocabulary; None if it has none."""
        texts = (cut.supervisions[0].text or "" for cut in self.cuts)
        return None if vocabulary is None else KnownWords.of(vocabulary, texts)


def _system(model: AcousticModel, decoder: Decoder) -> dict[str, Any]:
    """Return model and decoder as entries of decode.json."""
    return {
        "attention": model.config.attention,
        "frames": model.config.model.frames,
        "backend": model.backend_on(model.device.type),
        "decoder": decoder.name,
        "beam": asdict(decoder.complete()) or None,
        "device": str(model.device),
        "precision": asdict(model.precision),
    }


def _job(
    folder: Path,
    shard: Shard | None,
    model: AcousticModel,
    decoder: Decoder,
    data: str,
    references: ReferencePhones | None,
    options: DecodeOptions,
) -> Job:
    """Return the job, identified by all that the hypotheses depend on."""
    inputs = identity_of(model) | {"data": data} | decoder.digests()
    if references:
        inputs["pronunciations"] = references.digest
    settings = values_affecting(options, "result") | {"beam": asdict(decoder.complete())}
    return Job.in_folder(folder, identity("decode", settings, **inputs), shard)


def _summary(utterances: int, times: dict[str, Any]) -> str:
    audio_s = times["audio_s"]
    return (
        f"decoded {counted(utterances, 'utterance')}, {duration(audio_s)} of audio, in "
        f"{duration(times['decode_s'])} (real-time factor {times['real_time_factor']:.4f}; encoder "
        f"{_ratio(times['encode_s'], audio_s):.4f}, search {_ratio(times['search_s'], audio_s):.4f})"
    )


def joined_record(record: dict[str, Any], work: Results) -> dict[str, Any]:
    """Return the joined record of all shards, decode.json: durations are summed, the rest is the first's."""
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
    """Add the hypothesis of each remaining utterance, with its share of the time.

    Args:
        model, cuts, pool, options, advance: see `decode_split`.
        work: results to add to.
        line: returns a cut's line for hyp.jsonl, given its position and the result of the search.
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
                started = now  # includes the time of writing lines, while encoder and search run
                work.add(position, Result({HYPOTHESES: line(position, result.path)}, seconds=seconds))
            bars.update(row, completed=len(work.found))
            advance(len(work.found) / len(cuts))

        groups = unfinished(length_groups(model, cuts, options.frames_per_batch), work.job.shard, work.found)
        for batch in encoded_cuts(model, cuts, groups):
            encode_s |= dict.fromkeys(batch.positions, batch.encode_s / len(batch.positions))
            pool.put(batch.positions, batch.posteriors.log_probs_BTV, batch.posteriors.lengths_B)
            collect(pool.ready())
        collect(pool.results())
