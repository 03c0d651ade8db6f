"""The contract of the source tree: which way imports run, who knows the laws, what is private, and what names mean.

Nothing is imported, only read. Each rule finds its violations; those of today are listed below, and the lists may only shrink:
a new violation fails, and so does a listed one that is gone. ``python tests/unit/test_contract.py`` prints what is found.
"""

from __future__ import annotations

import ast
import collections
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "src" / "robustly"

# From left to right; lazy imports and those for types count. What stands in one set does not import each other.
LINE: tuple[set[str], ...] = (
    {"errors", "_runtime"},
    {"rows"},
    {"model"},
    {"approx"},
    {"fit"},
    {"result"},
    {"localized", "glm", "conjugate", "mixture", "topics", "series"},
    {"comparison"},
    {"report"},
    {"study"},
    {"testing"},
    {"cli"},
)
# Inside these folders modules know the types of what they are made of.
HOME_OF_LAWS = "glm"

# STYLE's table of words. In the sampler and in topics some words are fine elsewhere.
RETIRED = {"strain", "reach", "settle", "walled", "tether", "is_fine", "can_be_rough", "alone", "less"}
RETIRED_IN = {"draws.py": {"EACH", "ENOUGH", "worth"}, "topics": {"tables"}}
RETIRED_MODULES = {
    "steps", "narrow", "trial", "dense", "inspect", "native", "memory", "keys", "columns", "keeping", "answers", "table",
    "tables", "utils",
}  # fmt: skip
# Their names are not ours to choose, such as np.less.
NOT_OURS = {"np", "jnp"}

# Named tuples spell their public methods so.
NAMED_TUPLES = {"_replace", "_asdict", "_fields"}

# Names that mean the same wherever they are defined.
SAME_MEANING = {
    "__getattr__": "Python's hook for names that are imported when first used",
    "__dir__": "Python's hook beside it",
    "from_saved": "one verb for one act: the reader of each kind of result, as `result.persist.KINDS` lists them",
    "write_page": "one verb for one act: the page of a regression and the page of topics, each beside what it shows",
    "log_rising": "the logarithm of a rising factorial, once for JAX and once for numba, which do not call each other",
}

# ---------------------------------------------------------------------- today's violations; these lists may only shrink

EXCEPTIONS: dict[str, set[str]] = {
    # Names of NumPyro and of concurrent.futures, for which neither has a public one; os._exit is one in spite of its name.
    "private_names_of_others": {
        "model/program/hyper.py: prior._mask",
        "study/runs.py: os._exit",
        "study/runs.py: pool._processes",
    },
    # `Fit.alone` is what 0.1 called `leverage_one`.
    "retired_words": {
        "result/fitted_numbers.py: alone",
    },
}

# ---------------------------------------------------------------------- reading


@cache
def modules() -> dict[str, ast.Module]:
    """Every module by its path below the package."""
    return {
        path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(ROOT.rglob("*.py"))
    }


@cache
def nodes(tree: ast.Module) -> tuple[ast.AST, ...]:
    """All nodes of a module."""
    return tuple(ast.walk(tree))


def dotted(path: str) -> str:
    """The name under which a module is imported."""
    name = "robustly." + path.removesuffix(".py").replace("/", ".")
    return "robustly" if path == "__init__.py" else name.removesuffix(".__init__")


def part_of(name: str) -> str:
    """The folder, or the module at the top, to which a module belongs; empty for the package itself."""
    return name.split(".")[1] if "." in name else ""


@cache
def imports(for_types: bool = True) -> dict[str, set[str]]:
    """Which modules each module imports, wherever the import stands; those that only type checkers see on request."""
    names = {dotted(path) for path in modules()}
    found: dict[str, set[str]] = {}
    for path, tree in modules().items():
        wanted: set[str] = set()
        skipped = set() if for_types else {id(node) for guard in only_for_types(tree) for node in ast.walk(guard)}
        for node in nodes(tree):
            if id(node) in skipped:
                continue
            if isinstance(node, ast.ImportFrom):
                assert not node.level, f"{path} imports relatively; write the whole name"
                base = node.module or ""
                for alias in node.names:
                    inner = f"{base}.{alias.name}"
                    wanted.add(inner if inner in names else base)
            elif isinstance(node, ast.Import):
                wanted |= {alias.name for alias in node.names}
            elif _is_call(node, "import_module") and node.args and isinstance(node.args[0], ast.Constant):
                wanted.add(str(node.args[0].value))
        found[dotted(path)] = {name for name in wanted if name in names} - {dotted(path)}
    return found


def only_for_types(tree: ast.Module) -> list[ast.If]:
    """The ``if TYPE_CHECKING:`` parts."""
    return [
        node
        for node in nodes(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    ]


def _is_call(node: ast.AST, name: str) -> bool:
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    return (isinstance(called, ast.Name) and called.id == name) or (
        isinstance(called, ast.Attribute) and called.attr == name
    )


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


# ---------------------------------------------------------------------- rules


def against_the_line() -> set[str]:
    place = {part: at for at, parts in enumerate(LINE) for part in parts}
    found = set()
    for module, wanted in imports().items():
        here = part_of(module)
        for name in wanted:
            there = part_of(name)
            if not here or not there or here == there:
                continue
            if place[there] >= place[here] and (place[there] > place[here] or there not in {"errors", "_runtime"}):
                found.add(f"{module.removeprefix('robustly.')} -> {name.removeprefix('robustly.')}")
    return found


def cycles() -> set[str]:
    """Groups of modules that reach each other by imports that happen (Tarjan's strongly connected components)."""
    graph = imports(for_types=False)
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = set()

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in graph[name]:
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            group = [stack.pop()]
            while group[-1] != name:
                group.append(stack.pop())
            if len(group) > 1:
                found.add(" <-> ".join(sorted(one.removeprefix("robustly.") for one in group)))

    for name in graph:
        if name not in index:
            visit(name)
    return found


def laws() -> set[str]:
    """The classes of `glm/` that are laws."""
    return derived("Law")


def families() -> set[str]:
    """The classes of `glm/` that are families of responses."""
    return derived("Family")


@cache
def derived(base: str) -> set[str]:
    """The classes of `glm/` that derive from one, however far, and that one."""
    bases = {
        node.name: {one.id for one in node.bases if isinstance(one, ast.Name)}
        for path, tree in modules().items()
        if path.startswith(f"{HOME_OF_LAWS}/")
        for node in nodes(tree)
        if isinstance(node, ast.ClassDef)
    }
    found = {base}
    while more := {name for name, above in bases.items() if above & found} - found:
        found |= more
    return found


def types_of_laws_asked() -> set[str]:
    """Outside `glm/`: ``isinstance(x, LocalLabel)``, ``type(x) is LocalLabel``, and types compared by their names."""
    known, named_kinds = laws(), laws() | families()
    found: set[str] = set()
    for path, tree in modules().items():
        if path.startswith(f"{HOME_OF_LAWS}/"):
            continue
        theirs = {
            alias.asname or alias.name
            for node in nodes(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"robustly.{HOME_OF_LAWS}")
            for alias in node.names
        } & known
        for node in nodes(tree):
            if _is_call(node, "isinstance") or _is_call(node, "issubclass"):
                used = {one.id for one in ast.walk(node.args[1]) if isinstance(one, ast.Name)}
                used |= {one.attr for one in ast.walk(node.args[1]) if isinstance(one, ast.Attribute)} & known
                found |= {f"{path}: {name}" for name in used & theirs}
            if isinstance(node, ast.Compare):
                sides = [node.left, *node.comparators]
                inside = [one for side in sides for one in ast.walk(side)]
                types = {one.id for one in inside if isinstance(one, ast.Name)} & theirs
                texts = {str(one.value) for one in inside if isinstance(one, ast.Constant)} & named_kinds
                named = [one for one in inside if isinstance(one, ast.Attribute) and one.attr == "__name__"]
                if (types and any(_is_call(side, "type") for side in sides)) or (texts and named):
                    found.add(f"{path}: {ast.unparse(node)}")
    return found


def private_names_of_others() -> set[str]:
    """``from x import _y`` and ``thing._y`` where this module defines no ``_y``."""
    found = set()
    for path, tree in modules().items():
        own = {
            name
            for node in nodes(tree)
            for name in (
                [node.name]
                if isinstance(node, ast.FunctionDef | ast.ClassDef)
                else [node.id]
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
                else [node.attr]
                if isinstance(node, ast.Attribute)
                and (isinstance(node.ctx, ast.Store) or (isinstance(node.value, ast.Name) and node.value.id == "self"))
                else []
            )
        }
        for node in nodes(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("robustly"):
                found |= {
                    f"{path}: {node.module}.{a.name}"
                    for a in node.names
                    if _is_private(a.name) and a.name != "_runtime"
                }
            elif isinstance(node, ast.Attribute) and _is_private(node.attr) and node.attr not in own | NAMED_TUPLES:
                found.add(f"{path}: {ast.unparse(node)}")
    return found


def names_defined_twice() -> set[str]:
    homes = collections.defaultdict(list)
    for path, tree in modules().items():
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name not in SAME_MEANING:
                homes[node.name].append(path)
    return {f"{name}: {', '.join(paths)}" for name, paths in homes.items() if len(paths) > 1}


def modules_without_a_question() -> set[str]:
    return {path for path, tree in modules().items() if not ast.get_docstring(tree)}


def retired_words() -> set[str]:
    found = set()
    for path, tree in modules().items():
        if Path(path).stem in RETIRED_MODULES:
            found.add(f"{path}: module")
        words = RETIRED.union(*(more for where, more in RETIRED_IN.items() if where in path))
        for name in identifiers(tree):
            pieces = {name, *name.split("_")}
            found |= {f"{path}: {word}" for word in words if word in pieces or name.strip("_") == word}
    return found


def identifiers(tree: ast.Module) -> set[str]:
    found = set()
    for node in nodes(tree):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            if not (isinstance(node.value, ast.Name) and node.value.id in NOT_OURS):
                found.add(node.attr)
        elif isinstance(node, ast.arg) or (isinstance(node, ast.keyword) and node.arg):
            found.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
    return found


RULES = {
    rule.__name__: rule
    for rule in (
        against_the_line,
        cycles,
        types_of_laws_asked,
        private_names_of_others,
        names_defined_twice,
        modules_without_a_question,
        retired_words,
    )
}


# ---------------------------------------------------------------------- claims


@pytest.mark.parametrize("rule", RULES)
def test_the_contract_holds(rule):
    found, listed = RULES[rule](), EXCEPTIONS.get(rule, set())
    assert not found - listed, f"{rule}: new violations"
    assert not listed - found, f"{rule}: these are gone; take them off the list"


# Half of what 0.1 had by this count. It may only be lowered: `Any` is for what is the user's own, and stays opaque.
MOST_ANY = 0.125


def annotations() -> list[ast.expr]:
    """Of arguments, of what functions return, and of names."""
    found: list[ast.expr | None] = []
    for tree in modules().values():
        for node in nodes(tree):
            if isinstance(node, ast.arg | ast.AnnAssign):
                found.append(node.annotation)
            elif isinstance(node, ast.FunctionDef):
                found.append(node.returns)
    return [one for one in found if one is not None]


def aliases_of_any() -> set[str]:
    """``Any``, and names that are given to it."""
    return {"Any"} | {
        target.id
        for tree in modules().values()
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id == "Any"
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def test_annotations_say_more_than_any():
    opaque = aliases_of_any()
    said = [isinstance(one, ast.Name) and one.id in opaque for one in annotations()]
    assert len(said) > 1000
    assert sum(said) / len(said) <= MOST_ANY


def test_the_package_is_on_the_line():
    parts = {part_of(dotted(path)) for path in modules()} - {""}
    assert parts <= set().union(*LINE)


def test_a_message_says_what_it_got():
    """STYLE: "…; got 1.5.", not "…; 1.5 came."."""
    came = re.compile(r"; (?:[a-z ]* )?[{\"'][^;\n]* came[.\"']")
    assert [path.name for path in sorted(ROOT.rglob("*.py")) if came.search(path.read_text(encoding="utf-8"))] == []


def test_the_map_of_contributing_names_every_folder_and_only_files_that_are_there():
    text = (ROOT.parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `([\w/.]+)` \| (.*) \|$", text, flags=re.MULTILINE))
    parts = {part_of(dotted(path)) for path in modules()} - {"", "errors"}
    assert {place.removesuffix(".py").split("/")[0] for place in rows} == parts
    for place, told in rows.items():
        for name in re.findall(r"`(\w+\.py)`", told):
            assert (ROOT / place / name).is_file(), f"the map speaks of {place}{name}"


if __name__ == "__main__":
    for title, rule_ in RULES.items():
        print(f'    "{title}": {{')
        for violation in sorted(rule_()):
            print(f'        "{violation}",')
        print("    },")
