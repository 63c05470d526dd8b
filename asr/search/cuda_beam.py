"""CTC prefix beam search on the GPU without lexicon or language model (torchaudio's CUDA decoder)."""

from functools import partial

import torch
from torch import Tensor

from asr.errors import UserError
from asr.search.forced_alignment import align_labels
from asr.search.path import TokenPath
from asr.text.tokenizer import Tokenizer


class CudaSearch:
    """Decodes whole batches; frames come from the Viterbi alignment of the labels found."""

    def __init__(self, tokenizer: Tokenizer, *, beam: int = 10, nbest: int = 1) -> None:
        """Build the decoder.

        Args:
            tokenizer: tokenizer of the model.
            beam: number of prefixes kept after each frame, at most the number of labels.
            nbest: number of hypotheses to return, at most `beam`.

        Raises:
            UserError: there is no CUDA device, or torchaudio's CUDA decoder can't be loaded.
        """
        if not torch.cuda.is_available():
            raise UserError("decoder=cuda needs a CUDA device, found none; decoder=prefix runs on the CPU")
        try:
            from torchaudio.models.decoder import cuda_ctc_decoder
        except (ImportError, OSError, RuntimeError) as error:
            raise UserError(f"decoder=cuda: torchaudio's CUDA decoder can't be loaded: {error}") from error
        self._build = partial(
            cuda_ctc_decoder,
            tokenizer.symbols,
            nbest=min(nbest, beam, len(tokenizer)),
            beam_size=min(beam, len(tokenizer)),
            blank_skip_threshold=1.0,  # below 1, frames that are nearly blank are skipped
        )

    def __call__(self, log_probs_BTV: Tensor, lengths_B: Tensor) -> list[TokenPath]:
        """Decode a batch: [B, T, V] log-probabilities, blank at index 0, and [B] valid frames."""
        if log_probs_BTV.device.type != "cuda":
            raise UserError(
                f"decoder=cuda needs the model on a CUDA device, found {log_probs_BTV.device.type}: "
                "device=cuda, or decoder=prefix"
            )
        log_probs_BTV = log_probs_BTV.detach().float().contiguous()
        # torchaudio runs its kernels on the current device, in the stream that was current when it was built.
        with torch.cuda.device(log_probs_BTV.device):
            found = self._build()(log_probs_BTV, lengths_B.to(log_probs_BTV.device, torch.int32))
        paths = []
        on_cpu = log_probs_BTV.cpu()
        for log_probs_TV, length, hypotheses in zip(on_cpu, lengths_B.tolist(), found, strict=True):
            best, *others = (
                align_labels(log_probs_TV[:length], list(hypothesis.tokens), float(hypothesis.score))
                for hypothesis in hypotheses
            )
            best.alternatives.extend(others)
            paths.append(best)
        return paths
