"""Attention maps of an utterance under several mechanisms, and their distance from full attention."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from asr.attention.layer import SelfAttentionLayer
from asr.config.schedule import joined_factors
from asr.errors import UserError
from asr.model.acoustic_model import AcousticModel
from asr.model.features import FilterBanks
from asr.recognizer import Recognizer
from asr.search.forced_alignment import TokenSpan, force_align

SHOWN = 2  # number of heads in a figure


@dataclass(frozen=True)
class AttentionMaps:
    """Content of figure 8.

    Attributes:
        heads: layer, head and difference between the mechanisms; see `differing_heads`.
        weights_NN: for each head, weights [N, N] by mechanism; rows are queries, columns are keys. Where a
            layer has fewer frames than the encoder's output, its rows and columns are repeated.
        spectrogram_TF: log-mel features, [T, F].
        labels: labels of the transcript with their spans among the N encoder frames.
        frame_s: duration of an encoder frame.
    """

    heads: list[tuple[int, int, float]]
    weights_NN: list[dict[str, Tensor]]
    spectrogram_TF: Tensor
    labels: list[tuple[str, TokenSpan]]
    frame_s: float


@torch.inference_mode()
def attention_maps(recognizer: Recognizer, audio: Tensor, text: str, names: Sequence[str]) -> AttentionMaps:
    """Return the weights of the heads that differ most under each mechanism, on a model's queries and keys.

    Args:
        recognizer: model of the softmax family.
        audio: [samples] waveform.
        text: transcript.
        names: mechanisms, see `build_mechanism`.

    Raises:
        UserError: audio too short for its transcript, or joined frames.
    """
    layers = layer_weights(recognizer.model, audio)
    chosen = differing_heads(layers, names)
    banks = FilterBanks(recognizer.model.config.features)
    features, frames = banks(audio.unsqueeze(0), torch.tensor([len(audio)]))
    log_probs, encoder_frames = recognizer.model(audio.unsqueeze(0), torch.tensor([len(audio)]))
    ids = recognizer.tokenizer.encode(text)
    spans = force_align(log_probs[0, : int(encoder_frames)], ids, topology=recognizer.model.config.topology)
    count, schedule = int(encoder_frames), recognizer.model.encoder.factors
    factors = [x for x in schedule if isinstance(x, int)]
    if len(factors) < len(layers):
        raise UserError(f"frames={joined_factors(schedule)}: expected a factor for each layer in maps")

    def weights(name: str, at: int, place: int) -> Tensor:
        weights_NN = layers[at - 1](name)[place - 1]
        for axis in range(2):  # one position of the layer may cover several frames of the encoder's output
            weights_NN = weights_NN.repeat_interleave(factors[at - 1], axis).narrow(axis, 0, count)
        return weights_NN

    return AttentionMaps(
        chosen,
        [{name: weights(name, at, place) for name in names} for at, place, _ in chosen],
        features[0, : int(frames)],
        list(zip(recognizer.tokenizer.tokens(ids), spans, strict=True)),
        recognizer.model.frame_s,
    )


def differing_heads(
    layers: Sequence[Callable[[str], Tensor]], names: Sequence[str]
) -> list[tuple[int, int, float]]:
    """Return the heads whose weights differ most between mechanisms, on the same queries and keys.

    The difference of a head is the L1 distance between the weights of a query, 0 … 2, averaged over queries
    and pairs of mechanisms.

    Args:
        layers: for each layer, a function that maps a mechanism to its weights, [H, N, S].
        names: mechanisms.

    Returns:
        Layer and head, from 1, and their difference, in descending order; at most two heads.
    """
    candidates = []
    for number, weights in enumerate(layers, start=1):
        maps_HNS = [weights(name) for name in names]
        differences_H = torch.zeros(len(maps_HNS[0]))
        pairs = list(itertools.combinations(maps_HNS, 2))
        for one, other in pairs:
            differences_H += (one - other).abs().sum(-1).mean(-1).cpu() / len(pairs)
        candidates += [(number, head, x) for head, x in enumerate(differences_H.tolist(), start=1)]
    return sorted(candidates, key=lambda entry: -entry[2])[:SHOWN]


@torch.inference_mode()
def approximation_errors(
    model: AcousticModel, utterances: Sequence[Tensor], names: Sequence[str]
) -> list[dict[str, float | int | str]]:
    """Return the L1 distance between the weights and full attention's, by layer and mechanism.

    The sum of |w − w_full| over keys, between 0 and 2, is averaged over queries, heads and utterances. The
    model runs with the mechanism it was trained with, so that errors don't accumulate over layers.

    Args:
        model: model of the softmax family.
        utterances: [samples] waveforms.
        names: mechanisms.

    Returns:
        Rows with `layer` (from 1), `mechanism` and `error`.
    """
    sums: dict[tuple[int, str], float] = {}
    positions: dict[int, int] = {}
    for audio in utterances:
        for number, weights in enumerate(layer_weights(model, audio), start=1):
            full_HNN = weights("full")
            positions[number] = positions.get(number, 0) + full_HNN.shape[-1]
            for name in names:
                distance_HN = (weights(name) - full_HNN).abs().sum(-1)
                total = float(distance_HN.mean(0).sum())
                sums[number, name] = sums.get((number, name), 0.0) + total
    return [
        {"layer": layer, "mechanism": name, "error": total / positions[layer]}
        for (layer, name), total in sums.items()
    ]


def layer_weights(model: AcousticModel, audio: Tensor) -> list[Callable[[str], Tensor]]:
    """Return, for every layer, a function from a mechanism's name to its dense weights [H, N, N].

    Raises:
        UserError: the audio is shorter than a frame. For errors of the functions see
            `SelfAttentionLayer.weights`.
    """
    layers: list[Callable[[str], Tensor]] = []

    def record(layer: SelfAttentionLayer, arguments: tuple[Tensor, ...], bias: dict[str, Any]) -> None:
        # All mechanisms get the same queries and keys, so no errors of earlier layers are included.
        layers.append(lambda name: layer.weights(name, arguments[0], **bias)[0])

    hooks = [layer.register_forward_pre_hook(record, with_kwargs=True) for layer in model.attention_layers()]
    try:
        _, frames = model(audio.unsqueeze(0), torch.tensor([len(audio)]))
    finally:
        for hook in hooks:
            hook.remove()
    if int(frames) == 0:
        raise UserError(f"audio of {len(audio)} samples is shorter than one encoder frame")
    return layers
