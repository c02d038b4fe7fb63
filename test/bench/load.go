package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// The load is a small protocol: a client sends one byte that selects a service, which the server
// provides until the client closes the connection. 'd' discards everything, and sends one byte when
// the client has sent everything. 'r' answers each line of requestSize bytes with a line of the
// same size.
const requestSize = 64

// backend is the server behind every proxy.
type backend struct {
	address string
	l       net.Listener
	serving sync.WaitGroup
}

func startBackend() (*backend, error) {
	lc := net.ListenConfig{}
	lc.SetMultipathTCP(false)
	l, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	b := &backend{address: l.Addr().String(), l: l}
	b.serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			b.serving.Go(func() { serveLoad(c) })
		}
	})
	return b, nil
}

func (b *backend) close() {
	_ = b.l.Close()
	b.serving.Wait()
}

func serveLoad(c net.Conn) {
	defer func() { _ = c.Close() }()
	kind := make([]byte, 1)
	if _, err := io.ReadFull(c, kind); err != nil {
		return
	}
	if kind[0] == 'd' {
		buffer := make([]byte, 1<<20)
		for {
			if _, err := c.Read(buffer); err != nil {
				break
			}
		}
		_, _ = c.Write(kind)
		return
	}
	line := make([]byte, requestSize)
	in := bufio.NewReaderSize(c, 4096)
	for {
		if _, err := io.ReadFull(in, line); err != nil {
			return
		}
		if _, err := c.Write(line); err != nil {
			return
		}
	}
}

func dial(ctx context.Context, address string) (*net.TCPConn, error) {
	var d net.Dialer
	d.SetMultipathTCP(false)
	c, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

// bulk sends bytes to address over parallel streams, and waits until the last byte has arrived at
// the server.
func bulk(ctx context.Context, address string, streams int, bytes int64) error {
	return together(streams, func(int) error {
		c, err := dial(ctx, address)
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		buffer := make([]byte, 1<<20)
		buffer[0] = 'd'
		for left := bytes / int64(streams); left > 0; {
			n, err := c.Write(buffer[:min(left, int64(len(buffer)))])
			if err != nil {
				return err
			}
			left -= int64(n)
		}
		if err := c.CloseWrite(); err != nil {
			return err
		}
		_, err = io.ReadFull(c, buffer[:1])
		return err
	})
}

// connect opens n connections with concurrent clients, and sends one request on each.
func connect(ctx context.Context, address string, clients, n int) error {
	return together(clients, func(int) error {
		for range n / clients {
			c, err := dial(ctx, address)
			if err != nil {
				return err
			}
			line := make([]byte, 1+requestSize)
			line[0] = 'r'
			if err := exchange(c, line, line[1:]); err != nil {
				return err
			}
			if err := c.Close(); err != nil {
				return err
			}
		}
		return nil
	})
}

// request sends n requests over persistent connections, one connection for each client. It returns
// the duration of each request.
func request(ctx context.Context, address string, clients, n int) ([]time.Duration, error) {
	all := make([][]time.Duration, clients)
	err := together(clients, func(i int) error {
		c, err := dial(ctx, address)
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		line := make([]byte, 1+requestSize)
		line[0] = 'r'
		if err := exchange(c, line, line[1:]); err != nil {
			return err
		}
		for range n / clients {
			began := time.Now()
			if err := exchange(c, line[1:], line[1:]); err != nil {
				return err
			}
			all[i] = append(all[i], time.Since(began))
		}
		return nil
	})
	var latencies []time.Duration
	for _, l := range all {
		latencies = append(latencies, l...)
	}
	return latencies, err
}

func exchange(c net.Conn, out, in []byte) error {
	if err := c.SetDeadline(time.Now().Add(30 * time.Second)); err != nil { // stops the benchmark if a proxy hangs
		return err
	}
	if _, err := c.Write(out); err != nil {
		return err
	}
	if _, err := io.ReadFull(c, in); err != nil {
		return fmt.Errorf("reading the answer: %w", err)
	}
	return nil
}

// together calls do n times concurrently, and returns the errors.
func together(n int, do func(i int) error) error {
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { errs[i] = do(i) })
	}
	all.Wait()
	return errors.Join(errs...)
}
