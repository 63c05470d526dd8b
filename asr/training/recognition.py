"""Training of an acoustic model: its task, and task and data from options and manifests."""

import logging
import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor, nn

from asr.console import counted, first_of
from asr.data.batch import Batch
from asr.data.cuts import Cuts
from asr.data.module import SpeechData, load_training_cuts
from asr.data.options import DataConfig
from asr.data.places import prepared_folder
from asr.errors import UserError
from asr.losses.base import Loss
from asr.losses.loss import build_loss
from asr.losses.topology import joined_outputs, split_outputs
from asr.losses.views import training_loss
from asr.model.acoustic_model import AcousticModel, AcousticModelConfig
from asr.model.checkpoint import check_shapes
from asr.model.features import CorpusStatistics, Normalisation
from asr.model.lora import add_lora, merged
from asr.model.pretrained_folder import Pretrained, has_head, read_pretrained, trained_model
from asr.model.published import PublishedTokenizer, read_head, read_tokenizer
from asr.recognizer import Recognizer
from asr.scoring.error_rates import ErrorCounts
from asr.scoring.score import scored_phones
from asr.scoring.word_filter import rules_beside
from asr.search.greedy import greedy_search
from asr.text.prepared import obtain_tokenizer
from asr.text.pronunciation import warn
from asr.text.tokenizer import (
    NOISE_WORDS,
    PhoneTokenizer,
    PieceTokenizer,
    Tokenizer,
    VocabularyTokenizer,
    tokenizer_from_state,
)
from asr.training.heard import shown_ids
from asr.training.lexicon import training_lexicon
from asr.training.options import TrainConfig
from asr.training.plan import TrainingPlan, training_plan
from asr.training.selection import WordErrors
from asr.training.task import TrainingTask

log = logging.getLogger(__name__)


class RecognitionTask(TrainingTask):
    """Training of an acoustic model, validated by the error rate of greedy or beam search.

    Args:
        model: acoustic model.
        tokenizer: tokenizer for the targets.
        loss: loss function; returns the loss of each utterance.
        plan: length of training, optimiser and clipping.
        word_errors: beam search on development data; None: greedy search.
        shown: ids of the dev utterances whose hypotheses are kept.
    """

    model: AcousticModel

    def __init__(
        self,
        model: AcousticModel,
        tokenizer: Tokenizer,
        loss: Loss,
        plan: TrainingPlan,
        word_errors: WordErrors | None = None,
        shown: Collection[str] = (),
    ) -> None:
        super().__init__(model, plan)
        self.shown = shown
        self.tokenizer = tokenizer
        self.loss = loss
        self.word_errors = word_errors
        unit = "word" if word_errors else tokenizer.unit
        names = {"phone": "dev_per", "character": "dev_cer", "word": "dev_wer"}
        self.error_rate_name = names.get(unit, "dev_ter")

    def losses(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the loss of each utterance and the number of target tokens."""
        config = self.plan.options.loss
        features, frames = self.model.input(batch.audio, batch.audio_lengths, 2 if config.consistency else 1)
        outputs, frames = self.model.emit(features, frames)
        losses = training_loss(self.loss, config, outputs, frames, batch.tokens, batch.token_lengths)
        return losses, batch.token_lengths.sum()

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:  # type: ignore[override]
        """Seed the step's random numbers, and freeze the encoder in the first steps if requested."""
        super().on_train_batch_start(batch, batch_idx)
        self.model.encoder_frozen = self.global_step < self.plan.options.model.freeze_encoder_steps

    def fixed_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of a frozen encoder."""
        return self.model.encoder_parameters() if self.model.encoder_frozen else []

    def dev_counts(self, batch: Batch) -> tuple[float, float, float, float]:
        """Return errors, scored tokens or words, the summed loss and the target tokens."""
        log_probs, frames = self.model(batch.audio, batch.audio_lengths)
        losses = self.loss(log_probs, frames, batch.tokens, batch.token_lengths)
        self._keep_shown(batch, log_probs, frames)
        if self.word_errors:
            counts = self.word_errors.counts(batch.ids, log_probs, frames)
        else:
            counts = self._label_errors(batch, log_probs, frames)
        return counts.errors, counts.length, float(losses.sum()), float(batch.token_lengths.sum())

    def _keep_shown(self, batch: Batch, log_probs: Tensor, frames: Tensor) -> None:
        """Keep the greedy hypotheses of the utterances to show."""
        for row in [row for row, name in enumerate(batch.ids) if name in self.shown]:
            (path,) = greedy_search(
                log_probs[row : row + 1], frames[row : row + 1], self.model.config.topology
            )
            spoken = batch.tokens[row, : batch.token_lengths[row]].tolist()
            self.heard[batch.ids[row]] = self._written(spoken), self._written(path.ids)

    def _written(self, ids: list[int]) -> str:
        """Return the text of a label sequence; phones are joined by spaces."""
        text = self.tokenizer.text(ids)
        return " ".join(self.tokenizer.tokens(ids)) if text is None else text

    def _label_errors(self, batch: Batch, log_probs: Tensor, frames: Tensor) -> ErrorCounts:
        labels = zip(batch.tokens.tolist(), batch.token_lengths.tolist(), strict=True)
        spoken = [ids[:length] for ids, length in labels]
        hypotheses = [path.ids for path in greedy_search(log_probs, frames, self.model.config.topology)]
        return ErrorCounts.between(self._scored(spoken), self._scored(hypotheses))

    def _scored(self, labels: list[list[int]]) -> list[list[str]]:
        """Return, for each utterance, the symbols that `asr score` counts."""
        if self.tokenizer.unit == "character":  # repeated spaces are one
            return [list(self.tokenizer.text(ids) or "") for ids in labels]
        symbols = [self.tokenizer.tokens(ids) for ids in labels]
        # Otherwise a missing noise would count as an error in dev_per, but not in the PER of `asr score`.
        return [scored_phones(x) for x in symbols] if self.tokenizer.unit == "phone" else symbols

    def frames(self, batch: Batch) -> int:
        """Return the number of feature frames of a batch."""
        return int(self.model.front_end.frames(batch.audio_lengths).sum())

    def model_state(self) -> dict[str, Any]:
        """Return what `Recognizer.load` reads: configuration, weights with LoRA's updates, and tokenizer."""
        state, lora = Recognizer(self.model, self.tokenizer).state(), self.plan.options.model.lora
        return state | {"weights": merged(state["weights"], lora)} if lora.rank else state

    def describe(self, device_type: str) -> dict[str, Any]:
        """Return the mechanism, its backend and code, and hashes of labels, lexicon and n-gram."""
        lexicon = self.tokenizer.lexicon
        return {
            "attention": self.model.config.attention,
            "backend": self.model.backend_on(device_type),
            "code": self.model.config.code,
            "tokenizer": self.tokenizer.digest,
            "lexicon": lexicon.digest if lexicon else None,
            "label_ngram": self.loss.digest or None,
        }


def build_recognition(
    options: TrainConfig, resuming: bool, stored: Mapping[str, Any] | None = None
) -> tuple[RecognitionTask, SpeechData]:
    """Return the task and data of a speech recipe.

    Args:
        options: options of the run.
        resuming: whether weights are loaded from a resume point, so initial weights aren't needed.
        stored: state of the model in the resume point: the source of `init_from` may have been deleted.
    """
    cuts = load_training_cuts(options.data)
    start = Recognizer.load(options.init_from) if options.init_from and not resuming else None
    encoder = options.model.encoder
    known, pretrained = None, {}
    if start:
        known, pretrained = start.tokenizer, start.model.config.pretrained
    elif options.init_from and stored:
        known, pretrained = tokenizer_from_state(stored["tokenizer"]), stored["config"]["pretrained"]
    elif encoder:
        pretrained = read_pretrained(encoder)
    tokenizer = training_tokenizer(options, cuts, known)
    model = AcousticModel(
        AcousticModelConfig(
            options.attention,
            options.backend,
            options.features,
            options.model,
            topology=options.loss.topology,
            intermediate=options.loss.intermediate,
            pretrained=pretrained,
        ),
        len(tokenizer),
        options.augment,
        initial_weights(options, pretrained, tokenizer) if encoder and not resuming else None,
    )
    if start:
        initialise(model, tokenizer, start, options.init_from)
    if options.model.lora.rank:
        add_lora(model, options.model.lora)
    data = SpeechData(
        halved(options.data) if options.loss.consistency else options.data,
        cuts,
        tokenizer,
        model.encoder_lengths,
        sample_rate=options.features.sample_rate,
        frame_shift_ms=options.features.frame_shift_ms,
        topology=options.loss.topology,
        seed=options.seed,
        augment=options.augment,
    )
    if isinstance(data.dev_tokenizer, PhoneTokenizer):
        effect = "dev_per leaves them out, and phones recognised there are insertions"
        report_pronunciations(data.dev_tokenizer, data.dev_cuts.texts.counts(), "development data", effect)
    check_positions(model, data, options)
    model.config.longest_s = data.longest_s
    if options.features.normalise == "corpus" and not options.init_from and not resuming:
        corpus_statistics(model, data)
    targets = map(tokenizer.encode, data.train_cuts.texts)
    loss = build_loss(options.loss, len(tokenizer), targets)
    word_errors = None
    if options.select.metric == "wer":
        rules = rules_beside(data.dev)
        topology = options.loss.topology
        word_errors = WordErrors(options.select, data.dev_cuts, tokenizer, topology, rules, options.seed)
    shown = shown_ids(data.dev_cuts, options.seed)
    return RecognitionTask(model, tokenizer, loss, training_plan(options, data), word_errors, shown), data


def check_positions(model: AcousticModel, data: SpeechData, options: TrainConfig) -> None:
    """Raise UserError if an utterance is longer than the encoder has positions for."""
    limit_s, speed = model.longest_input_s, options.augment.slowest
    longest_s = max(data.longest_s, float(data.dev_cuts.durations_s.max()))
    if longest_s > limit_s:
        raise UserError(
            f"model.encoder={options.model.encoder}: expected utterances of at most {limit_s:g} s, for which "
            f"it has positions, found {longest_s:.2f} s (at speed {speed:g}): data.max_duration_s="
            f"{math.floor(10 * min(1.0, speed) * limit_s) / 10:g} leaves out longer ones"
        )


def initial_weights(
    options: TrainConfig, pretrained: dict[str, Any], tokenizer: Tokenizer
) -> Pretrained | None:
    """Return the weights of a pretrained encoder, and of its head if its vocabulary is kept."""
    if options.init_from:
        return None
    if isinstance(tokenizer, VocabularyTokenizer | PieceTokenizer):
        return read_head(options.model.encoder, pretrained, options.model)[0]
    return trained_model(options.model.encoder, pretrained, options.model)


def halved(data: DataConfig) -> DataConfig:
    """Return options whose batches need as much memory with two views as those of `data` with one."""
    return replace(
        data,
        frames_per_batch=max(1, data.frames_per_batch // 2),
        utterances_per_batch=-(-data.utterances_per_batch // 2),
    )


def training_tokenizer(options: TrainConfig, cuts: Cuts, known: Tokenizer | None = None) -> Tokenizer:
    """Return a published model's tokenizer, the prepared one, or one built from lexicon or training texts.

    Training tokens outside its vocabulary are logged.

    Args:
        options: options of the run.
        cuts: training utterances.
        known: tokenizer of the initial weights, which the new one extends.
    """
    lexicon = training_lexicon(options)
    folders = dict.fromkeys(prepared_folder(place) for place in options.data.train)
    kind, words = options.tokenizer.kind, cuts.texts.counts()
    if not known and (kept := kept_vocabulary(options, words)):
        return kept
    texts = words if kind == "character" else cuts.texts  # distinct words contain all characters
    if known and known.unit != "phone":
        tokenizer = known.extended(words)
    else:  # phones come from the new lexicon
        tokenizer = obtain_tokenizer(kind, texts, lexicon, options.tokenizer.pieces, folders)
    if isinstance(tokenizer, PhoneTokenizer):
        effect = "they are trained as SPN, spoken noise"
        report_pronunciations(tokenizer, words, "training data", effect)
    elif unknown := unknown_tokens(tokenizer, words):
        log.warning(
            "%s outside the vocabulary (%d distinct): %s",
            counted(unknown.total(), "token"),
            len(unknown),
            first_of(sorted(unknown), 20),
        )
    return tokenizer


def kept_vocabulary(options: TrainConfig, words: Counter[str]) -> PublishedTokenizer | None:
    """Return a published model's tokenizer, in the letter case of the words, if it has all their characters.

    Print whether the model's head is kept.
    """
    encoder = options.model.encoder
    if not encoder or not has_head(encoder):
        return None
    tokenizer = read_tokenizer(encoder)
    kind = "sentencepiece" if tokenizer.unit == "piece" else "character"
    if options.tokenizer.kind != kind or options.loss.topology != "ctc":
        why = f"which tokenizer.kind={kind} and loss.topology=ctc would keep"
    else:
        if isinstance(tokenizer, VocabularyTokenizer):
            tokenizer = tokenizer.in_case_of(words)
        unknown = unknown_tokens(tokenizer, words)
        if not unknown:
            _print(f"model.encoder={encoder}: head and vocabulary are kept")
            return tokenizer
        why = f"which has no {first_of(sorted(unknown), 20)}"
    _print(f"model.encoder={encoder}: a new head replaces its own and its vocabulary, {why}")
    return None


@rank_zero_only
def _print(line: str) -> None:
    print(line, flush=True)


def unknown_tokens(tokenizer: Tokenizer, words: Counter[str]) -> Counter[str]:
    """Count the words or characters outside the vocabulary in the words of all transcripts."""
    unknown: Counter[str] = Counter()
    for word, count in words.items():
        for item in tokenizer.oov(word):
            unknown[item] += count
    return unknown


@rank_zero_only
def report_pronunciations(tokenizer: PhoneTokenizer, words: Counter[str], where: str, effect: str) -> None:
    """Print the words without pronunciation, and warn of the `effect` if they are many."""
    words = Counter({word: count for word, count in words.items() if word not in NOISE_WORDS})
    unknown = Counter({word: count for word, count in words.items() if word not in tokenizer.lexicon})
    if count := unknown.total():
        frequent = first_of([word for word, _ in unknown.most_common(11)])
        print(
            f"{where}: {count:,} of {counted(words.total(), 'word')} ({len(unknown):,} distinct) without "
            f"pronunciation: {frequent}",
            flush=True,
        )
    warn(where, words.total(), count, f"{effect}; add them to lexicon.txt")


def initialise(model: AcousticModel, tokenizer: Tokenizer, start: Recognizer, source: str) -> None:
    """Initialise a model with the weights of another, trained with the same or an exchangeable mechanism.

    Rows of the head are matched by symbol.

    Args:
        model: the model; it keeps its mechanism.
        tokenizer: tokenizer of the model.
        start: model that gives the weights; changed: its mechanism becomes that of `model`.
        source: value of `init_from`, for messages.

    Raises:
        UserError: the mechanisms can't be exchanged, or the models differ in size.
    """
    try:
        if start.model.config.attention != model.config.attention:
            start.set_attention(model.config.attention)
    except UserError as error:
        raise UserError(f"init_from={source}: {error}") from error
    # By symbol, because the other run's lexicon may have other phones.
    row = {symbol: i for i, symbol in enumerate(start.tokenizer.symbols)}
    new = [symbol for symbol in tokenizer.symbols if symbol not in row]
    if new:
        log.warning(
            "init_from=%s: %s missing there, initialised at random: %s",
            source,
            counted(len(new), "symbol"),
            ", ".join(new),
        )
    weights = dict(start.model.state_dict())
    for name, parameter in model.head.named_parameters(prefix="head"):
        # split_outputs separates the two kinds of outputs along the last dimension.
        theirs = split_outputs(weights[name].movedim(0, -1), start.model.config.topology)
        merged = [x.clone() for x in split_outputs(parameter.detach().movedim(0, -1), model.config.topology)]
        for i, symbol in enumerate(tokenizer.symbols):
            if symbol in row:
                for mine, known in zip(merged, theirs, strict=True):
                    mine[..., i] = known[..., row[symbol]]
        first, later = merged
        hmm = model.config.topology == "hmm"
        weights[name] = (joined_outputs(first, later, "hmm") if hmm else first).movedim(-1, 0)
    check_shapes(model.state_dict(), weights, f"init_from={source}")
    model.load_state_dict(weights)


def corpus_statistics(model: AcousticModel, data: SpeechData) -> None:
    """Store mean and variance of the first epoch's frames (at most 2,000 batches) in the model."""
    statistics = CorpusStatistics(model.config.features.mel_bins)
    for batch in data.first_batches(2000):
        statistics.update(*model.front_end(batch.audio, batch.audio_lengths))
    assert isinstance(model.normalisation, Normalisation)
    statistics.store(model.normalisation)
