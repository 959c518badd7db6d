"""The rhythm of this room: how often agents are told, how soon is looked again, how much is done at once."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pace:
    """Times in seconds.

    Attributes:
        resync: An agent is told its owners at least so often, and `resync_spread` later at most; together under the
            5 minutes of the contract.
        sweep: How often is looked for agents that are connected anew or were not told for long.
        gather: How long changes of pods and sets elsewhere are gathered before the agents that have copies of theirs
            are told and asked again.
        leave: How long is gathered what a node is to be told of pods that are gone and whose snapshots are promised
            already.
        leave_rate: How many nodes a second are told of nothing else, unless `leave_longest` wants more.
        leave_longest: How long such a node waits at most.
        first_look: When is looked again for a snapshot that a runtime writes after its pod's deletion.
        second_look: The same, for slow ones.
        remember: How long the last version of a pod is remembered after its decision was carried out.
        remember_unknown: How long the last version of a pod is remembered whose node has no agent that we know, as
            right after a start; an agent that appears later finds a deletion that nobody saw.
        workers: How many names each queue works on at once; an agent that hangs holds one.
    """

    resync: float = 240.0
    resync_spread: float = 50.0
    sweep: float = 1.0
    gather: float = 1.0
    leave: float = 0.2
    leave_rate: float = 100.0
    leave_longest: float = 10.0
    first_look: float = 10.0
    second_look: float = 60.0
    remember: float = 900.0
    remember_unknown: float = 3600.0
    workers: int = 256
