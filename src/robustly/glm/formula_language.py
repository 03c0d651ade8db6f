"""What may a formula say? Columns, numbers, arithmetic, and functions from a list; nothing of it is ever run as Python.

The pieces of a formula are written like Python expressions, ``bs(log(age), df=4)``. Here such a text is read into a small
tree (:mod:`robustly.glm.formula_nodes`), and anything else is refused by name: attributes other than ``np.log`` and its like, methods,
subscripts, lambdas, formatted texts, comprehensions, names with underscores at their ends. Whether a name is a function or a
column follows from where it stands, so a column called ``log``, ``np`` or ``contr`` shadows nothing.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from robustly.errors import ModelError, did_you_mean
from robustly.glm.formula_nodes import Call, Category, Column, Expression, Learned, Number, Operation, Text, walk

LONGEST_EXPRESSION = 4000
DEEPEST = 100

# Functions of numbers, row by row: how many arguments each takes.
FUNCTIONS: dict[str, tuple[Callable[..., Any], int]] = {
    **{
        name: (getattr(np, name), 1)
        for name in (
            "log", "log1p", "log2", "log10", "exp", "expm1", "exp2", "sqrt", "cbrt", "square", "abs", "absolute", "sign",
            "floor", "ceil", "rint", "sin", "cos", "tan", "arcsin", "arccos", "arctan", "sinh", "cosh", "tanh", "arcsinh",
            "arccosh", "arctanh",
        )
    },
    "round": (np.rint, 1),
    **{name: (getattr(np, name), 2) for name in ("minimum", "maximum", "power", "hypot", "arctan2")},
    "where": (np.where, 3),
    "clip": (np.clip, 3),
}  # fmt: skip
CONSTANTS = {"pi": math.pi, "e": math.e}
# Functions that learn from the fitted rows, with their options in order of place.
LEARNED: dict[str, tuple[str, ...]] = {
    "center": (),
    "scale": ("center", "scale", "ddof"),
    "standardize": ("center", "rescale", "ddof"),
    "poly": ("degree", "raw"),
    "bs": ("df", "knots", "degree", "include_intercept", "lower_bound", "upper_bound", "extrapolation"),
    "cr": ("df", "knots", "lower_bound", "upper_bound", "constraints", "cyclic", "extrapolation"),
    "cs": ("df", "knots", "lower_bound", "upper_bound", "constraints", "cyclic", "extrapolation"),
    "cc": ("df", "knots", "lower_bound", "upper_bound", "constraints", "cyclic", "extrapolation"),
}
CONTRASTS = ("treatment", "SAS", "sum", "helmert", "diff", "poly", "custom")
PATSY_CONTRASTS = {"Treatment": "treatment", "Sum": "sum", "Helmert": "helmert", "Diff": "diff", "Poly": "poly"}
ALLOWED = (
    "A formula takes columns, numbers, + - * / ** // %, comparisons, & | ~, log, exp, sqrt, abs, sin, where and their like "
    "(alone or as np.log), I, Q, center, scale, standardize, poly, bs, cr, cs, cc, C and hashed. Compute anything else into "
    "a column of the data first."
)
BINARY: dict[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: "**", ast.FloorDiv: "//", ast.Mod: "%",
    ast.BitAnd: "&", ast.BitOr: "|", ast.BitXor: "^",
}  # fmt: skip
UNARY: dict[type[ast.unaryop], str] = {ast.USub: "negative", ast.UAdd: "positive", ast.Invert: "~"}
COMPARE: dict[type[ast.cmpop], str] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip


def read_expression(text: str, columns: Collection[str]) -> Expression | Category:
    """The tree of an expression over these columns, or a :class:`~robustly.errors.ModelError` that says what may stand there."""
    from formulaic.utils.code import sanitize_variable_names

    if len(text) > LONGEST_EXPRESSION:
        raise ModelError(
            f"the formula holds an expression of {len(text)} characters; up to {LONGEST_EXPRESSION} are read."
        )
    aliases: dict[str, str] = {}
    try:
        tree = ast.parse(sanitize_variable_names(text, {}, aliases), mode="eval").body
        return _Reader(text, aliases, columns).factor(tree)
    except ModelError:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        said = error.msg if isinstance(error, SyntaxError) else "it is nested too deeply or holds odd characters"
        raise ModelError(f"the formula holds {quoted(text)}, which cannot be read: {said}. {ALLOWED}") from None


@dataclass(frozen=True)
class _Reader:
    text: str
    aliases: Mapping[str, str]
    columns: Collection[str]

    def refuse(self, node: ast.AST, what: str, remedy: str = ALLOWED) -> ModelError:
        piece = quoted(ast.unparse(node))
        inside = "" if piece == quoted(self.text) else f" in {quoted(self.text)}"
        return ModelError(f"the formula holds {piece}{inside}, {what}. {remedy}")

    def factor(self, node: ast.expr) -> Expression | Category:
        """A whole factor: only here may categories stand."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id == "C":
                return self.category(node)
            if node.func.id == "hashed":
                return self.hashed(node)
            if node.func.id == "I":
                (inner,) = self.positional(node, 1)
                return self.factor(inner)
        return self.expression(node, 0)

    def expression(self, node: ast.expr, depth: int) -> Expression:
        if depth > DEEPEST:
            raise ModelError(
                f"the formula holds {quoted(self.text)}, nested more than {DEEPEST} deep. Write it flatter."
            )
        if isinstance(node, ast.Name):
            return Column(self.column(node))
        if isinstance(node, ast.Constant):
            return self.constant(node)
        if isinstance(node, ast.Attribute):
            return self.dotted(node)
        if isinstance(node, ast.BinOp) and type(node.op) in BINARY:
            pair = (self.expression(node.left, depth + 1), self.expression(node.right, depth + 1))
            return self.checked(node, Operation(BINARY[type(node.op)], pair))
        if isinstance(node, ast.UnaryOp) and type(node.op) in UNARY:
            return self.checked(node, Operation(UNARY[type(node.op)], (self.expression(node.operand, depth + 1),)))
        if isinstance(node, ast.Compare) and all(type(op) in COMPARE for op in node.ops):
            if len(node.ops) > 1:
                raise self.refuse(node, "a chain of comparisons", "Write (a < x) & (x < b).")
            pair = (self.expression(node.left, depth + 1), self.expression(node.comparators[0], depth + 1))
            return self.checked(node, Operation(COMPARE[type(node.ops[0])], pair))
        if isinstance(node, ast.Call):
            return self.call(node, depth)
        if isinstance(node, ast.BoolOp):
            raise self.refuse(node, "with and/or between columns", "Write & and | with brackets: (a > 1) & (b < 2).")
        kinds = {
            ast.Subscript: "a subscript", ast.Lambda: "a lambda", ast.JoinedStr: "a formatted text", ast.IfExp: "an if",
            ast.ListComp: "a comprehension", ast.GeneratorExp: "a comprehension", ast.DictComp: "a comprehension",
            ast.SetComp: "a comprehension", ast.NamedExpr: "an assignment", ast.Starred: "a star",
        }  # fmt: skip
        raise self.refuse(node, f"{kinds.get(type(node), 'something')} that no formula takes")

    def column(self, node: ast.Name) -> str:
        name = self.aliases.get(node.id, node.id)
        if name.startswith("__") or name.endswith("__"):
            raise self.refuse(node, "a name with double underscores")
        return name

    def constant(self, node: ast.Constant) -> Expression:
        if isinstance(node.value, str):
            return Text(node.value)
        if isinstance(node.value, int | float):
            return Number(_as_float(node.value))
        raise self.refuse(node, "a value that is neither number nor word")

    def dotted(self, node: ast.Attribute) -> Expression:
        """A column whose name has dots, or one of NumPy's constants."""
        name = _dotted_name(node)
        if name in self.columns:
            return Column(str(name))
        if name in ("np.pi", "np.e"):
            return Number(CONSTANTS[node.attr])
        raise self.refuse(
            node, "an attribute, or a column that the data do not have" + did_you_mean(str(name), self.columns)
        )

    def checked(self, node: ast.AST, made: Operation) -> Operation:
        """Words can be compared for being equal, and nothing else."""
        if made.sign not in ("==", "!=") and any(isinstance(one, Text) for one in made.of):
            raise self.refuse(node, "which computes with a word")
        return made

    def call(self, node: ast.Call, depth: int) -> Expression:
        name, bare = self.function(node)
        if bare and name == "I":
            (inner,) = self.positional(node, 1)
            return self.expression(inner, depth + 1)
        if bare and name == "Q":
            (inner,) = self.positional(node, 1)
            if not (isinstance(inner, ast.Constant) and isinstance(inner.value, str)):
                raise self.refuse(node, "but Q takes the name of one column in quotes", 'Write Q("the name").')
            return Column(inner.value)
        if bare and name in LEARNED:
            return self.learned(node, name, depth)
        if name in FUNCTIONS:
            arguments = self.positional(node, FUNCTIONS[name][1])
            of = tuple(self.expression(one, depth + 1) for one in arguments)
            if any(isinstance(one, Text) for one in of):
                raise self.refuse(node, "which computes with a word")
            return Call(name, of)
        if bare and name in ("C", "hashed"):
            raise self.refuse(node, f"where {name}(...) is inside another expression", f"Let {name}(...) stand alone.")
        if bare and name == "lag":
            raise self.refuse(
                node, "but rows are taken one by one", "Make the lagged values a column of the data first."
            )
        known = [*FUNCTIONS, *LEARNED, "C", "I", "Q", "hashed"]
        raise self.refuse(node, "a function that formulas do not know" + did_you_mean(name, known))

    def function(self, node: ast.Call) -> tuple[str, bool]:
        """The name of what is called, and whether it stands without ``np.``"""
        if isinstance(node.func, ast.Name):
            return node.func.id, True
        if isinstance(node.func, ast.Attribute) and _dotted_name(node.func) == f"np.{node.func.attr}":
            return node.func.attr, False
        raise self.refuse(node, "a call of something that is not a function by its name")

    def positional(self, node: ast.Call, count: int) -> list[ast.expr]:
        if node.keywords or len(node.args) != count or any(isinstance(one, ast.Starred) for one in node.args):
            raise self.refuse(node, f"which needs {count} argument{'s' if count > 1 else ''} without names")
        return node.args

    def options(self, node: ast.Call, order: tuple[str, ...]) -> dict[str, Any]:
        """What follows the first argument, by name."""
        if not node.args or isinstance(node.args[0], ast.Starred):
            raise self.refuse(node, "without a column to work on")
        if len(node.args) - 1 > len(order):
            raise self.refuse(node, f"with {len(node.args)} arguments, but it takes {len(order) + 1}")
        given = dict(zip(order, map(self.literal, node.args[1:])))
        for keyword in node.keywords:
            if keyword.arg not in order or keyword.arg in given:
                raise self.refuse(node, f"with the argument {keyword.arg!r}, which it does not take")
            given[keyword.arg] = self.literal(keyword.value)
        return given

    def learned(self, node: ast.Call, name: str, depth: int) -> Learned:
        given = self.options(node, LEARNED[name])
        of = self.expression(node.args[0], depth + 1)
        if isinstance(of, Text):
            raise self.refuse(node, "which computes with a word")
        if any(isinstance(one, Learned) and one.name not in ("center", "scale", "standardize") for one in walk(of)):
            raise self.refuse(node, "which puts several columns into a function of one")
        return Learned(name, of, given, text=ast.unparse(node))

    def category(self, node: ast.Call) -> Category:
        order = ("contrasts", "levels", "spans_intercept")
        given: dict[str, ast.expr] = dict(zip(order[:1], node.args[1:]))
        given |= {str(keyword.arg): keyword.value for keyword in node.keywords}
        if not 1 <= len(node.args) <= 2 or not set(given) <= set(order) or isinstance(node.args[0], ast.Starred):
            raise self.refuse(node, "but C takes a column, contrasts, levels= and spans_intercept=")
        of = self.expression(node.args[0], 0)
        contrast, arguments = self.contrast(given["contrasts"]) if "contrasts" in given else ("treatment", ((), {}))
        levels = self.literal(given["levels"]) if "levels" in given else None
        spans = self.literal(given["spans_intercept"]) if "spans_intercept" in given else True
        if not isinstance(levels, list | None) or not isinstance(spans, bool):
            raise self.refuse(node, "where levels= is not a list or spans_intercept= not True or False")
        return Category(of, contrast, arguments, levels, spans)

    def contrast(self, node: ast.expr) -> tuple[str, tuple[tuple[Any, ...], dict[str, Any]]]:
        called, arguments = node, ((), {})  # type: ignore[var-annotated]
        if isinstance(node, ast.Call):
            called = node.func
            if any(keyword.arg is None for keyword in node.keywords):
                raise self.refuse(node, "with a star")
            arguments = (
                tuple(map(self.literal, node.args)),
                {str(keyword.arg): self.literal(keyword.value) for keyword in node.keywords},
            )
        if isinstance(called, ast.Name) and called.id in PATSY_CONTRASTS:
            positional, named = arguments
            if called.id == "Treatment" and "reference" in named:
                named = {"base" if key == "reference" else key: value for key, value in named.items()}
            return PATSY_CONTRASTS[called.id], (positional, named)
        if isinstance(called, ast.Attribute) and _dotted_name(called) in {f"contr.{one}" for one in CONTRASTS}:
            return called.attr, arguments
        if isinstance(node, ast.Dict | ast.List | ast.Tuple):
            return "custom", ((self.literal(node),), {})
        if isinstance(node, ast.Constant) and node.value is None:
            return "treatment", ((), {})
        raise self.refuse(
            node,
            "which is no contrast",
            "There are contr.treatment, SAS, sum, helmert, diff, poly, and tables of numbers.",
        )

    def hashed(self, node: ast.Call) -> Category:
        given = self.options(node, ("levels",))
        buckets = given.get("levels")
        if not isinstance(buckets, int) or isinstance(buckets, bool) or not 1 <= buckets <= 10_000:
            raise self.refuse(node, "but hashed needs levels= from 1 to 10000")
        return Category(self.expression(node.args[0], 0), spans_intercept=False, buckets=buckets)

    def literal(self, node: ast.expr) -> Any:
        """Numbers, words, True, False, None, and lists and tables of them."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | bool | None):
            if isinstance(node.value, int) and abs(node.value) > 2**53:
                raise self.refuse(node, "a number that is too large")
            return node.value
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            value = self.literal(node.operand)
            if isinstance(value, int | float):
                return -value
        if isinstance(node, ast.List | ast.Tuple):
            return [self.literal(one) for one in node.elts]
        if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
            return {
                self.literal(key): self.literal(value) for key, value in zip(node.keys, node.values) if key is not None
            }
        raise self.refuse(node, "where a number, a word or a list of them has to stand")


def _dotted_name(node: ast.expr) -> str | None:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else None


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


def quoted(text: str, longest: int = 80) -> str:
    """A text in quotes, its end left out where it is long."""
    return repr(text if len(text) <= longest else text[: longest - 1] + "…")
