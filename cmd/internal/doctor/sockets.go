package doctor

import (
	"context"
	"fmt"
	"strings"

	"vipd/balancer"
	"vipd/cmd/internal/sockets"
)

// sockets reads all sockets that wait for clients.
func (v *visit) sockets() (all []sockets.Socket) {
	for _, f := range sockets.Files() {
		all = append(all, f.In(strings.NewReader(v.text(sockets.Folder+f.Name)))...)
	}
	return all
}

// checkSockets looks for other programs that listen where frontends are.
func checkSockets(_ context.Context, v *visit) {
	before := len(v.found)
	if len(v.Frontends) == 0 {
		return
	}
	owners := v.Owners()
	waiting := v.sockets()
	for _, f := range v.Frontends {
		for _, s := range waiting {
			if !s.Takes(f.Key) {
				continue
			}
			owner, known := owners[s.Inode]
			if owner == "vipd" || !known && v.Status != nil && s.At.Addr == f.Addr {
				continue // its own, or most likely so
			}
			v.taken(f, s.At, owner)
		}
	}
	if len(v.found) == before {
		v.add(fine("no other program listens where services do"))
	}
}

// taken looks at a socket of another program on a frontend. One on every address is in no one's way, unless vipd listens
// itself, or the port is a node's.
func (v *visit) taken(f Frontend, at balancer.Key, owner string) {
	if owner == "" {
		owner = "another program"
	}
	what := fmt.Sprintf("%s listens on %s, where service %s is (%s)", owner, at, f.Service, f.Key)
	show := fmt.Sprintf("ss -lntup 'sport = :%d'", f.Port)
	switch {
	case v.binds():
		v.add(problem(what, "vipd has to listen there itself in userspace mode without redirects", show))
	case at.Addr == f.Addr || f.NodePort:
		v.add(warning(what, "it gets no connection any more that comes to this address, and comes back in its place when vipd goes", show))
	}
}
