"""A task as the evaluation sees it: windows for the model, what to keep of its output, and scores."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asr.approximation import glue, squad
from asr.approximation.metrics import METRICS, Metric
from asr.approximation.options import Options
from asr.approximation.pretrained import TextModel
from asr.approximation.records import examples_digest
from asr.approximation.spans import Span, Window, best_spans, merged_spans, question_windows
from asr.errors import UserError
from asr.scoring.estimates import Values

Indices = NDArray[np.intp]


@dataclass(frozen=True)
class Scored:
    """Predictions of a system, and its scores on any set of examples.

    Attributes:
        metrics: functions of the indices of examples, by name; the main score is first.
        files: predictions by file name, as JSON data.
    """

    metrics: dict[str, Callable[[Indices], float]]
    files: dict[str, Any]


class TextTask:
    """A task of a text encoder.

    Args:
        name: name of the task.
        path: file with the examples.
        longest: tokens of the longest input.

    Attributes:
        model_class: class of transformers that loads the model.
        timed: part of the model whose time is measured.
        model: model of the task, once `load` has returned it.
        groups: examples that are resampled together.
    """

    model_class: str
    timed = "model"
    model: TextModel
    groups: list[Indices]

    def __init__(self, name: str, path: Path, longest: int) -> None:
        self.name, self.path, self.longest = name, path, longest

    def digest(self) -> str:
        """Return a hash of the examples."""
        return examples_digest(self.path)

    def load(self, folder: Path, device: str) -> TextModel:
        """Return the model in a folder; raise UserError if it doesn't suit the task."""
        self.model = TextModel(folder, self.model_class, device)
        self.model.check_length(self.longest)
        return self.model


class GlueTask(TextTask):
    """A task of GLUE: one text or two, a class or a number. Inputs that are too long are cut.

    Args:
        name: key of `glue.TASKS`.
        path: file with the examples.
        options: options of the command.
    """

    model_class = "AutoModelForSequenceClassification"

    def __init__(self, name: str, path: Path, options: Options) -> None:
        super().__init__(name, path, options.max_length or 128)  # as in the published fine-tuning of BERT
        self.format = glue.TASKS[name]
        self.examples = glue.read_glue(name, path)[: options.examples or None]
        self.labels = options.labels
        self.groups: list[Indices] = [np.array([index]) for index in range(len(self.examples))]
        self._outputs: list[int] = []

    def load(self, folder: Path, device: str) -> TextModel:
        """Return the model in a folder; raise UserError if its outputs aren't the classes."""
        model = super().load(folder, device)
        config, classes = model.model.config, self.format.classes
        if not classes:
            if config.num_labels != 1:
                raise UserError(f"{folder}: expected one output for {self.name}, found {config.num_labels}")
            return model
        names = self.labels or [str(config.id2label[index]) for index in range(config.num_labels)]
        where = "labels" if self.labels else f"{folder / 'config.json'}"
        self._outputs = glue.output_of_classes(classes, names, where)
        return model

    def windows(self) -> list[Window]:
        """Return one window per example; raise UserError if a window has no room for its texts."""
        tokenizer, pairs = self.model.tokenizer, bool(self.format.second)
        if self.longest < (least := tokenizer.num_special_tokens_to_add(pair=pairs) + 1 + pairs):
            raise UserError(
                f"max_length={self.longest}: expected at least {least} tokens, the special ones and one of "
                "each text"
            )
        encoded = tokenizer(
            [x.first for x in self.examples],
            [x.second for x in self.examples] if pairs else None,
            truncation=True,
            max_length=self.longest,
        )
        names = [name for name in tokenizer.model_input_names if name in encoded]
        return [
            Window(index, {name: encoded[name][index] for name in names}, [])
            for index in range(len(self.examples))
        ]

    def keep(self, output: Any, windows: list[Window], reference: Any) -> list[list[float]]:
        """Return the logits of each window."""
        logits: list[list[float]] = output.logits.float().tolist()
        return logits

    def score(self, kept: list[list[float]]) -> Scored:
        """Return predictions and scores; `kept` is in the order of `windows`."""
        true = np.array([x.label for x in self.examples])
        logits = np.array(kept)
        if self.format.classes:
            predicted = logits[:, self._outputs].argmax(-1).astype(float)
            named = [self.format.classes[int(index)] for index in predicted]
        else:
            predicted = logits[:, 0]
            named = predicted.tolist()
        metrics = {name: _score_of(METRICS[name], predicted, true) for name in self.format.metrics}
        return Scored(metrics, {"predictions": named})


class SquadTask(TextTask):
    """SQuAD 1.1: a span of the context answers the question; arguments as in `GlueTask`."""

    model_class = "AutoModelForQuestionAnswering"

    def __init__(self, name: str, path: Path, options: Options) -> None:
        super().__init__(name, path, options.max_length or 384)  # as in BERT's program
        self.options = options
        self.examples = squad.read_squad(path)[: options.examples or None]
        # Questions of a paragraph are resampled together: their answers depend on the same text.
        paragraphs: dict[int, list[int]] = {}
        for index, question in enumerate(self.examples):
            paragraphs.setdefault(question.paragraph, []).append(index)
        self.groups: list[Indices] = [np.array(indices) for indices in paragraphs.values()]
        self._window_examples: list[int] = []

    def windows(self) -> list[Window]:
        """Return the windows of all questions."""
        found = [
            window
            for index, question in enumerate(self.examples)
            for window in question_windows(
                self.model.tokenizer, question, index, self.longest, self.options.stride
            )
        ]
        self._window_examples = [window.example for window in found]
        return found

    def keep(self, output: Any, windows: list[Window], reference: Any) -> list[list[Span]]:
        """Return the best spans of each window."""
        starts_BN, ends_BN = output.start_logits.cpu(), output.end_logits.cpu()
        return [
            best_spans(
                starts_BN[row, : window.length],
                ends_BN[row, : window.length],
                window.offsets,
                self.options.max_answer,
                self.options.nbest,
            )
            for row, window in enumerate(windows)
        ]

    def score(self, kept: list[list[Span]]) -> Scored:
        """Return predictions and scores; `kept` is in the order of `windows`."""
        by_example: list[list[list[Span]]] = [[] for _ in self.examples]
        for example, spans in zip(self._window_examples, kept, strict=True):
            by_example[example].append(spans)
        predictions, nbest = {}, {}
        scores: dict[str, list[float]] = {"F1": [], "EM": []}
        for question, windows in zip(self.examples, by_example, strict=True):
            spans = merged_spans(windows, self.options.nbest)
            texts = [question.context[start:end].strip() for start, end, _ in spans]
            predictions[question.id] = text = texts[0] if texts else ""
            nbest[question.id] = [
                {"text": text, "start": start, "score": round(score, 4)}
                for text, (start, _, score) in zip(texts, spans, strict=True)
            ]
            scores["F1"].append(squad.best(squad.token_f1, text, question.answers))
            scores["EM"].append(squad.best(squad.exact_match, text, question.answers))
        metrics = {name: pooled(values, [1] * len(values)) for name, values in scores.items()}
        return Scored(metrics, {"predictions": predictions, "nbest": nbest})


def _score_of(metric: Metric, predicted: Values, true: Values) -> Callable[[Indices], float]:
    return lambda drawn: metric(predicted[drawn], true[drawn])


def pooled(amounts: Sequence[float], sizes: Sequence[int]) -> Callable[[Indices], float]:
    """Return the function of drawn examples that divides the sum of their amounts by that of their sizes."""
    above, below = np.array(amounts, dtype=np.float64), np.array(sizes)
    return lambda drawn: float(above[drawn].sum() / below[drawn].sum())
