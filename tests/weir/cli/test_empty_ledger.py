"""What each command says where nothing has run, or where there is no ledger: the next step."""

import pytest
from tests.builders.ledgers import new_ledger
from tests.messages.kinds import of_kind
from tests.weir.command_line import typed, use

from weir.errors import Misconfigured

SAID = {
    "runs": "The ledger is empty: no run has begun yet. Unpause or trigger the DAG of a dataflow",
    "results": "no region has committed yet. `weir runs` lists the runs",
    "failovers": "No failover is recorded",
    "datasets": "no run has begun yet",
    "checkpoints": "none keeps state, or none of its runs is closed",
    "savepoint list": "`weir savepoint create DATAFLOW` makes one",
    "code": "No version is recorded: no region has begun yet",
    "quality": "Only stages with quality= are checked",
    "gc --dry-run": "Nothing is stored that could be deleted",
    "verify": "0 result(s) of 0 run(s): none is stored",
}
NAMING = (
    *("runs trips", "results trips", "failovers trips", "failovers trips@20130101T000000Z", "gc trips", "verify trips"),
    *("checkpoints trips", "savepoint list trips", "savepoint create trips", "savepoint drop trips 1"),
    *("quality trips", "restore trips 1", "state scan trips s", "state get trips s k", "plan trips@20130101T000000Z"),
    *("why t --run trips", "run adopt trips", "quality show trips"),
    *("datasets trips.zones", "datasets --run trips@20130101T000000Z"),
    *("compare trips@20130101T000000Z x", "compare trips.zones@2013-01-01 x"),
    *("code trips", "code same s old new --dataflow trips"),
    *("state sql trips select", "savepoint show trips 1", "verify trips --expectations --checkpoint newest"),
)


@pytest.fixture
def empty(tmp_path, monkeypatch):
    (tmp_path / "store").mkdir()
    new_ledger(tmp_path / "ledger.db").close()
    use(monkeypatch, tmp_path)


@pytest.mark.parametrize("words", SAID)
def test_where_nothing_has_run_each_list_says_so(empty, words):
    assert SAID[words] in typed(*words.split())


@pytest.mark.parametrize("words", NAMING)
def test_where_nothing_has_run_each_name_is_refused_with_what_makes_the_first_run(empty, words):
    with pytest.raises(Misconfigured, match=r"trips.*: no run has begun yet\. Unpause or trigger .*`weir doctor`"):
        typed(*words.split())


@pytest.mark.parametrize("words", sorted({*SAID, *NAMING} - {"restore trips 1"}))
def test_without_a_ledger_each_command_says_how_to_get_one(tmp_path, monkeypatch, words):
    """But for a restore, which may be into a new one."""
    use(monkeypatch, tmp_path)
    with pytest.raises(Misconfigured, check=of_kind("environment.no_ledger")):
        typed(*words.split())
    assert list(tmp_path.iterdir()) == []
