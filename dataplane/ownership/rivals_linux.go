package ownership

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"vipd/dataplane/internal/neigh"
)

// Rival is another host on a link that says it has a VIP.
type Rival struct {
	VIP netip.Addr
	MAC net.HardwareAddr
}

// Rivals calls tell for each frame in which another host on the device's link says that it has a VIP, until ctx ends. VIP
// reports what is one; both are called by several goroutines, and must not block.
func Rivals(ctx context.Context, device int, vip func(netip.Addr) bool, tell func(Rival)) error {
	return neigh.Claims(ctx, device, nil, nil, func(c neigh.Claim) {
		if !c.Asks && vip(c.Addr) {
			tell(Rival{c.Addr, c.MAC})
		}
	})
}

// probes is how often Probe asks within its patience.
const probes = 3

// Elsewhere asks on the link of a device who else has VIPs that this host has there, or shall have, and returns the MACs of those
// that answer within a moment.
func Elsewhere(ctx context.Context, device string, vips []netip.Addr) (map[netip.Addr]net.HardwareAddr, error) {
	const patience = 300 * time.Millisecond
	d, err := net.InterfaceByName(device)
	if err != nil {
		return nil, fmt.Errorf("looking at interface %s: %w", device, err)
	}
	own, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("listing this host's interfaces: %w", err)
	}
	found, err := Probe(ctx, d.Index, vips, patience)
	maps.DeleteFunc(found, func(_ netip.Addr, mac net.HardwareAddr) bool { // another device of this host on the same link
		return slices.ContainsFunc(own, func(i net.Interface) bool { return bytes.Equal(i.HardwareAddr, mac) })
	})
	return found, err
}

// Probe asks on the device's link who has the VIPs, three times within patience (RFC 5227, RFC 4862), and returns the MAC of
// who answers. This host itself is not heard.
func Probe(ctx context.Context, device int, vips []netip.Addr, patience time.Duration) (map[netip.Addr]net.HardwareAddr, error) {
	asked, found := map[netip.Addr]bool{}, map[netip.Addr]net.HardwareAddr{}
	for _, a := range vips {
		asked[a] = true
	}
	sender, err := neigh.Open(device)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var mu sync.Mutex
	var failed error
	var asking sync.WaitGroup
	ready := func() {
		failed = ask(sender, vips) // which opens the sockets here, where the caller is
		time.AfterFunc(patience, cancel)
		if failed == nil {
			asking.Go(func() { failed = askAgain(ctx, sender, vips, patience/probes) })
		}
	}
	err = neigh.Claims(ctx, device, nil, ready, func(c neigh.Claim) {
		mu.Lock()
		defer mu.Unlock()
		if asked[c.Addr] && !c.Asks {
			found[c.Addr] = c.MAC
		}
	})
	asking.Wait()
	return found, errors.Join(err, failed, sender.Close())
}

// ask asks once for each of the VIPs.
func ask(sender *neigh.Sender, vips []netip.Addr) error {
	for _, a := range vips {
		if err := sender.Ask(a); err != nil {
			return err
		}
	}
	return nil
}

// Reach asks on the device's link for hosts again and again, and calls answered with each answer, until ctx ends.
func Reach(ctx context.Context, device int, hosts []netip.Addr, every time.Duration, answered func()) error {
	sender, err := neigh.Open(device)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	var failed error
	var asking sync.WaitGroup
	ready := func() {
		asking.Go(func() {
			defer cancel() // without questions there is nothing to hear
			failed = askAgain(ctx, sender, hosts, every)
		})
	}
	err = neigh.Claims(ctx, device, hosts, ready, func(c neigh.Claim) {
		if slices.Contains(hosts, c.Addr) && !c.Asks {
			answered()
		}
	})
	cancel()
	asking.Wait()
	return errors.Join(err, failed, sender.Close())
}

// askAgain asks every so often until ctx ends.
func askAgain(ctx context.Context, sender *neigh.Sender, vips []netip.Addr, every time.Duration) error {
	again := time.NewTicker(every)
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-again.C:
			if err := ask(sender, vips); err != nil {
				return err
			}
		}
	}
}
