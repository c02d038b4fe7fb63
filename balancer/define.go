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

// Locator returns the origin of a field. Its path starts in the table of a service, an endpoint or
// the defaults, such as endpoints[2].weight; "" is the table itself. A missing field has the origin
// of the nearest enclosing table. With a nil Locator, fields have no origins.
type Locator func(path string) Origin

// DecodeService decodes the table of a service. A field that the table does not set has its value
// from defaults (the table [defaults]), or otherwise vipd's default. The parameter unknown is the
// severity of unknown fields: SeverityError for files, and SeverityWarning for etcd, because a
// newer version may have written them.
//
// It returns all problems, sorted by line. If any of them is an error, the service is nil.
func DecodeService(name Name, fields, defaults map[string]any, where Locator, unknown Severity) (*Service, []Problem) {
	r := newTableReader(name, where, unknown)
	r.own, r.defaulted = fields, inheritedFields(fields, defaults)
	if len(r.defaulted) > 0 {
		own := fields
		fields = maps.Clone(r.defaulted)
		maps.Copy(fields, own)
	}
	d := newServiceTable()
	r.decode(d, fields)
	r.shareHealth(d.Checks)
	d.fillDerived()
	r.checkService(d)
	problems, ok := r.result()
	if !ok {
		return nil, problems
	}
	s := d.Service
	s.Name, s.Origin = name, r.origin("")
	return &s, problems
}

// CheckDefaults returns the problems of the table [defaults] itself.
func CheckDefaults(defaults map[string]any, where Locator) []Problem {
	r := newTableReader("", where, SeverityError)
	r.own = maps.Clone(defaults)
	for _, field := range ownFields() {
		if _, set := defaults[field]; set {
			if field == "access_log" {
				r.errorf(field, "write the services' default as access_log in [userspace]")
			} else {
				r.errorf(field, "each service has its own %s, so [defaults] can't set it", field)
			}
			delete(r.own, field)
		}
	}
	d := newServiceTable()
	r.decode(d, r.own)
	r.shareHealth(d.Checks)
	d.fillDerived()
	r.checkSettings(&d.Service)
	problems, _ := r.result()
	return problems
}

// DecodeEndpoint decodes the table of an endpoint that is registered separately from its service.
// If any problem is an error, the endpoint is nil. See DecodeService for the severity of unknown
// fields.
func DecodeEndpoint(service Name, fields map[string]any, where Locator, unknown Severity) (*Endpoint, []Problem) {
	r := newTableReader(service, where, unknown)
	r.own = fields
	d := &endpointTable{}
	d.SetDefaults()
	r.decode(d, fields)
	e := d.endpoint()
	r.checkEndpoint(&e, func(field string) string { return field })
	problems, ok := r.result()
	if !ok {
		return nil, problems
	}
	return &e, problems
}

// ownFields are the fields that [defaults] can't set, because each service has its own value, or
// because another table sets the default.
func ownFields() []string { return []string{"vips", "ports", "endpoints", "discover", "access_log"} }

// inheritedFields returns the defaults that apply to a service with these fields. A field that is
// null in JSON is treated as set to vipd's default.
func inheritedFields(fields, defaults map[string]any) map[string]any {
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

// serviceTable is the form in which users write a service. Some of its fields have other types than
// in Service.
type serviceTable struct {
	VIPs      []vipEntry      `toml:"vips"`
	Endpoints []endpointTable `toml:"endpoints"`
	Checks    healthTables    `toml:"health"`
	Service
}

// healthTables are the checks of a service. A single check may be written without a list.
type healthTables []Health

// AllowsSingle marks a list for which package decode also accepts a single element.
func (healthTables) AllowsSingle() {}

// endpointTable is the form in which users write an endpoint. Its address has another type than in
// Endpoint.
type endpointTable struct {
	Host hostEntry `toml:"address"`
	Endpoint
}

func (d *endpointTable) endpoint() Endpoint {
	e := d.Endpoint
	e.Address, e.Name = d.Host.addr, d.Host.name
	return e
}

// vipEntry is an entry of vips: an address, or a request for an address from a pool.
type vipEntry struct {
	addr netip.Addr // not valid for a request
	pool string     // the pool of a request; "" is the default pool
}

// UnmarshalText parses an address, "auto" or "auto:POOL".
func (v *vipEntry) UnmarshalText(text []byte) error {
	kind, pool, named := strings.Cut(string(text), ":")
	if kind == "auto" {
		if named && !isLabel(pool) {
			return fmt.Errorf(`%q is not a valid request for an address: write "auto" for the default pool, or "auto:POOL" with a pool name of a-z, 0-9 and -`, text)
		}
		*v = vipEntry{pool: pool}
		return nil
	}
	addr, err := decode.ParseAddr(string(text))
	if err != nil && !strings.ContainsAny(string(text), ".:") {
		return fmt.Errorf(`%w, nor "auto" or "auto:POOL"`, err)
	}
	if err != nil {
		return err
	}
	*v = vipEntry{addr: addr}
	return nil
}

// MarshalText formats the entry in the form that UnmarshalText parses.
func (v vipEntry) MarshalText() ([]byte, error) {
	switch {
	case v.addr.IsValid():
		return v.addr.MarshalText()
	case v.pool != "":
		return []byte("auto:" + v.pool), nil
	}
	return []byte("auto"), nil
}

const defaultConnectTimeout = time.Second

// newServiceTable returns a service with vipd's defaults.
func newServiceTable() *serviceTable {
	return &serviceTable{Service: Service{
		Policy: Policy{
			Scheduler: WeightedRoundRobin, SNAT: AutoSNAT, Forward: NATForward, NoEndpoints: RejectClients,
			DrainTimeout: 30 * time.Second, ConnectTimeout: defaultConnectTimeout, ProxyProtocol: NoProxyProtocol, Source: NodeSource,
		},
		Affinity: NoAffinity, AffinityTimeout: 3 * time.Hour, AffinityScope: PortScope, Locality: AnyLocality,
	}}
}

// SetDefaults sets the protocol to TCP.
func (p *Port) SetDefaults() { p.Protocol = TCP }

// SetDefaults sets the weight to 1.
func (e *Endpoint) SetDefaults() { e.Weight = 1 }

// Example returns a valid port, for messages.
func (p *Port) Example() string { return "{ port = 80 }" }

// Example returns a valid endpoint, for messages.
func (e *Endpoint) Example() string { return `{ address = "192.168.1.11" }` }

// Example returns a valid health check, for messages.
func (h *Health) Example() string { return `{ type = "tcp" }` }

// SetDefaults sets the defaults that don't depend on other fields.
func (h *Health) SetDefaults() {
	h.Verify = true
	h.Interval = 2 * time.Second
	h.Rise, h.Fall = 2, 3
	h.From, h.Need = HealthFromNode, NeedAllHealth
}

// fillDerived sets the defaults that depend on other fields, splits vips into addresses and pools,
// and copies the endpoints.
func (d *serviceTable) fillDerived() {
	for _, v := range d.VIPs {
		if v.addr.IsValid() {
			d.Service.VIPs = append(d.Service.VIPs, v.addr)
		} else {
			d.Pools = append(d.Pools, v.pool)
		}
	}
	for i := range d.Endpoints {
		d.Service.Endpoints = append(d.Service.Endpoints, d.Endpoints[i].endpoint())
	}
	if d.Discover != nil {
		d.Discover.DNS = strings.ToLower(d.Discover.DNS)
	}
	for i := range d.Ports {
		p := &d.Ports[i]
		p.TargetPort = cmp.Or(p.TargetPort, p.Port)
	}
	for i := range d.Checks {
		d.Checks[i].fillDerived()
		if i > 0 {
			d.MoreHealth = append(d.MoreHealth, &d.Checks[i])
		} else {
			d.Health = &d.Checks[i]
		}
	}
}

// These are the defaults for HTTP checks.
const (
	defaultHealthStatus = "200-399"
	defaultHealthMethod = "GET"
	defaultHealthPath   = "/"
)

// These are the minimum values of fast_interval and timeout.
const (
	minFastInterval = 100 * time.Millisecond
	minTimeout      = time.Millisecond
)

func defaultFastInterval(interval time.Duration) time.Duration {
	return min(interval, max(interval/4, minFastInterval))
}

func defaultTimeout(interval time.Duration) time.Duration {
	return min(time.Second, interval/2)
}

// fillDerived sets the defaults that depend on the interval and the type.
func (h *Health) fillDerived() {
	h.Timeout = cmp.Or(h.Timeout, defaultTimeout(h.Interval))
	h.FastInterval = cmp.Or(h.FastInterval, defaultFastInterval(h.Interval))
	if h.Type == HTTPHealth || h.Type == HTTPSHealth {
		h.Status = cmp.Or(h.Status, defaultHealthStatus)
		h.Method = cmp.Or(h.Method, defaultHealthMethod)
		h.Path = cmp.Or(h.Path, defaultHealthPath)
	}
}
