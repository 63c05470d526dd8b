"""Generates questions and entailment: short facts about people who share names.

Facts tell who was born, moved, worked or bought something, where and when: several answers have the same
type, and only the question tells which is right.

* Questions: the answer is a span of a context of 100 to 480 tokens, in the format of SQuAD. The context
  consists of facts; given a text, it is a passage with one to three facts among its sentences.
* Entailment: does a paraphrased fact follow from 40 to 110 tokens of facts? In RTE's format.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def listed(text: str) -> list[str]:
    """Return the words of a text."""
    return text.split()


FIRST = listed(
    "Anna Boris Clara David Elena Felix Greta Henry Irene Jonas Karin Louis Maria Oscar Paula Simon"
)
LAST = listed(
    "Adler Brown Costa Dubois Fischer Greene Hansen Keller Lopez Meyer Novak Olsen Rossi Stone Weber Young"
)
CITIES = listed(
    "Athens Berlin Cairo Dublin Geneva Havana Kiev Lima Madrid Nairobi Oslo Paris Quebec Rome Seoul Tokyo "
    "Vienna Warsaw Zurich London Boston Chicago Denver Sydney Delhi Lisbon Prague Moscow Milan Venice"
)
THINGS = listed(
    "violin telescope boat piano camera bicycle horse house garden clock lamp carpet painting guitar truck "
    "mirror table ring sword tent bell ladder engine statue trumpet"
)
JOBS = listed(
    "teacher doctor lawyer baker nurse pilot painter farmer judge singer writer soldier tailor butcher "
    "engineer journalist librarian sailor carpenter chemist"
)
FILLERS = (
    "The weather was mild that week.",
    "Nobody remembers the details any more.",
    "The letters were kept in a small box.",
    "It was a long and quiet summer.",
    "Many visitors came to see the market.",
    "The old road had been closed for years.",
)
# Sentence of a fact; questions with the part that answers them; paraphrases for entailment.
KINDS: dict[str, tuple[str, dict[str, str], tuple[str, ...]]] = {
    "born": (
        "{person} was born in {city} in {year}.",
        {"Where was {person} born?": "city", "In which year was {person} born?": "year"},
        ("{city} is the birthplace of {person}.", "{person} came into the world in {year}."),
    ),
    "move": (
        "{person} moved to {city} in {year}.",
        {"Which city did {person} move to?": "city", "When did {person} move to another city?": "year"},
        (
            "{person} went to live in {city}.",
            "{year} is the year when {person} changed the place of residence.",
        ),
    ),
    "work": (
        "{person} worked as a {job} in {city}.",
        {"What was {person}'s profession?": "job", "Where did {person} work?": "city"},
        ("{person} earned a living as a {job}.", "{city} is where {person} had a job."),
    ),
    "buy": (
        "{person} bought a {thing} in {city}.",
        {"What did {person} buy?": "thing", "Who bought a {thing}?": "person"},
        ("{person} became the owner of a {thing}.", "{person} went shopping in {city}."),
    ),
}


@dataclass
class Fact:
    """A fact: its kind, and the words in the places of its templates."""

    kind: str
    words: dict[str, str]

    @property
    def sentence(self) -> str:
        """The fact as a sentence of a context."""
        return KINDS[self.kind][0].format(**self.words)


def draw_facts(rng: random.Random, count: int) -> list[Fact]:
    """Return facts about people who share first and last names; no person has two facts of a kind."""
    firsts, lasts = (rng.sample(names, 2 + count // 8) for names in (FIRST, LAST))
    people = [f"{first} {last}" for first in firsts for last in lasts]
    pairs = [(person, kind) for person in people for kind in KINDS]
    facts = []
    things = rng.sample(THINGS, len(THINGS))  # no thing is bought twice, so that "who" has one answer
    for person, kind in rng.sample(pairs, min(count, len(pairs))):
        if kind == "buy" and not things:
            continue
        words = {"person": person, "city": rng.choice(CITIES), "job": rng.choice(JOBS)}
        words |= {"year": str(rng.randint(1900, 1999)), "thing": things.pop() if kind == "buy" else ""}
        facts.append(Fact(kind, words))
    return facts


def paragraph(rng: random.Random, facts: list[Fact], passage: list[str]) -> tuple[str, list[int]]:
    """Return a context and where each fact starts.

    Facts are at random places in the passage; without a passage, a filler follows about every third fact.
    """
    sentences = passage.copy()
    for fact in facts:
        place = rng.randint(0, len(sentences)) if passage else len(sentences)
        sentences.insert(place, fact.sentence)
        if not passage and rng.random() < 0.3:
            sentences.append(rng.choice(FILLERS))
    text = " ".join(sentences)
    return text, [text.index(fact.sentence) for fact in facts]


def questions(
    rng: random.Random, low: int, high: int, tokenizer: Any, each: int, text: list[str]
) -> list[dict[str, Any]]:
    """Return questions on one context of `low` to `high` tokens, as records of SQuAD with its context.

    The context consists of facts, or, with a text, of one to three facts in a passage of it.
    """
    while True:
        count = rng.randint(1, 3) if text else rng.randint(max(2, low // 14), max(3, high // 10))
        passage = []
        if text:
            first = rng.randrange(len(text))
            passage = text[first : first + rng.randint(1, 1 + high // 20)]
        facts = draw_facts(rng, count)
        context, starts = paragraph(rng, facts, passage)
        if low <= len(tokenizer(context, verbose=False)["input_ids"]) <= high:
            break
    made = []
    for index in rng.sample(range(len(facts)), min(each, len(facts))):
        fact = facts[index]
        template, part = rng.choice(list(KINDS[fact.kind][1].items()))
        answer = fact.words[part]
        # The person comes before the city and so on, so the first occurrence is the fact's.
        start = context.index(answer, starts[index])
        made.append(
            {
                "id": f"{rng.getrandbits(64):016x}",
                "question": template.format(**fact.words),
                "answers": [{"text": answer, "answer_start": start}],
                "context": context,
            }
        )
    return made


def pair(rng: random.Random, most: int = 8) -> tuple[str, str, int]:
    """Return a premise, a hypothesis and whether it is not entailed.

    A hypothesis that isn't entailed states a fact of the premise with a word that the premise lacks.

    Args:
        rng: random numbers.
        most: maximum number of facts in the premise; the minimum is half of it.
    """
    facts = draw_facts(rng, rng.randint(most // 2, most))
    premise, _ = paragraph(rng, facts, [])
    fact = rng.choice(facts)
    template = rng.choice(KINDS[fact.kind][2])
    wrong = rng.random() < 0.5
    if not wrong:
        return premise, template.format(**fact.words), 0
    part = rng.choice([part for part in fact.words if f"{{{part}}}" in template])
    others = {other.words[part] for other in draw_facts(rng, 100)}
    absent = sorted(word for word in others if word not in premise)
    return premise, template.format(**fact.words | {part: rng.choice(absent)}), 1


def write_data(folder: Path, tokenizer: Any, sizes: tuple[int, int], text: list[str]) -> None:
    """Write `squad/dev-v1.1.json` and `RTE/dev.tsv`, with other seeds than in training."""
    rng, rng_pairs = random.Random("questions"), random.Random("pairs")
    contexts: list[dict[str, Any]] = []
    while sum(len(x["qas"]) for x in contexts) < sizes[0]:
        asked = questions(rng, 100, 480, tokenizer, 2, text)
        context = asked[0].pop("context")
        for question in asked[1:]:
            del question["context"]
        contexts.append({"context": context, "qas": asked})
    (folder / "squad").mkdir(parents=True, exist_ok=True)
    (folder / "RTE").mkdir(parents=True, exist_ok=True)
    content = {"data": [{"title": "generated", "paragraphs": contexts}], "version": "1.1"}
    (folder / "squad" / "dev-v1.1.json").write_text(json.dumps(content, indent=1))
    rows = ["index\tsentence1\tsentence2\tlabel"]
    for index in range(sizes[1]):
        premise, hypothesis, wrong = pair(rng_pairs)
        rows.append(f"{index}\t{premise}\t{hypothesis}\t{'not_entailment' if wrong else 'entailment'}")
    (folder / "RTE" / "dev.tsv").write_text("\n".join(rows) + "\n")


def question_batches(tokenizer: Any, steps: int, seed: int, text: list[str]) -> Iterator[dict[str, Tensor]]:
    """Yield batches of questions.

    Short contexts of only facts come first, then contexts of up to 340 tokens, so that all fit into a window.
    """
    rng = random.Random(seed)
    for step in range(steps):
        short = step < 0.7 * steps
        low, high, size = (20, 60, 24) if short else (100, 340, 8)
        asked = [questions(rng, low, high, tokenizer, 1, [] if short else text)[0] for _ in range(size)]
        batch = tokenizer(
            [x["question"] for x in asked],
            [x["context"] for x in asked],
            padding=True,
            return_tensors="pt",
        )
        ends = []
        for row, x in enumerate(asked):
            (answer,) = x["answers"]
            first = answer["answer_start"]
            last = first + len(answer["text"]) - 1
            ends.append([batch.char_to_token(row, at, sequence_index=1) for at in (first, last)])
        starts_B, ends_B = torch.tensor(ends).T
        yield {**batch, "start_positions": starts_B, "end_positions": ends_B}


def pair_batches(tokenizer: Any, steps: int, seed: int, text: list[str]) -> Iterator[dict[str, Tensor]]:
    """Yield batches of premises and hypotheses; premises of two facts come first."""
    rng = random.Random(seed)
    for step in range(steps):
        growth = min(1.0, max(0.0, (step / steps - 0.3) / 0.4))
        drawn = [pair(rng, 2 + round(6 * growth)) for _ in range(16)]
        batch = tokenizer([x[0] for x in drawn], [x[1] for x in drawn], padding=True, return_tensors="pt")
        yield {**batch, "labels": torch.tensor([x[2] for x in drawn])}
