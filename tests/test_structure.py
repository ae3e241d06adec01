"""What must not rot in silence: who imports whom, who stays free of torch, and that public functions are explained."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "mtkit"

ROWS = {
    "mtkit": 0,
    "mtkit.errors": 0,
    "mtkit.ids": 0,
    "mtkit.figures": 1,
    "mtkit.files": 1,
    "mtkit.folders": 1,
    "mtkit.formats": 1,
    "mtkit.hygiene": 1,
    "mtkit.fsdp": 1,
    "mtkit.lineage": 1,
    "mtkit.lines": 1,
    "mtkit.loading": 1,
    "mtkit.metrics": 1,
    "mtkit.ranks": 1,
    "mtkit.recipe": 1,
    "mtkit.recipe_errors": 1,
    "mtkit.recipe_source": 1,
    "mtkit.recipe_view": 1,
    "mtkit.runtime": 1,
    "mtkit.scored": 1,
    "mtkit.sections": 1,
    "mtkit.segment": 1,
    "mtkit.strict_yaml": 1,
    "mtkit.translation": 1,
    "mtkit.evaluate": 2,
    "mtkit.comet": 3,
    "mtkit.significance": 3,
    "mtkit.compare": 3.5,  # it runs the paired tests
    "mtkit.testsets": 3,
    "mtkit.text": 2,
    "mtkit.data": 3,
    "mtkit.describe": 3.5,
    "mtkit.initial": 3,
    "mtkit.model": 3,
    "mtkit.search": 3,
    "mtkit.quantized": 3.5,  # used by what loads models
    "mtkit.checkpoint": 4,
    "mtkit.decoding": 4,
    "mtkit.engine": 4,
    "mtkit.ranked_engine": 4.5,
    "mtkit.shortlist": 3,
    "mtkit.shortlist_engine": 4.5,
    "mtkit.proposal": 4,
    "mtkit.stages": 4,
    "mtkit.training.loss": 4,
    "mtkit.training.muon": 4,
    "mtkit.training.optimizer": 4,
    "mtkit.training.schedule": 4,
    "mtkit.average": 5,
    "mtkit.check": 5,
    "mtkit.force": 5,
    "mtkit.pool": 4.5,  # an engine of engines
    "mtkit.heatmaps": 5,
    "mtkit.translator": 5,
    "mtkit.report": 6,
    "mtkit.training": 6,
    "mtkit.model_stage": 6,
    "mtkit.shortlist_stage": 6,
    "mtkit.reasons": 6.3,
    "mtkit.convert": 5,
    "mtkit.ctranslate2_engine": 5.5,  # it exports first
    "mtkit.convert.verify": 6,
    "mtkit.convert.transformers_answers": 6,
    "mtkit.convert.export": 6,
    "mtkit.convert.import_report": 6,
    "mtkit.pipeline": 6.5,  # it runs the trainer as one of its stages
    "mtkit.bench": 6.5,  # it trains, to measure
    "mtkit.cli": 7,
    "mtkit.__main__": 8,
}
"""The rows of the architecture; a module that is not listed stands where its package stands."""

TORCH_AT_THE_BOTTOM = ("mtkit.fsdp", "mtkit.loading", "mtkit.ranks", "mtkit.runtime")
"""Of the lowest rows, what speaks to the machine and to other processes; all else there is free of torch."""

FREE_OF_TORCH = (
    "mtkit.compare",
    "mtkit.check.",
    "mtkit.data.corpus",
    "mtkit.data.fetch",
    "mtkit.data.filters",
    "mtkit.describe",
    "mtkit.evaluate",
    "mtkit.proposal",
    "mtkit.heatmaps.maps",
    "mtkit.heatmaps.png",
    "mtkit.heatmaps.svg",
    "mtkit.heatmaps.terminal",
    "mtkit.report.chart",
    "mtkit.report.facts",
    "mtkit.report.scores",
    "mtkit.report.series",
    "mtkit.significance",
    "mtkit.stages",
    "mtkit.testsets",
    "mtkit.text",
)


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


MODULES = {name_of(path): ast.parse(path.read_text("utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}


def imports(tree: ast.AST) -> Iterator[str]:
    """Every module that is imported anywhere in a tree, also inside functions and for type checking."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in MODULES else str(node.module)


def row(module: str) -> float:
    while module not in ROWS:
        module = module.rpartition(".")[0]
        assert module != "mtkit", "give a new top-level module its row"
    return ROWS[module]


def package(module: str) -> str:
    """The subpackage of a module, or `mtkit` for those at the top."""
    return ".".join(module.split(".")[:2]) if module.count(".") > 1 else "mtkit"


@pytest.mark.parametrize("module", [module for module in MODULES if module != "mtkit"])
def test_modules_import_from_lower_rows_or_their_own_package(module: str) -> None:
    for imported in imports(MODULES[module]):
        if imported.split(".")[0] != "mtkit":
            continue
        assert imported in MODULES, f"{module} imports {imported}, which does not exist"
        if package(module) in ("mtkit.model", "mtkit.search") and package(imported) != package(module):
            assert row(imported) <= 1, f"{module} may use rows 0 and 1 only, not {imported}"
        elif row(imported) >= row(module):
            same = package(imported) == package(module) and row(imported) == row(module)
            sections = row(module) == 1 and package(imported) == "mtkit.sections"
            lone = package(module) == "mtkit" and row(module) > 1
            assert (same and not lone) or sections, f"{module} (row {row(module)}) imports {imported}"


def test_the_lowest_modules_import_nothing() -> None:
    assert list(imports(MODULES["mtkit.errors"])) == []
    assert list(imports(MODULES["mtkit.ids"])) == []


def test_what_is_promised_free_of_torch_never_reaches_it() -> None:
    def reach(module: str, seen: set[str]) -> set[str]:
        if module not in seen:
            seen.add(module)
            for imported in imports(MODULES.get(module, ast.Module([], []))) if module != "mtkit" else ():
                reach(imported, seen)
        return seen

    low = [module for module in MODULES if row(module) <= 1 and module not in TORCH_AT_THE_BOTTOM]
    for module in [*low, *(module for module in MODULES if module.startswith(FREE_OF_TORCH))]:
        reached = reach(module, set())
        assert not [name for name in reached if name.split(".")[0] in ("torch", "safetensors")], module


def test_subpackages_have_empty_init_files() -> None:
    for path in PACKAGE.glob("*/__init__.py"):
        assert path.read_bytes() == b"", path


@pytest.mark.parametrize("module", MODULES)
def test_public_functions_are_typed_and_documented(module: str) -> None:
    tree = MODULES[module]
    assert module.count(".") < 1 or ast.get_docstring(tree) or not tree.body, f"{module} has no docstring"
    for node, inside in _definitions(tree):
        if node.name.startswith("_"):
            continue
        where = f"{module}.{inside}{node.name}"
        if not inside:
            assert ast.get_docstring(node), f"{where} has no docstring"
        if isinstance(node, ast.FunctionDef):
            every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            untyped = [one.arg for one in every if one.annotation is None and one.arg not in ("self", "cls")]
            assert not untyped, f"{where}: no type for {untyped}"
            assert node.returns is not None, f"{where}: no type for what it returns"


def _definitions(tree: ast.Module) -> Iterator[tuple[ast.FunctionDef | ast.ClassDef, str]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node, ""
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                yield from ((inner, f"{node.name}.") for inner in node.body if isinstance(inner, ast.FunctionDef))
