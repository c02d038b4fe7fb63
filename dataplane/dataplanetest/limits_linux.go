package dataplanetest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"
	"time"

	"vipd/balancer"
	"vipd/test/lab"
)

// testLimits opens more connections from one client than the services' limits permit. The excess
// connections must be refused or get no answer, as configured. Connections from another client and
// from the host must succeed.
func testLimits(r *rig) {
	n := 60
	for family, name := range []string{"4", "6"} {
		for _, proto := range []balancer.Protocol{balancer.TCP, balancer.UDP} {
			for _, over := range []balancer.OverLimit{"", balancer.RejectOver} {
				limited := func(l balancer.Limits) (*balancer.Service, balancer.Key) {
					l.SourcePrefix, l.Over = []int{32, 128}, over
					n++ // each service has its own meters, so earlier cases do not matter
					s := newService(balancer.Name(fmt.Sprint("limited-", n)), vipN(n), endpoints(r.w.servers...)...)
					s.Limits = &l
					return s, keyOf(vipN(n)[family], vipPort, proto)
				}
				r.step(fmt.Sprint(name, proto, over), func(r *rig) {
					checkSourceRate(r, limited, over)
					checkSourceConnections(r, limited, over)
					checkConnections(r, limited, over)
				})
			}
		}
	}
}

// checkOver opens a connection beyond a limit. The service's setting over determines whether the
// connection must be refused or get no answer.
func checkOver(r *rig, source netip.Addr, key balancer.Key, over balancer.OverLimit) {
	r.Helper()
	within := silence
	if over == balancer.RejectOver && !r.caps.ResetsOverLimit {
		within = atOnce
	}
	a, err := r.askFrom(r.w.client, source, key, within)
	isRefused := errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.ECONNRESET)
	isSilent := errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded)
	resets := r.caps.ResetsOverLimit && key.Proto == balancer.TCP
	switch {
	case err == nil:
		r.Errorf("%s over a limit of %s: %s answers, want no answer", source, key, a.Server)
	case resets && !isRefused && over == "":
		r.Errorf("%s over a limit of %s: %v, want a reset", source, key, err)
	case !r.caps.ResetsOverLimit && (over == balancer.RejectOver) != isRefused:
		r.Errorf("%s over a limit of %s with over = %q: %v, want a refusal only with reject", source, key, over, err)
	case !isRefused && !isSilent:
		r.Errorf("%s over a limit of %s: %v, want a refusal or no answer", source, key, err)
	}
}

// limitedService is a function that creates a service with limits. It returns the service and its
// frontend's key.
type limitedService func(balancer.Limits) (*balancer.Service, balancer.Key)

// checkSourceRate opens more connections from one client than the rate limit permits. The excess
// connections must fail, and another client must be served.
func checkSourceRate(r *rig, limited limitedService, over balancer.OverLimit) {
	const rate = 4
	web, key := limited(balancer.Limits{SourceRate: balancer.Rate{N: rate, Per: time.Hour}})
	r.apply(web)
	flooding, other := r.w.clients[0].inFamilyOf(key.Addr), r.w.clients[1].inFamilyOf(key.Addr)
	for range rate {
		if _, err := r.askFrom(r.w.client, flooding, key, atOnce); err != nil {
			r.Fatalf("error of client %s within the rate limit of %s = %v, want nil", flooding, key, err)
		}
	}
	for range rate {
		checkOver(r, flooding, key, over)
		if _, err := r.askFrom(r.w.client, other, key, atOnce); err != nil {
			r.Errorf("error of client %s at %s while %s floods it = %v, want nil", other, key, flooding, err)
		}
		r.mustAsk(r.w.host, key)
	}
	for range rate {
		r.mustAsk(r.w.host, key)
	}
}

// checkSourceConnections opens as many connections as one client may have. Another connection must
// fail until one of them is closed.
func checkSourceConnections(r *rig, limited limitedService, over balancer.OverLimit) {
	const most = 2
	web, key := limited(balancer.Limits{SourceConnections: most})
	r.apply(web)
	flooding, other := r.w.clients[0].inFamilyOf(key.Addr), r.w.clients[1].inFamilyOf(key.Addr)
	for range most {
		r.mustOpen(r.w.client, flooding, key)
	}
	for range most {
		checkOver(r, flooding, key, over)
		r.mustAsk(r.w.host, key)
	}
	c, _ := r.mustOpen(r.w.client, other, key)
	if key.Proto == balancer.UDP { // clients can't end a UDP flow
		return
	}
	r.mustOpen(r.w.client, other, key)
	checkOver(r, other, key, over)
	if err := c.Close(); err != nil {
		r.Fatal(err)
	}
	r.eventuallyOpens(other, key)
	checkOver(r, other, key, over)
}

// checkConnections opens as many connections as all clients together may have. Then it changes
// other settings of the service, which must not reset the connection count.
func checkConnections(r *rig, limited limitedService, over balancer.OverLimit) {
	web, key := limited(balancer.Limits{Connections: 2})
	r.apply(web)
	r.mustOpen(r.w.client, r.w.clients[0].inFamilyOf(key.Addr), key)
	r.mustOpen(r.w.client, r.w.clients[1].inFamilyOf(key.Addr), key)
	checkOver(r, r.w.clients[2].inFamilyOf(key.Addr), key, over)
	r.apply(edited(web, func(s *balancer.Service) {
		s.Limits = &balancer.Limits{Connections: 2, SourceConnections: 9, Over: over, SourcePrefix: []int{24, 64}}
	}))
	checkOver(r, r.w.clients[3].inFamilyOf(key.Addr), key, over)
	r.mustAsk(r.w.host, key)
	r.apply(edited(web, func(s *balancer.Service) { s.Limits = nil }))
	r.mustOpen(r.w.client, r.w.clients[3].inFamilyOf(key.Addr), key)
}

func (r *rig) eventuallyOpens(source netip.Addr, key balancer.Key) {
	r.Helper()
	lab.Eventually(r, settleTime, "room for a connection", func() error {
		c, err := r.open(r.w.client, source, key, silence)
		if err != nil {
			return err
		}
		if _, err := lab.AskWithin(c, patience(silence)); err != nil {
			return errors.Join(err, c.Close())
		}
		r.Cleanup(func() { _ = c.Close() })
		return nil
	})
}
