package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	hostside "vipd/dataplane/host"
)

// device is a host that gets VIPs on a dummy device from vipd and, for comparison, from ip.
type device struct {
	vips []netip.Addr
	host *hostside.Host
}

var _ taker = (*device)(nil)

// beside is the device to which ip adds addresses.
const beside = "beside"

func newDevice(b backend, s spec) (*device, error) {
	options := hostside.DefaultOptions()
	options.Variant, options.Mode = hostside.Variant(b), dataplane.Needs{Forward: true, LocalIn: true}
	h, err := hostside.New(options)
	if err != nil {
		return nil, fmt.Errorf("starting the host's side: %w", err)
	}
	return &device{vips: vips(s.Services + 1), host: h}, nil
}

// load creates both devices. vipd's has one VIP, so the guard also exists.
func (d *device) load(ctx context.Context) (time.Duration, error) {
	if err := ip(ctx, "link add "+beside+" type dummy\nlink set "+beside+" up\n"); err != nil {
		return 0, err
	}
	return 0, d.hold(ctx, d.vips[:1])
}

// hold sets the VIPs that vipd holds.
func (d *device) hold(ctx context.Context, vips []netip.Addr) error {
	var want balancer.Desired
	for _, a := range vips {
		want.Addresses = want.Addresses.Set(a, 1)
		f := &balancer.Frontend{
			Key: balancer.Key{Addr: a, Port: servicePort, Proto: balancer.TCP}, Service: balancer.Name("s"), Policy: balancer.Policy{Scheduler: balancer.WeightedRoundRobin, SNAT: balancer.AutoSNAT, Forward: balancer.NATForward},
			Backends: []balancer.Backend{{Addr: netip.AddrPortFrom(endpoint(0), targetPort), Weight: 1, State: balancer.Active}},
		}
		want.Frontends = want.Frontends.Set(f.Key, f)
	}
	return errors.Join(d.host.Prepare(ctx, want), d.host.Finish(ctx, want.Frontends))
}

// take implements taker. Added addresses are removed again, outside of the measurement.
func (d *device) take(ctx context.Context, what measure) (float64, error) {
	var took time.Duration
	var err error
	switch what {
	case addingVIPs:
		began := time.Now()
		err = d.hold(ctx, d.vips)
		took = time.Since(began)
		for _, held := range d.host.Addresses() {
			if held.Where != hostside.DefaultOptions().Interface {
				err = errors.Join(err, fmt.Errorf("%s is held by %s: %s", held.Addr, held.Where, held.Note))
			}
		}
		err = errors.Join(err, d.hold(ctx, d.vips[:1]))
	case addingVIPsByIP, addingBothByIP:
		var add bytes.Buffer
		for _, a := range d.vips[1:] {
			fmt.Fprintf(&add, "addr add %s/32 dev %s\n", a, beside)
			if what == addingBothByIP { // as in vipd, connections to the VIP leave with the host's own address
				fmt.Fprintf(&add, "route append local %s dev %s table local proto 66 scope host src 192.0.2.1\n", a, beside)
			}
		}
		began := time.Now()
		err = ip(ctx, add.String())
		took = time.Since(began)
		err = errors.Join(err, ip(ctx, "addr flush dev "+beside+"\nroute flush table local dev "+beside+"\n"))
	default:
		err = fmt.Errorf("a device has no %s", what)
	}
	return milliseconds(took), err
}

// ip runs commands of iproute2.
func ip(ctx context.Context, commands string) error {
	cmd := exec.CommandContext(ctx, "ip", "-batch", "-")
	cmd.Stdin = bytes.NewReader([]byte(commands))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("running ip -batch: %w\n%.500s", err, out)
	}
	return nil
}

func (d *device) change(context.Context, measure, int) (time.Duration, error) {
	return 0, errors.New("VIPs are only added")
}

func (d *device) stop() {}
