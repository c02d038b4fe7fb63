package guard

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/nft"
)

// proveLimits tests the kernel's support for limits when the first service has limits. If the
// kernel does not support them, the guard omits all limits.
func (y *familyGuard) proveLimits() {
	if y.limits.tried || !y.mode.Forward || !y.limits.nonEmpty() {
		return
	}
	y.limits.tried, y.limits.fault = true, tryLimits(y.table.Conn, y.family)
}

// tryLimits creates a table with one meter of each kind, and deletes it. Its error names the
// missing modules.
func tryLimits(conn *nft.Conn, of inet.Family) (failed error) {
	l := newLayout(of)
	l.table.Name += trialSuffix
	at := netip.IPv4Unspecified()
	if of == inet.IPv6 {
		at = netip.IPv6Unspecified()
	}
	var missing []string
	for _, kind := range []struct {
		module string
		limits balancer.ClientLimits
	}{
		{"nft_limit", balancer.ClientLimits{SourceRate: balancer.Rate{N: 1, Per: time.Second}, SourcePrefix: at.BitLen()}},
		{"nft_connlimit", balancer.ClientLimits{SourceConnections: 1, Connections: 1, SourcePrefix: at.BitLen()}},
	} {
		var s limits
		s.want(&balancer.Frontend{Key: balancer.Key{Addr: at, Port: 1, Proto: balancer.TCP}, Service: "trial", Limits: kind.limits}, 1, false)
		var tx nft.Tx
		l.writeSets(&tx, features{limited: true})
		s.write(&tx, l, newMarkBits(0), true)
		if err := (&nft.Maintained{Conn: conn, Table: l.table}).Try(&tx); err != nil {
			missing, failed = append(missing, kind.module), err
		}
	}
	if failed != nil {
		return fmt.Errorf("the kernel refuses rules of %s: run modprobe -a %s and vipctl reload, or remove limits: %w",
			strings.Join(missing, " and "), strings.Join(missing, " "), failed)
	}
	return nil
}

func (y *familyGuard) readLimits() error {
	chains, err := y.table.Chains(y.layout.table)
	if err != nil {
		return fmt.Errorf("reading the chains of table %s: %w", y.layout.table, err)
	}
	sets, err := y.table.Sets(y.layout.table)
	if err != nil {
		return fmt.Errorf("reading the sets of table %s: %w", y.layout.table, err)
	}
	places, err := y.readPlaces()
	if err != nil {
		return err
	}
	y.limits.forget()
	y.limits.places = places
	for _, c := range chains {
		if strings.HasPrefix(c.Name, limitChain) {
			y.limits.chains[c.Name] = limiter{}
		}
	}
	for _, s := range sets {
		if strings.HasPrefix(s.Name, limitMeter) {
			y.limits.sets[s.Name] = true
		}
	}
	return nil
}

func (y *familyGuard) readPlaces() (map[setEntry]string, error) {
	places := map[setEntry]string{}
	for _, l := range []*layout{y.layout, y.layout.inRange} {
		found, err := y.table.Elements(l.table, l.limits.Name)
		if err != nil {
			return nil, fmt.Errorf("reading map %s of table %s: %w", l.limits.Name, l.table, err)
		}
		for _, e := range found {
			places[entryOf(&e.Elem, y.family)] = e.Jump
		}
	}
	return places, nil
}

func (y *familyGuard) queueLimits(with features) {
	if !y.ready || with.limited != y.written.limited || with.limited && y.limits.differ() {
		y.limits.write(&y.tx, y.layout, y.bits, with.limited)
	}
}
