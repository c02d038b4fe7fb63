package owner

import (
	"cmp"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"vipd/cmd/internal/api"
)

// absent holds the VIPs that could not be added to their devices. While this host owns such a VIP,
// it retries. The VIP moves to another host if that host can add it.
type absent struct {
	mu  sync.Mutex // guards why
	why map[netip.Addr]failure
}

// failure is the reason why a VIP is absent. wanted reports whether this host owns the VIP. last is
// when the last attempt failed. For the duration pause after that, this host may not own the VIP
// again.
type failure struct {
	err    error
	wanted bool
	last   time.Time
	pause  time.Duration
}

// forgiven reports whether this host may own the VIP again.
func (f *failure) forgiven() bool { return !f.wanted && time.Since(f.last) >= f.pause }

// minPause and maxPause limit how long this host waits before it may own a VIP again. The pause
// doubles each time this host owns the VIP again but still can't add it.
const (
	minPause = time.Minute
	maxPause = time.Hour
)

// bound records the result of an attempt to add VIPs. It returns the errors that are new.
func (x *absent) bound(vips []netip.Addr, failed map[netip.Addr]error) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.why == nil {
		x.why = map[netip.Addr]failure{}
	}
	var all []error
	for _, a := range vips {
		before, known := x.why[a]
		err := failed[a]
		if err == nil {
			delete(x.why, a)
			continue
		}
		next := failure{err, true, time.Now(), max(before.pause, minPause)}
		if known && !before.wanted {
			next.pause = min(2*before.pause, maxPause)
		}
		x.why[a] = next
		if !known || before.forgiven() || before.err.Error() != err.Error() {
			all = append(all, err)
		}
	}
	return errors.Join(all...)
}

// unbound records that this host no longer owns these VIPs.
func (x *absent) unbound(vips []netip.Addr) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, a := range vips {
		if f, known := x.why[a]; known {
			f.wanted = false
			x.why[a] = f
		}
	}
}

// again returns the VIPs that this host must try to add again.
func (x *absent) again() (vips []netip.Addr) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for a, f := range x.why {
		if f.wanted {
			vips = append(vips, a)
		}
	}
	return vips
}

// reasons returns the reason why each absent VIP can't be added here.
func (x *absent) reasons() map[netip.Addr]string {
	x.mu.Lock()
	defer x.mu.Unlock()
	maps.DeleteFunc(x.why, func(_ netip.Addr, f failure) bool { return !f.wanted && time.Since(f.last) >= 2*maxPause })
	out := map[netip.Addr]string{}
	for a, f := range x.why {
		if !f.forgiven() {
			out[a] = "it can't be added: " + f.err.Error()
		}
	}
	return out
}

// blockReasons returns, for each VIP that can't be served here, the reason. unadded lists the VIPs
// among them that can't be added to a device.
func blockReasons(report *api.OwnerReport, own []netip.Addr, absent map[netip.Addr]string) (all map[netip.Addr]string, unadded []netip.Addr) {
	all = map[netip.Addr]string{}
	for a, v := range report.VIPs {
		why := absent[a]
		if slices.Contains(own, a) {
			why = "it is this host's own address"
		}
		if why != "" {
			unadded = append(unadded, a)
		}
		if why = cmp.Or(why, v.Cannot); why != "" {
			all[a] = why
		}
	}
	slices.SortFunc(unadded, netip.Addr.Compare)
	return all, unadded
}
