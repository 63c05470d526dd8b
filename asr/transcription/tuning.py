"""Tunes a decoder's weights on the utterances of a split."""

import random
import time
from pathlib import Path

from asr.console import counted, duration, progress
from asr.data.manifest import read_cuts
from asr.environment import git_commit
from asr.model.acoustic_model import AcousticModel
from asr.scoring.error_rates import ErrorCounts
from asr.scoring.score import scored_words
from asr.scoring.word_filter import rules_beside
from asr.search.decoder import WeightedDecoder, Weights
from asr.search.options import DecodeOptions
from asr.search.path import text_of
from asr.search.pool import SearchPool
from asr.search.tune import Trial, record, tune
from asr.text.tokenizer import Tokenizer
from asr.transcription.batches import length_groups
from asr.transcription.pipeline import encoded_cuts


def tune_weights(
    model: AcousticModel,
    tokenizer: Tokenizer,
    pool: SearchPool,
    manifest: Path,
    weights_in: Path,
    options: DecodeOptions,
) -> None:
    """Tune the weights of the decoder in the options, and store them.

    Args:
        model: acoustic model.
        tokenizer: tokenizer of the model.
        pool: searches with this decoder; it keeps the weights of the last trial.
        manifest: utterances to tune on.
        weights_in: folder for the weights.
        options: decoder, batches, and number of utterances.
    """
    decoder = options.chosen_decoder
    assert isinstance(decoder, WeightedDecoder)
    cuts = read_cuts(manifest)
    if len(cuts) > options.tune_utterances > 0:
        cuts = cuts.select(random.Random(0).sample(range(len(cuts)), options.tune_utterances))
    references = [cut.supervisions[0].text for cut in cuts]
    rules = rules_beside(manifest)
    started = time.perf_counter()
    groups = length_groups(model, cuts, options.frames_per_batch)
    batches = list(encoded_cuts(model, cuts, groups))
    with progress() as bars:
        row = bars.add_task(f"tuning on {options.tune}", total=None)

        def evaluate(weights: Weights) -> Trial:
            pool.reweight(weights)
            for batch in batches:
                pool.put(batch.positions, batch.posteriors.log_probs_BTV, batch.posteriors.lengths_B)
            results = list(pool.results())
            texts = [text_of(result.path, tokenizer) or "" for result in results]
            spoken = [references[result.key] for result in results]
            counts = ErrorCounts.between(scored_words(spoken, rules), scored_words(texts, rules))
            trial = Trial(weights, counts.errors, counts.length, sum(result.cpu_s for result in results))
            bars.update(row, advance=1, description=f"tuning on {options.tune}: {_described(trial)}")
            return trial

        best, trials = tune(evaluate, decoder.weights(), pool.search.tunable)
    about = {
        "split": options.tune,
        "manifest": str(manifest),
        "utterances": len(cuts),
        "attention": model.config.attention,
        "commit": git_commit(),
    }
    path = record(weights_in, decoder, best, trials, about)
    print(
        f"tuned on {counted(len(cuts), 'utterance')} of {options.tune} in "
        f"{duration(time.perf_counter() - started)}, {counted(len(trials), 'trial')}: "
        f"{_described(trials[0])} → {_described(best)}, stored in {path}"
    )


def _described(trial: Trial) -> str:
    weights = trial.weights
    return (
        f"WER {100 * trial.rate:.2f} % (lm_weight {weights.lm_weight:g}, word_score {weights.word_score:g}, "
        f"size {weights.size})"
    )
