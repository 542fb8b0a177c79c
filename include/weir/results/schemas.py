"""Whether the siblings of one result agree about its columns. Invariant: a reader never meets two schemas in one input.

Siblings are the partitions of one stage in one layout. They may only differ while the whole stage runs again: then each
that is made anew has the new schema, and whoever still has the old one is to be cleared, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from weir.results.manifest import digest_schema, digest_version

K = TypeVar("K")


def other_schemas(siblings: Mapping[K, str], digest: str) -> tuple[K, ...]:
    """The siblings whose columns or types are others than those of a new result, in the order given.

    `siblings` are digests of current results, as text, and so is `digest`. Nothing is said of one that was made by
    another definition of digests.
    """
    return tuple(
        sibling
        for sibling, other in siblings.items()
        if digest_version(other) == digest_version(digest) and digest_schema(other) != digest_schema(digest)
    )
