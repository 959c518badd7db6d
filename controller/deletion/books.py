"""All agents' books, and where to look when a pod or a set elsewhere changes what is decided about a copy.

Why this exists: what an agent keeps is decided from pods and sets that may change on any other node. An index of what
the agents' last answers named tells at once whom a change concerns, whether five hosts answer or five thousand.
"""

from collections.abc import Iterable, Iterator, Sequence

from controller.deletion.model import FoundSnapshot
from controller.deletion.owners import AgentBook, Reply
from controller.deletion.pods import PodRecord

# A pod's namespace and name, or a set's UID alone.
_Key = tuple[str, ...]


class Books:
    """The books by node."""

    def __init__(self) -> None:
        """Empty."""
        self._books: dict[str, AgentBook] = {}
        self._named: dict[str, frozenset[_Key]] = {}
        self._nodes: dict[_Key, set[str]] = {}

    def __iter__(self) -> Iterator[AgentBook]:
        """Yield every book; none may be opened or dropped meanwhile."""
        return iter(self._books.values())

    def find(self, node: str) -> AgentBook | None:
        """Return a node's book, None when there is none yet."""
        return self._books.get(node)

    def open(self, node: str) -> AgentBook:
        """Return a node's book, a new one when there is none yet."""
        if node not in self._books:
            self._books[node] = AgentBook(node)
        return self._books[node]

    def acknowledged(
        self, book: AgentBook, named: Iterable[PodRecord], reply: Reply, channel: object, now: float
    ) -> None:
        """The agent has applied this set of owners and answered so."""
        book.acknowledged(named, reply, channel, now)
        if self._books.get(book.node) is book:
            self._index(book.node, reply.found)

    def drop(self, node: str) -> None:
        """Forget a node."""
        self._books.pop(node, None)
        self._index(node, ())

    def clear(self) -> None:
        """Forget everything."""
        self._books.clear()
        self._named.clear()
        self._nodes.clear()

    def with_copies_of_pod(self, namespace: str, name: str) -> Sequence[str]:
        """Return the nodes whose agents named snapshots of pods of this name that nobody there claims."""
        return tuple(self._nodes.get((namespace, name), ()))

    def with_copies_of_set(self, set_uid: str) -> Sequence[str]:
        """Return the nodes whose agents named snapshots of pods of this set that nobody there claims."""
        return tuple(self._nodes.get((set_uid,), ()))

    def _index(self, node: str, found: Sequence[FoundSnapshot]) -> None:
        before, after = self._named.pop(node, frozenset[_Key]()), frozenset(_keys(found))
        for key in before - after:
            nodes = self._nodes[key]
            nodes.discard(node)
            if not nodes:
                del self._nodes[key]
        for key in after - before:
            self._nodes.setdefault(key, set()).add(node)
        if after:
            self._named[node] = after


def _keys(found: Iterable[FoundSnapshot]) -> Iterator[_Key]:
    for snapshot in found:
        owner = snapshot.owner
        if owner is not None:
            yield owner.namespace, owner.pod_name
            if owner.set_uid:
                yield (owner.set_uid,)
