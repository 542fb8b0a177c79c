"""The files of docs/tutorial.md are a sound project; its commands are typed in `tests/e2e/long/test_tutorial.py`."""

import subprocess

from tests.tutorial import Command, File, steps

from weir_dev.commands.init import make_project


def test_what_the_tutorial_writes_has_no_problem(tmp_path):
    project = tmp_path / "trips"
    make_project(project)
    checks = 0
    for step in steps():
        if isinstance(step, File):
            assert (project / step.path).parent.is_dir(), "the tutorial writes into folders of the new project"
            (project / step.path).write_text(step.content)
        elif isinstance(step, Command) and step.typed == "./weir check":
            checks += 1
            done = subprocess.run([project / "weir", "check"], cwd=project, capture_output=True, text=True, check=False)
            assert step.is_answered_by(done.stdout), done.stdout + done.stderr
    assert checks == 3
