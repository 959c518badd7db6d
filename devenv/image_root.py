"""Runs a program inside an image's root the way a container runtime does, without one: a read-only root in a mount
namespace of its own, the image's user, no capability and no way to gain one.

Process ids and the network are the machine's: the tests talk to the programs over loopback and stop them by pid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from devenv.errors import DevenvError
from devenv.images import Image

# Arguments: the image's root, then pairs of a source and a place, then `--`, the user and the command.
# The root becomes the lower half of an overlay, because mount points have to be made in it.
_SCRIPT = """
set -eu
mount --make-rprivate /
mount -t tmpfs -o mode=0755,size=1m none /mnt
mkdir /mnt/upper /mnt/work /mnt/root
lower=$1; shift
mount -t overlay -o "lowerdir=$lower,upperdir=/mnt/upper,workdir=/mnt/work" none /mnt/root
mount --rbind /dev /mnt/root/dev
mount --rbind /proc /mnt/root/proc
mount --rbind /sys /mnt/root/sys
while [ "$1" != -- ]; do
    if [ -d "$1" ]; then mkdir -p "/mnt/root$2"; else mkdir -p "$(dirname "/mnt/root$2")"; : >"/mnt/root$2"; fi
    mount --bind "$1" "/mnt/root$2"
    shift 2
done
mount -o remount,bind,ro /mnt/root
shift; user=$1; group=$2; shift 2
exec chroot /mnt/root setpriv --reuid="$user" --regid="$group" --clear-groups --no-new-privs \\
    --inh-caps=-all --bounding-set=-all --pdeathsig=KILL -- "$@"
"""


def command_in(
    image: Image,
    command: Sequence[str],
    *,
    mounts: Mapping[Path, str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> list[str]:
    """Return the command line that runs `command` in the image, as root of the machine.

    `mounts` maps files and directories here to places in the image, which may not lie behind symbolic links of it;
    nothing else of it can be written. `environment` is added to the image's own; nothing of the caller's is passed on.
    Raises DevenvError for such a link, which would lead out of the image.
    """
    for place in (mounts or {}).values():
        parents = [image.root / parent.relative_to("/") for parent in Path(place).parents]
        if linked := [str(parent) for parent in parents if parent.is_symlink()]:
            raise DevenvError(f"{place} lies behind the symbolic link {linked[0]}")
    pairs = [part for source, place in (mounts or {}).items() for part in (str(source), place)]
    user, _, group = str(image.config["User"]).partition(":")
    variables = [f"{key}={value}" for key, value in (image.environment | dict(environment or {})).items()]
    inside = ["/usr/bin/env", "-i", *variables, *command]
    return ["unshare", "--mount", "sh", "-c", _SCRIPT, "sh", str(image.root), *pairs, "--", user, group, *inside]
