"""Nested values as JSON has them, for targets whose columns or records are JSON. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa


def jsonable(value: Any, kind: pa.DataType, leaf: Callable[[Any], Any]) -> Any:
    """Return a value as JSON has it: a map with text keys is an object, another one a list of pairs.

    `leaf` gives that of a value that is not nested, and is not null.
    """
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {field.name: jsonable(value[field.name], field.type, leaf) for field in kind}
    if pa.types.is_map(kind):
        pairs = [(jsonable(key, kind.key_type, leaf), jsonable(each, kind.item_type, leaf)) for key, each in value]
        return dict(pairs) if pa.types.is_string(kind.key_type) else [list(each) for each in pairs]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [jsonable(each, kind.value_type, leaf) for each in value]
    return leaf(value)
