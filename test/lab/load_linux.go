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

// Load represents clients of an echo server. A failed client or a lost byte fails the test.
type Load struct {
	served atomic.Int64
	began  time.Time
	stop   func()
}

// dialers is the number of threads that connect new clients, so that a slow handshake does not
// delay others.
const dialers = 8

// maxStall is the longest stall that the load makes up for.
const maxStall = 200 * time.Millisecond

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// Load starts perSecond new TCP clients a second, which send some bytes, expect their echo and
// disconnect. It also starts streams, which run until the load is stopped. A slow machine starts
// fewer clients: see Rate.
func (n *NS) Load(address string, perSecond, streams int) *Load {
	ctx, cancel := context.WithCancel(context.Background())
	l := &Load{began: time.Now()}
	var all sync.WaitGroup
	for i := range streams {
		all.Go(func() {
			if err := n.stream(ctx, address, uint64(i)); err != nil {
				n.lab.t.Errorf("stream %d: %v", i, err)
			}
		})
	}
	ticks := make(chan uint64)
	all.Go(func() {
		defer close(ticks)
		next, pause := time.Now(), wait.Paced(time.Second)/time.Duration(perSecond)
		for i := uint64(0); ctx.Err() == nil; i++ {
			ticks <- i
			next = latest(next.Add(pause), time.Now().Add(-maxStall)) // clients that a stall has delayed start at once
			time.Sleep(time.Until(next))
		}
	})
	for range dialers {
		all.Go(func() {
			if err := n.Do(func() error { n.connect(l, &all, address, ticks); return nil }); err != nil {
				n.lab.t.Errorf("clients: %v", err)
			}
		})
	}
	l.stop = func() {
		cancel()
		all.Wait()
	}
	n.lab.t.Cleanup(l.stop)
	return l
}

// connect connects a new client for each tick. It runs on one thread in the namespace, which costs
// less than a thread for each client.
func (n *NS) connect(l *Load, all *sync.WaitGroup, address string, ticks <-chan uint64) {
	failed := func(err error) { n.lab.t.Errorf("a client, after %d others: %v", l.served.Load(), err) }
	d := net.Dialer{KeepAlive: -1, Timeout: wait.Bound(0)}
	for seed := range ticks {
		conn, err := d.Dial("tcp", address)
		if err != nil {
			failed(err)
			continue
		}
		all.Go(func() {
			if err := echo(conn.(*net.TCPConn), seed); err != nil {
				failed(err)
				return
			}
			l.served.Add(1)
		})
	}
}

// Served returns the number of new clients served so far.
func (l *Load) Served() int64 { return l.served.Load() }

// Rate returns the average number of new clients served a second.
func (l *Load) Rate() int { return int(float64(l.Served()) / time.Since(l.began).Seconds()) }

// Stop stops the load, and returns the number of new clients served.
func (l *Load) Stop() int64 {
	l.stop()
	return l.Served()
}

const (
	// onePiece is the number of bytes that a new client sends.
	onePiece = 512
	// streamPiece is the number of bytes that a stream sends at once. streamPause is the pause
	// after each piece. With these values, 200 streams send 4 MB a second.
	streamPiece = 4 << 10
	streamPause = 200 * time.Millisecond
)

// echo sends one piece, and expects its echo and then EOF.
func echo(c *net.TCPConn, seed uint64) error {
	defer func() { _ = c.Close() }()
	limit := wait.Bound(0)
	if _, err := AskWithin(c, limit); err != nil {
		return err
	}
	if err := c.SetWriteDeadline(time.Now().Add(limit)); err != nil {
		return err
	}
	piece := make([]byte, onePiece)
	_, _ = randomBytes(seed).Read(piece) // never fails
	if _, err := c.Write(piece); err != nil {
		return err
	}
	if err := c.CloseWrite(); err != nil {
		return err
	}
	got, err := compare(c, seed, limit)
	if err == nil && got != onePiece {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return fmt.Errorf("%s, %d bytes sent, %d came back: %w", c.LocalAddr(), onePiece, got, err)
	}
	return nil
}

// stream sends random bytes to an echo server, at least one piece, until ctx is done. It expects
// the echo of all bytes, and then EOF.
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
		_ = c.Close() // ends the writer
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

// send writes a seed's bytes until ctx is done, and then half-closes the connection.
func send(ctx context.Context, c *net.TCPConn, seed uint64) (total int, err error) {
	bytes, piece := randomBytes(seed), make([]byte, streamPiece)
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

// compare reads until EOF, and expects a seed's bytes. limit is how long each read may take.
func compare(c *net.TCPConn, seed uint64, limit time.Duration) (total int, err error) {
	same, got, want := randomBytes(seed), make([]byte, streamPiece), make([]byte, streamPiece)
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
