"""The command `certs`: an authority and certificates for a trial, and where each file goes.

Why this exists: nobody should have to read three manuals before the first connection with mutual TLS.
"""

import os

import click

from agent.trial_certificates import AUTHORITY, CertificatesError, Made, make_certificates
from common.command_line import fail
from common.kubernetes_names import is_node_name
from common.settings import printable_value

_CLIENTS = ("cocoon-node-controller", "cocoon-node-viewer")
_PLACE = "/etc/cocoon-node/tls"


@click.command(short_help="Make a small CA and certificates for a trial.")
@click.argument("nodes", metavar="NODE…", nargs=-1, required=True)
@click.option("--dir", "directory", default="cocoon-node-certs", show_default=True, help="Where to make them.")
@click.option("--days", type=click.IntRange(1, 825), default=90, show_default=True, help="How long they hold.")
def certs(nodes: tuple[str, ...], directory: str, days: int) -> None:
    """Make a small CA and certificates for a trial: one for each NODE's agent, one for the controller, one for viewers.

    Called again with the same directory, it adds further nodes under the same CA. Nothing is ever overwritten. Needs
    the `openssl` command; the CA's key stays in the directory, so make it on a host you trust.
    """
    for name in nodes:
        if not is_node_name(name):
            fail(f"NODE {printable_value(name)}: must be a node name, as VK_NODE_NAME has it on that host", 2)
        if name in _CLIENTS:
            fail(f"NODE {name}: is the name of a role; a node of that name could pass for it", 2)
    if len(set(nodes)) < len(nodes):
        fail("NODE: named more than once", 2)
    try:
        made = make_certificates(os.path.abspath(directory), nodes, _CLIENTS, days)
    except CertificatesError as error:
        fail(str(error), 1)
    for each in made:
        click.echo(_told(each))
    click.echo(f"{os.path.abspath(directory)}/{AUTHORITY}/ca.key signs more of them: keep it to yourself")


def _told(made: Made) -> str:
    if made.is_agent:
        return (
            f"{made.path}: copy it to host {made.name} as {_PLACE}, readable by the agent only, and set there\n"
            f"  COCOON_NODE_TLS_CERT_FILE={_PLACE}/tls.crt\n"
            f"  COCOON_NODE_TLS_KEY_FILE={_PLACE}/tls.key\n"
            f"  COCOON_NODE_TLS_CLIENT_CA_FILE={_PLACE}/ca.crt\n"
            "  COCOON_NODE_LISTEN=ADDRESS:7443"
        )
    if made.name == _CLIENTS[0]:
        return (
            f"{made.path}: for the controller, as a Secret or as {_PLACE}\n"
            f"  COCOON_NODE_CONTROLLER_TLS_CERT_FILE={_PLACE}/tls.crt\n"
            f"  COCOON_NODE_CONTROLLER_TLS_KEY_FILE={_PLACE}/tls.key\n"
            f"  COCOON_NODE_CONTROLLER_TLS_CA_FILE={_PLACE}/ca.crt"
        )
    return (
        f"{made.path}: for people who may read, such as\n"
        f"  grpcurl -cacert {made.path}/ca.crt -cert {made.path}/tls.crt -key {made.path}/tls.key"
        " -authority NODE ADDRESS:7443 cocoonstack.node.v1.NodeResources/GetNodeResources"
    )
