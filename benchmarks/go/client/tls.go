package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// transportOf returns mutual TLS with the files of a directory, plain text when none is named.
func transportOf(directory, serverName string) (credentials.TransportCredentials, error) {
	if directory == "" {
		return insecure.NewCredentials(), nil
	}
	file := func(name string) string { return filepath.Join(directory, name) }
	own, err := tls.LoadX509KeyPair(file("tls.crt"), file("tls.key"))
	if err != nil {
		return nil, err
	}
	authorities, err := os.ReadFile(file("ca.crt"))
	if err != nil {
		return nil, err
	}
	trusted := x509.NewCertPool()
	if !trusted.AppendCertsFromPEM(authorities) {
		return nil, fmt.Errorf("%s: no certificate in it", file("ca.crt"))
	}
	return credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{own},
		RootCAs:      trusted,
		ServerName:   serverName,
	}), nil
}
