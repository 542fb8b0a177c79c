"""Each line of the Dockerfile is true of the repository and of what is installed; no Docker is needed to tell."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path, PurePosixPath

import pytest
import yaml
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from weir.java import OLDEST_VERSION

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
HOME = PurePosixPath("/opt/weir")
"""Where the image has the project."""


def instructions(text):
    """The keyword and the rest of each instruction of a Dockerfile, continued lines joined."""
    text = re.sub(r"(?m)^#.*\n", "", text).replace("\\\n", " ")
    return [tuple(line.split(maxsplit=1)) for line in text.splitlines() if line.strip()]


DOCKERFILE = instructions((ROOT / "Dockerfile").read_text())


def of(keyword):
    return [value for found, value in DOCKERFILE if found == keyword]


ENVIRONMENT = dict(word.split("=", 1) for value in of("ENV") for word in shlex.split(value))


def is_ignored(path, rules):
    """Docker's rule: the last pattern that matches the path, or a folder above it, decides; `*` stops at a slash."""
    ignored = False
    for rule in rules:
        body = "".join(
            {"**/": "(?:.*/)?", "*": "[^/]*"}.get(part, re.escape(part))
            for part in re.split(r"(\*\*/|\*)", rule.removeprefix("!"))
        )
        if re.fullmatch(rf"{body}(?:/.*)?", path):
            ignored = not rule.startswith("!")
    return ignored


RULES = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]


def copies():
    """What is copied, by its place in the image."""
    folder = PurePosixPath("/")
    found = {}
    for keyword, value in DOCKERFILE:
        if keyword == "WORKDIR":
            folder = PurePosixPath(value)
        elif keyword == "COPY":
            *sources, target = value.split()
            for source in sources:
                place = folder / target
                found[place / Path(source).name if target.endswith("/") else place] = source
    return found


def run_step(word):
    """The one RUN instruction with this word in it."""
    (found,) = (value for value in of("RUN") if word in value)
    return found


def test_no_instruction_is_one_that_these_tests_do_not_know():
    assert {keyword for keyword, _ in DOCKERFILE} == {"FROM", "RUN", "COPY", "WORKDIR", "ENV", "USER", "CMD"}


@pytest.mark.parametrize("step", of("RUN"))
def test_each_step_is_a_shell_command(step):
    subprocess.run(["sh", "-n", "-c", step], check=True)


def test_the_python_is_the_one_that_the_code_is_checked_for():
    assert of("FROM") == [f"python:{PROJECT['tool']['mypy']['python_version']}-slim-bookworm"]


def test_the_java_is_new_enough_for_spark():
    (version,) = re.findall(r"openjdk-(\d+)-jre-headless", run_step("apt-get"))
    assert int(version) >= OLDEST_VERSION


def test_what_is_copied_is_there_for_docker_and_in_git():
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    for source in copies().values():
        inside = [path for path in tracked if path == source or path.startswith(f"{source}/")]
        assert inside, f"git has no {source}"
        left_out = [path for path in inside if is_ignored(path, RULES)]
        assert all(path.startswith("include/weir_dev/") for path in left_out), left_out
        assert source not in left_out


def test_the_development_tools_are_left_out():
    assert is_ignored("include/weir_dev/stack/keeper.py", RULES)
    assert not is_ignored("include/weir/errors.py", RULES)


@pytest.mark.parametrize(
    "path",
    [
        ".env",
        ".git/config",
        ".venv/bin/python",
        ".weir/secrets.json",
        "tests/conftest.py",
        "include/weir/__pycache__/errors.cpython-311.pyc",
        "include/weir.egg-info/PKG-INFO",
    ],
)
def test_nothing_else_goes_to_docker(path):
    assert is_ignored(path, RULES)


def test_the_project_is_in_the_image_as_it_is_in_the_checkout():
    needed = {
        "pyproject.toml",
        PROJECT["project"]["readme"],
        "dags",
        *PROJECT["tool"]["setuptools"]["packages"]["find"]["where"],
    }
    assert {str(place.relative_to(HOME)) for place in copies() if place.is_relative_to(HOME)} == needed
    assert all(
        str(place.relative_to(HOME)) == source for place, source in copies().items() if place.is_relative_to(HOME)
    )
    assert " --editable ." in run_step("--editable")
    assert (
        run_step("compileall").split("compileall -q ")[1].split()
        == PROJECT["tool"]["setuptools"]["packages"]["find"]["where"]
    )


@pytest.fixture(scope="module")
def installed_by_pip(tmp_path_factory):
    """Carry out the step that installs the lock, with a `pip` that only notes what it is asked for."""
    folder = tmp_path_factory.mktemp("image")
    lock = folder / "lock"
    lock.mkdir()
    for place, source in copies().items():
        if place.parent == PurePosixPath("/tmp/lock"):
            (lock / place.name).write_bytes((ROOT / source).read_bytes())
    (folder / "pip").write_text(
        f"#!{sys.executable}\nimport json, sys\nprint(json.dumps([sys.argv[1:], open(sys.argv[-1]).read()]))\n"
    )
    (folder / "pip").chmod(0o755)
    (folder / "python").symlink_to(sys.executable)
    step = run_step("requirements.lock").replace("/tmp/lock", str(lock))
    environ = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", "-c", step], env=environ, capture_output=True, text=True, check=True)
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def runtime(installed_by_pip):
    """The names and versions of what the image has, for this Python."""
    pins = [pin for pin in requirement_lines(installed_by_pip[1][1]) if pin.marker is None or pin.marker.evaluate()]
    return {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in pins}


def requirement_lines(text):
    return [Requirement(line.removesuffix(" \\")) for line in text.splitlines() if re.match("[A-Za-z0-9]", line)]


def test_every_package_is_checked_by_its_hash(installed_by_pip):
    for options, text in installed_by_pip:
        assert {"--require-hashes", "--no-deps"} <= set(options)
        assert len(re.findall(r"(?m)^[A-Za-z0-9].*\\\n +--hash=sha256:", text)) == len(requirement_lines(text)) > 0


def test_what_is_built_from_sources_is_built_with_the_setuptools_of_the_lock(installed_by_pip):
    (_, tools), (options, _) = installed_by_pip
    assert [each.name for each in requirement_lines(tools)] == ["setuptools"]
    assert "--no-build-isolation" in options


def test_pip_knows_all_of_its_options(installed_by_pip):
    answer = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--help"], capture_output=True, text=True, check=True
    )
    asked = [each for step in of("RUN") for each in re.findall(r"pip install .*?(?=&&|$)", step)]
    options = {option for command in asked for option in re.findall(r"--[a-z-]+", command)}
    assert len(asked) == 3
    assert options <= set(re.findall(r"--[a-z-]+", answer.stdout))


def test_what_is_installed_is_what_the_tests_ran_with(runtime):
    assert {name: importlib.metadata.version(name) for name in runtime} == runtime


@pytest.fixture(scope="module")
def required(runtime):
    """Each package of an image with each package that it requires."""
    environment = {**default_environment(), "extra": ""}
    return {
        (name, canonicalize_name(each.name))
        for name in runtime
        for each in map(Requirement, importlib.metadata.requires(name) or ())
        if each.marker is None or each.marker.evaluate(environment)
    }


def test_nothing_that_a_package_requires_is_left_out(runtime, required):
    overridden = {Requirement(each).name for each in PROJECT["tool"]["uv"]["override-dependencies"]}
    assert {each for each in required if each[1] not in runtime and each[1] not in overridden} == set()


def test_each_dependency_of_the_project_is_there_and_no_tool_of_development(runtime, required):
    dependencies = {canonicalize_name(Requirement(each).name) for each in PROJECT["project"]["dependencies"]}
    tools = {canonicalize_name(Requirement(each).name) for each in PROJECT["dependency-groups"]["dev"]}
    assert dependencies <= set(runtime)
    assert tools & set(runtime) <= {each for _, each in required}


def test_no_other_package_overwrites_pyspark(runtime):
    assert "pyspark" in runtime
    assert "pyspark-client" not in runtime


def test_every_module_that_the_image_imports_is_of_a_package_that_it_has(runtime):
    distributions = importlib.metadata.packages_distributions()
    imported = {
        name.partition(".")[0]
        for source in copies().values()
        for file in (ROOT / source).rglob("*.py")
        if "weir/testing" not in file.as_posix() and not is_ignored(file.relative_to(ROOT).as_posix(), RULES)
        for node in ast.walk(ast.parse(file.read_text()))
        for name in names_imported(node)
    }
    asking = {"openlineage"}  # a provider that a person may install asks for what imports it
    foreign = imported - set(sys.stdlib_module_names) - {"weir", "weir_airflow", "weir_spark", "pipelines"} - asking
    lacking = {
        name for name in foreign if not {canonicalize_name(each) for each in distributions.get(name, [])} & set(runtime)
    }
    assert len(foreign) > 5
    assert lacking == set()


def names_imported(node):
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module else []


def test_airflow_knows_each_setting_and_finds_what_it_names():
    import airflow

    sections = yaml.safe_load((Path(airflow.__file__).parent / "config_templates" / "config.yml").read_text())
    settings = [name for name in ENVIRONMENT if name.startswith("AIRFLOW__")]
    assert settings
    for name in settings:
        _, section, option = name.split("__")
        assert option.lower() in sections[section.lower()]["options"]
    paths = [value for name, value in ENVIRONMENT.items() if value.startswith(str(HOME))]
    assert len(paths) == 1
    assert set(map(PurePosixPath, paths)) <= set(copies())


def test_workers_compute_with_the_python_that_has_the_packages():
    # The official image's own Python; `python` and `pip` of the steps above are its.
    assert ENVIRONMENT["PYSPARK_PYTHON"] == "/usr/local/bin/python3"


def test_everything_runs_as_a_user_who_owns_the_shared_folder_and_a_home():
    step = shlex.split(run_step("useradd"))
    (user,) = of("USER")
    assert user != "root"
    assert step[: step.index("&&")] == ["useradd", "--create-home", user]
    assert {f"--owner={user}", f"--group={user}"} <= set(step)
    assert of("WORKDIR")[-1] == f"/home/{user}"
    assert ENVIRONMENT["AIRFLOW_HOME"].startswith(f"/home/{user}/")


def test_the_command_is_one_that_the_project_installs():
    (command,) = map(json.loads, of("CMD"))
    assert command[0] in PROJECT["project"]["scripts"]
