package ipvs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"vipd/balancer/lib/atomicfile"
	"vipd/dataplane/internal/conntrack"
	"vipd/dataplane/internal/dnat"
	"vipd/dataplane/internal/ipvsnl"
	"vipd/dataplane/internal/portmap"
	"vipd/dataplane/internal/runfile"
)

// New uses a trial virtual server to check that IPVS works on this host, and returns a dataplane
// that adopts the kernel's state. It changes nothing else, except that it loads missing modules.
// Its error gives the reason why neither IPv4 nor IPv6 can be served, and advice.
func New(ctx context.Context, o Options) (*Dataplane, error) {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	l, err := ledgerHere(o.RunDir)
	if err != nil {
		return nil, err
	}
	conn, err := ipvsnl.Open(ctx, o.Log)
	if err != nil {
		return nil, err
	}
	tracked, err := conntrack.Open()
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	d, err := newDataplane(ctx, conn, dnat.NewCarried(dnat.NewFlows(tracked, o.Log), dnat.Opened), l, o.Log)
	if err == nil {
		d.timeouts = ipvsnl.Timeouts{TCP: o.TCPTimeout, TCPFin: o.TCPFinTimeout, UDP: o.UDPTimeout}
		if o.FollowConntrack {
			d.trackedTimeout = func(ctx context.Context) time.Duration { return trackedTimeout(ctx, o.RunDir) }
		}
		err = d.try(ctx)
	}
	if err == nil {
		if d.marks, err = openMarkers(); err != nil {
			o.Log.Warn("port ranges are not served", "err", err)
			d.caps.MaxPorts, d.caps.RangeAffinity, err = 0, false, nil
		}
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close(), tracked.Close())
	}
	return d, nil
}

// ledgerHere opens the ledger for this boot and network namespace.
func ledgerHere(dir string) (*ledger, error) {
	boot, namespace, err := runfile.Stamp()
	if err != nil {
		return nil, fmt.Errorf("reading the boot ID and network namespace for the ledger of virtual servers: %w", err)
	}
	return openLedger(dir, boot, namespace)
}

// Cleanup removes the virtual servers that the ledger in runDir names. It returns descriptions of
// the steps, which a dry run does not execute: "delete virtual server 10.96.0.10:80/tcp". If the
// kernel has no IPVS, it only removes the ledger.
func Cleanup(ctx context.Context, runDir string, dry bool) (done []string, err error) {
	l, err := ledgerHere(runDir)
	if err != nil {
		return nil, err
	}
	if done, err = portmap.Cleanup(dry, marksTable); err != nil {
		return done, err
	}
	for _, file := range atomicfile.Leftovers(l.path) {
		if done = append(done, "remove file "+file); !dry {
			err = errors.Join(err, os.Remove(file))
		}
	}
	if l.empty() || err != nil {
		return done, err // reading virtual servers would load IPVS
	}
	conn, err := ipvsnl.Open(ctx, slog.New(slog.DiscardHandler))
	switch {
	case errors.Is(err, ipvsnl.ErrUnsupported) && !errors.Is(err, unix.EPERM): // unloading IPVS has already removed the virtual servers
		if dry {
			return done, nil
		}
		return done, l.clear()
	case err != nil:
		return done, fmt.Errorf("searching for vipd's virtual servers: %w", err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	removed, err := removeOwned(ctx, conn, l, dry)
	done = append(done, removed...)
	if l.timeouts != [3]timeoutChange{} {
		done = append(done, "restore the IPVS timeouts")
	}
	if !dry {
		err = errors.Join(err, setTimeouts(ctx, conn, l, ipvsnl.Timeouts{}), l.save())
	}
	return done, err
}
