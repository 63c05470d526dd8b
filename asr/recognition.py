"""CTC training of a recogniser: options and manifests to task and data."""

import functools
import logging
import math
from pathlib import Path
from typing import Any

from rapidfuzz.distance import Levenshtein
from torch import Tensor

from asr import checkpoint
from asr.confidence import Evidence, UsualCertainty, usual_certainty, weigh
from asr.ctc import ctc_loss
from asr.data.batch import Batch
from asr.data.module import SpeechData, load_training_cuts, manifest_path, prepared_folder
from asr.errors import UserError
from asr.features import CorpusStatistics
from asr.label_model import UTTERANCES, estimate_label_model
from asr.plan import TrainingPlan, training_plan
from asr.recognizer import Recognizer, RecognizerConfig
from asr.search.greedy import greedy_search
from asr.task import TrainingTask
from asr.text.lexicon import Lexicon
from asr.text.prepared import obtain_tokenizer
from asr.text.tokenizer import Tokenizer
from asr.train_config import TrainConfig

log = logging.getLogger(__name__)


class RecognitionTask(TrainingTask):
    """CTC training of a recogniser; validation is the error rate of greedy search."""

    model: Recognizer

    def __init__(self, model: Recognizer, plan: TrainingPlan) -> None:
        super().__init__(model, plan)
        self.error_rate_name = {"phone": "dev_per", "character": "dev_cer"}.get(
            model.tokenizer.unit, "dev_ter"
        )
        self.dev_evidence: list[Evidence] = []

    def losses(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the CTC loss of each utterance and the number of target tokens."""
        log_probs, frames = self.model(batch.audio, batch.audio_lengths)
        losses = ctc_loss(log_probs, frames, batch.tokens, batch.token_lengths)
        return losses, batch.token_lengths.sum()

    def dev_counts(self, batch: Batch) -> tuple[float, float, float, float]:
        """Count the errors of greedy search."""
        log_probs, frames = self.model(batch.audio, batch.audio_lengths)
        losses = ctc_loss(log_probs, frames, batch.tokens, batch.token_lengths)
        errors = 0
        for i, path in enumerate(greedy_search(log_probs, frames)):
            errors += Levenshtein.distance(batch.tokens[i, : batch.token_lengths[i]].tolist(), path.ids)
            self.dev_evidence.append(
                weigh(log_probs[i, : frames[i]], self.model.frame_s, self.model.label_model)
            )
        tokens = float(batch.token_lengths.sum())
        return errors, tokens, float(losses.sum()), tokens

    def on_validation_epoch_end(self) -> None:
        """Let the recogniser know how certain it usually is, of what this rank has seen."""
        super().on_validation_epoch_end()
        self.model.config.usual = usual_certainty(self.dev_evidence)
        self.dev_evidence = []

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on knowing it."""
        super().on_load_checkpoint(checkpoint)
        known = checkpoint["recognizer"]["config"].get("usual", {})
        self.model.config.usual = UsualCertainty(**known)

    def frames(self, batch: Batch) -> int:
        """Return the feature frames of a batch."""
        return int(self.model.filter_banks.frames(batch.audio_lengths).sum())

    def model_state(self) -> dict[str, Any]:
        """Return the recogniser's state."""
        return {"recognizer": self.model.state()}

    def describe(self, device_type: str) -> dict[str, Any]:
        """Return mechanism, the backend that it really uses, and hashes of vocabulary and lexicon."""
        lexicon = self.model.tokenizer.lexicon
        return {
            "attention": self.model.config.attention,
            "backend": self.model.backend_on(device_type),
            "tokenizer": self.model.tokenizer.digest,
            "lexicon": lexicon.digest if lexicon else None,
        }

    def check_resumable(self, checkpoint: dict[str, Any]) -> None:
        """Refuse a checkpoint of another vocabulary."""
        if checkpoint["recognizer"]["tokenizer"] != self.model.tokenizer.state():
            raise UserError(
                "resume: the checkpoint has another vocabulary or lexicon than this training "
                f"(digest {self.model.tokenizer.digest}): it can't be resumed with it"
            )


def build_recognition(options: TrainConfig, resuming: bool) -> tuple[RecognitionTask, SpeechData]:
    """Return task and data of a speech recipe."""
    recognizer = Recognizer(
        RecognizerConfig(options.attention, options.backend, options.features, options.model),
        training_tokenizer(options),
        options.augment,
    )
    if options.init_from and not resuming:
        initialise(recognizer, options.init_from)
    data = SpeechData(
        options.data, recognizer, seed=options.seed, speed_factors=options.augment.speed_factors
    )
    recognizer.config.longest_s = data.longest_s
    recognizer.label_model = training_labels(recognizer.tokenizer, data)
    if options.features.normalise == "corpus" and not options.init_from and not resuming:
        corpus_statistics(recognizer, data)
    return RecognitionTask(recognizer, training_plan(options, data)), data


def training_labels(tokenizer: Tokenizer, data: SpeechData) -> Tensor:
    """Estimate how probable labels are after each other, from the training transcripts or many of them."""
    cuts = data.train_cuts[:: max(1, math.ceil(len(data.train_cuts) / UTTERANCES))]
    texts = [cut.supervisions[0].text or "" for cut in cuts]
    return estimate_label_model([tokenizer.encode(text) for text in texts], len(tokenizer))


def training_tokenizer(options: TrainConfig) -> Tokenizer:
    """Take the prepared vocabulary, or build it from lexicon or training texts; list what is outside it."""
    cuts = load_training_cuts(options.data)
    texts = [cut.supervisions[0].text or "" for cut in cuts]
    lexicon = training_lexicon(options)
    folders = dict.fromkeys(prepared_folder(place) for place in options.data.train)
    tokenizer = obtain_tokenizer(options.tokenizer.kind, texts, lexicon, options.tokenizer.pieces, folders)
    unknown = [item for text in texts for item in tokenizer.oov(text)]
    if unknown:
        distinct = sorted(set(unknown))
        shown = ", ".join(distinct[:20]) + (" …" if len(distinct) > 20 else "")
        log.warning(
            "%d tokens (%d distinct) are outside the vocabulary: %s", len(unknown), len(distinct), shown
        )
    return tokenizer


def training_lexicon(options: TrainConfig) -> Lexicon | None:
    """Return the named lexicon, or all that lie beside the training manifests; None without phones."""
    if options.tokenizer.kind != "phone":
        return None
    beside = [manifest_path(place, "train").parent / "lexicon.txt" for place in options.data.train]
    named = [Path(options.tokenizer.lexicon)] if options.tokenizer.lexicon else dict.fromkeys(beside)
    return functools.reduce(Lexicon.merged, map(Lexicon.load, named))


def initialise(recognizer: Recognizer, source: str) -> None:
    """Take the weights of another run, trained with this mechanism or one that it can be exchanged for.

    The rows of the CTC head go by the names of their symbols.

    Raises:
        UserError: the models differ in size, or their vocabularies in kind.
    """
    other = Recognizer.from_state(checkpoint.load(checkpoint.find(Path(source)))["recognizer"], source)
    if other.tokenizer.unit != recognizer.tokenizer.unit:
        raise UserError(
            f"init_from={source}: its vocabulary has another unit ({other.tokenizer.unit}) "
            f"than this training's ({recognizer.tokenizer.unit})"
        )
    try:
        if other.config.attention != recognizer.config.attention:
            other.set_attention(recognizer.config.attention)
    except UserError as error:
        raise UserError(f"init_from={source}: {error}") from error
    row = {symbol: i for i, symbol in enumerate(other.tokenizer.symbols)}
    new = [symbol for symbol in recognizer.tokenizer.symbols if symbol not in row]
    if new:
        log.warning("init_from=%s: %d symbols are new to it: %s", source, len(new), ", ".join(new))
    weights = dict(other.state_dict())
    for name, own in recognizer.head.named_parameters(prefix="head"):
        theirs, merged = weights[name], own.detach().clone()
        for i, symbol in enumerate(recognizer.tokenizer.symbols):
            if symbol in row:
                merged[i] = theirs[row[symbol]]
        weights[name] = merged
    try:
        recognizer.load_state_dict(weights)
    except RuntimeError as error:
        raise UserError(f"init_from={source}: {' '.join(str(error).split())[:300]}") from error


def corpus_statistics(recognizer: Recognizer, data: SpeechData) -> None:
    """Take mean and variance of the frames of the first epoch, at most 2,000 batches of it."""
    statistics = CorpusStatistics(recognizer.config.features.mel_bins)
    for batch in data.first_batches(2000):
        statistics.update(*recognizer.filter_banks(batch.audio, batch.audio_lengths))
    statistics.store(recognizer.normalisation)
