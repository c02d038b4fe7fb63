package main

import (
	"context"
	"net"
	"sync"
)

// open is the set of connections that are being served.
type open struct {
	mu    sync.Mutex
	conns map[net.Conn]bool
	wg    sync.WaitGroup
}

// serve runs handle in a goroutine, closes conn after it, and keeps track of both.
func (o *open) serve(conn net.Conn, handle func()) {
	o.mu.Lock()
	if o.conns == nil {
		o.conns = map[net.Conn]bool{}
	}
	o.conns[conn] = true
	o.mu.Unlock()
	o.wg.Go(func() {
		handle()
		_ = conn.Close()
		o.mu.Lock()
		delete(o.conns, conn)
		o.mu.Unlock()
	})
}

// end waits until all connections have ended, and closes those that are left when ctx ends. Nobody
// calls serve any more.
func (o *open) end(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		o.wg.Wait()
		close(done)
	}()
	select {
	case <-done:
		return
	case <-ctx.Done():
	}
	o.mu.Lock()
	for conn := range o.conns {
		_ = conn.Close()
	}
	o.mu.Unlock()
	<-done
}
