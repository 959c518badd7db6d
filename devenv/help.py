"""The help text of `./run`, readable before anything is installed."""

from __future__ import annotations

HELP = """\
./run COMMAND

  demo            show this machine as a Kubernetes Node, end to end, in a folder of its own
                  --once            end when the Node is ready, with status 0
                  -o FORMAT         table (default), json or yaml; json is the Node exactly as the API server has it
                  --kubeconfig FILE use that cluster instead of a local control plane
  control-plane   start a local Kubernetes control plane, print KUBECONFIG=<file>, stay until Ctrl-C
  test            run all checks and tests; --long for the long profile; other arguments go to pytest
  lint            run the checks only: format, types, layers, API, locks
  bench           run the benchmarks; other arguments go to them
  proto           generate the Python modules and the descriptor set again from the .proto files
  docs            write the reference tables of docs/ again from the code
  lock            resolve the requirement files again from pyproject.toml
  programs        build what tests and demo need besides Python packages, into the cache
  images          build both container images without an engine and print what is in them (root, buildah, debootstrap)
  help            this text

Everything is installed into .venv and the cache folder (XDG_CACHE_HOME or ~/.cache, cocoon-node); nothing else is
touched. The first control plane is built from source, which takes minutes; later starts take seconds.
"""

if __name__ == "__main__":
    print(HELP, end="")
