package main

import (
	"fmt"
	"io"
	"sync"
)

// counts has the counts of a server. With a file, each change is written before the answer, so the
// file is correct even after a kill -9.
type counts struct {
	mu   sync.Mutex
	file io.WriterAt

	// These count HTTP requests, TCP connections and UDP datagrams.
	http, tcp, udp uint64
}

// add increments a field of c.
func (c *counts) add(field *uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	*field++
	if c.file != nil {
		_, _ = io.WriteString(io.NewOffsetWriter(c.file, 0), c.textLocked()) // counting must not stop the server
	}
}

func (c *counts) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.textLocked()
}

// textLocked returns one line; numbers only grow, so a later line always covers an earlier one in
// the file.
func (c *counts) textLocked() string {
	return fmt.Sprintf("accepted http=%d tcp=%d udp=%d\n", c.http, c.tcp, c.udp)
}
