"""Finds out which seed or test detects a fault, in a copy of the tree.

Invariant: the tree with the fault is the one that is imported, and nothing is written into the checkout.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.mutations.fault import ROOT, Fault, changes_syntax

COPIED = ("include", "plugins", "spark_jobs", "tests", "dags")
SECONDS = 120
"""Of processor time, for each detector."""

KINDS = ("seed", "property", "test", "crash")
"""The kinds of detectors: the simulator, a property test, any other test; a crash counts as none."""

PROPERTIES = re.compile(r"^(from|import) (hypothesis|random)\b|random\.Random\(|tests\.simulation\.random_faults", re.M)
SLOW = ("tests/weir_spark/", "tests/weir_dev/", "tests/benchmarks/", "tests/simulation/test_faults_on_s3.py")
FIXED_SEEDS = "tests/simulation/test_simulator.py::test_the_invariants_hold_under_random_faults"

Detected = tuple[str, str, str] | None
"""The kind of detector, the seed or test, and what it says; None: it finds nothing."""

_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S.*?)(?: - (.*))?$", re.M)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What has found a fault (None: nothing), what it said, and the seconds of processor time that it took."""

    fault: Fault
    kind: str | None
    by: str
    said: str
    seconds: float

    @property
    def row(self) -> str:
        """The row of the table."""
        found = f"{self.kind}: `{self.by}`" if self.kind else "**nothing**"
        of = f" ({self.fault.of})" if self.fault.of else ""
        where = self.fault.module.removeprefix("include/").removeprefix("plugins/")
        return f"| {self.fault.name} | {where} | {self.fault.breaks}{of} | {found} | {self.seconds:.0f} |"


def try_fault(fault: Fault, seconds: float = SECONDS) -> Outcome:
    """Apply a fault in a copy of the tree, and run the detectors in turn until one finds it."""
    spent = 0.0
    with _tree(fault) as tree:
        for detect in (_own_properties, _simulator, _properties, _mirror):
            began = _children()
            found = detect(tree, fault, seconds)
            took = _children() - began
            if found is not None:
                return Outcome(fault, *found, took)
            spent += took
    return Outcome(fault, None, "", "", spent)


@contextmanager
def _tree(fault: Fault) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="weir-mutation-") as folder:
        tree = Path(folder)
        for name in COPIED:
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", tree)
        before = fault.source()
        after = fault.applied(before)
        if not changes_syntax(before, after):
            raise ValueError(f"{fault.name} changes nothing")
        (tree / fault.module).write_text(after)
        _require_imported(tree, fault)
        yield tree


@contextmanager
def _mended(tree: Path, fault: Fault) -> Iterator[None]:
    """Take the fault out of a tree for a while: what is found then, too, is not the fault."""
    module = tree / fault.module
    after = module.read_text()
    module.write_text(fault.source())
    try:
        yield
    finally:
        module.write_text(after)


def _require_imported(tree: Path, fault: Fault) -> None:
    """Check that the module with the fault is the one that the detectors import."""
    code = f"import importlib.util as u; print(u.find_spec({fault.package!r}).origin)"
    found = _run(tree, [sys.executable, "-c", code], SECONDS)[1].strip()
    if Path(found) != tree / fault.module:
        raise RuntimeError(f"{fault.package} is imported from {found}, not from {tree}")


# The simulator


def _simulator(tree: Path, fault: Fault, seconds: float) -> Detected:
    if fault.module.startswith("plugins/"):
        return None  # it has an Airflow of its own
    began, first = _children(), []
    while (left := seconds - (_children() - began)) > 0:
        mix = [f"--mix={fault.mix}"] if fault.mix else []
        found = _search(tree, f"--seconds={left}", f"--module={fault.module}", *mix, *first)
        if isinstance(found, str):
            return "crash", "simulator", found
        if "seed" not in found:
            return None
        again = [f"--first={found['number']}", f"--mix={found['mix']}"]
        with _mended(tree, fault):
            is_fault = "seed" not in _search(tree, *again, "--seconds=0")
        if is_fault:
            kind = "crash" if found["invariant"] == "the_simulation_crashes" else "seed"
            return kind, found["seed"], f"{found['invariant'].replace('_', ' ')}: {found['said']}"
        first = [f"--first={found['number'] + 1}"]
    return None


def _search(tree: Path, *options: str) -> dict[str, Any] | str:
    """Simulate seeds in a tree; return what is found, or the last line of a crash."""
    code, said = _run(tree, [sys.executable, "-m", "tests.mutations.search", *options], SECONDS)
    if code == -signal.SIGXCPU:
        return {}
    if code != 0:
        return said.strip().splitlines()[-1]
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    if not Path(found["weir"]).is_relative_to(tree):
        raise RuntimeError(f"weir is imported from {found['weir']}")
    return found


# Tests


def _own_properties(tree: Path, fault: Fault, seconds: float) -> Detected:
    """Run the tests that draw what they give to this very module: they take seconds."""
    files = [file for file in properties(tree) if _imports(tree / file, fault.package)]
    return _tests(tree, fault, "property", files, seconds) if files else None


def _imports(file: Path, package: str) -> bool:
    return file.suffix == ".py" and f"from {package} import" in file.read_text()


def _properties(tree: Path, fault: Fault, seconds: float) -> Detected:
    """Run all tests that draw what they test: those of the mirroring folder first."""
    mirror = mirror_of(fault.module)
    files = sorted(properties(tree), key=lambda file: not file.startswith(mirror))
    return _tests(tree, fault, "property", files, seconds)


def _mirror(tree: Path, fault: Fault, seconds: float) -> Detected:
    """Run the folder of tests that mirrors the module's, and the tests elsewhere that import the module."""
    mirror, root = mirror_of(fault.module), Path("tests", *Path(fault.module).parts[1:2])
    files = [str(file.relative_to(tree)) for file in sorted((tree / root).rglob("test_*.py"))]
    others = [file for file in files if not file.startswith(mirror) and _imports(tree / file, fault.package)]
    return _tests(tree, fault, "test", [*([fault.tests] if fault.tests else []), mirror, *others], 3 * seconds)


def mirror_of(module: str) -> str:
    """Return the folder of tests that mirrors the package of a module."""
    folder = Path("tests", *Path(module).parts[1:3])
    return str(folder if (ROOT / folder).is_dir() else folder.parent)


def _tests(tree: Path, fault: Fault, kind: str, files: list[str], seconds: float) -> Detected:
    options = ["-p", "tests.mutations.drawn"] if kind == "property" else []
    skipped = [f"--deselect={FIXED_SEEDS}", f"--deselect={SLOW[-1]}"]
    began = _children()
    while (left := seconds - (_children() - began)) > 0:
        failed = _failed(tree, [*options, *skipped, *files], left)
        if failed is None:
            return None
        with _mended(tree, fault):
            is_fault = _failed(tree, [failed[0]], seconds) is None
        if is_fault:
            return kind, *failed
        skipped.append(f"--deselect={failed[0]}")
    return None


def _failed(tree: Path, options: list[str], seconds: float) -> tuple[str, str] | None:
    """Run tests until the first fails; return it, and what it says."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n0", "-rfE", "--no-header", "--tb=no", *options]
    failed = _FAILED.search(_run(tree, command, seconds)[1])
    return None if failed is None else (failed[1], failed[2] or "")


def properties(tree: Path = ROOT) -> list[str]:
    """Return the modules of tests that draw what they test at random, without those of Spark and of servers."""
    files = [file for file in sorted((tree / "tests").rglob("test_*.py")) if PROPERTIES.search(file.read_text())]
    names = [str(file.relative_to(tree)) for file in files]
    found = [name for name in names if not name.startswith((*SLOW, "tests/simulation/", "tests/conformance/"))]
    return [*found, "tests/conformance", "tests/simulation"]


def _run(tree: Path, command: list[str], seconds: float) -> tuple[int, str]:
    """Run a program in a tree for so many seconds of processor time; return its code and what it printed."""
    paths = [tree, *(tree / name for name in COPIED[:3])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "COLUMNS": "400"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    limit = int(seconds) + 30  # the search ends by itself, and says so
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            command,
            cwd=tree,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5)),  # noqa: PLW1509
        )
        try:
            code = process.wait(timeout=limit * 5)
        except subprocess.TimeoutExpired:
            code = -signal.SIGXCPU
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        output.seek(0)
        return code, output.read()


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
