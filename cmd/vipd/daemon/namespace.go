package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"

	"vipd/balancer"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/modes"
	"vipd/cmd/internal/netlock"
	"vipd/dataplane"
	"vipd/dataplane/host"
)

// hostSide is the side of the host: host.Host, or host.Bystander where another vipd has the network namespace.
type hostSide interface {
	dataplane.Host
	SetMode(dataplane.Needs)
	Problems() []balancer.Problem
	Addresses() []host.Held
	LocalAddresses(networks []netip.Prefix) (own, networked []netip.Addr, err error)
	FollowAddresses(ctx context.Context, changed func()) error
	Gateways(to []netip.Addr) []netip.Addr
	Sources(to []netip.Addr) []netip.Addr
	Tracked(ctx context.Context, vips map[netip.Addr]bool) (map[netip.Addr]bool, error)
	Inherited() bool
	Refuse(context.Context) error
	Release(context.Context) error
	Close() error
}

// claimNamespace takes the network namespace. If another vipd has it, this one leaves the kernel alone, which is possible
// only in userspace mode that intercepts by bind. Without the right to change the namespace there is nothing to take.
func (d *Daemon) claimNamespace() (err error) {
	if !netlock.Needed() {
		return nil
	}
	self := netlock.Holder{Config: absolute(d.ConfigFile), RunDir: absolute(d.config.RunDir)}
	d.namespace, err = netlock.Take(self)
	var held *netlock.HeldError
	var foreign *netlock.ForeignError
	switch {
	case err == nil:
		d.opened = append(d.opened, d.namespace)
		return nil
	case errors.As(err, &foreign):
		d.Log.Warn("going on without the lock of the network namespace", "err", err)
		return nil
	case !errors.As(err, &held):
		return err
	case !held.Holder.IsDaemon():
		return fmt.Errorf("%w: start vipd again when it has ended", err)
	case held.Holder.RunDir == self.RunDir:
		return configError{fmt.Errorf("%w: stop it, or take its place with --replace", err)}
	case d.config.Mode != config.UserspaceMode || d.config.Userspace.Intercept != config.BindIntercept:
		return configError{fmt.Errorf("%w: stop it; or serve only VIPs in 127.0.0.0/8 beside it, with mode = %q and userspace.intercept = %q",
			err, config.UserspaceMode, config.BindIntercept)}
	}
	d.beside = held
	d.Modes = modes.Beside(d.Modes, held)
	d.Log.Warn("leaving the kernel alone and serving only local VIPs", "err", held)
	return nil
}

// newHost opens the side of the host.
func (d *Daemon) newHost(log *slog.Logger) (hostSide, error) {
	if d.beside != nil {
		return host.NewBystander(fmt.Sprintf("%s; use VIPs in 127.0.0.0/8, or stop it and restart this vipd", d.beside)), nil
	}
	o := modes.HostOptions(d.config)
	o.Log = log
	h, err := host.New(o)
	if err != nil {
		return nil, err // a nil *Host in an interface would not be nil
	}
	return h, nil
}

// absolute returns path as others understand it; as it is if this process has no working folder.
func absolute(path string) string {
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}
