"""What an app's Python files say: names of a legacy API, draws of floats, and metrics that clients send.

Names are followed through imports and simple assignments, and calls through functions of the app by their
names. What cannot be followed is reported as unknown, or is not seen.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np

from fl_privquant.errors import InvalidSpecError, one_line

UNKNOWN_METRICS = "metrics with names that cannot be read here"
"""Stands for the keys of a record whose content is computed."""
_LEGACY_SUMS = {"SecAggPlusWorkflow", "SecAggWorkflow", "secaggplus_mod", "secagg_mod"}
# Functions that draw floats for noise, by the module whose generator they use.
_NUMPY_FUNCTIONS = (
    *(np.random.Generator.normal, np.random.Generator.laplace, np.random.Generator.exponential),
    *(np.random.Generator.standard_normal, np.random.Generator.multivariate_normal),
)
_NUMPY_DRAWS = {"randn", *(function.__name__ for function in _NUMPY_FUNCTIONS)}
_DRAWS = {
    "numpy.random": _NUMPY_DRAWS,
    "torch": {"normal", "randn", "randn_like"},
    "random": {"gauss", "normalvariate"},
}
_GENERATORS = {"default_rng", "Generator", "RandomState"}
_LOOPS = (ast.For, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
# What a reply may hold besides arrays.
_RECORDS = ("MetricRecord", "ConfigRecord")
# The metric by which FedAvg weighs, which every app reports.
_WEIGHT = "num-examples"
_Node = TypeVar("_Node", bound=ast.expr | ast.stmt)
_Functions = dict[str, ast.FunctionDef]


def parse_sources(folder: Path) -> dict[str, ast.Module]:
    """The Python files of a folder, without those of virtual environments and hidden folders."""
    parsed: dict[str, ast.Module] = {}
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(folder)
        if any(part.startswith(".") or part in ("venv", "site-packages") for part in name.parts):
            continue
        try:
            parsed[str(name)] = ast.parse(path.read_text(encoding="utf-8"), str(name))
        except (SyntaxError, ValueError, RecursionError, MemoryError, OSError) as error:
            raise InvalidSpecError(
                "app", str(name), f"cannot be read ({type(error).__name__}: {one_line(error)})"
            ) from error
    return parsed


def _find(sources: dict[str, ast.Module], kind: type[_Node]) -> Iterator[tuple[str, _Node]]:
    """All nodes of one kind, each with its place."""
    for path, tree in sources.items():
        for node in ast.walk(tree):
            if isinstance(node, kind):
                yield f"{path}, line {node.lineno}", node


def find_legacy_sums(sources: dict[str, ast.Module]) -> Iterator[tuple[str, str]]:
    """Where parts of Flower's legacy secure aggregation are named, and which."""
    named = [(place, alias.name) for place, node in _find(sources, ast.ImportFrom) for alias in node.names]
    named += [(place, node.attr) for place, node in _find(sources, ast.Attribute)]
    return ((place, name) for place, name in named if name in _LEGACY_SUMS)


def _find_calls(sources: dict[str, ast.Module]) -> Iterator[tuple[str, ast.Call, str]]:
    """All calls, each with its place and the full name of the function."""
    for path, tree in sources.items():
        names = _full_names(tree)
        for place, call in _find({path: tree}, ast.Call):
            yield place, call, _full_name(call.func, names)


def find_draws(sources: dict[str, ast.Module]) -> Iterator[tuple[str, str]]:
    """Where floats are drawn that may be noise, and by which function."""
    return ((place, ast.unparse(call.func)) for place, call, name in _find_calls(sources) if _is_draw(name))


def find_seeds(sources: dict[str, ast.Module]) -> Iterator[tuple[str, bool]]:
    """Where numpy's global generator is seeded, and whether the seed is written there."""
    for place, call, name in _find_calls(sources):
        if name == "numpy.random.seed":
            yield place, all(isinstance(seed, ast.Constant) for seed in call.args)


def find_starts(sources: dict[str, ast.Module]) -> list[str]:
    """Where something is started for a number of rounds; twice for a place in a loop."""
    looped = {part for kind in _LOOPS for _, loop in _find(sources, kind) for part in ast.walk(loop)}
    starts = [(place, call) for place, call in _find(sources, ast.Call) if _starts(call)]
    return [place for place, call in starts for _ in range(2 if call in looped else 1)]


def _starts(call: ast.Call) -> bool:
    """Whether a call is that of a method ``start`` with what strategies take; threads take nothing."""
    named = any(keyword.arg in ("num_rounds", "initial_arrays") for keyword in call.keywords)
    method = call.func
    if isinstance(method, ast.Call) and ast.unparse(method.func) == "getattr":
        is_start = any(isinstance(name, ast.Constant) and name.value == "start" for name in method.args)
    else:
        is_start = isinstance(method, ast.Attribute) and method.attr == "start"
    return is_start and (named or len(call.args) > 1)


def find_messages(sources: dict[str, ast.Module]) -> list[str]:
    """Where messages are sent to clients without a strategy."""
    sends = ("send_and_receive", "push_messages")
    return [place for place, node in _find(sources, ast.Attribute) if node.attr in sends]


def find_metrics(sources: dict[str, ast.Module]) -> Iterator[tuple[str, list[str]]]:
    """Where functions that train make records of metrics, and the names of these."""
    functions = {node.name: node for _, node in _find(sources, ast.FunctionDef)}
    for place, function in _find(sources, ast.FunctionDef):
        called = _called_functions(function, functions) if _trains(function) else []
        names = [name for part in called for name in _metric_names(part) if name != _WEIGHT]
        if names:
            yield place, list(dict.fromkeys(names))


def _full_names(tree: ast.Module) -> dict[str, str]:
    """Names of a file and what they stand for: imports, and generators of random numbers."""
    names = {"np": "numpy"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.split(".")[0]
                names[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            made = _full_name(node.value.func, names)
            if made.split(".")[-1] in _GENERATORS:
                names |= {ast.unparse(target): "numpy.random" for target in node.targets}
    return names


def _full_name(node: ast.expr, names: dict[str, str]) -> str:
    """A dotted name, with what its beginning stands for; a generator that is made counts as its module."""
    text = ast.unparse(node)
    if text in names:
        return names[text]
    if isinstance(node, ast.Attribute):
        return f"{_full_name(node.value, names)}.{node.attr}"
    if isinstance(node, ast.Call) and _full_name(node.func, names).split(".")[-1] in _GENERATORS:
        return "numpy.random"
    return text


def _is_draw(name: str) -> bool:
    """Whether a function draws noise: of a module, or of something that is called a generator."""
    owner, _, draw = name.rpartition(".")
    is_generator = draw in _NUMPY_DRAWS and any(word in owner.lower() for word in ("rng", "generator"))
    return is_generator or draw in _DRAWS.get(owner, ())


def _trains(function: ast.FunctionDef) -> bool:
    """Whether a function is decorated as ``@app.train()``."""
    decorators = [node.func if isinstance(node, ast.Call) else node for node in function.decorator_list]
    return any(isinstance(node, ast.Attribute) and node.attr == "train" for node in decorators)


def _called_functions(function: ast.FunctionDef, functions: _Functions) -> list[ast.FunctionDef]:
    """A function, and those of the app that it calls by their names, and so on."""
    called = [function]
    for caller in called:
        for node in ast.walk(caller):
            if isinstance(node, ast.Call):
                callee = functions.get(ast.unparse(node.func).split(".")[-1])
                if callee is not None and callee not in called:
                    called.append(callee)
    return called


def _metric_names(function: ast.FunctionDef) -> Iterator[str]:
    """The keys of the records of metrics, and of configuration, that a function makes."""
    assigned = [
        (target, node.value)
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        for target in node.targets
    ]
    values = {ast.unparse(target): value for target, value in assigned}
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in _RECORDS:
            contents = [*node.args, *(keyword.value for keyword in node.keywords)]
            for content in contents:
                yield from _keys(values.get(ast.unparse(content), content))
            # A record, or a dictionary, that gets its entries one by one.
            holders = {ast.unparse(content) for content in contents}
            holders |= {name for name, value in values.items() if value is node}
            for target, _ in assigned:
                if isinstance(target, ast.Subscript) and ast.unparse(target.value) in holders:
                    yield _key_name(target.slice)


def _key_name(key: ast.expr | None) -> str:
    return str(key.value) if isinstance(key, ast.Constant) else UNKNOWN_METRICS


def _keys(content: ast.expr) -> Iterable[str]:
    """The keys of a dictionary that is written out, as ``{"key": value}`` or ``dict(key=value)``."""
    if isinstance(content, ast.Dict):
        return [_key_name(key) for key in content.keys]
    if isinstance(content, ast.Call) and ast.unparse(content.func) == "dict" and not content.args:
        return [keyword.arg or UNKNOWN_METRICS for keyword in content.keywords]
    return [UNKNOWN_METRICS]
