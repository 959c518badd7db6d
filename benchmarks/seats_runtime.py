"""The stand-in VM runtime as a process: `python -m benchmarks.seats_runtime KUBECONFIG NODE STORE REGISTRY AGENT`.

A thread of the measuring process would slow down what is measured. Lines of standard input: `idle` has it do nothing
but end deletions, `work` everything again. Prints `{}` when it has begun and after each line.
"""

import sys
from pathlib import Path

from devenv.kube_api import Json, KubeApi
from devenv.snapshot_registry import SnapshotRegistry
from devenv.vm_runtime import VmRuntime


class _Runtime(VmRuntime):
    """Ends deletions also while nothing else is to be done."""

    only_ends = False

    def _bring_on(self, pod: Json) -> None:
        if not self.only_ends:
            super()._bring_on(pod)


def main(kubeconfig: str, node: str, store: str, registry: str, agent: str) -> None:
    """Run until standard input ends."""
    with KubeApi.from_kubeconfig(Path(kubeconfig)) as kube:
        runtime = _Runtime(kube, node, Path(store), SnapshotRegistry(registry), agent)
        with runtime:
            print("{}", flush=True)
            for line in sys.stdin:
                runtime.only_ends = line.strip() == "idle"
                print("{}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
