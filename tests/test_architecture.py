"""The rooms of the project and the doors between them."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
MAY_IMPORT = {
    "text2sql": set(),
    "evaluation": {"text2sql"},
    "agents": {"evaluation", "text2sql"},
    "trainers": {"text2sql"},
    "stages": {"agents", "trainers", "evaluation", "text2sql"},
    "assets": {"stages", "text2sql"},
    "pipelines": {"assets", "stages", "text2sql"},
}


def imported_packages(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_go_one_way(package: str):
    """pipelines > assets > stages > agents, trainers, evaluation > text2sql, wherever in a file the import stands."""
    allowed = MAY_IMPORT[package] | {package}
    wrong = {
        str(path.relative_to(REPOSITORY)): sorted(found)
        for path in (REPOSITORY / package).rglob("*.py")
        if (found := imported_packages(path) & (MAY_IMPORT.keys() - allowed))
    }

    assert not wrong


def test_only_the_tracking_module_imports_mlflow():
    """One file to change when MLflow changes."""
    users = [
        str(path.relative_to(REPOSITORY))
        for package in MAY_IMPORT
        for path in (REPOSITORY / package).rglob("*.py")
        if "mlflow" in imported_packages(path)
    ]

    assert ["stages/tracking.py"] == users


def test_torch_never_loads_in_the_dagster_process():
    """Loading the definitions brings in neither torch, nor transformers, TRL or vLLM."""
    program = (
        "import sys, pipelines.definitions\n"
        "print([name for name in ('torch', 'transformers', 'trl', 'vllm') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True)

    assert "[]" == result.stdout.strip(), result.stderr


def test_scoring_needs_nothing_of_the_training_side():
    """Case in-core-without-gpu-parts: the evaluator imports without torch, vLLM, MLflow or Dagster."""
    program = (
        "import sys, evaluation.verdicts, evaluation.report\n"
        "print([name for name in ('torch', 'transformers', 'vllm', 'mlflow', 'dagster') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True)

    assert "[]" == result.stdout.strip(), result.stderr
