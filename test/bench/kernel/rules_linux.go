package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// restore passes text to the backend's iptables-restore, and returns how long that took.
func restore(ctx context.Context, b backend, text []byte) (time.Duration, error) {
	cmd := exec.CommandContext(ctx, fmt.Sprintf("iptables-%s-restore", b), "--noflush", "--wait")
	cmd.Stdin = bytes.NewReader(text)
	began := time.Now()
	if out, err := cmd.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("running %s: %w\n%s", cmd, err, out)
	}
	return time.Since(began), nil
}

// countRules returns the number of IPv4 rules in the backend's tables.
func countRules(ctx context.Context, b backend) (n int, err error) {
	cmd := exec.CommandContext(ctx, fmt.Sprintf("iptables-%s-save", b))
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "-A ") {
			n++
		}
	}
	if err := lines.Err(); err != nil {
		return 0, err
	}
	return n, cmd.Wait()
}

// subject is a box's content. It loads and changes rules.
type subject interface {
	// load creates the content, and returns how long that took.
	load(ctx context.Context) (time.Duration, error)
	// change makes the n-th change of a kind, counted from 0, and returns how long that took.
	change(ctx context.Context, kind measure, n int) (time.Duration, error)
	// stop stops background work, and leaves the rules in place.
	stop()
}

// floor is a host with one DNAT rule that chooses an endpoint. With several endpoints, most packets
// need a route lookup. With one endpoint, the kernel would reuse the previous packet's route.
type floor struct {
	backend   backend
	endpoints int
	proto     string
}

func (f floor) load(ctx context.Context) (time.Duration, error) {
	return restore(ctx, f.backend, fmt.Appendf(nil, "*nat\n-A PREROUTING -d %s/32 -p %s --dport %d -j DNAT --to-destination %s-%s:%d --random\nCOMMIT\n",
		vips(1)[0], f.proto, servicePort, endpoint(0), endpoint(f.endpoints-1), targetPort))
}

func (f floor) change(context.Context, measure, int) (time.Duration, error) {
	return 0, fmt.Errorf("one DNAT rule has nothing to change")
}

func (f floor) stop() {}

// listRules is a list that is loaded and changed like kube-proxy's. Only iptables-restore's time
// counts.
type listRules struct {
	*list
	backend backend
	spare   []netip.Addr // VIPs of services that changes add
}

func newListRules(b backend, s spec) *listRules {
	return &listRules{newList(s.Services, s.Endpoints), b, vips(s.Services + spareServices)[s.Services:]}
}

// spareServices is the maximum number of services that changes add.
const spareServices = 100

func (l *listRules) load(ctx context.Context) (time.Duration, error) {
	return restore(ctx, l.backend, l.full(l.backend == nft))
}

func (l *listRules) change(ctx context.Context, kind measure, n int) (time.Duration, error) {
	switch kind {
	case endpointChanged:
		s := &l.services[len(l.services)/2+n]
		s.endpoints = slices.Clone(s.endpoints)
		s.endpoints[0] = endpoint(changedEndpoints + n)
		return restore(ctx, l.backend, l.partial([]listed{*s}, nil))
	case serviceAdded:
		s := listed{name: serviceName(len(l.services)), vip: l.spare[n]}
		for i := range l.services[0].endpoints {
			s.endpoints = append(s.endpoints, endpoint(changedEndpoints+spareServices*(n+1)+i))
		}
		l.services = append(l.services, s)
		return restore(ctx, l.backend, l.partial([]listed{s}, nil))
	default:
		s := l.services[len(l.services)-1]
		l.services = l.services[:len(l.services)-1]
		return restore(ctx, l.backend, l.partial(nil, []listed{s}))
	}
}

func (l *listRules) stop() {}

// empty is a host without rules.
type empty struct{}

func (empty) load(context.Context) (time.Duration, error) { return 0, nil }

func (empty) change(context.Context, measure, int) (time.Duration, error) {
	return 0, fmt.Errorf("a host without rules has nothing to change")
}

func (empty) stop() {}
