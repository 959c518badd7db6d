package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// connect dials and waits for the connection, so that the first measured call does not pay for it.
func connect(ctx context.Context, target string) (*grpc.ClientConn, error) {
	conn, err := dial(target)
	if err != nil {
		return nil, err
	}
	request, reply := []byte{}, []byte{}
	err = conn.Invoke(ctx, "/grpc.health.v1.Health/Check", &request, &reply, grpc.WaitForReady(true))
	if err != nil && status.Code(err) != codes.Unimplemented {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// pagesCommand lists all snapshots several times, and prints the time of each listing and of each page.
func pagesCommand(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("pages", flag.ExitOnError)
	target := flags.String("target", "", "host:port")
	size := flags.Uint64("page-size", 100, "snapshots a page")
	times := flags.Int("times", 1, "how often to list")
	most := flags.Int("most-pages", 1<<30, "pages to read at most, each time")
	if err := flags.Parse(args); err != nil {
		return err
	}
	conn, err := connect(ctx, *target)
	if err != nil {
		return err
	}
	defer conn.Close()
	listings, pages := []float64{}, []float64{}
	var snapshots int
	for range *times {
		token := ""
		snapshots = 0
		begun := time.Now()
		for page := 0; page == 0 || (token != "" && page < *most); page++ {
			request := listRequest(*size, token)
			var reply []byte
			start := time.Now()
			if err := conn.Invoke(ctx, listMethod, &request, &reply); err != nil {
				return err
			}
			pages = append(pages, micros(time.Since(start)))
			count, next, err := listReply(reply)
			if err != nil {
				return err
			}
			snapshots += count
			token = next
		}
		listings = append(listings, micros(time.Since(begun)))
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{"listings_us": listings, "pages_us": pages, "snapshots": snapshots})
}

// listRequest encodes a ListSnapshotsRequest: page_size is field 1, page_token field 2.
func listRequest(size uint64, token string) []byte {
	request := binary.AppendUvarint([]byte{1 << 3}, size)
	if token != "" {
		request = binary.AppendUvarint(append(request, 2<<3|2), uint64(len(token)))
		request = append(request, token...)
	}
	return request
}

// listReply counts the snapshots (field 1) of a ListSnapshotsResponse and returns its next_page_token (field 2).
func listReply(reply []byte) (count int, token string, err error) {
	for len(reply) > 0 {
		tag, n := binary.Uvarint(reply)
		if n <= 0 {
			return 0, "", errors.New("a reply that is no message")
		}
		reply = reply[n:]
		value, n := binary.Uvarint(reply)
		if n <= 0 {
			return 0, "", errors.New("a reply that is no message")
		}
		reply = reply[n:]
		switch tag {
		case 1<<3 | 2, 2<<3 | 2:
			if value > uint64(len(reply)) {
				return 0, "", errors.New("a reply that is cut off")
			}
			if tag == 1<<3|2 {
				count++
			} else {
				token = string(reply[:value])
			}
			reply = reply[value:]
		case 3 << 3:
		default:
			return 0, "", errors.New("a reply with an unexpected field")
		}
	}
	return count, token, nil
}
