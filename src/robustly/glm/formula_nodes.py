"""What is a formula made of? Trees of columns, numbers, words, signs and functions; the kinds, and what they read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias


@dataclass(frozen=True)
class Column:
    name: str


@dataclass(frozen=True)
class Number:
    value: float


@dataclass(frozen=True)
class Text:
    """A word to compare with."""

    value: str


@dataclass(frozen=True)
class Operation:
    sign: str
    of: tuple[Expression, ...]


@dataclass(frozen=True)
class Call:
    """A function of numbers, from the list."""

    name: str
    of: tuple[Expression, ...]


@dataclass(frozen=True)
class Learned:
    """A function that looks at all fitted rows once: where knots and centres are. `state` is what it saw."""

    name: str
    of: Expression
    options: Mapping[str, Any]
    state: dict[Any, Any] = field(default_factory=dict, compare=False)
    text: str = ""


Expression: TypeAlias = Column | Number | Text | Operation | Call | Learned


@dataclass(frozen=True)
class Category:
    """One coefficient or contrast a level. The contrasts are used once; their coding matrix is what stays."""

    of: Expression
    contrast: str = "treatment"
    arguments: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
    levels: list[Any] | None = None
    spans_intercept: bool = True
    buckets: int | None = None
    """Of ``hashed``: words are counted into so many levels by a checksum."""


def walk(node: Expression | Category) -> Iterator[Expression]:
    """The node and all that it is made of."""
    if isinstance(node, Category):
        yield from walk(node.of)
        return
    yield node
    if isinstance(node, Operation | Call):
        for inner in node.of:
            yield from walk(inner)
    elif isinstance(node, Learned):
        yield from walk(node.of)


def columns_of(node: Expression | Category) -> set[str]:
    """The columns an expression reads."""
    return {one.name for one in walk(node) if isinstance(one, Column)}


def numeric_columns_of(node: Expression | Category) -> set[str]:
    """The columns an expression computes with: those that are compared with words or made categories are not among them."""
    if isinstance(node, Learned):
        return columns_of(node.of)
    if isinstance(node, Operation | Call):
        if any(isinstance(one, Text) for one in node.of):
            return set()
        own = {one.name for one in node.of if isinstance(one, Column)}
        return own.union(*(numeric_columns_of(one) for one in node.of))
    return set()
