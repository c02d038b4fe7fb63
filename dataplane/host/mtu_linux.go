package host

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"vipd/dataplane/internal/nlsock"
)

// routeMTUs records whether the host has routes with their own MTU.
type routeMTUs struct {
	// some reports whether such a route exists.
	some bool
	// unread reports whether some is unknown because not all routes have been read.
	unread bool
}

// note processes an event about a route that has its own MTU.
func (r *routeMTUs) note(gone bool) {
	if gone {
		r.unread = r.unread || r.some
		return
	}
	r.some = true
}

// passInterfaces updates the guard's list of devices between which packets are forwarded, and
// whether a route has its own MTU. If the routes can't be read, it assumes that such a route
// exists.
func (h *Host) passInterfaces() {
	if h.routeMTUs.unread && h.mode.Load().Forward && !h.opts.ClampMSS {
		some, err := anyRouteMTU(h.batches.Socket)
		if err != nil {
			h.log.Warn("the routes can't be read, so every connection's segment size is limited to the MTU of its path", "err", err)
		}
		h.routeMTUs = routeMTUs{some: some || err != nil, unread: err != nil}
	}
	h.guard.SetFastPathDevices(h.view.fastPathDevices(h.opts.FastPath))
	h.guard.SetInterfaces(h.view.interfaces(), h.routeMTUs.some)
	h.linksChanged = false
}

// anyRouteMTU reports whether any route has its own MTU. It does not store routes, because a host
// may have a million of them. The kernel reports later routes as events.
func anyRouteMTU(s *nlsock.Socket) (some bool, err error) {
	seq := s.Next()
	var w nlsock.Writer
	w.Begin(unix.RTM_GETROUTE, unix.NLM_F_DUMP, seq, make([]byte, unix.SizeofRtMsg)...)
	w.End()
	if err := s.Send(w.B); err != nil {
		return false, err
	}
	for {
		m, err := s.Answer()
		if err != nil {
			return false, err
		}
		for m.Next() {
			switch {
			case m.Seq != seq:
			case m.Kind == unix.NLMSG_DONE, m.Kind == unix.NLMSG_ERROR:
				return some, m.Refusal()
			default:
				some = some || setsMTU(m.Body)
			}
		}
		if m.Err != nil {
			return false, m.Err
		}
	}
}

// routeFlagsAt is the flags' offset in an rtmsg.
const routeFlagsAt = 8

// setsMTU reports whether a route limits the size of packets or TCP segments. The body is an rtmsg
// with attributes. Route exceptions that the kernel learned from routers (path MTU discovery) don't
// count.
func setsMTU(body []byte) bool {
	if len(body) < unix.SizeofRtMsg || binary.NativeEndian.Uint32(body[routeFlagsAt:])&unix.RTM_F_CLONED != 0 {
		return false
	}
	for a := nlsock.In(body[unix.SizeofRtMsg:]); a.Next(); {
		if a.Kind != unix.RTA_METRICS {
			continue
		}
		for metric := nlsock.In(a.Value); metric.Next(); {
			if (metric.Kind == unix.RTAX_MTU || metric.Kind == unix.RTAX_ADVMSS) && len(metric.Value) == 4 && binary.NativeEndian.Uint32(metric.Value) != 0 {
				return true
			}
		}
	}
	return false
}
