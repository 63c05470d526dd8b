"""ListOps: the value of a nested expression such as `[MAX 2 9 [MIN 4 7 ] 0 ]`.

Nangia and Bowman 2018, *ListOps: A Diagnostic Dataset for Latent Tree Learning*, with the operators and the
distribution of trees of Long Range Arena (Tay et al. 2021): minimum, maximum, median and sum
modulo 10 of 2 to 10 arguments, each of which is an expression with probability ¼ and otherwise a digit.
"""

import random

import numpy as np
from asr_recipes.longrange.items import FIXED_SEED, Item, ItemSource, randomness

SYMBOLS = (*map(str, range(10)), "[MIN", "[MAX", "[MED", "[SM", "]")  # a digit's number is its value
OPERATORS = range(10, 14)
END = 14
NESTED = 0.25  # probability that an argument is an expression
ARGUMENTS = (2, 10)
DEPTH = 10  # the innermost arguments are digits
SPREAD = 4  # maximum divided by minimum length


class _TooLong(Exception):
    """The expression exceeds the maximum length."""


class ListOps(ItemSource):
    """Generated expressions.

    Args:
        longest: maximum number of symbols; the minimum is a quarter of it (Long Range Arena: 500 to 2,000).
        seed: random seed of the training items.
    """

    classes = 10
    values = len(SYMBOLS)

    def __init__(self, longest: int, seed: int) -> None:
        self.longest = longest
        self.seed = seed

    def item(self, split: str, index: int) -> Item:
        """Return the symbols of an expression and its value."""
        seed = self.seed if split == "train" else FIXED_SEED
        symbols, value = draw_expression(randomness(split, seed, index), self.longest // SPREAD, self.longest)
        return Item(np.array(symbols, dtype=np.uint8), value)

    def describe(self) -> str:
        """Return the task and the lengths."""
        return f"ListOps of {self.longest // SPREAD} to {self.longest} symbols, generated"


def draw_expression(numbers: random.Random, shortest: int, longest: int) -> tuple[list[int], int]:
    """Draw an expression with a number of symbols in shortest … longest.

    Args:
        numbers: random numbers.
        shortest, longest: minimum and maximum number of symbols; longest ≥ 16.

    Returns:
        Indices into `SYMBOLS`, and the value, 0 … 9.

    Example:
        >>> symbols, value = draw_expression(random.Random(5), 4, 16)
        >>> " ".join(SYMBOLS[i] for i in symbols), value
        ('[MED 4 6 3 7 ]', 5)
    """
    while True:
        symbols: list[int] = []
        try:
            value = _nested(numbers, symbols, 1, longest)
        except _TooLong:
            continue
        if len(symbols) >= shortest:
            return symbols, value


def _argument(numbers: random.Random, symbols: list[int], depth: int, longest: int) -> int:
    """Append an argument and return its value."""
    if depth < DEPTH and numbers.random() < NESTED:
        return _nested(numbers, symbols, depth, longest)
    digit = int(10 * numbers.random())
    symbols.append(digit)
    return digit


def _nested(numbers: random.Random, symbols: list[int], depth: int, longest: int) -> int:
    """Append an operator with its arguments and return its value."""
    operator = OPERATORS[int(len(OPERATORS) * numbers.random())]
    symbols.append(operator)
    low, high = ARGUMENTS
    count = low + int((high - low + 1) * numbers.random())
    values = [_argument(numbers, symbols, depth + 1, longest) for _ in range(count)]
    symbols.append(END)
    if len(symbols) > longest:
        raise _TooLong
    match SYMBOLS[operator]:
        case "[MIN":
            return min(values)
        case "[MAX":
            return max(values)
        case "[SM":
            return sum(values) % 10
        case _:  # the median, rounded down
            values.sort()
            return (values[(count - 1) // 2] + values[count // 2]) // 2
