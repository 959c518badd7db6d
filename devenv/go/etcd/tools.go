//go:build tools

// Package tools pins etcd and grpcurl, whose dependencies differ from those of Kubernetes.
package tools

import (
	_ "github.com/fullstorydev/grpcurl/cmd/grpcurl"
	_ "go.etcd.io/etcd/server/v3"
)
