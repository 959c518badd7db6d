//go:build tools

// Package tools pins kubectl, whose "kustomize" renders deploy/ and whose other commands the installation page uses.
package tools

import _ "k8s.io/kubernetes/cmd/kubectl"
