"""Takes what another attempt has written instead of computing it.

Invariant: all of it is copied and compared byte for byte, or nothing of it is left.
"""

from __future__ import annotations

from collections.abc import Sequence

from weir.formats.region_job import OutputReport, OutputToWrite
from weir.store.copying import copy_all, copy_file
from weir.store.errors import NotFound, OtherBytes
from weir.store.store import Store


def take_copies(store: Store, written: Sequence[OutputReport], own: Sequence[OutputToWrite]) -> str:
    """Copy the files of an attempt's outputs to those of another one; return why not, or empty.

    Raises Retryable, and AlreadyExists where a file of the attempt is there already.
    """
    files = [
        (f"{taken.folder}/{file.name}", f"{to.folder}/{file.name}", file.sha256)
        for taken, to in zip(written, own, strict=True)
        for file in taken.files
    ]
    try:
        copy_all(lambda each: copy_file(store, each[0], store, each[1], each[2]), files, store)
    except (NotFound, OtherBytes) as error:
        for output in own:
            store.delete_folder(output.folder)
        return str(error)
    return ""
