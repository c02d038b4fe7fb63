package failover

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"vipd/dataplane/internal/neigh"
)

// Rivals calls found for each frame in which another host on the device's link claims a VIP, until
// ctx is canceled. isVIP reports whether an address is a VIP. Both functions are called
// concurrently, and must not block.
func Rivals(ctx context.Context, device int, isVIP func(netip.Addr) bool, found func(Rival)) error {
	return neigh.Claims(ctx, device, nil, nil, func(c neigh.Claim) {
		if !c.Asks && isVIP(c.Addr) {
			found(Rival{c.Addr, c.MAC})
		}
	})
}

// probes is the number of requests that Probe sends for each VIP. usualPatience is the default time
// limit for answers.
const (
	probes        = 3
	usualPatience = 300 * time.Millisecond
)

// Elsewhere asks on the link of a device whether other hosts have the VIPs. It returns the MACs of
// the hosts that answer in time. It ignores proxies, which also answer for unused addresses.
func Elsewhere(ctx context.Context, device string, vips []netip.Addr) (map[netip.Addr]net.HardwareAddr, error) {
	return elsewhere(ctx, device, vips, usualPatience)
}

func elsewhere(ctx context.Context, device string, vips []netip.Addr, patience time.Duration) (map[netip.Addr]net.HardwareAddr, error) {
	d, err := net.InterfaceByName(device)
	if err != nil {
		return nil, fmt.Errorf("reading interface %s: %w", device, err)
	}
	own, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("listing this host's interfaces: %w", err)
	}
	controls := controlsFor(vips)
	found, err := Probe(ctx, d.Index, slices.Concat(vips, controls), patience)
	proxies := proxiesIn(found, controls)
	maps.DeleteFunc(found, func(a netip.Addr, mac net.HardwareAddr) bool { // ignore control addresses, proxies, and other devices of this host on the same link
		return proxies[mac.String()] || slices.Contains(controls, a) ||
			slices.ContainsFunc(own, func(i net.Interface) bool { return bytes.Equal(i.HardwareAddr, mac) })
	})
	return found, err
}

// documentation is an address that no host has (RFC 5737). A proxy for its whole default route also
// answers for this address.
var documentation = netip.AddrFrom4([4]byte{198, 51, 100, 254})

// controlsFor returns control addresses, which are probably unused. For each address family of the
// VIPs, it returns two addresses near the first VIP, because a proxy may answer only for a single
// network. For IPv4, it also returns documentation.
func controlsFor(vips []netip.Addr) (all []netip.Addr) {
	for _, is4 := range []bool{true, false} {
		i := slices.IndexFunc(vips, func(a netip.Addr) bool { return a.Is4() == is4 })
		if i < 0 {
			continue
		}
		for tries, added := 0, 0; added < 2 && tries < 100; tries++ { // the VIPs may fill the network
			b := vips[i].AsSlice()
			for j := range b {
				if is4 && j == 3 || !is4 && j >= 8 {
					b[j] = byte(1 + rand.N(254))
				}
			}
			if a, _ := netip.AddrFromSlice(b); !slices.Contains(vips, a) && !slices.Contains(all, a) {
				all, added = append(all, a), added+1
			}
		}
		if is4 {
			all = append(all, documentation)
		}
	}
	return all
}

// proxiesIn returns the MACs that answered for documentation, or for at least two control
// addresses.
func proxiesIn(found map[netip.Addr]net.HardwareAddr, controls []netip.Addr) map[string]bool {
	answers, proxies := map[string]int{}, map[string]bool{}
	for _, a := range controls {
		if mac, ok := found[a]; ok {
			answers[mac.String()]++
			proxies[mac.String()] = answers[mac.String()] > 1 || a == documentation || proxies[mac.String()]
		}
	}
	return proxies
}

// Neighbours maps each address that has a MAC in the kernel's neighbor tables to its device's name.
func Neighbours() (map[netip.Addr]string, error) {
	entries, err := netlink.NeighList(0, unix.AF_UNSPEC)
	if err != nil {
		return nil, fmt.Errorf("listing neighbors: %w", err)
	}
	names, all := map[int]string{}, map[netip.Addr]string{}
	for _, e := range entries {
		a, ok := netip.AddrFromSlice(e.IP)
		if !ok || len(e.HardwareAddr) != 6 || e.State&(unix.NUD_FAILED|unix.NUD_INCOMPLETE|unix.NUD_NOARP) != 0 {
			continue
		}
		if _, known := names[e.LinkIndex]; !known {
			names[e.LinkIndex] = ""
			if d, err := net.InterfaceByIndex(e.LinkIndex); err == nil {
				names[e.LinkIndex] = d.Name
			}
		}
		all[a.Unmap()] = names[e.LinkIndex]
	}
	return all, nil
}

// manyVIPs is the number of VIPs above which Probe sends only one request for each VIP. More
// requests would flood the link.
const manyVIPs = 1000

// Probe asks three times within patience which hosts on the device's link have the VIPs (RFC 5227,
// RFC 4862), and returns their MACs. This host's own answers do not count.
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
		failed = ask(sender, vips) // in the caller's goroutine, because the sockets must belong to its network namespace
		time.AfterFunc(patience, cancel)
		if failed == nil {
			every := patience / probes
			if len(vips) > manyVIPs {
				every = patience
			}
			asking.Go(func() { failed = askAgain(ctx, sender, vips, every) })
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

func ask(sender *neigh.Sender, vips []netip.Addr) error {
	for _, a := range vips {
		if err := sender.Ask(a); err != nil {
			return err
		}
	}
	return nil
}

// Reach sends requests to hosts on the device's link at an interval, and calls answered for each
// answer, until ctx is canceled.
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
			defer cancel() // without requests, no host would answer
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

// askAgain sends requests for all addresses in vips at an interval, until ctx is canceled.
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
