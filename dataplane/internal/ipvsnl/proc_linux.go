package ipvsnl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"os"
	"slices"
	"time"

	"vipd/balancer"
)

// These files show the network namespace of the reading thread.
const (
	tableFile       = "/proc/thread-self/net/ip_vs"
	connectionsFile = "/proc/thread-self/net/ip_vs_conn"
)

// maxTableRead is how long reading a whole table may take. The time grows with the size of the
// table.
const maxTableRead = 2 * time.Minute

// Table implements Conn.
func (k *Client) Table(ctx context.Context) (map[balancer.Key]TableService, error) {
	if err := k.usable(ctx); err != nil {
		return nil, err
	}
	table, _, err := watch(ctx, maxTableRead, func() (map[balancer.Key]TableService, error) {
		f, err := os.Open(tableFile)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		table, _, err := readTable(reader{ctx, f}, &k.marks)
		return table, err
	})
	if err != nil {
		return nil, fmt.Errorf("reading the IPVS table of virtual servers: %w", err)
	}
	return table, nil
}

// Names returns the keys of all virtual servers that could belong to a frontend. others is the
// number of other virtual servers: their protocol is one that frontends can't have, or no key in
// recorded has their firewall mark. Names does not need a Client. If the module is not loaded,
// there are no virtual servers.
func Names(ctx context.Context, recorded iter.Seq[balancer.Key]) (keys []balancer.Key, others int, err error) {
	f, err := os.Open(tableFile)
	if errors.Is(err, os.ErrNotExist) {
		return nil, 0, nil
	}
	if err == nil {
		var known marks
		for k := range recorded {
			known.note(k)
		}
		var table map[balancer.Key]TableService
		table, others, err = readTable(reader{ctx, f}, &known)
		keys, err = slices.Collect(maps.Keys(table)), errors.Join(err, f.Close())
	}
	if err != nil {
		return nil, 0, fmt.Errorf("reading the IPVS table of virtual servers: %w", err)
	}
	return keys, others, nil
}

// Connections implements [Conn]. Its cost grows faster than the table, because for each 4 KiB of
// output the kernel scans all buckets from the start.
func (k *Client) Connections(ctx context.Context) iter.Seq2[Connection, error] {
	return func(yield func(Connection, error) bool) {
		err := k.usable(ctx)
		if err == nil {
			err = connections(ctx, func(c Connection) bool { return yield(c, nil) })
		}
		if err != nil {
			yield(Connection{}, fmt.Errorf("reading the IPVS connection table: %w", err))
		}
	}
}

func connections(ctx context.Context, yield func(Connection) bool) error {
	f, err := os.Open(connectionsFile)
	if err != nil {
		return err
	}
	return errors.Join(readConnections(reader{ctx, f}, yield), f.Close())
}

func (k *Client) usable(ctx context.Context) error {
	select {
	case <-k.done:
		return os.ErrClosed
	default:
		return ctx.Err()
	}
}

// reader is an io.Reader that fails when its context is done.
type reader struct {
	ctx context.Context
	r   io.Reader
}

func (r reader) Read(b []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.r.Read(b)
}
