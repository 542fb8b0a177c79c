"""The steps of docs/tutorial.md, read from the page: commands with outputs, files, what is done in Airflow."""

import re
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "tutorial.md"

_STEP = re.compile(
    r"^```console\n(?P<console>.*?)^```$"
    r"|^<!-- write (?P<file>\S+) -->\n```\w+\n(?P<content>.*?)^```$"
    r"|^<!-- clear (?:(?P<task>[\w-]+)(?:\[(?P<index>\d+)\])? of )?(?P<run>\S+) -->$"
    r"|^<!-- await DAG (?P<dag>\S+) -->$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Command:
    typed: str
    output: str

    def is_answered_by(self, output):
        """Report whether an output is the page's, in which "..." stands for anything."""
        pattern = "".join(".*" if part == "..." else re.escape(part) for part in re.split(r"(\.\.\.)", self.output))
        return re.fullmatch(pattern, output.rstrip() + "\n" if output.strip() else "", re.DOTALL) is not None


@dataclass(frozen=True)
class File:
    path: str
    content: str


@dataclass(frozen=True)
class Clear:
    run: str
    task: str | None
    index: int


@dataclass(frozen=True)
class AwaitDag:
    dag: str


def steps():
    for found in _STEP.finditer(PAGE.read_text()):
        if found["console"] is not None:
            for block in re.split(r"^\$ ", found["console"], flags=re.MULTILINE)[1:]:
                typed, _, output = block.partition("\n")
                yield Command(typed, output)
        elif found["file"] is not None:
            yield File(found["file"], found["content"])
        elif found["dag"] is not None:
            yield AwaitDag(found["dag"])
        else:
            yield Clear(found["run"], found["task"], int(found["index"] or -1))
