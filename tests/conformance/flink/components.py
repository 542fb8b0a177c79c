"""Connected components of large graphs of integers. Invariant: linear time, and never recursion."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


class UnionFind:
    """Sets of the integers below `size` that can be joined but not divided."""

    def __init__(self, size: int) -> None:
        self._leader = list(range(size))

    def find(self, item: int) -> int:
        """Return the member that stands for the item's set."""
        leader = self._leader
        while leader[item] != item:
            leader[item] = leader[leader[item]]
            item = leader[item]
        return item

    def union(self, one: int, other: int) -> None:
        """Join two sets; the smaller leader stands for both, so that results do not depend on the order."""
        one, other = self.find(one), self.find(other)
        if one < other:
            self._leader[other] = one
        else:
            self._leader[one] = other

    def labels(self) -> list[int]:
        """Number the sets from 0, by their least member, and return each item's number."""
        numbers: dict[int, int] = {}
        return [numbers.setdefault(self.find(item), len(numbers)) for item in range(len(self._leader))]


def strongly_connected(successors: Sequence[Sequence[int]]) -> list[int]:
    """Return for each node the number of its strongly connected component (Tarjan, with a stack of its own)."""
    search = _Search(successors)
    for node in range(len(successors)):
        if search.order[node] == _UNSEEN:
            search.explore(node)
    return search.component


_UNSEEN = -1


class _Search:
    """Tarjan's bookkeeping: `low` is the least order that is known to be reachable and not yet in a component."""

    def __init__(self, successors: Sequence[Sequence[int]]) -> None:
        self.successors = successors
        self.order = [_UNSEEN] * len(successors)
        self.component = [_UNSEEN] * len(successors)
        self._low = [0] * len(successors)
        self._open: list[int] = []
        self._seen = 0
        self._components = 0

    def explore(self, root: int) -> None:
        walk = [(root, self._enter(root))]
        while walk:
            node, rest = walk[-1]
            unseen = self._next_unseen(node, rest)
            if unseen is not None:
                walk.append((unseen, self._enter(unseen)))
                continue
            walk.pop()
            if walk:
                behind = walk[-1][0]
                self._low[behind] = min(self._low[behind], self._low[node])
            if self._low[node] == self.order[node]:
                self._close(node)

    def _enter(self, node: int) -> Iterator[int]:
        self.order[node] = self._low[node] = self._seen
        self._seen += 1
        self._open.append(node)
        return iter(self.successors[node])

    def _next_unseen(self, node: int, rest: Iterator[int]) -> int | None:
        for successor in rest:
            if self.order[successor] == _UNSEEN:
                return successor
            if self.component[successor] == _UNSEEN:
                self._low[node] = min(self._low[node], self.order[successor])
        return None

    def _close(self, root: int) -> None:
        member = _UNSEEN
        while member != root:
            member = self._open.pop()
            self.component[member] = self._components
        self._components += 1
