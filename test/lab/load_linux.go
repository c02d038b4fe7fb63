package lab

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"vipd/test/wait"
)

// Load is clients of an echo server. A client that fails, and a byte that does not come back, fail the test.
type Load struct {
	served atomic.Int64
	stop   func()
}

// Load starts perSecond new clients a second, over TCP, each of which sends some bytes, wants them back and hangs up, and so many
// streams, which go on until the load is stopped.
func (n *NS) Load(address string, perSecond, streams int) *Load {
	ctx, cancel := context.WithCancel(context.Background())
	over, end := context.WithCancel(context.Background())
	end()
	l := &Load{}
	var all sync.WaitGroup
	for i := range streams {
		all.Go(func() {
			if err := n.stream(ctx, address, uint64(i)); err != nil {
				n.lab.t.Errorf("stream %d: %v", i, err)
			}
		})
	}
	all.Go(func() {
		tick := time.NewTicker(wait.Paced(time.Second) / time.Duration(perSecond))
		defer tick.Stop()
		for i := uint64(0); ctx.Err() == nil; i++ {
			all.Go(func() {
				if err := n.stream(over, address, i); err != nil {
					n.lab.t.Errorf("a client, after %d others: %v", l.served.Load(), err)
					return
				}
				l.served.Add(1)
			})
			<-tick.C
		}
	})
	l.stop = func() {
		cancel()
		all.Wait()
	}
	n.lab.t.Cleanup(l.stop)
	return l
}

// Served is how many of the new clients were served so far.
func (l *Load) Served() int64 { return l.served.Load() }

// Stop ends the load, and returns how many of the new clients were served.
func (l *Load) Stop() int64 {
	l.stop()
	return l.Served()
}

// streamPause is how long a stream rests between two pieces.
const streamPause = 20 * time.Millisecond

// stream sends random bytes to an echo server, in one piece at least, until ctx ends, and wants all of them back, and then the end.
func (n *NS) stream(ctx context.Context, address string, seed uint64) error {
	limit := wait.Bound(0)
	dialing, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	conn, err := n.Dial(dialing, "tcp", address)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	if _, err := AskWithin(conn, limit); err != nil {
		return err
	}
	c := conn.(*net.TCPConn)
	if err := c.SetDeadline(time.Time{}); err != nil {
		return err
	}
	type result struct {
		bytes int
		err   error
	}
	wrote := make(chan result, 1)
	go func() {
		bytes, err := send(ctx, c, seed)
		wrote <- result{bytes, err}
	}()
	got, err := compare(c, seed, limit)
	if err != nil {
		_ = c.Close() // so that the writer ends
	}
	sent := <-wrote
	if err = errors.Join(err, sent.err); err == nil && got != sent.bytes {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return fmt.Errorf("%s, %d bytes sent, %d came back: %w", c.LocalAddr(), sent.bytes, got, err)
	}
	return nil
}

// send writes a seed's bytes until ctx ends, and then ends its half of the connection.
func send(ctx context.Context, c *net.TCPConn, seed uint64) (total int, err error) {
	bytes, piece := randomBytes(seed), make([]byte, 4<<10)
	for {
		_, _ = bytes.Read(piece) // never fails
		n, err := c.Write(piece)
		if total += n; err != nil {
			return total, err
		}
		select {
		case <-ctx.Done():
			return total, c.CloseWrite()
		case <-time.After(streamPause):
		}
	}
}

// compare reads to the end what must be a seed's bytes. It waits for the next ones for so long.
func compare(c *net.TCPConn, seed uint64, limit time.Duration) (total int, err error) {
	same, got, want := randomBytes(seed), make([]byte, 8<<10), make([]byte, 8<<10)
	for {
		if err := c.SetReadDeadline(time.Now().Add(limit)); err != nil {
			return total, err
		}
		n, err := c.Read(got)
		_, _ = same.Read(want[:n]) // never fails
		if !bytes.Equal(got[:n], want[:n]) {
			return total, fmt.Errorf("bytes %d to %d are not those that were sent", total, total+n)
		}
		total += n
		switch {
		case errors.Is(err, io.EOF):
			return total, nil
		case err != nil:
			return total, err
		}
	}
}

func randomBytes(seed uint64) *rand.ChaCha8 {
	return rand.NewChaCha8([32]byte(binary.LittleEndian.AppendUint64(make([]byte, 24), seed)))
}
