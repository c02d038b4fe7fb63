package rates

import (
	"fmt"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/cmd/internal/api"
)

// Kept is the maximum number of past rates in each row.
const Kept = 60

// Window holds the latest counters and rates for all services and endpoints. Its zero value is
// ready to use. It is not safe for concurrent use.
type Window struct {
	last   api.Traffic
	series map[place]*series
}

// place is an endpoint at one port of a service. Without an address, it is the service itself.
type place struct {
	service       balancer.Name
	address, port string
}

// series is the history of one service or endpoint.
type series struct {
	counted [3]uint64 // connections, bytes in, bytes out
	rate    Rate
	past    []float32 // rates of new connections, latest last
	at      time.Time // time of the latest counters
}

// Rate holds rates per second.
type Rate struct {
	// New is the rate of new connections. In and Out are the byte rates from and to clients.
	New, In, Out float64
}

// Row contains the rates and counters of a service, or of an endpoint at one port of a service.
type Row struct {
	Service balancer.Name
	// Endpoint is nil in a row of a service.
	Endpoint *api.EndpointTraffic
	Rate
	// NoBytes reports whether the kernel counts the service's connections, but not their bytes.
	NoBytes bool
	Active  uint64
	// Unanswered counts new connections that got no answer, since the daemon started.
	Unanswered uint64
	// Of is the number of endpoints, and Up is the number of endpoints that get new connections. In
	// a service's row, both describe the port with the lowest Up.
	Up, Of int
	// Use holds the numbers of endpoints for each of a service's ports. It is nil in an endpoint's
	// row.
	Use api.Use
	// Past holds the latest rates of new connections, with the newest rate last.
	Past []float32
}

// BytesIn and BytesOut format the byte rates. They return "-" if bytes are not counted.
func (r Row) BytesIn() string  { return r.bytes(r.In) }
func (r Row) BytesOut() string { return r.bytes(r.Out) }

func (r Row) bytes(n float64) string {
	if r.NoBytes {
		return "-"
	}
	return Bytes(uint64(n))
}

// Add computes rates from the new and the previous counters. It ignores counters that are not newer
// than the previous counters.
func (w *Window) Add(t api.Traffic) {
	if !t.At.After(w.last.At) {
		return
	}
	if w.series == nil {
		w.series = map[place]*series{}
	}
	for i := range t.Services {
		s := &t.Services[i]
		w.add(place{service: s.Name}, t.At, [3]uint64{s.Connections, s.In, s.Out})
		for _, e := range s.Endpoints {
			w.add(place{s.Name, e.Address, e.Port}, t.At, [3]uint64{e.Connections})
		}
	}
	for p, s := range w.series {
		if s.at != t.At {
			delete(w.series, p)
		}
	}
	w.last = t
}

func (w *Window) add(p place, at time.Time, counted [3]uint64) {
	s := w.series[p]
	if s == nil {
		w.series[p] = &series{counted: counted, at: at}
		return
	}
	per := func(i int) float64 {
		if counted[i] < s.counted[i] { // vipd was restarted
			return 0
		}
		return float64(counted[i]-s.counted[i]) / at.Sub(s.at).Seconds()
	}
	s.rate = Rate{New: per(0), In: per(1), Out: per(2)}
	if len(s.past) == Kept {
		s.past = append(s.past[:0], s.past[1:]...)
	}
	s.past = append(s.past, float32(s.rate.New))
	s.counted, s.at = counted, at
}

// Last returns the counters that were added last.
func (w *Window) Last() *api.Traffic { return &w.last }

// Services returns a row for each service, sorted by name.
func (w *Window) Services() []Row {
	rows := make([]Row, 0, len(w.last.Services))
	for i := range w.last.Services {
		s := &w.last.Services[i]
		row := w.row(place{service: s.Name})
		row.Active = s.Active
		row.Unanswered = s.Unanswered
		row.Up = s.Up
		row.Of = s.Of
		row.Use = s.Ports
		row.NoBytes = s.Connections > 0 && s.In+s.Out == 0
		rows = append(rows, row)
	}
	return rows
}

// Endpoints returns a row for each of a service's endpoints at each of its ports, sorted by port
// and address.
func (w *Window) Endpoints(service balancer.Name) (rows []Row) {
	for i := range w.last.Services {
		s := &w.last.Services[i]
		if s.Name != service {
			continue
		}
		for j := range s.Endpoints {
			e := &s.Endpoints[j]
			row := w.row(place{s.Name, e.Address, e.Port})
			row.Endpoint = e
			row.Active = e.Active
			row.Unanswered = e.Unanswered
			row.Of = 1
			if e.State == balancer.Active {
				row.Up = 1
			}
			rows = append(rows, row)
		}
	}
	return rows
}

func (w *Window) row(p place) Row {
	s := w.series[p]
	return Row{Service: p.service, Rate: s.rate, Past: s.past}
}

// bars are the bars of a sparkline, from the lowest to the highest.
var bars = []rune("▁▂▃▄▅▆▇█")

// Spark draws the latest values as bars, using at most width characters. If there are more values,
// each bar shows the highest of several values.
func Spark(past []float32, width int) string {
	if len(past) == 0 || width <= 0 {
		return ""
	}
	each := (len(past) + width - 1) / width
	var highest float32
	for _, v := range past {
		highest = max(highest, v)
	}
	var b strings.Builder
	for end := len(past) - (len(past)-1)/each*each; end <= len(past); end += each {
		var high float32
		for _, v := range past[max(0, end-each):end] {
			high = max(high, v)
		}
		bar := 0
		if highest > 0 {
			bar = int(high / highest * float32(len(bars)-1))
		}
		b.WriteRune(bars[bar])
	}
	return b.String()
}

// Bytes formats a number of bytes with a unit, such as "1.5 MiB".
func Bytes(n uint64) string {
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	value, unit := float64(n), ""
	for _, unit = range []string{"KiB", "MiB", "GiB", "TiB", "PiB"} {
		if value /= 1024; value < 1023.95 {
			break
		}
	}
	return fmt.Sprintf("%.1f %s", value, unit)
}
