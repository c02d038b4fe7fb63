package owner

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"

	"vipd/balancer/lib/sockerr"
	"vipd/cmd/internal/config"
)

// advertLink is an interface that sends adverts.
type advertLink struct {
	name string
	// sources lists the addresses from which adverts may be sent.
	sources []netip.Addr
	// down is the reason why the interface can't carry packets. failure4 and failure6 are the
	// reasons why it has no socket for VRRP over IPv4 or IPv6. An empty string means that there is
	// no obstacle.
	down, failure4, failure6 string
	// keepalived lists the router IDs that this host's keepalived uses on the interface.
	keepalived []int
}

func (l *advertLink) equal(o *advertLink) bool {
	return l.name == o.name && slices.Equal(l.sources, o.sources) && l.down == o.down && l.failure4 == o.failure4 && l.failure6 == o.failure6 && slices.Equal(l.keepalived, o.keepalived)
}

func names(links []advertLink) (all []string) {
	for _, link := range links {
		all = append(all, link.name)
	}
	return all
}

// source returns the address from which a group sends its adverts, or the reason why it can't send.
func (l *advertLink) source(c *config.VRRPGroup) (source netip.Addr, why string) {
	v4, failure := c.Advertise[0].Is4(), l.failure6
	if v4 {
		failure = l.failure4
	}
	usual := slices.IndexFunc(l.sources, func(a netip.Addr) bool { return a.Is4() == v4 && (v4 || a.IsLinkLocalUnicast()) })
	switch {
	case l.down != "":
		return source, fmt.Sprintf("interface %s %s", l.name, l.down)
	case failure != "":
		return source, failure
	case c.Source.IsValid() && !slices.Contains(l.sources, c.Source):
		return source, fmt.Sprintf("source %s is not an address of interface %s: %s", c.Source, l.name, l.advise(v4))
	case c.Source.IsValid():
		return c.Source, ""
	case usual < 0 && v4:
		return source, fmt.Sprintf("interface %s needs an IPv4 address to send adverts from", l.name)
	case usual < 0:
		return source, fmt.Sprintf("interface %s needs a link-local IPv6 address to send adverts from", l.name)
	}
	return l.sources[usual], ""
}

// advise returns the remedy for a missing source.
func (l *advertLink) advise(v4 bool) string {
	var others []string
	for _, a := range l.sources {
		if a.Is4() == v4 {
			others = append(others, a.String())
		}
	}
	return "set source to " + cmp.Or(strings.Join(others, " or "), "an address of the interface") + ", or add the address"
}

// describeFailure describes why an interface has no socket for VRRP, with the remedy. It returns ""
// if err is nil.
func describeFailure(err error) string {
	switch {
	case err == nil:
		return ""
	case sockerr.Is(err, syscall.EPERM, syscall.EACCES):
		return err.Error() + ": give vipd owner CAP_NET_RAW, as vipd-owner.service does"
	case sockerr.Is(err, syscall.EAFNOSUPPORT):
		return err.Error() + ": enable IPv6, or use IPv4 VIPs"
	}
	return err.Error()
}
