"""Label topologies: the outputs that a label emits, frame by frame.

In both, output 0 is blank or silence, which any number of frames may emit between labels and at both ends of
an utterance. They differ in the outputs of a label:

* `ctc` (Graves et al. 2006): its output in every frame. Equal neighbours need a blank between them.
* `hmm` (Povey et al. 2016, *Purely sequence-trained neural networks for ASR based on lattice-free MMI*;
  Hadian et al. 2018, *End-to-end speech recognition using lattice-free MMI*): one output in its first frame,
  and another in all later ones. Outputs 1 … V − 1 are the first ones of labels 1 … V − 1, V … 2V − 2 the
  later ones.
"""

import torch
from torch import Tensor


def output_count(topology: str, vocabulary: int) -> int:
    """Return the number of outputs for V labels, blank included."""
    return 2 * vocabulary - 1 if topology == "hmm" else vocabulary


def split_outputs(outputs: Tensor, topology: str) -> tuple[Tensor, Tensor]:
    """Return the scores with which each label starts, and those with which it continues.

    Args:
        outputs: [..., V] for `ctc`, [..., 2V − 1] for `hmm`.
        topology: `ctc` or `hmm`.

    Returns:
        [..., V] each; both have output 0 at index 0. For `ctc` they are the same tensor.
    """
    if topology == "ctc":
        return outputs, outputs
    vocabulary = (outputs.shape[-1] + 1) // 2
    first = outputs[..., :vocabulary]
    return first, torch.cat((outputs[..., :1], outputs[..., vocabulary:]), dim=-1)


def joined_outputs(first: Tensor, later: Tensor, topology: str) -> Tensor:
    """Invert `split_outputs` for sums such as occupancies; output 0 of `later` counts only for `ctc`."""
    return first + later if topology == "ctc" else torch.cat((first, later[..., 1:]), dim=-1)
