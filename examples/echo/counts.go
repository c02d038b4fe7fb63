package main

import (
	"fmt"
	"io"
	"sync"
)

// counts holds a server's counts. If there is a file, each new count is written to it before
// the server answers, so the file is correct even after kill -9.
type counts struct {
	mu   sync.Mutex
	file io.WriterAt

	// These count HTTP requests, TCP connections and UDP datagrams.
	http, tcp, udp uint64
}

// add increments field, which must be a field of c, and updates the file.
func (c *counts) add(field *uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	*field++
	if c.file != nil {
		_, _ = io.WriteString(io.NewOffsetWriter(c.file, 0), c.textLocked()) // an error must not stop the server
	}
}

func (c *counts) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.textLocked()
}

// textLocked returns the counts in one line. The line never becomes shorter, so it always
// overwrites the previous line in the file.
func (c *counts) textLocked() string {
	return fmt.Sprintf("accepted http=%d tcp=%d udp=%d\n", c.http, c.tcp, c.udp)
}
