package fleet

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"vipd/test/lab"
	"vipd/test/wait"
)

// connectOnce opens one connection from a namespace to a VIP, and returns the server's name.
func connectOnce(from *lab.NS, vip string) (string, error) {
	return onceWithin(from, vip+":80", wait.Scaled(10*time.Second))
}

// connectPatiently is like connectOnce, for a connection that must not fail even on a busy machine.
func connectPatiently(from *lab.NS, at string) (string, error) {
	return onceWithin(from, at, wait.Bound(0))
}

func onceWithin(from *lab.NS, at string, within time.Duration) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	c, err := from.Dial(ctx, "tcp", at)
	if err != nil {
		return "", err
	}
	defer func() {
		_ = c.(*net.TCPConn).SetLinger(0) // avoids TIME_WAIT, so that ports don't run out
		_ = c.Close()
	}()
	answer, err := lab.AskWithin(c, within)
	return answer.Server, err
}

// loop runs clients at every node in a closed loop. Each client connects to the service "web",
// sends a request, disconnects, and starts again. No connection may fail.
type loop struct {
	*world
	done   []atomic.Int64 // number of connections by node
	failed atomic.Bool
	stop   func() // stops the loop, and waits for the clients
}

// clients starts two clients on each node, and two behind it.
func (w *world) clients() *loop {
	l := &loop{world: w, done: make([]atomic.Int64, len(w.nodes))}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for i, n := range w.nodes {
		for _, from := range []*lab.NS{n.ns, n.ns, n.behind, n.behind} {
			all.Go(func() {
				for ctx.Err() == nil {
					if _, err := connectPatiently(from, webVIP+":80"); err != nil {
						w.t.Errorf("%s: client in %s: error = %v, want none", time.Now().Format("15:04:05.000"), from.Name, err)
						l.failed.Store(true)
						return
					}
					l.done[i].Add(1)
					select { // limits the load of each client
					case <-ctx.Done():
					case <-time.After(50 * time.Millisecond):
					}
				}
			})
		}
	}
	l.stop = sync.OnceFunc(func() { cancel(); all.Wait() })
	w.t.Cleanup(l.stop)
	return l
}

// waitForMore waits until each node has served n more connections.
func (l *loop) waitForMore(n int64) {
	l.t.Helper()
	for i := range l.done {
		until := l.done[i].Load() + n
		wait.For(l.t, patience, fmt.Sprintf("%d more connections at %s", n, l.nodes[i].name), func() bool {
			return l.done[i].Load() >= until || l.failed.Load()
		})
	}
	if l.failed.Load() {
		l.t.FailNow()
	}
}

// total returns the number of connections.
func (l *loop) total() (n int64) {
	for i := range l.done {
		n += l.done[i].Load()
	}
	return n
}
