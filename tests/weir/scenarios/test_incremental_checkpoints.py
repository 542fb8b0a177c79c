"""Four checkpoints, two of which are retained, have the files, counts and deletions of Flink's figure."""

import pytest
from tests.conformance.flink.shared_files import SharedFiles
from tests.weir.cli.test_guides import shown
from tests.weir.command_line import typed, use
from tests.weir.scenarios.incremental import Figure

MERGED, MERGED_NEXT = "part-1-2-3", "part-4-5-6"

NAMED = {
    1: {"part-1", "part-2"},
    2: {"part-1", "part-2", "part-3", "part-4"},
    3: {MERGED, "part-4", "part-5"},
    4: {MERGED, MERGED_NEXT},
}
"""What each checkpoint consists of in the figure."""

COUNTS = {
    1: {"part-1": 1, "part-2": 1},
    2: {"part-1": 2, "part-2": 2, "part-3": 1, "part-4": 1},
    3: {"part-1": 1, "part-2": 1, "part-3": 1, MERGED: 1, "part-4": 2, "part-5": 1},
    4: {MERGED: 2, "part-4": 1, "part-5": 1, MERGED_NEXT: 1},
}
"""The figure's shared state registry once a checkpoint is complete, without the files that it deletes then."""

DELETED = {1: set(), 2: set(), 3: set(), 4: {"part-1", "part-2", "part-3"}}

RETAINED = {1: {1}, 2: {1, 2}, 3: {2, 3}, 4: {3, 4}}


@pytest.fixture
def figure(tmp_path, monkeypatch):
    use(monkeypatch, tmp_path, 118)
    return Figure(tmp_path)


def test_each_checkpoint_has_the_files_counts_and_deletions_of_the_figure(figure):
    written = set()
    for number, named in NAMED.items():
        figure.checkpoint(number)
        written |= named
        assert figure.named() == {each: NAMED[each] for each in RETAINED[number]}
        assert figure.counts(number) == COUNTS[number]
        assert written - figure.stored() == DELETED[number]


def test_flinks_registry_deletes_the_same_files():
    registry = SharedFiles()
    for number, named in NAMED.items():
        for name in named:
            registry.register(name, name, number)
        unused = registry.unregister_unused(min(RETAINED[number]))
        assert set(unused.files) == DELETED[number]
        assert registry.files.keys() == COUNTS[number].keys()


def test_the_sixth_file_stays_as_long_as_the_result_of_its_epoch(figure):
    """RocksDB merges it before it is uploaded; in Weir it is what the task of the epoch has committed."""
    for number in NAMED:
        figure.checkpoint(number)
    assert figure.stored() - COUNTS[4].keys() == {"part-6"}


def test_the_page_shows_what_the_command_draws_of_each(figure):
    examples = [(words, lines) for words, lines in shown("scenarios.md") if words[0] == "checkpoints"]
    assert [words[-1] for words, _ in examples] == [str(number) for number in NAMED]
    for words, lines in examples:
        figure.checkpoint(int(words[-1]))
        told = typed(*words).splitlines()
        assert [line for line in lines if line not in told] == []
