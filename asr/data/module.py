"""The data of a training run: batches from manifests, and a list of the utterances left out."""

import logging
import multiprocessing.queues
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import soundfile
from lhotse.cut import MonoCut
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from asr.augmentation.options import WaveformConfig
from asr.augmentation.sources import sources_digests
from asr.augmentation.stages import Waveforms
from asr.console import counted, hours
from asr.data import audio
from asr.data.audio import load_cut, notice_resampling
from asr.data.batch import Batch, Utterances
from asr.data.concatenate import Concatenation
from asr.data.cuts import Cuts
from asr.data.fitting import misfits
from asr.data.manifest import manifest_digest, read_cuts
from asr.data.options import MIN_DURATION_S, DataConfig
from asr.data.places import manifest_path, split_beside
from asr.data.sampler import BatchPlan, BatchStream, Cursor, padding_share, plan_by_length
from asr.data.stream import TrainingData
from asr.errors import UserError
from asr.parallel import end_with_parent
from asr.records.run_folder import RunFolder
from asr.text.files import write_table
from asr.text.pronunciation import lexicon_beside
from asr.text.tokenizer import PhoneTokenizer, Tokenizer

log = logging.getLogger(__name__)
PREFETCH = 8  # batches that each worker loads ahead: joined recordings vary in the time to load them
LENGTH_JITTER = 0.1  # relative random variation of lengths before utterances are sorted into batches


def load_training_cuts(config: DataConfig) -> Cuts:
    """Return the training cuts of all manifests.

    Raises:
        UserError: no manifest is named, one is missing, or two contain the same utterance id.
    """
    if not config.train:
        raise UserError("data.train is empty: name a recipe (recipe=demo) or manifests (data.train=[path])")
    cuts = Cuts.joined([read_cuts(manifest_path(place, "train")) for place in config.train])
    seen: set[str] = set()
    for name in cuts.ids() if len(config.train) > 1 else ():
        if name in seen:
            raise UserError(f"data.train={config.train}: utterance {name} is in two manifests")
        seen.add(name)
    return cuts


class SpeechData(TrainingData):
    """Training and development batches of utterances.

    Args:
        config: manifests and batching.
        train_cuts: result of `load_training_cuts` for `config`.
        tokenizer: tokenizer for the targets.
        encoder_lengths: returns the numbers of encoder frames for an array of durations in seconds.
        sample_rate, frame_shift_ms: settings of the model's features.
        topology: label topology, which determines how many frames the labels need.
        seed: random seed for the order of batches and for augmentation.
        augment: augmentation of audio.

    Attributes:
        dev_tokenizer: tokenizer for the targets of validation.
        left_out: (split, utterance id, reason) of each utterance excluded from training or validation.
    """

    def __init__(
        self,
        config: DataConfig,
        train_cuts: Cuts,
        tokenizer: Tokenizer,
        encoder_lengths: Callable[[NDArray[np.float64]], NDArray[np.int64]],
        *,
        sample_rate: int,
        frame_shift_ms: float,
        topology: str,
        seed: int,
        augment: WaveformConfig,
    ) -> None:
        super().__init__()
        self.config = config
        self.tokenizer = tokenizer
        self.sample_rate, self.frame_shift_ms = sample_rate, frame_shift_ms
        self.encoder_lengths = encoder_lengths
        self.topology = topology
        self.seed = seed
        self.augment = augment
        self.left_out: list[tuple[str, str, str]] = []
        self.dev = manifest_path(config.dev, "dev") if config.dev else split_beside(config.train[0], "dev")
        dev_cuts = read_cuts(self.dev)
        self.dev_tokenizer = self._dev_tokenizer(dev_cuts)
        self.train_cuts = self._fitting(train_cuts, "train", augment.fastest)
        self.dev_cuts = self._fitting(dev_cuts, "dev", 1.0)
        self.durations_s = self.train_cuts.durations_s / augment.slowest
        longest_s = float(self.train_cuts.durations_s.max())
        # Here, because each data-loading process would repeat the warning.
        notice_resampling(self.train_cuts.rates | self.dev_cuts.rates, sample_rate)
        self.waveforms = Waveforms(augment, sample_rate, seed, longest_s=longest_s)
        self.concatenation = None
        if config.concatenate_s:
            self.concatenation = Concatenation(
                self.durations_s, config.concatenate_s, seed, config.concatenate_epochs
            )

    def train_frames(self, epoch: int) -> NDArray[np.int64]:
        """Return the number of frames of each training utterance of an epoch, at the slowest speed."""
        return self._frames(self.concatenation.durations(epoch) if self.concatenation else self.durations_s)

    @property
    def longest_s(self) -> float:
        """Maximum length of training audio in seconds."""
        return max(self.config.concatenate_s, float(self.durations_s.max()))

    def _frames(self, durations_s: NDArray[np.float64]) -> NDArray[np.int64]:
        per_second = 1000 / self.frame_shift_ms
        return np.maximum(1, np.rint(durations_s * per_second)).astype(np.int64)

    def _fitting(self, cuts: Cuts, split: str, fastest: float) -> Cuts:
        frames = self.encoder_lengths(cuts.durations_s / fastest)
        limits_s = MIN_DURATION_S, self.config.max_duration_s
        tokenizer = self.dev_tokenizer if split == "dev" else self.tokenizer
        reasons = dict(misfits(cuts, frames, limits_s, tokenizer, self.topology))
        self.left_out += [(split, cuts[i].id, reason) for i, reason in reasons.items()]
        kept = np.delete(np.arange(len(cuts)), list(reasons))
        if reasons:
            log.warning(
                "%s: left out %d of %s (listed in left_out.tsv)",
                *(split, len(reasons), counted(len(cuts), "utterance")),
            )
        if not len(kept):
            example = f" (e.g. {': '.join(self.left_out[-1][1:])})" if reasons else ""
            raise UserError(f"split {split}: no utterance is usable{example}")
        return cuts.select(kept)

    def _dev_tokenizer(self, cuts: Cuts) -> Tokenizer:
        """Return a tokenizer that has the pronunciations of dev's words, as `asr score` does."""
        tokenizer = self.tokenizer
        if not isinstance(tokenizer, PhoneTokenizer) or not any(map(tokenizer.oov, cuts.texts.words)):
            return tokenizer
        beside = lexicon_beside(self.dev.parent)
        return tokenizer.knowing(beside) if beside else tokenizer

    def stream(self, start: Cursor | None = None, *, ranks: int = 1, rank: int = 0) -> BatchStream:
        """Return the stream of training batches of one rank."""
        return BatchStream(
            self.train_frames,
            self.config.frames_per_batch,
            self.batches,
            seed=self.seed,
            count=self.config.utterances_per_batch,
            jitter=LENGTH_JITTER,
            ranks=ranks,
            rank=rank,
            start=start,
        )

    def epoch_batches(self, epoch: int) -> int:
        """Return the number of batches in an epoch, over all ranks."""
        return len(self.stream().epoch(epoch) if epoch else self.first_epoch)

    @cached_property
    def first_epoch(self) -> list[NDArray[np.int64]]:
        """The batches of the first epoch, each as positions of utterances."""
        return self.stream().epoch(0)

    def first_batches(self, count: int) -> Iterator[Batch]:
        """Yield the first batches of the first epoch, without augmentation."""
        utterances = self._utterances(self.train_cuts, concatenation=self.concatenation)
        for indices in self.first_epoch[:count]:
            yield utterances[BatchPlan(tuple(indices.tolist()))]

    def padding_share(self) -> float:
        """Return the fraction of padding among the first epoch's frames, 0 … 1."""
        return padding_share(self.train_frames(0), self.first_epoch)

    def worst_batch(self) -> Batch:
        """Return the batch that needs the most memory: as many of the longest utterances as fit."""
        budget, count = self.config.frames_per_batch, self.config.utterances_per_batch
        epoch = self.config.concatenate_epochs  # the first epoch with utterances of full length
        first = plan_by_length(self.train_frames(epoch), budget, count=count)[0]
        utterances = self._utterances(
            self.train_cuts, [self.augment.slowest], concatenation=self.concatenation
        )
        return utterances[BatchPlan(tuple(first.tolist()), epoch)]

    def _utterances(
        self,
        cuts: Sequence[MonoCut],
        speed_factors: list[float] | None = None,
        waveforms: Waveforms | None = None,
        concatenation: Concatenation | None = None,
        tokenizer: Tokenizer | None = None,
    ) -> Utterances:
        return Utterances(
            cuts,
            tokenizer or self.tokenizer,
            self.sample_rate,
            speed_factors=speed_factors,
            seed=self.seed,
            waveforms=waveforms,
            concatenation=concatenation,
        )

    def train_dataloader(self) -> DataLoader[Batch]:
        """Return the training batches from the cursor on."""
        ranks, rank = self.rank()
        stream = self.stream(self.cursor, ranks=ranks, rank=rank)
        factors = self.augment.speed_factors
        utterances = self._utterances(self.train_cuts, factors, self.waveforms, self.concatenation)
        return self._loader(utterances, stream)

    def val_dataloader(self) -> DataLoader[Batch]:
        """Return the development batches, longest first; ranks take turns."""
        plans = plan_by_length(self._frames(self.dev_cuts.durations_s), self.config.frames_per_batch)
        ranks, rank = self.rank()
        if len(self.dev_cuts) < ranks:
            found = len(self.dev_cuts)
            raise UserError(
                f"split dev: expected at least {ranks} utterances, one for each rank, found {found}"
            )
        if len(plans) < ranks:  # every rank needs at least one batch
            plans = np.array_split(np.concatenate(plans), ranks)
        batches = [BatchPlan(tuple(plan.tolist())) for plan in plans[rank::ranks]]
        return self._loader(self._utterances(self.dev_cuts, tokenizer=self.dev_tokenizer), batches)

    def _loader(self, utterances: Utterances, plans: BatchStream | list[BatchPlan]) -> DataLoader[Batch]:
        workers = self.config.workers
        return DataLoader(
            utterances,
            batch_size=None,
            sampler=plans,
            num_workers=workers,
            worker_init_fn=_begin_worker,
            prefetch_factor=PREFETCH if workers else None,
            persistent_workers=workers > 0,
            pin_memory=self.trainer is not None and self.trainer.strategy.root_device.type == "cuda",
        )

    def advice(self, batch: Batch) -> str:
        """Return the size of a batch and the options to lower if it doesn't fit in memory."""
        longest_s = float(batch.audio_lengths.max()) / self.sample_rate
        size = "utterances_per_batch" if self.config.utterances_per_batch else "frames_per_batch"
        return (
            f"{counted(len(batch.ids), 'utterance')} of up to {longest_s:.1f} s; lower data.{size}="
            f"{getattr(self.config, size)} or data.max_duration_s={self.config.max_duration_s}"
        )

    def describe(self) -> str:
        """Return the number of utterances, their total duration and the fraction of padding."""
        audio_s = float(self.train_cuts.durations_s.sum())
        joined = f", joined up to {self.config.concatenate_s:g} s" if self.config.concatenate_s else ""
        if self.config.concatenate_epochs:
            joined += f" from epoch {self.config.concatenate_epochs} on"
        padding = f"{100 * self.padding_share():.1f} % padding"
        return f"{counted(len(self.train_cuts), 'utterance')} ({hours(audio_s)}{joined}), {padding}"

    def digests(self) -> dict[str, str]:
        """Return the hashes of the training and development manifests, and of each augmentation folder."""
        train = {place: manifest_digest(manifest_path(place, "train")) for place in self.config.train}
        augmenting = sources_digests(self.augment, self.waveforms.sources)
        return train | {str(self.dev): manifest_digest(self.dev)} | augmenting

    def write_report(self, folder: Path) -> None:
        """Write left_out.tsv, with a header even if no utterance was left out, and augmented utterances."""
        run = RunFolder(folder)
        write_table(run.left_out, ["split", "utterance", "reason"], self.left_out)
        if self.augment.examples:
            self._write_examples(run.augmented)

    def _write_examples(self, folder: Path) -> None:
        """Write the first utterances before and after augmentation (except speed), and list the changes."""
        folder.mkdir(parents=True, exist_ok=True)
        rows = []
        for i in range(min(self.augment.examples, len(self.train_cuts))):
            cut = self.train_cuts[i]
            before = load_cut(cut, self.sample_rate)
            after, done = self.waveforms.apply(before, 0, i)
            for name, samples in (("before", before), ("after", after)):
                soundfile.write(folder / f"{i + 1:03d}-{name}.wav", samples, self.sample_rate, "PCM_16")
            rows.append([f"{i + 1:03d}", cut.id, ", ".join(done)])
        write_table(folder / "augmented.tsv", ["number", "utterance", "augmentation"], rows)


def _begin_worker(index: int) -> None:
    """Leave Ctrl-C and warnings of rates to the parent process, restore SIGTERM, and end with the parent."""
    audio.log.setLevel(logging.ERROR)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    multiprocessing.queues.Queue._on_queue_feeder_error = staticmethod(_end_worker)  # type: ignore[attr-defined]
    end_with_parent()


def _end_worker(error: Exception, batch: object) -> None:
    """End this process if a batch can't be sent, e.g. under `ulimit -f`: the parent would wait for ever."""
    os._exit(1)
