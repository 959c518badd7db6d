"""What refuses or holds up the keep flag in a cluster: a policy, and a webhook that never answers."""

from __future__ import annotations

import base64
import contextlib
import socket
from collections.abc import Iterator

import trustme

from devenv.kube_api import ApiError, Json, KubeApi
from tests.support.vm_host import KEEP, pod_path
from tests.support.waiting import wait_for

_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_FLAGGED = f"has(object.metadata.annotations) && '{KEEP}' in object.metadata.annotations"


@contextlib.contextmanager
def flag_refused(kube: KubeApi, set_name: str) -> Iterator[None]:
    """Have the API refuse the keep flag on the pods of one set, for ever."""
    name = f"no-flag-{set_name}"
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [_pods("UPDATE")], "objectSelector": _of(set_name)},
            "validations": [{"expression": f"!({_FLAGGED})", "message": "no flags here"}],
        },
    }
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }
    paths = [f"{_ADMISSION}/validatingadmissionpolicies", f"{_ADMISSION}/validatingadmissionpolicybindings"]
    for path, body in zip(paths, (policy, binding), strict=True):
        kube.create(path, body)
    try:
        wait_for(lambda: _refuses(kube, f"{set_name}-0"), 30, what="the policy being in force")
        yield
    finally:
        for path in paths:
            kube.discard(f"{path}/{name}")


@contextlib.contextmanager
def flag_hangs(kube: KubeApi, set_name: str) -> Iterator[None]:
    """Have a webhook be asked about the keep flag on the pods of one set that takes calls and never answers."""
    authority = trustme.CA()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        path = f"{_ADMISSION}/validatingwebhookconfigurations"
        body = {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": f"hangs-{set_name}"},
            "webhooks": [
                {
                    "name": "hangs.test.example",
                    "clientConfig": {
                        "url": f"https://127.0.0.1:{port}/",
                        "caBundle": base64.b64encode(authority.cert_pem.bytes()).decode(),
                    },
                    "rules": [_pods("UPDATE")],
                    "objectSelector": _of(set_name),
                    "matchConditions": [{"name": "flagged", "expression": _FLAGGED}],
                    "failurePolicy": "Fail",
                    "sideEffects": "None",
                    "timeoutSeconds": 6,
                    "admissionReviewVersions": ["v1"],
                }
            ],
        }
        kube.create(path, body)
        try:
            wait_for(lambda: _is_asked(kube, server, f"{set_name}-0"), 30, what="the webhook being asked")
            yield
        finally:
            kube.discard(f"{path}/hangs-{set_name}")


def _pods(operation: str) -> Json:
    return {"apiGroups": [""], "apiVersions": ["v1"], "operations": [operation], "resources": ["pods"]}


def _of(set_name: str) -> Json:
    return {"matchLabels": {"cocoonset.cocoonstack.io/name": set_name}}


def _try_flag(kube: KubeApi, pod: str) -> str:
    """Try to flag a pod and take it back; return what the API said."""
    try:
        kube.merge(pod_path(pod), {"metadata": {"annotations": {KEEP: "false"}}})
    except ApiError as error:
        return str(error)
    kube.merge(pod_path(pod), {"metadata": {"annotations": {KEEP: None}}})
    return ""


def _refuses(kube: KubeApi, pod: str) -> bool:
    return "no flags here" in _try_flag(kube, pod)


def _is_asked(kube: KubeApi, server: socket.socket, pod: str) -> bool:
    server.settimeout(0)
    _try_flag(kube, pod)
    try:
        server.accept()[0].close()
    except BlockingIOError:
        return False
    return True
