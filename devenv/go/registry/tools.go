//go:build tools

// Package tools pins crane, whose "registry serve" is the OCI registry of the tests.
package tools

import _ "github.com/google/go-containerregistry/cmd/crane"
