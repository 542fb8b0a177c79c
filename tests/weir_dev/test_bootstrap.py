"""The launcher: one command on a fresh machine."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from weir_dev import bootstrap
from weir_dev.bootstrap import (
    STAMP_NAME,
    InstallError,
    Packages,
    Progress,
    Step,
    ensure_installed,
    install,
    installed,
    settings_for_uv,
    steps,
)

COMMANDS, TESTS = Packages.COMMANDS, Packages.TESTS

ROOT = Path(__file__).parents[2]


class Installer:
    """Does what pip would, in no time; `fails` says how often it is interrupted first."""

    def __init__(self, fails=0):
        self.fails = fails
        self.calls = []
        self.may_finish = threading.Event()
        self.may_finish.set()

    def __call__(self, root, venv, step, packages):
        self.calls.append((step, packages))
        self.may_finish.wait(10)
        (venv / "bin").mkdir(parents=True, exist_ok=True)
        (venv / "bin" / "python").touch()
        if len(self.calls) <= self.fails:
            raise KeyboardInterrupt


@pytest.fixture
def checkout(tmp_path):
    root = tmp_path / "a checkout"
    root.mkdir()
    (root / "requirements.lock").write_text("a==1\n")
    (root / "pyproject.toml").write_text("[project]\n")
    return root


def test_installs_once(checkout):
    installer = Installer()
    first = ensure_installed(checkout, installer)
    assert ensure_installed(checkout, installer) == first == checkout / ".venv" / "bin" / "python"
    assert installer.calls == [(Step.ALL, COMMANDS)]


def test_installs_all_anew_when_the_lock_changes(checkout):
    installer = Installer()
    ensure_installed(checkout, installer)
    (checkout / "requirements.lock").write_text("a==2\n")
    ensure_installed(checkout, installer)
    assert installer.calls == [(Step.ALL, COMMANDS)] * 2


def test_installs_only_the_project_anew_when_only_that_changes(checkout):
    installer = Installer()
    ensure_installed(checkout, installer)
    (checkout / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    ensure_installed(checkout, installer)
    assert installer.calls == [(Step.ALL, COMMANDS), (Step.PROJECT, COMMANDS)]


def test_an_interrupted_installation_is_not_taken_for_a_whole_one(checkout):
    installer = Installer(fails=1)
    with pytest.raises(KeyboardInterrupt):
        ensure_installed(checkout, installer)
    assert installed(checkout / ".venv") is None
    ensure_installed(checkout, installer)
    assert installer.calls == [(Step.ALL, COMMANDS)] * 2


def test_an_interrupted_update_of_the_project_installs_all_anew(checkout):
    ensure_installed(checkout, Installer())
    (checkout / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    broken = Installer(fails=1)
    with pytest.raises(KeyboardInterrupt):
        ensure_installed(checkout, broken)
    ensure_installed(checkout, broken)
    assert broken.calls == [(Step.PROJECT, COMMANDS), (Step.ALL, COMMANDS)]


def test_two_at_once_install_once(checkout):
    installer = Installer()
    installer.may_finish.clear()
    found = []
    threads = [threading.Thread(target=lambda: found.append(ensure_installed(checkout, installer))) for _ in range(4)]
    for thread in threads:
        thread.start()
    installer.may_finish.set()
    for thread in threads:
        thread.join(30)
    assert installer.calls == [(Step.ALL, COMMANDS)]
    assert len(set(found)) == 1
    assert len(found) == 4


def test_a_checkout_that_was_moved_is_installed_anew(checkout, tmp_path):
    installer = Installer()
    ensure_installed(checkout, installer)
    moved = checkout.rename(tmp_path / "elsewhere")
    ensure_installed(moved, installer)
    assert installer.calls == [(Step.ALL, COMMANDS)] * 2


@pytest.mark.parametrize(
    ("found", "packages", "expected"),
    [
        (None, COMMANDS, [(Step.ALL, COMMANDS)]),
        (None, TESTS, [(Step.ALL, TESTS)]),
        ({}, COMMANDS, []),
        ({}, TESTS, [(Step.ADD, TESTS)]),
        ({"packages": "tests"}, COMMANDS, []),
        ({"packages": "tests"}, TESTS, []),
        ({"project": "old"}, COMMANDS, [(Step.PROJECT, COMMANDS)]),
        ({"project": "old"}, TESTS, [(Step.PROJECT, COMMANDS), (Step.ADD, TESTS)]),
        ({"project": "old", "packages": "tests"}, COMMANDS, [(Step.PROJECT, TESTS)]),
        ({"lock": "old"}, TESTS, [(Step.ALL, TESTS)]),
        ({"lock": "old", "packages": "tests"}, COMMANDS, [(Step.ALL, TESTS)]),
        ({"format": "1"}, COMMANDS, [(Step.ALL, COMMANDS)]),
    ],
)
def test_what_is_missing_is_installed_and_what_was_asked_for_once_stays(found, packages, expected):
    wanted = {"format": "2", "root": "/weir", "lock": "new", "project": "new"}
    stamp = None if found is None else {**wanted, "packages": "commands", **found}
    assert steps(stamp, wanted, packages) == expected


def test_commands_go_on_where_the_packages_of_the_tests_could_not_be_added(checkout):
    installer = Installer()
    ensure_installed(checkout, installer)
    installer.fails = 2
    with pytest.raises(KeyboardInterrupt):
        ensure_installed(checkout, installer, TESTS)
    ensure_installed(checkout, installer)
    ensure_installed(checkout, installer, TESTS)
    ensure_installed(checkout, installer, TESTS)
    assert installer.calls == [(Step.ALL, COMMANDS), (Step.ADD, TESTS), (Step.ADD, TESTS)]


UV = """#!{python}
import os, pathlib, sys
log = pathlib.Path({log!r})
words = sys.argv[1:]
log.open("a").write(" ".join(words) + "\\n")
if {fails}:
    sys.exit("uv: no index")
if words[0] == "venv":
    packages = pathlib.Path(words[-1]) / "lib/python3.11/site-packages"
    packages.mkdir(parents=True)
    (packages.parents[2] / "bin").mkdir()
    (packages.parents[2] / "bin/python").symlink_to(sys.executable)
if words[-1] == {waits_at!r}:
    os.close(os.open({ready!r}, os.O_WRONLY))
    os.close(os.open({go!r}, os.O_RDONLY))
"""


LOCK = """\
setuptools==80 \\
    --hash=sha256:00
    # via weir (pyproject.toml:dev)
typer==1 \\
    --hash=sha256:01
    # via weir (pyproject.toml)
uv==1 \\
    --hash=sha256:{uv}
    # via weir (pyproject.toml:installer)
"""


@pytest.fixture
def with_uv(checkout, tmp_path, monkeypatch):
    """A checkout with a lock, and a `uv` first on the PATH that writes down what it is asked for."""
    (checkout / "requirements.lock").write_text(LOCK.format(uv="02"))

    def make(*, fails=False, waits_at=""):
        log, folder = tmp_path / "uv.log", tmp_path / "uv"
        folder.mkdir()
        pipes = [tmp_path / "ready", tmp_path / "go"]
        for pipe in pipes:
            os.mkfifo(pipe)
        script = UV.format(
            python=sys.executable, log=str(log), fails=fails, waits_at=waits_at, ready=str(pipes[0]), go=str(pipes[1])
        )
        (folder / "uv").write_text(script)
        (folder / "uv").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        return log

    return make


def test_uv_installs_where_there_is_one_only_what_the_lock_pins_by_its_hashes(checkout, with_uv):
    log = with_uv()
    venv = ensure_installed(checkout, install).parents[1]
    make, build, sync, project = log.read_text().splitlines()
    assert make == f"venv --python {sys.executable} {venv}"
    for command in (build, sync):
        assert command.startswith(f"pip install --python {venv}/bin/python ")
        assert {"--no-deps", "--require-hashes"} <= set(command.split())
    assert build.endswith("/build.txt")
    assert sync.endswith("/commands.txt")
    assert "--no-deps" in project
    assert project.endswith(f"-e {checkout}")
    paths = venv / "lib/python3.11/site-packages/weir_checkout.pth"
    assert paths.read_text() == f"{checkout}/include\n{checkout}/spark_jobs\n"
    assert not (checkout / ".weir/install-files").exists()


def test_uv_adds_the_whole_lock_for_the_tests_and_makes_nothing_anew(checkout, with_uv):
    log = with_uv()
    ensure_installed(checkout, install)
    ensure_installed(checkout, install, TESTS)
    build, sync = log.read_text().splitlines()[4:]
    assert build.endswith("/build.txt")
    assert sync.endswith(f" {checkout}/requirements.lock")


def test_uv_installs_only_the_project_again_when_only_that_changes(checkout, with_uv):
    log = with_uv()
    ensure_installed(checkout, install)
    (checkout / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    ensure_installed(checkout, install)
    assert [line.split()[1] for line in log.read_text().splitlines()[4:]] == ["install"]


def test_where_uv_fails_pip_is_tried_and_the_log_has_both(checkout, with_uv, monkeypatch, capfd):
    log = with_uv(fails=True)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(InstallError, match="pip install"):
        ensure_installed(checkout, install)
    assert len(log.read_text().splitlines()) == 1
    assert "trying pip instead of uv" in capfd.readouterr().err
    text = (checkout / ".weir/install.log").read_text()
    assert "uv: no index" in text
    assert "-m pip install" in text
    assert installed(checkout / ".venv") is None


@pytest.fixture
def without_uv(checkout, tmp_path, monkeypatch):
    """A checkout where pip, which is set to look in a folder only, finds the pinned uv there."""
    folder, log = tmp_path / "packages", tmp_path / "uv.log"
    folder.mkdir()
    wheel = folder / "uv-1-py3-none-any.whl"
    script = UV.format(python=sys.executable, log=str(log), fails=False, waits_at="", ready="", go="")
    script += "log.open('a').write(' '.join(f'{k}={v}' for k, v in os.environ.items() if k.startswith('UV_')) + '\\n')"
    with zipfile.ZipFile(wheel, "w") as archive:
        executable = zipfile.ZipInfo("uv-1.data/scripts/uv")
        executable.external_attr = 0o100755 << 16
        archive.writestr(executable, script)
        archive.writestr("uv-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: uv\nVersion: 1\n")
        archive.writestr("uv-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("uv-1.dist-info/RECORD", "")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (checkout / "requirements.lock").write_text(LOCK.format(uv=digest))
    (tmp_path / "pip.conf").write_text(f"[global]\nfind-links = {folder}\nno-index = true\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    names = os.environ["PATH"].split(os.pathsep)
    monkeypatch.setenv("PATH", os.pathsep.join(name for name in names if not shutil.which("uv", path=name)))
    return log


def test_where_there_is_no_uv_pip_brings_the_pinned_one_which_gets_the_settings_of_pip(checkout, without_uv, tmp_path):
    venv = ensure_installed(checkout, install).parents[1]
    build, settings, sync, _, project, _ = without_uv.read_text().splitlines()
    assert build.endswith("/build.txt")
    assert sync.endswith("/commands.txt")
    assert project.endswith(f"-e {checkout}")
    assert {f"UV_FIND_LINKS={tmp_path / 'packages'}", "UV_OFFLINE=true"} <= set(settings.split(" "))
    ensure_installed(checkout, install, TESTS)
    assert len(without_uv.read_text().splitlines()) == 10
    assert (venv / "bin/uv").exists()


def test_settings_of_pip_are_those_of_files_below_those_of_the_environment(tmp_path):
    listed = f"""\
:env:.index-url='https://environment/simple'
:env:.disable-pip-version-check='1'
global.index-url='https://global/simple'
global.cert='/etc/a bundle.pem'
global.timeout='20'
install.timeout='30'
install.extra-index-url='\\nhttps://one/simple\\nhttps://two/simple'
install.find-links='{tmp_path} {tmp_path}/missing https://three/'
"""
    assert settings_for_uv(listed) == {
        "UV_DEFAULT_INDEX": "https://environment/simple",
        "SSL_CERT_FILE": "/etc/a bundle.pem",
        "UV_HTTP_TIMEOUT": "30",
        "UV_INDEX": "https://one/simple https://two/simple",
        "UV_FIND_LINKS": f"{tmp_path},https://three/",
    }
    assert settings_for_uv("") == {}


WATCHED = """
import sys
from pathlib import Path
from weir_dev import bootstrap

bootstrap.SECONDS_IN_A_LOG = 0.01
print(bootstrap.ensure_installed(Path(sys.argv[1]), bootstrap.install))
"""


def test_an_installation_tells_that_it_goes_on_although_its_installer_says_nothing(checkout, with_uv, tmp_path):
    with_uv(waits_at=str(checkout))
    command = [sys.executable, "-c", WATCHED, str(checkout)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for _ in range(3):
            while "installing the project" not in process.stderr.readline():
                assert process.poll() is None
        (tmp_path / "ready").read_bytes()
        (tmp_path / "go").write_bytes(b"")
        rest = process.stderr.read()
        assert process.stdout.read() == f"{checkout / '.venv' / 'bin' / 'python'}\n"
    assert rest.endswith("weir: installed\n")


def test_an_installation_goes_on_when_nobody_reads_its_progress_any_more(checkout, with_uv):
    with_uv()
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-c", WATCHED, str(checkout)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=writer, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stdout) == (0, f"{checkout / '.venv' / 'bin' / 'python'}\n")
    assert installed(checkout / ".venv") is not None


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_an_installation_that_is_ended_is_repeated_when_what_it_started_has_ended(checkout, with_uv, tmp_path, number):
    log = with_uv(waits_at=str(checkout))
    command = [sys.executable, bootstrap.__file__, str(checkout)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as first:
        (tmp_path / "ready").read_bytes()
        first.send_signal(number)
    assert first.returncode != 0
    assert installed(checkout / ".venv") is None
    is_left = number is signal.SIGKILL
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as second:
        if is_left:
            assert "waiting" in second.stderr.readline()
            assert len(log.read_text().splitlines()) == 4
            (tmp_path / "go").write_bytes(b"")
        (tmp_path / "ready").read_bytes()
        (tmp_path / "go").write_bytes(b"")
        second.stderr.read()
    assert len(log.read_text().splitlines()) == 8
    assert installed(checkout / ".venv") is not None


@pytest.fixture
def progress(tmp_path):
    """What is told after these lines, with so many files of packages."""

    def after(*lines, total=3):
        found = Progress("resolving", total, tmp_path, tmp_path / "scratch")
        for line in lines:
            found.line(line)
        return found

    def install(name):
        folder = tmp_path / f"lib/python3.11/site-packages/{name}.dist-info"
        folder.mkdir(parents=True)
        (folder / "RECORD").touch()

    after.install = install
    return after


def test_progress_counts_what_is_fetched_without_what_is_for_others(progress, tmp_path):
    assert progress().text() == "resolving"
    unpacked = tmp_path / "scratch/pip-unpack-1"
    unpacked.mkdir(parents=True)
    (unpacked / "a.whl").write_bytes(b"0" * 2_000_000)
    lines = [
        "Ignoring c: markers 'x' don't match your environment",
        "Collecting a==1 (from -r x)",
        "  Downloading https://x/a-1-py3-none-any.whl (7 MB)",
    ]
    assert progress(*lines).text() == "1 of 2 packages fetched, 2 MB: a-1 (7 MB)"


def test_progress_sums_what_uv_has_announced_and_fetched(progress):
    lines = ["Downloading babel (9.7MiB)", "Downloading pyarrow (52.5MiB)", "   Building pyspark==4.3.0"]
    assert progress(*lines, " Downloaded babel").text() == "10 of 62 MB of large packages ready: pyarrow, pyspark"
    ended = [" Downloaded babel", " Downloaded pyarrow", "      Built pyspark==4.3.0"]
    assert progress(*lines, *ended).text().startswith("62 of 62 MB of large packages ready: small ones")
    assert progress(*lines, *ended, "Prepared 175 packages in 3m 27s").text() == "installing packages"


def test_progress_counts_what_is_installed_of_what_is_new(progress):
    progress.install("pip-1")
    told = progress("Requirement already satisfied: z==1 in x", "Installing collected packages: a, b\n")
    assert told.text() == "0 of 2 packages installed: a"
    progress.install("a-1")
    assert told.text() == "1 of 2 packages installed: b"
    progress.install("b-1")
    assert told.text() == "2 of 2 packages installed, looking through them"


def test_progress_names_the_package_that_is_compiled(progress):
    assert progress("Compiling '/x/lib/python3.11/site-packages/pandas/core/a.py'...\n").text() == "compiling pandas"
    assert progress("Compiling '/x/include/weir/a.py'...\n").text() == "compiling weir"


@pytest.mark.parametrize("damage", ["", "{", "[]", "null"])
def test_a_damaged_stamp_is_no_stamp(checkout, damage):
    ensure_installed(checkout, Installer())
    (checkout / ".venv" / STAMP_NAME).write_text(damage)
    assert installed(checkout / ".venv") is None


def test_a_lock_without_the_build_tool_says_so(checkout, with_uv):
    with_uv()
    (checkout / "requirements.lock").write_text(LOCK.format(uv="02")[LOCK.index("typer") :])
    with pytest.raises(InstallError, match="does not pin setuptools"):
        ensure_installed(checkout, install)


@pytest.fixture
def launcher(tmp_path):
    """The launcher in a checkout whose bootstrap only prints its arguments, on a PATH with these programs alone."""
    root = tmp_path / "check out"
    (root / "include/weir_dev").mkdir(parents=True)
    shutil.copy(ROOT / "weir", root / "weir")
    (root / "include/weir_dev/bootstrap.py").write_text("import sys; print(sys.argv[1:])")
    path = tmp_path / "path"
    path.mkdir()
    for program in ("sh", "dirname", "readlink"):
        (path / program).symlink_to(shutil.which(program))

    def run(*arguments, pythons=(), start=root / "weir", **environ):
        for name, script in dict(pythons).items():
            (path / name).write_text(script)
            (path / name).chmod(0o755)
        environ = {"PATH": str(path), "HOME": str(tmp_path), **environ}
        return subprocess.run([start, *arguments], env=environ, cwd="/", capture_output=True, text=True, check=False)

    run.root = root
    return run


GOOD = f"#!/bin/sh\nexec '{Path(sys.executable).resolve()}' \"$@\"\n"
TOO_OLD = "#!/bin/sh\nexit 1\n"
WITHOUT_VENV = '#!/bin/sh\ncase "$2" in *ensurepip*) exit 1;; *) exit 0;; esac\n'


def test_launcher_starts_from_anywhere_and_keeps_arguments_apart(launcher):
    done = launcher("runs", "two words", "", pythons={"python3": GOOD})
    assert done.stdout == f"{[str(launcher.root), 'runs', 'two words', '']}\n"


def test_launcher_starts_through_a_link(launcher, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(launcher.root / "weir")
    assert str(launcher.root) in launcher("demo", pythons={"python3": GOOD}, start=link).stdout


def test_launcher_passes_over_a_python_that_is_too_old(launcher):
    done = launcher("demo", pythons={"python3": TOO_OLD, "python3.12": GOOD})
    assert (done.returncode, done.stderr) == (0, "")


def test_launcher_without_any_python_says_what_to_install(launcher):
    done = launcher("demo")
    assert done.returncode == 2
    assert "Python 3.11" in done.stderr
    assert "no Python at all" in done.stderr


def test_launcher_without_venv_says_what_to_install(launcher):
    done = launcher("demo", pythons={"python3": WITHOUT_VENV, "python3.12": TOO_OLD})
    assert done.returncode == 2
    assert "apt install python3-venv" in done.stderr


@pytest.fixture
def current(launcher):
    """The launcher with a current `.venv`, whose Python is this one, and the real bootstrap of a tiny command line."""
    root = launcher.root
    for name in ("requirements.lock", "pyproject.toml"):
        (root / name).write_text(f"# {name}\n")
    development = root / "include/weir_dev"
    shutil.copy(bootstrap.__file__, development / "bootstrap.py")
    (development / "__init__.py").touch()
    (development / "main.py").write_text(TINY)
    (root / ".venv/bin").mkdir(parents=True)
    (root / ".venv/bin/python").symlink_to(Path(sys.executable).resolve())
    (root / ".venv/pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\n")
    packages = root / f".venv/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    packages.mkdir(parents=True)
    (packages / "weir_checkout.pth").write_text(f"{root / 'include'}\n")
    bootstrap.ensure_installed(root, lambda *_: None)
    return launcher


TINY = """
import sys
def app(prog_name):
    print(prog_name, sys.argv[1:], sys.path[0] == "", sorted({"sqlalchemy", "typer"} & set(sys.modules)))
if __name__ == "__main__":
    app("after an installation")
"""


def test_a_current_environment_starts_the_command_and_no_other_python(current):
    done = current("runs", "two words", "")
    assert (done.stdout, done.stderr) == ("weir ['runs', 'two words', ''] True []\n", "")


def test_an_environment_without_its_stamp_is_not_used(current):
    (current.root / ".venv" / STAMP_NAME).unlink()
    done = current("runs")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no Python at all" in done.stderr


@pytest.mark.parametrize("stale", ["requirements.lock", "pyproject.toml"])
def test_an_environment_that_is_not_current_leaves_its_replacement_to_another_python(current, stale):
    (current.root / stale).write_text("# another\n")
    done = current("runs", "two words", pythons={"python3": '#!/bin/sh\necho "outside $WEIR_INSTALL $3, $4"\n'})
    assert done.stdout == "outside 1 runs, two words\n"


def test_launcher_and_ci_can_be_executed():
    assert os.access(ROOT / "weir", os.X_OK)
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
