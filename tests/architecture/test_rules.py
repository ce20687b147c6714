"""The rules of ARCHITECTURE.md that a machine can check."""

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("shoal", "orchestrator", "agent", "cloud")
MAX_LINES = 300
# File -> why it is longer than MAX_LINES.
LONG_FILES: dict[str, str] = {
    "agent/kv/cache.py": "one class: begin, poll, take, offer and close are one sequence's life",
}
# Where settings are read; nobody else looks at the environment.
SETTINGS_FILES = {"config.py", "home.py"}


def sources() -> Iterator[Path]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if "shoal/v1" not in path.as_posix():
                yield path


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def run_here(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(Path(sys.executable).parent / command[0]), *command[1:]],
        cwd=ROOT,
        check=False,
        text=True,
        capture_output=True,
    )


def test_imports_follow_the_layers() -> None:
    done = run_here("lint-imports")
    assert done.returncode == 0, done.stdout


def test_stubs_are_fresh() -> None:
    done = run_here("python", "deploy/stubs.py", "--check")
    assert done.returncode == 0, done.stderr


def test_files_stay_short() -> None:
    long = {
        named(path): num_lines
        for path in sources()
        if (num_lines := len(path.read_text().splitlines())) > MAX_LINES
    }
    unexplained = long.keys() - LONG_FILES.keys()
    assert not unexplained, {name: long[name] for name in unexplained}


def test_environment_is_read_by_settings_modules_only() -> None:
    readers = [
        named(path)
        for path in sources()
        if path.name not in SETTINGS_FILES
        and any(
            isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv", "putenv")
            # psutil's Process.environ() reads another process's environment.
            and isinstance(node.value, ast.Name) and node.value.id == "os"
            for node in ast.walk(ast.parse(path.read_text()))
        )
    ]  # fmt: skip
    assert not readers


def test_no_drawer_modules() -> None:
    drawers = {"utils", "util", "common", "helpers", "helper", "manager", "base", "misc"}
    assert not [named(path) for path in sources() if path.stem in drawers]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_says_what_it_is(package: str) -> None:
    silent = [
        named(path)
        for path in sources()
        if named(path).startswith(package) and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert not silent


def test_agent_process_loads_neither_ray_nor_llama_cpp_nor_the_command_line() -> None:
    code = (
        "import sys, agent.app; "
        "heavy = {'ray', 'llama_cpp', 'typer', 'openai', 'fastapi'} & set(sys.modules); "
        "sys.exit(', '.join(sorted(heavy)) or 0)"
    )
    done = run_here("python", "-c", code)
    assert done.returncode == 0, done.stderr


def test_wheel_holds_the_packages_and_the_versions_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) == set(PACKAGES)
    version = project["project"]["version"]
    assert f'__version__ = "{version}"' in (ROOT / "shoal" / "__init__.py").read_text()
    assert f"[{version}]" in (ROOT / "CHANGELOG.md").read_text()


def test_documents_link_to_files_that_exist() -> None:
    for document in (ROOT / "README.md", ROOT / "ARCHITECTURE.md", *(ROOT / "docs").glob("*.md")):
        for piece in document.read_text().split("](")[1:]:
            target = piece.split(")")[0].split("#")[0]
            if target and "://" not in target:
                assert (document.parent / target).exists(), f"{document.name}: {target}"
