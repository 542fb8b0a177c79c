"""`python -m tests.chaos`: what `./weir chaos` runs."""

import sys

from weir.cli.main import command_line

if __name__ == "__main__":
    command_line({"chaos": "tests.chaos.command:chaos"})(["chaos", *sys.argv[1:]], prog_name="./weir")
