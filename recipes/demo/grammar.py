"""Generates sentences in the style of business news from a small grammar, with random dictionary words."""

import random
import re
from collections.abc import Sequence

# symbol = alternative | alternative …; {name} refers to another symbol. There are no homophones (`to` and
# `for` are spoken in their reduced forms), so phones determine the words.
GRAMMAR = """
sentence = {company} said it will {plan} {time}
    | {company} said it {reported} {amount} {time}
    | {people} expect {company} to {plan}
    | {people} said {price} {moved} {percent} {time}
    | {price} {moved} {percent} {time}
    | {price} {moved} {percent} after {event}
    | {price} of {place} {moved} to {amount}
    | {person} {role} of {company} said {opinion}
    | {person} was named {role} of {company} {time}
    | {company} agreed to {plan} for {amount}
    | {company} {reported} {amount} in the {period}
    | the {official} told {people} that {opinion}
    | trading in {company} was {adjective} because of {event}
    | {opinion} but {people} are not so sure
    | in {place} {price} {moved} {percent}
    | {people} in {place} {believe} that {opinion}
    | {number} {workers} at {company} {left} {time}
    | {weather} in {place} {time}
    | there is {adjective} {thing} in {place}
    | {people} {believe} the {thing} is {adjective}
company = the company | the {kind} company | the {kind} group | {name} and {name} | {name} {industry}
    | national {industry} | american {industry} | the {place_adjective} {kind} maker
    | a unit of {name} {industry} | the bank of {place} | first {place} bank
kind = oil | steel | insurance | computer | drug | paper | airline | retail | food | tobacco
industry = motors | steel | financial | airlines | electric | foods | energy | chemical | systems
name = johnson | wilson | morgan | baker | jackson | taylor | murphy | sullivan | fischer | goldman
    | hughes | roberts | thompson | kelly
person = mister {name} | missus {name} | john {name} | mary {name} | george {name} | susan {name}
role = chairman | president | director | chief executive | vice chairman | treasurer
official = governor | secretary | judge | senator | minister | spokesman
people = analysts | investors | traders | economists | lawyers | dealers | customers | shareholders
    | some {people_plain} | most {people_plain} | many {people_plain}
people_plain = analysts | investors | traders | managers | brokers | bankers
workers = workers | employees | engineers | pilots | managers
believe = believe | think | say | fear | hope | doubt
left = were dismissed | went on strike | returned to work | joined a union | lost good jobs
place = boston | chicago | texas | japan | germany | london | canada | europe | california | france
    | mexico | asia | washington | new york
place_adjective = japanese | german | british | french | american | european | swedish
plan = buy {amount} of its own shares
    | sell its {kind} business
    | close {number} plants in {place}
    | open an office in {place}
    | pay a dividend of {small} cents a share
    | raise its prices {percent}
    | reduce costs to {amount}
    | build a factory near {place}
    | offer {amount} in bonds
    | begin a joint venture with {company}
    | cut {number} jobs
    | change its name
    | review the {thing}
reported = reported a profit of | had a loss of | earned | lost | borrowed | raised | spent
amount = {number} dollars | {number} million dollars | {small} billion dollars | about {number} million
number = {small} | {ten} | {ten} {digit} | {small} hundred | {small} thousand | a hundred and {ten}
small = {digit} | ten | eleven | twelve | fifteen | sixteen | nineteen
digit = two | three | four | five | six | seven | eight | nine
ten = twenty | thirty | forty | fifty | sixty | seventy | eighty | ninety
percent = {number} percent | {digit} point {digit} percent | a quarter | nearly half | sharply | again
price = the dollar | gold | the stock | shares | interest rates | {kind} prices | the index | bonds
    | exports | orders | sales of {goods} | the price of {goods}
goods = coffee | sugar | cotton | copper | natural gas | houses | cars | machines | silver | corn
moved = rose | fell | climbed | dropped | slipped | gained | jumped | was unchanged or {moved_less}
moved_less = higher | lower
time = on {day} | last {season} | this {season} | next {season} | in {month} | today | yesterday
    | in the {period} | during the {season} | late {day} | {digit} years ago | at the end of {month}
day = monday | tuesday | wednesday | thursday | friday
month = january | february | march | april | june | july | august | september | october | december
season = year | month | week | spring | summer | autumn
period = first quarter | second quarter | third quarter | fourth quarter | past decade
event = the {official} resigned | the merger failed | a {adjective} report from {place} | heavy trading
    | the election in {place} | a strike in {place} | an accident at the plant | rumors about {company}
opinion = the {thing} would be {adjective}
    | the {thing} was {adjective}
    | inflation could rise {percent}
    | the economy is growing again
    | {price} should be {adjective}
    | nobody wants a {adjective} {thing}
    | they have a choice
    | more {thing} is needed
    | we must wait until {day}
adjective = strong | heavy | large | small | cheap | risky | useful | unusual | foreign | steady
    | private | public | major | thorough | enough | pleasant
thing = market | budget | deficit | offer | project | decision | agreement | measure | law | program
    | management | research | demand | pressure | growth | future | television | treasure | vision
weather = rain is expected | clouds and showers | it was warm and dry | strong winds | thick fog
"""

_SYMBOL = re.compile(r"{(\w+)}")
_ARTICLES = {"a", "an", "the"}


def _parse(grammar: str) -> dict[str, list[str]]:
    lines = grammar.replace("\n    | ", " | ").strip().splitlines()
    rules = (line.split(" = ", maxsplit=1) for line in lines)
    return {symbol: alternatives.split(" | ") for symbol, alternatives in rules}


RULES = _parse(GRAMMAR)


def grammar_words() -> list[str]:
    """Return all words of the grammar, sorted."""
    return sorted(
        {word for lines in RULES.values() for line in lines for word in _SYMBOL.sub("", line).split()}
    )


def make_sentence(rng: random.Random, random_words: Sequence[str], share: float) -> list[str]:
    """Draw a sentence; each word except articles becomes one of `random_words` with probability `share`."""
    text = "{sentence}"
    while match := _SYMBOL.search(text):
        text = text[: match.start()] + rng.choice(RULES[match[1]]) + text[match.end() :]
    return [
        rng.choice(random_words) if word not in _ARTICLES and rng.random() < share else word
        for word in text.split()
    ]
