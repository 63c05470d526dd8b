"""Generated questions and entailment, checked by reading the contexts again."""

import random
import re

from asr_recipes.questions import facts as tool

# Facts as regular expressions, independent of the recipe's templates.
FACTS = {
    "born": r"(?P<person>\w+ \w+) was born in (?P<city>\w+) in (?P<year>\d+)",
    "move": r"(?P<person>\w+ \w+) moved to (?P<city>\w+) in (?P<year>\d+)",
    "work": r"(?P<person>\w+ \w+) worked as a (?P<job>\w+) in (?P<city>\w+)",
    "buy": r"(?P<person>\w+ \w+) bought a (?P<thing>\w+) in (?P<city>\w+)",
}
ASKED = {
    r"Where was (?P<person>.+) born": ("born", "city"),
    r"In which year was (?P<person>.+) born": ("born", "year"),
    r"Which city did (?P<person>.+) move to": ("move", "city"),
    r"When did (?P<person>.+) move to": ("move", "year"),
    r"What was (?P<person>.+)'s profession": ("work", "job"),
    r"Where did (?P<person>.+) work": ("work", "city"),
    r"What did (?P<person>.+) buy": ("buy", "thing"),
    r"Who bought a (?P<thing>.+)\?": ("buy", "person"),
}
CLAIMED = {
    r"(?P<city>\w+) is the birthplace of (?P<person>\w+ \w+)": "born",
    r"(?P<person>\w+ \w+) came into the world in (?P<year>\d+)": "born",
    r"(?P<person>\w+ \w+) went to live in (?P<city>\w+)": "move",
    r"(?P<year>\d+) is the year when (?P<person>\w+ \w+) changed": "move",
    r"(?P<person>\w+ \w+) earned a living as a (?P<job>\w+)": "work",
    r"(?P<city>\w+) is where (?P<person>\w+ \w+) had a job": "work",
    r"(?P<person>\w+ \w+) became the owner of a (?P<thing>\w+)": "buy",
    r"(?P<person>\w+ \w+) went shopping in (?P<city>\w+)": "buy",
}


def tokenizer(text: str, verbose: bool) -> dict[str, list[str]]:
    """Return words and marks as tokens."""
    return {"input_ids": re.findall(r"\w+|[^\w\s]", text)}


def facts(context: str, kind: str) -> list[dict[str, str]]:
    return [found.groupdict() for found in re.finditer(FACTS[kind], context)]


def matching(kind: str, words: dict[str, str], context: str) -> list[dict[str, str]]:
    return [fact for fact in facts(context, kind) if words.items() <= fact.items()]


def test_each_question_has_one_answer_and_distractors_of_its_type() -> None:
    rng = random.Random(0)
    distractors = []
    for _ in range(40):
        for asked in tool.questions(rng, 60, 300, tokenizer, 2, []):
            ((pattern, (kind, part)),) = [x for x in ASKED.items() if re.match(x[0], asked["question"])]
            words = re.match(pattern, asked["question"]).groupdict()
            (fact,) = matching(kind, words, asked["context"])
            (answer,) = asked["answers"]
            start = answer["answer_start"]
            assert answer["text"] == fact[part]
            assert asked["context"][start : start + len(answer["text"])] == answer["text"]
            values = {x[part] for kinds in FACTS for x in facts(asked["context"], kinds) if part in x}
            distractors.append(len(values) - 1)
    assert sum(distractors) / len(distractors) > 3


def test_facts_stand_in_a_passage_of_a_text() -> None:
    text = [f"Line {number} of the text has no fact." for number in range(500)]
    rng = random.Random(0)
    places = set()
    for _ in range(40):
        for asked in tool.questions(rng, 60, 300, tokenizer, 2, text):
            sentences = re.findall(r"[^.]+\.", asked["context"])
            lines = [int(found) for found in re.findall(r"Line (\d+)", asked["context"])]
            assert lines == list(range(lines[0], lines[-1] + 1))
            assert 1 <= len(sentences) - len(lines) <= 3
            (answer,) = asked["answers"]
            start = answer["answer_start"]
            assert asked["context"][start : start + len(answer["text"])] == answer["text"]
            ((pattern, (kind, part)),) = [x for x in ASKED.items() if re.match(x[0], asked["question"])]
            words = re.match(pattern, asked["question"]).groupdict()
            assert [fact[part] for fact in matching(kind, words, asked["context"])] == [answer["text"]]
            places.add(asked["context"].count(".", 0, start))
    assert len(places) > 10


def test_pairs_are_labelled_right_and_balanced() -> None:
    rng = random.Random(0)
    labels = []
    for _ in range(300):
        premise, hypothesis, wrong = tool.pair(rng)
        ((pattern, kind),) = [x for x in CLAIMED.items() if re.match(x[0], hypothesis)]
        words = re.match(pattern, hypothesis).groupdict()
        assert bool(matching(kind, words, premise)) == (not wrong)
        assert sum(value not in premise for value in words.values()) == wrong
        labels.append(wrong)
    assert 0.4 < sum(labels) / len(labels) < 0.6
