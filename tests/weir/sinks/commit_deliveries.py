"""A process that commits deliveries into their targets, and is killed: `python commit_deliveries.py STORE FILE`.

The file has one delivery a line. The store is a local folder.
"""

import json
import sys
from pathlib import Path

from weir.sinks import Delivery
from weir.sinks.targets.delta import DeltaTarget


class Reach:
    """Files below a local folder."""

    def __init__(self, folder):
        self.folder = Path(folder)

    def open(self, file):
        return (self.folder / file.path).open("rb")

    def local_path(self, file):
        return str(self.folder / file.path)


def main(store, deliveries):
    found = [Delivery.from_json(json.loads(line)) for line in Path(deliveries).read_text().splitlines()]
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for each in found:
        DeltaTarget(each.target.options, Reach(store)).commit(each.version, each.token)


if __name__ == "__main__":
    main(*sys.argv[1:])
