// Command client is the Go peer of the benchmarks that need a gRPC client.
//
//	client watch -targets FILE    opens WatchNodeResources on every address of FILE, holds the streams until SIGTERM
//	client load -target ADDR      calls GetNodeResources from several callers for a while and prints rate and latencies
//	client pages -target ADDR     lists all snapshots page by page and prints how long that took
//
// Messages stay bytes: the programs it is compared with, or drives, are what is measured, not protobuf in Go.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

const (
	watchMethod = "/cocoonstack.node.v1.NodeResources/WatchNodeResources"
	getMethod   = "/cocoonstack.node.v1.NodeResources/GetNodeResources"
	listMethod  = "/cocoonstack.node.v1.SnapshotCache/ListSnapshots"
)

// rawCodec hands messages over as they are on the wire.
type rawCodec struct{}

func (rawCodec) Name() string { return "proto" }

func (rawCodec) Marshal(v any) ([]byte, error) {
	message, ok := v.(*[]byte)
	if !ok {
		return nil, fmt.Errorf("cannot send a %T", v)
	}
	return *message, nil
}

func (rawCodec) Unmarshal(data []byte, v any) error {
	message, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("cannot receive into a %T", v)
	}
	*message = append((*message)[:0], data...)
	return nil
}

func main() {
	if len(os.Args) < 2 {
		fatal(errors.New("name a command: watch, load or pages"))
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	var err error
	switch os.Args[1] {
	case "watch":
		err = watchCommand(ctx, os.Args[2:])
	case "load":
		err = loadCommand(ctx, os.Args[2:])
	case "pages":
		err = pagesCommand(ctx, os.Args[2:])
	default:
		err = fmt.Errorf("unknown command %q: watch, load or pages", os.Args[1])
	}
	if err != nil {
		fatal(err)
	}
}

func fatal(err error) {
	fmt.Fprintln(os.Stderr, "client:", err)
	os.Exit(1)
}

func dial(target string) (*grpc.ClientConn, error) {
	return dialWith(target, insecure.NewCredentials())
}

func dialWith(target string, transport credentials.TransportCredentials) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+target,
		grpc.WithTransportCredentials(transport),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{})),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 10 * time.Second}))
}
