"""How to reach a Kubernetes API: address, trust and credentials, from a named kubeconfig or from the pod we are in.

Nothing is picked silently: neither `$KUBECONFIG` nor `~/.kube/config` is looked at, because a controller that writes to
whatever cluster somebody last used is a controller that writes to the wrong one.
"""

import asyncio
import os
import ssl
import urllib.parse
import urllib.request

import yaml

from controller.kube.errors import AccessConfigError
from controller.kube.official import Configuration, kube_config


class Access:
    """One way into one cluster. `reload` refreshes credentials; in a pod the token file is read again each minute."""

    def __init__(self, configuration: Configuration, *, kubeconfig: str | None, context: str | None) -> None:
        """Made by `load_access`."""
        self._configuration = configuration
        self._kubeconfig = kubeconfig
        self._context = context

    @property
    def base_url(self) -> str:
        """Scheme, host and port, with a path prefix where a proxy wants one; no slash at the end."""
        return str(self._configuration.host).rstrip("/")

    @property
    def source(self) -> str:
        """Where this comes from, for people."""
        return self._kubeconfig or "the pod's service account"

    @property
    def server_name(self) -> str | None:
        """Name the server's certificate must have, when it differs from the address."""
        return self._configuration.tls_server_name or None

    @property
    def proxy(self) -> str | None:
        """Proxy to go through: the kubeconfig's, else the environment's unless it exempts this host."""
        if self._configuration.proxy:
            return str(self._configuration.proxy)
        url = urllib.parse.urlsplit(self.base_url)
        if not url.hostname or urllib.request.proxy_bypass(url.hostname):
            return None
        return urllib.request.getproxies().get(url.scheme)

    def ssl_context(self) -> ssl.SSLContext | None:
        """Trust and client certificate as they are on disk now; None for plain HTTP.

        A proxy to a plain HTTP server that is itself reached over TLS is trusted as the system does.
        """
        if not self.base_url.startswith("https"):
            return ssl.create_default_context() if (self.proxy or "").startswith("https") else None
        settings = self._configuration
        try:
            context = ssl.create_default_context(cafile=settings.ssl_ca_cert, cadata=settings.ca_cert_data)
            if settings.cert_file:
                context.load_cert_chain(settings.cert_file, keyfile=settings.key_file)
        except (OSError, ssl.SSLError) as exc:
            raise AccessConfigError(f"certificates from {self.source} cannot be used: {exc}") from exc
        # Cluster CAs made by older tools lack extensions that the strict check of newer OpenSSL asks for; Go does not.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if not settings.verify_ssl:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    async def authorization(self) -> str | None:
        """Value of the Authorization header, or None when a client certificate or nothing identifies us."""
        try:
            value = await self._configuration.get_api_key_with_prefix("BearerToken")
        except (OSError, kube_config.ConfigException) as exc:
            raise AccessConfigError(f"the token from {self.source} cannot be read: {exc}") from exc
        return str(value).strip() if value else None

    async def reload(self) -> None:
        """Read the kubeconfig again and run its credential plugin again, for credentials that ran out."""
        self._configuration = await _load(self._kubeconfig, self._context)


async def load_access(*, kubeconfig: str | None = None, context: str | None = None, in_cluster: bool = False) -> Access:
    """How to reach the API, from exactly one source.

    With `kubeconfig`, that file (and `context` in it); with `in_cluster`, the pod's service account; with neither, the
    pod's service account if we are in a pod. Raises AccessConfigError that names what to pass.
    """
    if kubeconfig and in_cluster:
        raise AccessConfigError("a kubeconfig file and in-cluster access were both asked for; give one of them")
    if not kubeconfig and not in_cluster and "KUBERNETES_SERVICE_HOST" not in os.environ:
        raise AccessConfigError("not running in a pod and no kubeconfig given; pass --kubeconfig FILE")
    return Access(await _load(kubeconfig, context), kubeconfig=kubeconfig or None, context=context)


async def _load(kubeconfig: str | None, context: str | None) -> Configuration:
    configuration = Configuration()
    try:
        if kubeconfig:
            if not await asyncio.to_thread(os.path.isfile, kubeconfig):
                raise AccessConfigError(f"kubeconfig {kubeconfig} is not a file")
            # persist_config would write refreshed tokens into the operator's own file.
            await kube_config.load_kube_config(  # type: ignore[no-untyped-call]  # the client has no types there
                config_file=kubeconfig,
                context=context,
                client_configuration=configuration,
                persist_config=False,
            )
        else:
            kube_config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]  # the same
    except kube_config.ConfigException as exc:
        raise AccessConfigError(f"{kubeconfig or 'in-cluster access'}: {exc}") from exc
    except (OSError, ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError) as exc:
        # The loader lets errors of YAML and of missing sections through as they come.
        raise AccessConfigError(f"{kubeconfig or 'in-cluster access'} cannot be used: {_fault(exc)}") from exc
    return configuration


def _fault(exc: Exception) -> str:
    """What a person can look for in the file."""
    if isinstance(exc, yaml.MarkedYAMLError) and exc.problem_mark is not None:
        return f"it is not YAML: {exc.problem}, line {exc.problem_mark.line + 1}"
    return f"it is no kubeconfig, or a part is missing ({type(exc).__name__}: {' '.join(str(exc).split())})"
