"""A table of versions against a model: whatever is added, moved and deleted, each version has its own rows."""

# ruff: noqa: S608

import json
import random
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

import psycopg2
import pyarrow as pa
import pytest
from tests.weir.state_tables.versioned import OWN, table_in

from weir.state_tables import postgres as module
from weir.state_tables.versions import (
    Apply,
    At,
    TableVersion,
    nearest,
    newest_of_epochs,
    next_step,
    replaced_by,
)

COLUMNS = (("k", "string", pa.string()), ("d", "long", pa.int64()), ("x", "double", pa.float64()))
KEYS = ("k", "d")
SCHEMA = json.dumps(
    {"type": "struct", "fields": [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t, _ in COLUMNS]}
)
STORED = pa.schema([*((name, kind) for name, _, kind in COLUMNS), *OWN])
POSSIBLE = [(k, d) for k in ("a", "", None, "%s", 'q"') for d in (1, None)]
NUMBERS = (0.0, -0.0, 1.5, float("nan"), None)


@pytest.fixture(scope="module")
def url(postgres):
    return postgres.url("versions").replace("+psycopg2", "")


@pytest.fixture
def table(request, url):
    return table_in(url, f"v_{abs(hash(request.node.nodeid)) % 10**8}")


def seen(url, name):
    """What another session sees of each checkpoint, and of the newest one."""
    with closing(psycopg2.connect(url)) as db, db.cursor() as cursor:
        cursor.execute(f"select _epoch, _checkpoint, k, d, x::text from {name}_at")
        found = {}
        for epoch, checkpoint, k, d, x in cursor.fetchall():
            rows = found.setdefault(At(epoch, checkpoint), {})
            assert (k, d) not in rows
            rows[k, d] = x
        cursor.execute(f"select k, d, x::text from {name}")
        return found, {(k, d): x for k, d, x in cursor.fetchall()}


def as_text(x):
    return None if x is None else "NaN" if x != x else repr(x).removesuffix(".0")


def rows_of(changes):
    """Rows of a file: (k, d) and what it has become: a number and its update, or None for deleted."""
    rows = [
        {"k": k, "d": d, "x": None, "_weir_deleted": True, "_weir_updated": at}
        if x == "deleted"
        else {"k": k, "d": d, "x": x, "_weir_deleted": False, "_weir_updated": at}
        for (k, d), (x, at) in changes.items()
    ]
    return pa.Table.from_pylist(rows, schema=STORED)


@dataclass
class Content:
    """What a checkpoint has, rows that have expired among it, and what it has changed of its parent."""

    rows: dict
    until: int | None
    changes: dict
    parent: At | None

    def visible(self):
        return {
            key: as_text(x)
            for key, (x, at) in self.rows.items()
            if x != "deleted" and (self.until is None or at > self.until)
        }

    def stored(self):
        shown = self.visible()
        return rows_of({key: value for key, value in self.rows.items() if key in shown})


class Model:
    """Random checkpoints of a state, some of which are wanted."""

    def __init__(self, seed, *, expires):
        self.random, self.expires = random.Random(seed), expires
        self.contents, self.wanted, self.number = {}, [], 0

    def grow(self):
        """Complete another checkpoint: of the next epoch, or of one before again."""
        self.number += 1
        days = sorted({each.epoch for each in self.contents}) or ["20130100T000000Z"]
        is_new = self.random.random() < 0.7 or not self.contents
        day = f"201301{int(days[-1][6:8]) + 1:02}T000000Z" if is_new else self.random.choice(days)
        before = [each for each in self.contents if each.epoch < day]
        parent = self.random.choice(before[-3:]) if before else None
        rows = dict(self.contents[parent].rows) if parent else {}
        time = int(day[6:8]) * 10
        until = time - 25 if self.expires else None
        changes = {}
        for key in self.random.sample(POSSIBLE, self.random.randrange(5)):
            is_deleted = self.random.random() < 0.3
            changes[key] = ("deleted" if is_deleted else self.random.choice(NUMBERS), time if self.expires else None)
        self.contents[At(day, self.number)] = Content(rows | changes, until, changes, parent)
        self.wanted = newest_of_epochs([*self.wanted, At(day, self.number)])
        if self.random.random() < 0.6:
            newest = self.wanted[-1]
            self.wanted = sorted({newest, *self.random.sample(self.wanted, len(self.wanted) // 2)})


def step(table, model, add: Callable):
    """Do one step, as a process does that follows the checkpoints; report whether there was one."""
    with table.open() as opened:
        found = opened.versions()
        versions = [version for version, _ in found.values()]
        found_step = next_step(model.wanted, versions, opened.used() if found else ())
        if not isinstance(found_step, Apply):
            return opened.carry_out(found_step, versions)
        at, is_new = found_step.at, opened.prepare(SCHEMA, KEYS)
        versions = [] if is_new else versions
        content = model.contents[at]
        segments = add(opened, content, {each.at: each for each in versions}, at)
        opened.enter(TableVersion(at, segments, content.until), {}, replaced_by(at, versions))
        if is_new:
            opened.index()
    return True


@pytest.mark.parametrize("expires", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_each_version_has_its_own_rows_after_each_step(url, table, monkeypatch, seed, expires):
    monkeypatch.setattr(module, "PAGE_ROWS", 2)
    model, choice = Model(seed, expires=expires), random.Random(seed + 100)

    def add(opened, content, versions, at):
        if content.parent in versions and choice.random() < 0.6:
            return opened.add_changes(SCHEMA, [rows_of(content.changes)], versions[content.parent])
        onto = nearest(at, list(versions.values())) if choice.random() < 0.9 else None
        return opened.add_all(SCHEMA, [content.stored()], onto)

    for _ in range(12):
        model.grow()
        shown_before = None
        while step(table, model, add):
            every, newest = seen(url, table.server.table)
            with table.open() as opened:
                known = opened.versions()
            assert {at: model.contents[at].visible() for at in known if model.contents[at].visible()} == every
            assert newest == model.contents[max(known)].visible()
            assert shown_before is None or max(known) >= shown_before
            shown_before = max(known)
        assert set(known) == set(model.wanted)
        with closing(psycopg2.connect(url)) as db, db.cursor() as cursor:
            cursor.execute(f"select count(*) from {table.server.table}_rows")
            stored = cursor.fetchone()[0]
        assert stored <= len(POSSIBLE) * (len(model.wanted) + 1)
