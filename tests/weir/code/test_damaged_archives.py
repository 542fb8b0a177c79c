"""An archive is what was packed, or it is refused."""

import pytest

from weir.code.archive import Archive, archive_of

ARCHIVE = Archive({"pipelines/__init__.py": b"", "pipelines/trips.py": b"def trips():\n    return 1\n" * 20})


def test_an_archive_is_read_as_it_was_packed():
    assert archive_of(ARCHIVE.data, ARCHIVE.fingerprint) == ARCHIVE


@pytest.mark.parametrize("bits", [0x01, 0x80, 0xFF])
def test_whichever_byte_of_it_is_damaged_nothing_else_is_read(bits):
    whole = ARCHIVE.data
    refused = 0
    for place in range(len(whole)):
        damaged = bytes(byte ^ bits if each == place else byte for each, byte in enumerate(whole))
        try:
            assert archive_of(damaged, ARCHIVE.fingerprint) == ARCHIVE  # such as a flag that nobody reads
        except ValueError:
            refused += 1
    assert refused > len(whole) / 2


def test_a_part_of_it_is_refused():
    for length in range(len(ARCHIVE.data)):
        with pytest.raises(ValueError, match="it cannot be read as a zip"):
            archive_of(ARCHIVE.data[:length], ARCHIVE.fingerprint)


def test_another_archive_is_refused():
    with pytest.raises(ValueError, match="its fingerprint is"):
        archive_of(Archive({}).data, ARCHIVE.fingerprint)
