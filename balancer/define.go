package balancer

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"vipd/balancer/decode"
)

// Locator says where a field was read. The path leads there inside the table of a service, an endpoint or the
// defaults, such as endpoints[2].weight; "" is the table itself. For a field that is missing it names the nearest
// table around it. Nil is a Locator that knows nothing.
type Locator func(path string) Origin

// DecodeService reads the table of a service. Fields that it does not set are taken from defaults, the table
// [defaults], and else have the defaults of the program. Unknown is the severity of fields that the program does not
// know: an error in files, a warning in etcd, where a newer version may have written them.
//
// It returns everything that is wrong, sorted by line. The service is nil if any of that is an error.
func DecodeService(name Name, fields, defaults map[string]any, where Locator, unknown Severity) (*Service, []Problem) {
	r := newReading(name, where, unknown)
	r.own, r.defaulted = fields, inherited(fields, defaults)
	if len(r.defaulted) > 0 {
		own := fields
		fields = maps.Clone(r.defaulted)
		maps.Copy(fields, own)
	}
	d := newDefinition()
	r.decode(d, fields)
	d.complete()
	r.checkService(d)
	problems, ok := r.result()
	if !ok {
		return nil, problems
	}
	s := d.Service
	s.Name, s.Origin = name, r.at("")
	return &s, problems
}

// CheckDefaults returns what is wrong in the table [defaults] itself.
func CheckDefaults(defaults map[string]any, where Locator) []Problem {
	r := newReading("", where, SeverityError)
	r.own = maps.Clone(defaults)
	for _, field := range ownFields() {
		if _, there := defaults[field]; there {
			if field == "access_log" {
				r.errorf(field, "the default of services is access_log in [userspace]: set it there")
			} else {
				r.errorf(field, "each service has its own %s: they can't be a default", field)
			}
			delete(r.own, field)
		}
	}
	d := newDefinition()
	r.decode(d, r.own)
	d.complete()
	r.checkSettings(&d.Service)
	problems, _ := r.result()
	return problems
}

// DecodeEndpoint reads the table of one endpoint that is published apart from its service. The endpoint is nil if
// anything in it is an error. Unknown is as in DecodeService.
func DecodeEndpoint(service Name, fields map[string]any, where Locator, unknown Severity) (*Endpoint, []Problem) {
	r := newReading(service, where, unknown)
	r.own = fields
	e := &Endpoint{}
	e.SetDefaults()
	r.decode(e, fields)
	r.checkEndpoint(e, func(field string) string { return field })
	problems, ok := r.result()
	if !ok {
		return nil, problems
	}
	return e, problems
}

// ownFields are those that each service has for itself, or whose default stands elsewhere.
func ownFields() []string { return []string{"vips", "ports", "endpoints", "access_log"} }

// inherited returns what a service with these fields takes from defaults. A field that is null in JSON is set: to the
// default of the program.
func inherited(fields, defaults map[string]any) map[string]any {
	if len(defaults) == 0 {
		return nil
	}
	out := map[string]any{}
	for field, value := range defaults {
		if _, set := fields[field]; !set && !slices.Contains(ownFields(), field) {
			out[field] = value
		}
	}
	return out
}

// definition is a service as its table holds it.
type definition struct {
	VIPs []vip `toml:"vips"`
	Service
}

// vip is an entry of vips: an address, or the wish for one.
type vip struct {
	addr netip.Addr // invalid: one is to be allocated
	pool string     // of which; "" is the default pool
}

// UnmarshalText reads an address, "auto" or "auto:POOL".
func (v *vip) UnmarshalText(text []byte) error {
	kind, pool, named := strings.Cut(string(text), ":")
	if kind == "auto" {
		if named && !isLabel(pool) {
			return fmt.Errorf(`%q names no pool: write "auto:POOL" with a pool of a-z, 0-9 and -, or "auto" for the default one`, text)
		}
		*v = vip{pool: pool}
		return nil
	}
	addr, err := decode.ParseAddr(string(text))
	if err != nil && !strings.ContainsAny(string(text), ".:") {
		return fmt.Errorf(`%w, nor "auto" or "auto:POOL"`, err)
	}
	if err != nil {
		return err
	}
	*v = vip{addr: addr}
	return nil
}

// MarshalText writes what UnmarshalText reads.
func (v vip) MarshalText() ([]byte, error) {
	switch {
	case v.addr.IsValid():
		return v.addr.MarshalText()
	case v.pool != "":
		return []byte("auto:" + v.pool), nil
	}
	return []byte("auto"), nil
}

// defaultConnectTimeout is connect_timeout where users leave it out.
const defaultConnectTimeout = time.Second

// newDefinition returns a service with the defaults of the program.
func newDefinition() *definition {
	return &definition{Service: Service{
		Policy: Policy{
			Scheduler: WeightedRoundRobin, SNAT: AutoSNAT, Forward: NATForward, NoEndpoints: RejectClients,
			DrainTimeout: 30 * time.Second, ConnectTimeout: defaultConnectTimeout, ProxyProtocol: NoProxyProtocol,
		},
		Affinity: NoAffinity, AffinityTimeout: 3 * time.Hour, Locality: AnyLocality,
	}}
}

// SetDefaults fills in the protocol: TCP.
func (p *Port) SetDefaults() { p.Protocol = TCP }

// SetDefaults fills in the weight: 1.
func (e *Endpoint) SetDefaults() { e.Weight = 1 }

// Example is a port as one may write it.
func (p *Port) Example() string { return "{ port = 80 }" }

// Example is an endpoint as one may write it.
func (e *Endpoint) Example() string { return `{ address = "192.168.1.11" }` }

// Example is a health check as one may write it.
func (h *Health) Example() string { return `{ type = "tcp" }` }

// SetDefaults fills in what does not depend on other fields.
func (h *Health) SetDefaults() {
	h.Verify = true
	h.Interval, h.Timeout = 2*time.Second, time.Second
	h.Rise, h.Fall = 2, 3
	h.From = HealthFromNode
}

// complete fills in the defaults that follow from other fields, and sorts out the VIPs.
func (d *definition) complete() {
	for _, v := range d.VIPs {
		if v.addr.IsValid() {
			d.Service.VIPs = append(d.Service.VIPs, v.addr)
		} else {
			d.Pools = append(d.Pools, v.pool)
		}
	}
	for i := range d.Ports {
		p := &d.Ports[i]
		p.TargetPort = cmp.Or(p.TargetPort, p.Port)
	}
	if d.Health != nil {
		d.Health.complete()
	}
}

// The defaults of HTTP checks.
const (
	defaultHealthStatus = "200-399"
	defaultHealthMethod = "GET"
	defaultHealthPath   = "/"
)

// minFastInterval is the least time between two checks, as for interval.
const minFastInterval = 100 * time.Millisecond

// usualFastInterval is a quarter of interval, where that is not too short.
func usualFastInterval(interval time.Duration) time.Duration {
	return min(interval, max(interval/4, minFastInterval))
}

// complete fills in the defaults that follow from the interval and the type.
func (h *Health) complete() {
	h.FastInterval = cmp.Or(h.FastInterval, usualFastInterval(h.Interval))
	if h.Type == HTTPHealth || h.Type == HTTPSHealth {
		h.Status = cmp.Or(h.Status, defaultHealthStatus)
		h.Method = cmp.Or(h.Method, defaultHealthMethod)
		h.Path = cmp.Or(h.Path, defaultHealthPath)
	}
}
