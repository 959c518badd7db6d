// Command streams is the Go peer of the benchmarks that need a gRPC client.
//
//	streams watch -targets FILE    opens WatchNodeResources on every address of FILE, holds the streams until SIGTERM
//	streams load -target ADDR      calls GetNodeResources from several callers for a while and prints rate and latencies
//
// Messages stay bytes: the programs it is compared with, or drives, are what is measured, not protobuf in Go.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

const (
	watchMethod = "/cocoonstack.node.v1.NodeResources/WatchNodeResources"
	getMethod   = "/cocoonstack.node.v1.NodeResources/GetNodeResources"
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
		fatal(errors.New("name a command: watch or load"))
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	var err error
	switch os.Args[1] {
	case "watch":
		err = watchCommand(ctx, os.Args[2:])
	case "load":
		err = loadCommand(ctx, os.Args[2:])
	default:
		err = fmt.Errorf("unknown command %q: watch or load", os.Args[1])
	}
	if err != nil {
		fatal(err)
	}
}

func fatal(err error) {
	fmt.Fprintln(os.Stderr, "streams:", err)
	os.Exit(1)
}

func dial(target string) (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+target,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(rawCodec{})),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 10 * time.Second}))
}

// watchCommand prints one line when every stream has had its first message, and counts what comes until the end.
func watchCommand(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("watch", flag.ExitOnError)
	file := flags.String("targets", "", "file with one host:port a line")
	api := flags.String("api", "", "URL of an API server: renew one lease for each target there")
	caFile := flags.String("ca", "", "CA certificate of the API server")
	token := flags.String("token", "", "token for the API server")
	if err := flags.Parse(args); err != nil {
		return err
	}
	targets, err := readLines(*file)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var messages atomic.Int64
	var first, running sync.WaitGroup
	first.Add(len(targets))
	for _, target := range targets {
		running.Add(1)
		go func() {
			defer running.Done()
			if err := hold(ctx, target, &messages, first.Done); err != nil && ctx.Err() == nil {
				cancel(fmt.Errorf("%s: %w", target, err))
			}
		}()
	}
	if *api != "" {
		leases, err := newLeaseClient(*api, *caFile, *token)
		if err != nil {
			return err
		}
		first.Add(1)
		running.Add(1)
		go func() {
			defer running.Done()
			if err := leases.renewAll(ctx, len(targets), first.Done); err != nil {
				cancel(fmt.Errorf("leases: %w", err))
			}
		}()
	}
	settled := make(chan struct{})
	go func() { first.Wait(); close(settled) }()
	select {
	case <-settled:
		fmt.Println(`{"ready": true}`)
		<-ctx.Done()
	case <-ctx.Done():
	}
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) && cause != ctx.Err() {
		return cause
	}
	running.Wait()
	return json.NewEncoder(os.Stdout).Encode(map[string]int64{"messages": messages.Load()})
}

// hold keeps one stream open and counts its messages.
func hold(ctx context.Context, target string, messages *atomic.Int64, opened func()) error {
	conn, err := dial(target)
	if err != nil {
		return err
	}
	defer conn.Close()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, watchMethod, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	request := []byte{}
	if err := stream.SendMsg(&request); err != nil {
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	var message []byte
	for count := 0; ; count++ {
		if err := stream.RecvMsg(&message); err != nil {
			if errors.Is(err, io.EOF) {
				return errors.New("the agent ended the stream")
			}
			return err
		}
		messages.Add(1)
		if count == 0 {
			opened()
		}
	}
}

// loadCommand warms up, then measures.
func loadCommand(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("load", flag.ExitOnError)
	target := flags.String("target", "", "host:port")
	callers := flags.Int("callers", 10, "calls in flight")
	seconds := flags.Float64("seconds", 5, "how long to measure")
	warmUp := flags.Float64("warm-up", 1, "how long to call before")
	pause := flags.Duration("pause", 0, "wait between two calls of one caller")
	if err := flags.Parse(args); err != nil {
		return err
	}
	conn, err := dial(*target)
	if err != nil {
		return err
	}
	defer conn.Close()
	begin := time.Now().Add(time.Duration(*warmUp * float64(time.Second)))
	end := begin.Add(time.Duration(*seconds * float64(time.Second)))
	took := make([][]time.Duration, *callers)
	failures := make([]error, *callers)
	replyBytes := make([]int, *callers)
	var running sync.WaitGroup
	for caller := range *callers {
		running.Add(1)
		go func() {
			defer running.Done()
			took[caller], replyBytes[caller], failures[caller] = callUntil(ctx, conn, begin, end, *pause)
		}()
	}
	running.Wait()
	if err := errors.Join(failures...); err != nil {
		return err
	}
	all := slices.Concat(took...)
	if len(all) == 0 {
		return errors.New("no call ended within the measured time")
	}
	slices.Sort(all)
	return json.NewEncoder(os.Stdout).Encode(map[string]any{
		"calls_per_second": float64(len(all)) / *seconds,
		"calls":            len(all),
		"p50_us":           micros(percentile(all, 50)),
		"p99_us":           micros(percentile(all, 99)),
		"max_us":           micros(all[len(all)-1]),
		"reply_bytes":      slices.Max(replyBytes),
	})
}

// callUntil is one caller: it returns the latencies of the calls that began and ended within [begin, end].
func callUntil(ctx context.Context, conn *grpc.ClientConn, begin, end time.Time, pause time.Duration) (took []time.Duration, size int, err error) {
	request, reply := []byte{}, []byte{}
	for {
		start := time.Now()
		if start.After(end) {
			return took, size, nil
		}
		if err := conn.Invoke(ctx, getMethod, &request, &reply, grpc.WaitForReady(true)); err != nil {
			return nil, 0, err
		}
		stop := time.Now()
		if start.After(begin) && stop.Before(end) {
			took = append(took, stop.Sub(start))
			size = len(reply)
		}
		if pause > 0 {
			time.Sleep(pause)
		}
	}
}

func percentile(sorted []time.Duration, percent int) time.Duration {
	return sorted[(len(sorted)-1)*percent/100]
}

func micros(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }

func readLines(path string) ([]string, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var lines []string
	scanner := bufio.NewScanner(file)
	for scanner.Scan() {
		if line := scanner.Text(); line != "" {
			lines = append(lines, line)
		}
	}
	return lines, scanner.Err()
}
