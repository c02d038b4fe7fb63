package dataplanetest

import (
	"vipd/balancer"
	"vipd/dataplane"
)

// testKeep has what a dataplane keeps serve on without it, and be taken over by the next one without any loss: to open
// connections, and to those that come in between.
func testKeep(b *bare) {
	r := b.rig
	if !r.s.Keeps {
		r.Skip("nothing of it serves after its end")
	}
	web := newService("web", r.w.vip, endpoints(r.w.servers...)...)
	web.Scheduler = balancer.RoundRobin
	want := b.compile(web, newService("empty", vipN(40)))
	b.carry(want, adds(want))
	pulses := r.pulses(r.w.vip)
	asked := func() {
		r.each(func(r *rig, key balancer.Key) {
			r.meets(r.w.client, key, "s1", "s2", "s3")
			r.mustAsk(r.w.host, key)
			r.refused(r.w.client, keyOf(vipN(40).of(key.Addr), vipPort, key.Proto))
		})
	}
	r.succeed(true)
	asked()
	b.holds("after closing and keeping", want)
	b.carry(want, adds(want))
	b.holds("after the next one's Apply", want)
	asked()
	r.undisturbed(pulses, "closing and taking over")
	next := b.compile(edited(web, func(s *balancer.Service) { s.Endpoints = endpoints(r.w.servers[0]) }))
	b.carry(next, adds(next), gone(want, next))
	b.holds("after the next one's change", next)
	r.each(func(r *rig, key balancer.Key) { r.meets(r.w.client, key, "s1") })
}

// gone are the changes that remove what is before and not after.
func gone(before, after balancer.Desired) []dataplane.Change {
	var batch []dataplane.Change
	for k := range before.Frontends.Keys() {
		if !after.Frontends.Has(k) {
			batch = append(batch, dataplane.Change{Key: k})
		}
	}
	return batch
}
