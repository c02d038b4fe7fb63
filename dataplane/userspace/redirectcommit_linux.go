package userspace

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/conntrack"
	"vipd/dataplane/internal/inet"
)

// commit writes the requested redirects, and deletes conntrack entries that lead elsewhere: UDP
// flows, and unanswered connections that are older than their redirect. KeyErrors contain the keys
// that failed independently.
func (r *redirect) commit(ctx context.Context) error {
	failed := dataplane.KeyErrors{}
	var all error
	for _, family := range inet.Families() {
		if y := r.families[family]; y != nil {
			if err := y.commit(ctx, failed); err != nil {
				all = errors.Join(all, fmt.Errorf("redirecting %s: %w", y.name, err))
			}
		}
	}
	if all == nil && len(failed) > 0 {
		return failed
	}
	return all
}

func (y *redirectFamily) commit(ctx context.Context, failed dataplane.KeyErrors) error {
	y.mu.Lock()
	defer y.mu.Unlock()
	if y.sure && maps.Equal(y.installed, y.ports) {
		return nil
	}
	y.sure = false
	if err := y.kernel.Set(ctx, y.ports); err != nil {
		return err
	}
	for _, side := range []map[balancer.Key]uint16{y.installed, y.ports} {
		for k := range side {
			if y.installed[k] != y.ports[k] && (k.Proto == balancer.UDP || y.installed[k] == 0) {
				y.stale[k] = true
			}
		}
	}
	y.installed = maps.Clone(y.ports)
	if err := y.cut(ctx, y.stale, y.misled); err != nil { // the redirects are written, but conntrack may still mislead these frontends' flows
		for k := range y.stale {
			failed[k] = err
		}
		return nil
	}
	clear(y.stale)
	y.sure = true
	return nil
}

// misled reports whether conntrack sends a flow to a socket that does not belong to the flow's
// frontend. conntrack decides once per flow, so the client would ignore a new redirect, and
// continue to use a removed one. A TCP connection is misled if it is unanswered and no redirect
// applies to it.
func (y *redirectFamily) misled(flow *conntrack.Flow) bool {
	if flow.Proto == balancer.TCP {
		return !flow.Status.Has(conntrack.DstNAT) && !flow.Status.Has(conntrack.SeenReply)
	}
	f := y.r.d.chains.at(flow.Frontend())
	if f == nil {
		return true
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return flow.Backend().Port() != f.packetsPortLocked()
}

func (r *redirect) lose(ctx context.Context, keys map[balancer.Key]bool) error {
	var failed error
	for family, y := range r.families {
		of := maps.Clone(keys)
		maps.DeleteFunc(of, func(k balancer.Key, _ bool) bool { return inet.Of(k.Addr) != family })
		failed = errors.Join(failed, cut(ctx, of, y.misled))
	}
	return failed
}

// wasReset reports whether vipd has reset a connection. conntrack retains the entry for ten
// seconds. If the client reused its port during this time, conntrack would send it to the
// redirect's port, which may be closed by then.
func wasReset(f *conntrack.Flow) bool { return f.State == "close" }

func cut(ctx context.Context, keys map[balancer.Key]bool, which func(*conntrack.Flow) bool) error {
	if len(keys) == 0 {
		return nil
	}
	conn, err := conntrack.Open()
	if err == nil {
		_, err = conn.Cut(ctx, keys, which)
		err = errors.Join(err, conn.Close())
	}
	if err != nil {
		return fmt.Errorf("deleting conntrack's flows to redirected addresses: %w", err)
	}
	return nil
}

// inspect returns the differences from the last written redirects, which the next commit repairs.
// Its first call removes an earlier process's redirects.
func (r *redirect) inspect(ctx context.Context) ([]string, error) {
	var damage []string
	for _, family := range inet.Families() {
		y := r.families[family]
		if y == nil {
			continue
		}
		found, err := y.inspect(ctx)
		if err != nil {
			return nil, err
		}
		if found != "" {
			damage = append(damage, fmt.Sprintf("redirects of %s: %s", family, found))
		}
	}
	return damage, nil
}

func (y *redirectFamily) inspect(ctx context.Context) (string, error) {
	y.mu.Lock()
	defer y.mu.Unlock()
	damage, err := y.kernel.Observe(ctx)
	y.sure = y.sure && damage == "" && err == nil
	return damage, err
}

// intact returns a description of missing rules in either family, or "".
func (r *redirect) intact(ctx context.Context) (reason string, failed error) {
	for _, family := range inet.Families() {
		y := r.families[family]
		if y == nil {
			continue
		}
		y.mu.Lock()
		found, err := y.kernel.Intact()
		y.mu.Unlock()
		if failed = errors.Join(failed, err); found != "" {
			return found, failed
		}
	}
	return "", failed
}

// shared returns each family's listener for all TCP frontends.
func (r *redirect) shared() (all []*listener) {
	for _, y := range r.families {
		if y.shared != nil {
			all = append(all, y.shared)
		}
	}
	return all
}

// inherit preserves an earlier process's redirects until the first commit replaces them. Flows to
// unchanged UDP ports are not deleted.
func (r *redirect) inherit(ports map[balancer.Key]uint16) {
	for _, y := range r.families {
		y.kernel.Adopt()
		y.installed = map[balancer.Key]uint16{}
	}
	for k, port := range ports {
		if y := r.families[inet.Of(k.Addr)]; y != nil {
			y.installed[k] = port
		}
	}
}

// writeTime limits how long the last changes to redirects may take.
const writeTime = 30 * time.Second

// stop makes every redirect lead to a closed port. It ignores the cancellation of ctx, because
// otherwise redirects would lead clients to ports that other programs may open.
func (r *redirect) stop(ctx context.Context, frontends []*frontend) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTime)
	defer cancel()
	var failed error
	for _, f := range frontends {
		y := r.families[inet.Of(f.key.Addr)]
		if y == nil {
			failed = errors.Join(failed, bind{}.stop(ctx, []*frontend{f}))
			continue
		}
		if r.d.yielded { // another dataplane gets the new connections
			continue
		}
		if port, err := y.closedFor(f); err == nil && !f.isRemoved() {
			y.ports[f.key] = port
			if f.key.Proto == balancer.UDP {
				r.d.chains.remove(f) // so misled matches its flows, and commit ends them
			}
		} else if err != nil {
			failed = errors.Join(failed, err)
		}
	}
	if !r.d.yielded {
		failed = errors.Join(failed, r.commit(ctx))
	}
	for _, f := range frontends {
		if r.families[inet.Of(f.key.Addr)] != nil {
			f.shut()
		}
	}
	for _, y := range r.families {
		if y.shared != nil {
			y.shared.close()
		}
	}
	return failed
}

// close removes the redirects, then the conntrack entries of connections that vipd has reset, and
// finally the closed ports.
func (r *redirect) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTime)
	defer cancel()
	var failed error
	for _, y := range r.families {
		reset := map[balancer.Key]bool{}
		y.mu.Lock()
		for k := range y.installed {
			reset[k] = k.Proto == balancer.TCP
		}
		y.mu.Unlock()
		failed = errors.Join(failed, y.kernel.Close(ctx), cut(ctx, reset, wasReset))
		for _, held := range y.closed {
			held.close()
		}
		clear(y.closed)
	}
	if r.origins != nil {
		_ = r.origins.Close() // fails only if it is already closed
	}
	return failed
}
