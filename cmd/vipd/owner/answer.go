package owner

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"vipd/cmd/internal/api"
)

// answer writes this owner's status. The argument vips reports whether to include the VIPs, which
// vipd does not need.
func (o *Owner) answer(w http.ResponseWriter, vips bool) {
	s := api.OwnerStatus{Node: o.o.Node, Gate: "closed", Hindered: o.o.Hindered}
	o.journal.describe(&s)
	if report := o.daemon.last(); vips && report != nil {
		s.VIPs = report.VIPs
	}
	if c := o.core.Load(); c != nil {
		c.describe(&s)
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(s) // fails if the client has closed the connection
}

// describe adds the core's state to a status.
func (c *core) describe(s *api.OwnerStatus) {
	c.decider.describe(s)
	absent := c.worker.absent.reasons()
	for _, a := range slices.SortedFunc(maps.Keys(absent), netip.Addr.Compare) {
		s.Problems = append(s.Problems, fmt.Sprintf("%s is not on this host: %s", a, absent[a]))
	}
	s.Bound = slices.DeleteFunc(s.Bound, func(a netip.Addr) bool { return absent[a] != "" })
	var rivals []string
	s.Rivals, rivals = c.rivals.list()
	s.Problems = append(s.Problems, rivals...)
	s.Announced = c.worker.kernel.Announced()
	s.Late = time.Duration(c.worker.gate.late.Load()).Seconds()
}
