package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
)

// loadCommand warms up, then measures until the time is over or SIGTERM arrives.
func loadCommand(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("load", flag.ExitOnError)
	target := flags.String("target", "", "host:port")
	callers := flags.Int("callers", 10, "calls in flight")
	seconds := flags.Float64("seconds", 5, "how long to measure")
	warmUp := flags.Float64("warm-up", 1, "how long to call before")
	pause := flags.Duration("pause", 0, "wait between two calls of one caller")
	certificates := flags.String("tls", "", "directory of ca.crt, tls.crt and tls.key: call over mutual TLS")
	name := flags.String("name", "", "the name that the server's certificate must have")
	if err := flags.Parse(args); err != nil {
		return err
	}
	transport, err := transportOf(*certificates, *name)
	if err != nil {
		return err
	}
	conn, err := dialWith(*target, transport)
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
	if measured := time.Since(begin).Seconds(); measured < *seconds {
		*seconds = measured
	}
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
			if ctx.Err() != nil {
				// Told to stop: what was measured until now is the answer.
				return took, size, nil
			}
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
