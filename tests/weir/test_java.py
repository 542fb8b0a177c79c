"""Java for Spark: the machine's, or the bundled one."""

from __future__ import annotations

import os
import subprocess

import pytest
from tests.messages.kinds import of_kind

from weir.errors import Misconfigured
from weir.java import LACKING_MODULE, bundled_java, find_java, java_version


@pytest.fixture
def machine(tmp_path):
    """A folder of Javas that only say their version; the environment that finds one of them by PATH."""

    def make(name, version):
        home = tmp_path / name
        (home / "bin").mkdir(parents=True)
        program = home / "bin" / "java"
        program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
        program.chmod(0o755)
        return home

    return make


def on_path(home, **more):
    return {"PATH": f"{home / 'bin'}{os.pathsep}/nowhere", **more}


def test_a_new_enough_java_on_the_path_is_taken(machine, tmp_path):
    home = machine("seventeen", "17.0.15")
    assert find_java(tmp_path / "state", on_path(home)).home == home


def test_java_home_comes_before_the_path(machine, tmp_path):
    home = machine("home", "21")
    found = find_java(tmp_path / "state", on_path(machine("path", "17.0.1"), JAVA_HOME=str(home)))
    assert (found.home, found.version) == (home, 21)


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.2"])
def test_an_old_java_is_passed_over_for_the_bundled_one(machine, tmp_path, version):
    found = find_java(tmp_path / "state", on_path(machine("old", version)))
    assert found.is_bundled
    assert found.version >= 21


def test_a_java_that_does_not_run_is_passed_over(machine, tmp_path):
    home = machine("stub", "21")
    (home / "bin" / "java").write_text("#!/bin/sh\necho install one >&2; exit 1\n")
    assert find_java(tmp_path / "state", on_path(home)).is_bundled


def test_no_java_at_all_gives_the_bundled_one(tmp_path):
    assert find_java(tmp_path / "state", {"PATH": "/nowhere"}).is_bundled


def test_weir_java_can_ask_for_the_bundled_one(machine, tmp_path):
    assert find_java(tmp_path, on_path(machine("new", "21"), WEIR_JAVA="bundled")).is_bundled


def test_a_wrong_weir_java_is_named(machine, tmp_path):
    with pytest.raises(Misconfigured, check=of_kind("java.chosen_is_wrong", found="Java 11")):
        find_java(tmp_path, {"WEIR_JAVA": str(machine("old", "11"))})


def test_the_bundled_java_runs_although_it_lacks_the_module(tmp_path):
    java = bundled_java(tmp_path / "it's a folder")
    program = java.home / "bin" / "java"
    assert java_version(program) == java.version
    command = [program, LACKING_MODULE, "-Dgiven=two words", "-XshowSettings:properties", "-version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "given = two words" in done.stderr


def test_the_environment_puts_this_java_first(tmp_path):
    java = bundled_java(tmp_path)
    given = java.environment({"PATH": "/usr/bin"})
    assert given == {"JAVA_HOME": str(tmp_path), "PATH": f"{tmp_path}/bin:/usr/bin"}


def test_the_wrapper_is_written_anew_when_the_package_has_moved(tmp_path):
    program = bundled_java(tmp_path).home / "bin" / "java"
    right = program.read_text()
    program.write_text("#!/bin/sh\nexec /gone/java\n")
    bundled_java(tmp_path)
    assert program.read_text() == right
