package dataplanetest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"vipd/balancer"
	"vipd/dataplane/explain"
	"vipd/test/lab"
	"vipd/test/wait"
)

// These are time limits for a typical machine, which may be busy. Callers scale them for slower
// machines.
const (
	// atOnce is the time limit for actions that do not wait for a timer. They usually take
	// milliseconds, but longer on a busy machine.
	atOnce = 30 * time.Second
	// silence is how long a client waits to show that it gets no answer. An answer would arrive in
	// a fraction of this time.
	silence = 250 * time.Millisecond
	// unanswered is how long a client waits for an answer before it repeats its request.
	unanswered = 50 * time.Millisecond
)

// patience scales a time limit for this machine. Limits up to silence become at most a second,
// because waiting longer for a forbidden answer would not prove more.
func patience(within time.Duration) time.Duration {
	if within <= silence {
		return min(wait.Scaled(within), time.Second)
	}
	return min(wait.Scaled(within), wait.Bound(within))
}

// ports assigns source ports for UDP. It assigns each port only once, because a client that reuses
// a port would continue its earlier flow.
type ports struct{ dealt atomic.Uint32 }

func (p *ports) next() uint16 { return uint16(20000 + p.dealt.Add(1)%40000) }

// open connects from a namespace to a frontend. If source is invalid, the kernel chooses the source
// address.
func (r *rig) open(from *lab.NS, source netip.Addr, key balancer.Key, within time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience(within))
	defer cancel()
	switch key.Proto {
	case balancer.SCTP:
		if !source.IsValid() {
			source = r.addressOf(from, key.Addr)
		}
		return from.DialSCTP(ctx, netip.AddrPortFrom(source, 0), key.AddrPort())
	case balancer.TCP:
		var at netip.AddrPort
		if source.IsValid() {
			at = netip.AddrPortFrom(source, 0)
		}
		return from.DialFrom(ctx, "tcp", at, key.AddrPort().String())
	}
	if !source.IsValid() {
		source = parseAddrs("0.0.0.0", "::").inFamilyOf(key.Addr)
	}
	for {
		c, err := from.DialFrom(ctx, "udp", netip.AddrPortFrom(source, r.s.ports.next()), key.AddrPort().String())
		if !errors.Is(err, unix.EADDRINUSE) {
			return c, err
		}
	}
}

// addressOf returns the source address that other hosts see in packets from a namespace. The
// address has the same family as vip.
func (r *rig) addressOf(n *lab.NS, vip netip.Addr) netip.Addr {
	switch n {
	case r.w.host:
		return r.w.node.inFamilyOf(vip)
	case r.w.client:
		return r.w.clients[0].inFamilyOf(vip)
	}
	for _, s := range r.w.servers {
		if s.ns == n {
			return s.addr.inFamilyOf(vip)
		}
	}
	return parseAddrs("0.0.0.0", "::").inFamilyOf(vip)
}

// ask opens a TCP connection to a frontend, or sends a UDP datagram from a new port, and returns
// the server's answer.
func (r *rig) ask(from *lab.NS, key balancer.Key) (lab.Answer, error) {
	return r.askFrom(from, netip.Addr{}, key, atOnce)
}

// askFrom is like ask, but uses a source address of the namespace and waits at most for the
// duration within. If source is invalid, the kernel chooses the address.
func (r *rig) askFrom(from *lab.NS, source netip.Addr, key balancer.Key, within time.Duration) (lab.Answer, error) {
	c, err := r.open(from, source, key, within)
	if err != nil {
		return lab.Answer{}, err
	}
	defer r.hangUp(c)
	return lab.AskWithin(c, patience(within))
}

// hangUp closes a connection. If r.resets is true, it closes TCP connections with a reset.
func (r *rig) hangUp(c net.Conn) {
	if t, ok := c.(*net.TCPConn); ok && r.resets {
		_ = t.SetLinger(0)
	}
	_ = c.Close()
}

// mustAsk is like ask, but fails the test if no answer arrives. It also checks that package explain
// predicts the outcome.
func (r *rig) mustAsk(from *lab.NS, key balancer.Key) lab.Answer {
	r.Helper()
	a, err := r.ask(from, key)
	if err != nil {
		r.Fatalf("%s asks %s: %v", from.Name, key, err)
	}
	checkExplained(r, from, netip.Addr{}, key, explain.Served)
	return a
}

// mustOpen opens a connection, and waits for an answer. The connection is closed when the test
// ends.
func (r *rig) mustOpen(from *lab.NS, source netip.Addr, key balancer.Key) (net.Conn, lab.Answer) {
	r.Helper()
	c, err := r.open(from, source, key, atOnce)
	if err != nil {
		r.Fatalf("%s connects to %s: %v", from.Name, key, err)
	}
	r.Cleanup(func() { _ = c.Close() })
	a, err := lab.AskWithin(c, patience(atOnce))
	if err != nil {
		r.Fatalf("%s on a connection to %s: %v", from.Name, key, err)
	}
	return c, a
}

// tally sends n requests, and returns the number of answers by server.
func (r *rig) tally(from *lab.NS, key balancer.Key, n int) map[string]int {
	r.Helper()
	counts := map[string]int{}
	for range n {
		counts[r.mustAsk(from, key).Server]++
	}
	return counts
}

// alive returns an error if an established connection no longer echoes data.
func alive(c net.Conn, within time.Duration) error {
	if err := c.SetDeadline(time.Now().Add(patience(within))); err != nil {
		return err
	}
	const text = "still there"
	if _, err := c.Write([]byte(text)); err != nil {
		return err
	}
	got := make([]byte, len(text))
	for n := 0; n < len(got); {
		m, err := c.Read(got[n:])
		if n += m; err != nil {
			return err
		}
	}
	if string(got) != text {
		return fmt.Errorf("echo = %q, want %q", got, text)
	}
	return nil
}

// refused checks that a client is refused immediately, with a TCP reset or an ICMP port unreachable
// message.
func (r *rig) refused(from *lab.NS, key balancer.Key) {
	r.Helper()
	if err := r.refusal(from, key, atOnce); err != nil {
		r.Fatal(err)
	}
	checkExplained(r, from, netip.Addr{}, key, explain.Refused)
}

// refusal sends a request. It returns an error unless the request is refused.
func (r *rig) refusal(from *lab.NS, key balancer.Key, within time.Duration) error {
	a, err := r.askFrom(from, netip.Addr{}, key, within)
	switch {
	case err == nil:
		return fmt.Errorf("%s asks %s: %s answers, want a refusal", from.Name, key, a.Server)
	case errors.Is(err, unix.EPERM) && from == r.w.host && r.s.VirtualServers: // IPVS also drops the packet, and a program on the host gets this error before the refusal
	case errors.Is(err, unix.ECONNREFUSED), key.Proto == balancer.TCP && errors.Is(err, unix.ECONNRESET):
	default:
		return fmt.Errorf("%s asks %s: %w, want a refusal", from.Name, key, err)
	}
	return nil
}

func (r *rig) ignored(from *lab.NS, source netip.Addr, key balancer.Key) {
	r.Helper()
	a, err := r.askFrom(from, source, key, silence)
	switch {
	case err == nil:
		r.Errorf("%s (%s) asks %s: %s answers, want no answer", from.Name, source, key, a.Server)
	case errors.Is(err, unix.EPERM) && from == r.w.host: // programs on the host get this error if a filter drops their packets
	case !errors.Is(err, os.ErrDeadlineExceeded) && !errors.Is(err, context.DeadlineExceeded):
		r.Errorf("%s (%s) asks %s: %v, want no answer", from.Name, source, key, err)
	}
	checkExplained(r, from, source, key, explain.Dropped)
}
