"""Attention maps of an utterance under several mechanisms, and their distance from full attention."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from asr.attention import build_mechanism
from asr.attention.layer import SelfAttentionLayer
from asr.attention.multihead import SelfAttention
from asr.errors import UserError
from asr.model.acoustic_model import AcousticModel
from asr.model.features import FilterBanks
from asr.recognizer import Recognizer
from asr.search.forced_alignment import TokenSpan, force_align


@dataclass(frozen=True)
class AttentionMaps:
    """Content of figure 8.

    Attributes:
        weights_NN: [N, N] by mechanism; rows are queries, columns are keys.
        spectrogram_TF: log-mel features, [T, F].
        labels: labels of the transcript with their spans among the N encoder frames.
        layer, head: numbers, starting from 1.
        frame_s: duration of an encoder frame.
    """

    weights_NN: dict[str, Tensor]
    spectrogram_TF: Tensor
    labels: list[tuple[str, TokenSpan]]
    layer: int
    head: int
    frame_s: float


def attention_maps(
    recognizer: Recognizer, audio: Tensor, text: str, names: Sequence[str], layer: int = 0, head: int = 0
) -> AttentionMaps:
    """Return one head's weights under each mechanism, on the queries and keys of one trained layer.

    Args:
        recognizer: model of the softmax family.
        audio: [samples] waveform.
        text: transcript.
        names: mechanisms, see `build_mechanism`.
        layer: layer number from 1; 0: the last.
        head: head number from 1; 0: the one with the most peaked full attention (lowest mean entropy).

    Raises:
        UserError: no such layer or head, or audio too short for its transcript.
    """
    heads = recognizer.model.config.model.heads
    layers = queries_and_keys(recognizer.model, audio)
    for name, value, most in (("layer", layer, len(layers)), ("head", head, heads)):
        if not 0 <= value <= most:
            raise UserError(f"{name}={value}: expected 1 to {most}, or 0 to choose one")
    layer = layer or len(layers)
    q_1HND, k_1HND = layers[layer - 1]
    full_HNN = weights(recognizer.model, "full", q_1HND, k_1HND)
    if head == 0:
        entropy_H = -torch.special.xlogy(full_HNN, full_HNN).sum(-1).mean(-1)
        head = int(entropy_H.argmin()) + 1
    banks = FilterBanks(recognizer.model.config.features)
    features, frames = banks(audio.unsqueeze(0), torch.tensor([len(audio)]))
    log_probs, encoder_frames = recognizer.model(audio.unsqueeze(0), torch.tensor([len(audio)]))
    ids = recognizer.tokenizer.encode(text)
    spans = force_align(log_probs[0, : int(encoder_frames)], ids, topology=recognizer.model.config.topology)
    return AttentionMaps(
        {name: weights(recognizer.model, name, q_1HND, k_1HND)[head - 1] for name in names},
        features[0, : int(frames)],
        list(zip(recognizer.tokenizer.tokens(ids), spans, strict=True)),
        layer,
        head,
        recognizer.model.frame_s,
    )


def approximation_errors(
    model: AcousticModel, utterances: Sequence[Tensor], names: Sequence[str]
) -> list[dict[str, float | int | str]]:
    """Return the L1 distance of the weights from those of full attention, by layer and mechanism.

    The sum over keys of |w − w_full|, between 0 and 2, is averaged over queries, heads and utterances. The
    input of every layer is the one under the model's own mechanism, so that errors do not accumulate.

    Args:
        model: model of the softmax family.
        utterances: [samples] waveforms.
        names: mechanisms.

    Returns:
        Rows with `layer` (from 1), `mechanism` and `error`.
    """
    sums: dict[tuple[int, str], float] = {}
    positions = 0
    for audio in utterances:
        layers = queries_and_keys(model, audio)
        positions += layers[0][0].shape[2]
        for number, (q_1HND, k_1HND) in enumerate(layers, start=1):
            full_HNN = weights(model, "full", q_1HND, k_1HND)
            for name in names:
                distance_HN = (weights(model, name, q_1HND, k_1HND) - full_HNN).abs().sum(-1)
                total = float(distance_HN.mean(0).sum())
                sums[number, name] = sums.get((number, name), 0.0) + total
    return [
        {"layer": layer, "mechanism": name, "error": total / positions}
        for (layer, name), total in sums.items()
    ]


def queries_and_keys(model: AcousticModel, audio: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return queries and keys of every layer, [1, H, N, D] each.

    Raises:
        UserError: the model's mechanism has parameters of its own, or the audio is shorter than a frame.
    """
    inputs: list[tuple[SelfAttention, Tensor]] = []

    def record(layer: SelfAttentionLayer, arguments: tuple[Tensor, ...]) -> None:
        if not isinstance(layer, SelfAttention):
            raise UserError(f"attention {layer.name!r} has parameters of its own and no attention weights")
        inputs.append((layer, arguments[0]))

    hooks = [layer.register_forward_pre_hook(record) for layer in model.attention_layers()]
    try:
        with torch.inference_mode():
            _, frames = model(audio.unsqueeze(0), torch.tensor([len(audio)]))
            if int(frames) == 0:
                raise UserError(f"audio of {len(audio)} samples is shorter than one encoder frame")
            return [layer.project(x_1NM)[:2] for layer, x_1NM in inputs]
    finally:
        for hook in hooks:
            hook.remove()


def weights(model: AcousticModel, name: str, q_1HND: Tensor, k_1HND: Tensor) -> Tensor:
    """Return the dense weights [H, N, N] of a mechanism."""
    with torch.inference_mode():
        return build_mechanism(name, backend=model.config.backend).eval().weights(q_1HND, k_1HND)[0]
