"""What follows in an agent's book when a decision about a deleted pod is carried out, or found to be needless.

Why this exists: a promise made at once and a decision made after a sync end in the same way, and the numbers that
people watch must not depend on which of the two it was.
"""

from collections.abc import Callable

from controller.deletion.brake import Brake
from controller.deletion.metrics import LATENCY
from controller.deletion.model import Action
from controller.deletion.owners import AgentBook, Departure, Reply
from controller.deletion.pace import Pace
from controller.kube.queue import WorkQueue


class Bookkeeping:
    """Closes entries of books; `syncs` is the queue of nodes to be told."""

    def __init__(self, syncs: WorkQueue, brake: Brake, pace: Pace, clock: Callable[[], float]) -> None:
        """`clock` gives monotonic seconds."""
        self._syncs = syncs
        self._brake = brake
        self._pace = pace
        self._clock = clock

    def settled(self, book: AgentBook, uid: str, action: Action) -> None:
        """Nothing is left to be done for this owner."""
        book.undone.pop(uid, None)
        self._brake.forget(f"{book.node} {uid}")
        if (departure := book.settle(uid, self._clock())) is not None:
            self.answered(departure, action)

    def answered(self, departure: Departure, action: Action) -> None:
        """The agent has done what was asked, which is what the pod's owner waits for."""
        if not departure.answered:
            departure.answered = True
            LATENCY.labels(action.name).observe(self._clock() - departure.seen_at)

    def settle_absent(self, book: AgentBook, reply: Reply, named: set[str]) -> None:
        """Of a deleted pod whose snapshots are not among those nobody claims there is nothing, so far."""
        for uid, departure in list(book.open.items()):
            if departure.heard and uid not in reply.told and uid not in named:
                self.settled(book, uid, Action.NOTHING)
                self.look_again(book.node, departure)
        for uid in [uid for uid in book.undone if uid not in named and uid not in book.open]:
            # Found by an earlier sync and gone since, perhaps by what an earlier answer led to.
            self.settled(book, uid, Action.NOTHING)

    def look_again(self, node: str, departure: Departure) -> None:
        """Runtimes write a snapshot while or after a pod is deleted; look for it sooner than the next sync would."""
        pauses = (self._pace.first_look, self._pace.second_look)
        if departure.looks < len(pauses):
            self._syncs.add_after(node, pauses[departure.looks])
            departure.looks += 1
