package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

const leaseInterval = 10 * time.Second

// leaseClient keeps leases of its own in the API, beside those of the program it is compared with.
type leaseClient struct {
	url, token string
	http       *http.Client
}

func newLeaseClient(url, caFile, token string) (*leaseClient, error) {
	pem, err := os.ReadFile(caFile)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("no certificate in %s", caFile)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true}
	return &leaseClient{url: url, token: token, http: &http.Client{Transport: transport, Timeout: 10 * time.Second}}, nil
}

// renewAll makes count leases, then renews each every ten seconds, evenly spread, until the context ends.
func (c *leaseClient) renewAll(ctx context.Context, count int, made func()) error {
	for i := range count {
		if err := c.create(ctx, leaseName(i)); err != nil {
			return err
		}
	}
	made()
	ticker := time.NewTicker(leaseInterval / time.Duration(count))
	defer ticker.Stop()
	failed := make(chan error, 1)
	for i := 0; ; i = (i + 1) % count {
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		case <-ticker.C:
		}
		go func() {
			if err := c.renew(ctx, leaseName(i)); err != nil && ctx.Err() == nil {
				select {
				case failed <- err:
				default:
				}
			}
		}()
	}
}

func leaseName(index int) string { return fmt.Sprintf("benchmark-%05d", index) }

func (c *leaseClient) create(ctx context.Context, name string) error {
	lease := map[string]any{
		"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
		"metadata": map[string]any{"name": name},
		"spec":     map[string]any{"holderIdentity": "benchmark", "leaseDurationSeconds": 40},
	}
	err := c.send(ctx, http.MethodPost, "", "application/json", lease)
	var status statusError
	if errors.As(err, &status) && status == http.StatusConflict {
		return nil
	}
	return err
}

func (c *leaseClient) renew(ctx context.Context, name string) error {
	now := time.Now().UTC().Format("2006-01-02T15:04:05.000000Z07:00")
	patch := map[string]any{"spec": map[string]any{"renewTime": now}}
	return c.send(ctx, http.MethodPatch, "/"+name, "application/merge-patch+json", patch)
}

type statusError int

func (s statusError) Error() string { return fmt.Sprintf("the API server answered %d", int(s)) }

func (c *leaseClient) send(ctx context.Context, method, path, contentType string, body any) error {
	encoded, err := json.Marshal(body)
	if err != nil {
		return err
	}
	url := c.url + "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases" + path
	request, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(encoded))
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+c.token)
	request.Header.Set("Content-Type", contentType)
	request.Header.Set("Accept", "application/json")
	response, err := c.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return err
	}
	if response.StatusCode >= 300 {
		return statusError(response.StatusCode)
	}
	return nil
}
