"""A plain client of the Kubernetes API for tools and tests: paths in, the server's own JSON out.

It shares no code with the controller on purpose: a test that reads the cluster through the code under test can be
fooled by it.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import yaml

from devenv.errors import DevenvError

Json = dict[str, Any]

_TIMEOUT_SECONDS = 30.0

_APPLY = "application/apply-patch+yaml"
_STRATEGIC = "application/strategic-merge-patch+json"
_MERGE = "application/merge-patch+json"
_JSON_PATCH = "application/json-patch+json"


class ApiError(DevenvError):
    """The API server refused a request; `status` is the HTTP status, `reason` Kubernetes' own word for it."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason


class UnreachableError(DevenvError):
    """The API server did not answer."""


class KubeApi:
    """Requests to one API server as one user. Every method returns the decoded answer or raises ApiError."""

    def __init__(self, server: str, trust: ssl.SSLContext, authorization: str = "") -> None:
        headers = {"Accept": "application/json"} | ({"Authorization": authorization} if authorization else {})
        self._client = httpx.Client(
            base_url=server, verify=trust, headers=headers, timeout=_TIMEOUT_SECONDS, trust_env=False
        )

    @classmethod
    def from_kubeconfig(cls, file: Path) -> Self:
        """Return a client for the current context of any kubeconfig file, whatever way of logging in it names.

        Raises DevenvError, one line long, for a file that is no kubeconfig.
        """
        # A second to import, and needed for other people's clusters only.
        from kubernetes.client import Configuration
        from kubernetes.config import ConfigException, load_kube_config

        cluster = Configuration()
        try:
            load_kube_config(config_file=str(file), client_configuration=cluster)  # type: ignore[no-untyped-call] # it has none
        except ConfigException as error:
            raise DevenvError(f"{file}: {error}") from None
        except yaml.YAMLError as error:
            raise DevenvError(f"{file} is not YAML: {' '.join(str(error).split())}") from None
        except (OSError, UnicodeError, AttributeError, TypeError, KeyError, ValueError) as error:
            # The loader lets errors about missing or misshapen parts through as they come.
            raise DevenvError(f"{file} is no kubeconfig, or a part is missing: {error}") from None
        trust = ssl.create_default_context(cafile=cluster.ssl_ca_cert)
        if not cluster.verify_ssl:
            trust.check_hostname, trust.verify_mode = False, ssl.CERT_NONE
        if cluster.cert_file:
            trust.load_cert_chain(cluster.cert_file, cluster.key_file)
        return cls(cluster.host, trust, cluster.get_api_key_with_prefix("BearerToken", alias="authorization") or "")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def get_text(self, path: str) -> str:
        """GET `path` and return the body exactly as the server sent it."""
        return self._request("GET", path).text

    def get(self, path: str, **query: str) -> Json:
        """GET one object or list."""
        return self._json("GET", path, params=query)

    def find(self, path: str) -> Json | None:
        """GET one object; None when there is none."""
        try:
            return self.get(path)
        except ApiError as error:
            if error.status == httpx.codes.NOT_FOUND:
                return None
            raise

    def items(self, path: str, **query: str) -> list[Json]:
        """GET a list and return its items."""
        items: list[Json] = self.get(path, **query)["items"]
        return items

    def watch(self, path: str, since: str, *, seconds: int, **query: str) -> Iterator[Json]:
        """Yield the events of a watch of the collection at `path` after the resource version `since`.

        It ends after `seconds`. An ERROR event, such as for a version that is too old, ends it as ApiError.
        """
        params = {"watch": "1", "resourceVersion": since, "timeoutSeconds": str(seconds)} | query
        try:
            with self._client.stream("GET", path, params=params) as response:
                if not response.is_success:
                    response.read()
                    raise _refusal(response)
                for line in response.iter_lines():
                    event: Json = json.loads(line)
                    if event["type"] == "ERROR":
                        status = event["object"]
                        raise ApiError(status.get("code", 0), status.get("reason", ""), status.get("message", ""))
                    yield event
        except httpx.TransportError as error:
            raise UnreachableError(f"{self._client.base_url}: {error}") from error

    def create(self, path: str, body: Mapping[str, Any], **query: str) -> Json:
        """POST `body` to the collection or subresource at `path`."""
        return self._json("POST", path, params=query, json=body)

    def replace(self, path: str, body: Mapping[str, Any], **query: str) -> Json:
        """PUT `body`."""
        return self._json("PUT", path, params=query, json=body)

    def apply(self, path: str, body: Mapping[str, Any], *, manager: str, force: bool = True) -> Json:
        """Server-side apply of `body` under the field manager `manager`."""
        query = {"fieldManager": manager, "force": "true" if force else "false"}
        return self._patch(path, body, _APPLY, query)

    def merge(self, path: str, body: Mapping[str, Any], *, manager: str = "test") -> Json:
        """Merge patch; a value of None removes the key."""
        return self._patch(path, body, _MERGE, {"fieldManager": manager})

    def strategic(self, path: str, body: Mapping[str, Any], *, manager: str = "test") -> Json:
        """Strategic merge patch: lists with a key, such as conditions, are merged by it."""
        return self._patch(path, body, _STRATEGIC, {"fieldManager": manager})

    def patch_json(self, path: str, operations: list[Json], *, manager: str = "test") -> Json:
        """JSON patch (RFC 6902)."""
        return self._patch(path, operations, _JSON_PATCH, {"fieldManager": manager})

    def delete(self, path: str, **options: int | str) -> Json:
        """DELETE `path` with the given DeleteOptions, such as gracePeriodSeconds=0."""
        return self._json("DELETE", path, json=options or None)

    def discard(self, path: str, **options: int | str) -> None:
        """DELETE `path` as `delete` does; an object that is gone already is as good."""
        try:
            self.delete(path, **options)
        except ApiError as error:
            if error.status != httpx.codes.NOT_FOUND:
                raise

    def apply_file(self, file: Path, *, manager: str = "development") -> None:
        """Server-side apply of every document in a YAML file of the kinds our `deploy/` folder uses."""
        for document in yaml.safe_load_all(file.read_text()):
            if document:
                self.apply(object_path(document), document, manager=manager)

    def _patch(self, path: str, body: object, content_type: str, query: dict[str, str]) -> Json:
        headers = {"Content-Type": content_type}
        return self._json("PATCH", path, params=query, content=json.dumps(body).encode(), headers=headers)

    def _json(self, method: str, path: str, **arguments: Any) -> Json:  # noqa: ANN401 -- httpx' own arguments, passed on
        answer: Json = self._request(method, path, **arguments).json()
        return answer

    def _request(self, method: str, path: str, **arguments: Any) -> httpx.Response:  # noqa: ANN401 -- the same
        try:
            response = self._client.request(method, path, **arguments)
        except httpx.TransportError as error:
            raise UnreachableError(f"{self._client.base_url}: {error}") from error
        if response.is_success:
            return response
        raise _refusal(response)


def _refusal(response: httpx.Response) -> ApiError:
    try:
        status = response.json()
    except ValueError:
        status = {}
    return ApiError(response.status_code, status.get("reason", ""), status.get("message", response.text))


# Kinds whose plural is not the lower-case kind with an s, and kinds that live outside namespaces.
_PLURALS = {"NetworkPolicy": "networkpolicies", "ValidatingAdmissionPolicy": "validatingadmissionpolicies"}
_CLUSTER_SCOPED = {
    "Namespace",
    "Node",
    "ClusterRole",
    "ClusterRoleBinding",
    "CustomResourceDefinition",
    "PriorityClass",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
}


def object_path(document: Mapping[str, Any]) -> str:
    """Return the API path of an object, from its apiVersion, kind, namespace (default `default`) and name."""
    version, kind, metadata = document["apiVersion"], document["kind"], document["metadata"]
    root = f"/apis/{version}" if "/" in version else f"/api/{version}"
    plural = _PLURALS.get(kind, f"{kind.lower()}s")
    scope = "" if kind in _CLUSTER_SCOPED else f"/namespaces/{metadata.get('namespace', 'default')}"
    return f"{root}{scope}/{plural}/{metadata['name']}"
