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
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
)

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
