"""Harm to the files of current results, behind everybody's back. Invariant: what was there can be brought back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weir.testing.simulator.events import Event

if TYPE_CHECKING:
    from weir.testing.simulator.world import World


def damage(world: World, event: Event) -> None:
    """A current result loses files, or has wrong ones."""
    folders = sorted({path.rpartition("/")[0] for path in world.witness.current_files()})
    if not folders:
        return
    claimed = sorted(world.witness.sight.claimed()) if event.number % 2 else []
    world.witness.harmed.add(folder := (claimed or folders)[event.number % len(claimed or folders)])
    file, manifest = f"{folder}/part-0.bin", f"{folder}/manifest.json"
    for path in {"folder": (file, manifest), "manifest": (manifest,)}.get(event.how, (file,)):
        _damage(world, path, event)


def _damage(world: World, path: str, event: Event) -> None:
    data = world.files.data.get(path)
    if data is None:
        return
    world.removed.setdefault(path, data)
    if event.how in ("folder", "manifest"):
        del world.files.data[path]
    elif event.how == "cut":
        world.files.data[path] = data[: len(data) // 2]
    else:
        at = event.number % len(data)
        world.files.data[path] = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def bring_back(world: World, event: Event) -> None:
    """What was damaged is as it was."""
    if world.removed:
        path = sorted(world.removed)[event.number % len(world.removed)]
        world.files.data[path] = world.removed.pop(path)
