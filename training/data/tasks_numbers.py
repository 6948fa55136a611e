"""Tasks with numbers that are trained and not part of `deepinfer eval`: sums with thoughts,
counting, sorting, dates.

Each is a pure function of a random generator, a split and a size, like those of
deepinfer/tools/eval_tasks.py.
"""

from datetime import date, timedelta
from random import Random
from typing import Final

from deepinfer.tools.eval_examples import (
    Answer,
    Example,
    Split,
    Task,
    draw_until,
    user,
)
from deepinfer.tools.eval_tasks import draw_sum, make_sum

_THINKING = {"thinking": True}
_MONTHS: Final = (
    "January February March April May June July August September October November December"
).split()


def column_steps(a: int, sign: str, b: int) -> str:
    """A sum as it is done on paper, from the last digit on: '7+8=15 write 5 carry 1'."""
    steps, carry = [], 0
    width = len(str(max(a, b)))
    for x, y in zip(reversed(f"{a:0{width}}"), reversed(f"{b:0{width}}"), strict=True):
        extra = f"{sign}{carry}" if carry else ""
        value = int(x) + int(y) + carry if sign == "+" else int(x) - int(y) - carry
        digit, carry = value % 10, abs(value // 10)
        more = f" carry {carry}" if carry else ""
        steps.append(f"{x}{sign}{y}{extra}={value} write {digit}{more}")
    if carry:
        steps.append(f"write {carry}")
    return "\n".join(steps)


def make_thought_sum(rng: Random, split: Split, size: int) -> Example:
    """A sum with thoughts; size: digits of both numbers."""
    a, sign, b, key = draw_sum(rng, split, size)
    result = a + b if sign == "+" else a - b
    answer = Answer(str(result), column_steps(a, sign, b))
    question = user(f"What is {a} {sign} {b}?")
    return Example("thought_sum", (question,), answer, options=_THINKING, keys=(key,))


def make_product(rng: Random, split: Split, size: int) -> Example:
    """A product of one digit and `size` digits, with thoughts: one product for each digit."""

    def draw() -> tuple[int, int]:
        return rng.randint(2, 9), rng.randrange(10 ** (size - 1), 10**size)

    (a, b), key = draw_until(draw, split, lambda pair: f"product {sorted(pair)}")
    steps, total = [], 0
    for place, digit in enumerate(reversed(str(b))):
        part = a * int(digit) * 10**place
        steps.append(f"{a}*{int(digit) * 10**place}={part}")
        if place:
            steps.append(f"{total}+{part}={total + part}")
        total += part
    answer = Answer(str(total), "\n".join(steps))
    question = user(f"What is {a} * {b}?")
    return Example("product", (question,), answer, options=_THINKING, keys=(key,))


def make_count_up(rng: Random, split: Split, size: int) -> Example:
    """`size` numbers in a row, up or down."""
    step = rng.choice((1, 1, 1, -1, 2, 5, 10))
    low = -step * size if step < 0 else 0
    start, key = draw_until(
        lambda: rng.randrange(low, low + 900), split, lambda start: f"count {start} {step} {size}"
    )
    numbers = [start + step * place for place in range(size)]
    how = {1: "", -1: " down"}.get(step, f" in steps of {step}")
    question = user(f"Count{how} from {start} to {numbers[-1]}.")
    return Example("count_up", (question,), Answer(" ".join(map(str, numbers))), keys=(key,))


def make_sort(rng: Random, split: Split, size: int) -> Example:
    """`size` numbers below 100, in order."""
    numbers, key = draw_until(
        lambda: [rng.randrange(100) for _ in range(size)], split, lambda drawn: f"sort {drawn}"
    )
    question = user(f"Sort these numbers: {' '.join(map(str, numbers))}")
    answer = Answer(" ".join(map(str, sorted(numbers))))
    return Example("sort", (question,), answer, keys=(key,))


def make_date(rng: Random, split: Split, size: int) -> Example:
    """A date written another way, or the date up to `size` days later."""
    first = date(1950, 1, 1)
    day, key = draw_until(
        lambda: first + timedelta(days=rng.randrange(36525)), split, lambda day: f"date {day}"
    )
    words = f"{day.day} {_MONTHS[day.month - 1]} {day.year}"
    kind, days = rng.randrange(3), rng.randint(1, size)
    if kind == 0:
        question, answer = f"Write the date {day} in words.", words
    elif kind == 1:
        question, answer = f"Write {words} as YYYY-MM-DD.", str(day)
    else:
        plural = "s" if days > 1 else ""
        question = f"Which date is {days} day{plural} after {day}?"
        answer = str(day + timedelta(days=days))
    return Example("date", (user(question),), Answer(answer), keys=(key,))


NUMBER_TASKS: Final = (
    Task("small_sum", make_sum, (1, 1)),
    Task("thought_sum", make_thought_sum, (1, 4)),
    Task("product", make_product, (1, 2)),
    Task("count_up", make_count_up, (3, 20)),
    Task("sort", make_sort, (2, 8)),
    Task("date", make_date, (1, 9)),
)
