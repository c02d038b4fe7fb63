package ipvs

import (
	"context"
	"errors"
	"maps"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/inet"
	"vipd/dataplane/internal/ipvsnl"
)

// rangeAt returns a frontend with a port range, of which only the parts in open are open.
func rangeAt(ports balancer.PortRange, open ...balancer.PortRange) *balancer.Frontend {
	k := key(0)
	k.Port = ports
	f := web(k, 1)
	f.Open = open
	return f
}

// TestOpenMarks adds a single port and a range inside a whole address. Each open port must have the
// mark of the narrowest range, and a withdrawn or missing frontend must have none.
func TestOpenMarks(t *testing.T) {
	narrow, whole := balancer.NewPortRange(8080, 8089), balancer.AllPorts
	at := func(ports balancer.PortRange) balancer.Key { k := key(0); k.Port = ports; return k }
	p := start(t, newKernel(), t.TempDir())
	p.observe()
	marks := func() map[balancer.Key]uint32 { return p.k.marks[inet.IPv4].marks }
	check := func(when string, want map[balancer.Key]uint32) {
		t.Helper()
		if !maps.Equal(marks(), want) {
			t.Errorf("%s: marks = %v, want %v", when, marks(), want)
		}
	}
	ofNarrow, ofWhole := ipvsnl.Mark(at(narrow)), ipvsnl.Mark(at(whole))
	p.apply(rangeAt(whole, whole))
	check("the whole address", map[balancer.Key]uint32{at(whole): ofWhole})
	p.apply(rangeAt(narrow, 8080, balancer.NewPortRange(8082, 8089)))
	check("before the whole address is narrowed", map[balancer.Key]uint32{
		at(8080): ofNarrow, at(balancer.NewPortRange(8082, 8089)): ofNarrow,
		at(balancer.NewPortRange(1, 8079)): ofWhole, at(8081): ofWhole, at(balancer.NewPortRange(8090, 65535)): ofWhole,
	})
	withdrawn := *rangeAt(whole, whole)
	withdrawn.Withdrawn = true
	p.apply(&withdrawn)
	check("withdrawn", map[balancer.Key]uint32{at(8080): ofNarrow, at(balancer.NewPortRange(8082, 8089)): ofNarrow})
	p.remove(rangeAt(narrow))
	check("removed", nil)
}

// TestDigestCoversOpenPorts opens another part of a range. The digest must change, because the
// marks change.
func TestDigestCoversOpenPorts(t *testing.T) {
	ports := balancer.NewPortRange(8080, 8089)
	if digest(rangeAt(ports, ports)) == digest(rangeAt(ports, 8080)) {
		t.Error("digests for different open ports are equal, want them to differ")
	}
}

// TestMarksFollowProcess restarts vipd, and damages the marks. A new process must not change the
// marks until it knows all frontends. Damage must be reported and repaired, and if marks can't be
// set, the frontend must fail.
func TestMarksFollowProcess(t *testing.T) {
	ctx := context.Background()
	f, g := rangeAt(balancer.NewPortRange(8080, 8089), balancer.NewPortRange(8080, 8089)), rangeAt(balancer.NewPortRange(8080, 8099))
	g.Addr = g.Addr.Next()
	g.Key.Port, g.Open = balancer.NewPortRange(8080, 8099), []balancer.PortRange{balancer.NewPortRange(8080, 8099)}
	want := map[balancer.Key]uint32{f.Key: ipvsnl.Mark(f.Key), g.Key: ipvsnl.Mark(g.Key)}
	p := start(t, newKernel(), t.TempDir())
	m := p.k.marks[inet.IPv4]
	p.observe()
	p.apply(f, g)
	p.restart(false)
	p.observe()
	p.apply(f)
	if !maps.Equal(m.marks, want) || m.known {
		t.Errorf("marks before all frontends are known = %v, written = %v; want the earlier process's marks %v", m.marks, m.known, want)
	}
	p.apply(g)
	if !maps.Equal(m.marks, want) || !m.known {
		t.Errorf("marks = %v, written = %v; want %v", m.marks, m.known, want)
	}
	m.lose()
	if reason, err := p.Intact(ctx); reason == "" || err != nil {
		t.Errorf("lost marks: Intact = %q, %v; want a reason", reason, err)
	}
	if seen := p.observe(); seen.Digests[f.Key] != 0 || seen.Digests[g.Key] != 0 {
		t.Errorf("lost marks: digests = %v, want 0", seen.Digests)
	}
	m.refuse = errors.New("refused")
	if err := p.Apply(ctx, changes(f)); !errors.Is(err, m.refuse) {
		t.Errorf("Apply = %v, want an error because marks can't be set", err)
	}
	m.refuse = nil
	p.apply(f)
	if !maps.Equal(m.marks, want) {
		t.Errorf("repaired marks = %v, want %v", m.marks, want)
	}
	if err := p.Close(ctx, false); err != nil || len(m.marks) > 0 {
		t.Errorf("marks after Close = %v, %v; want none", m.marks, err)
	}
}

// TestRangeConnections lists connections to a range and to a single port inside it. Each entry must
// have the connection's service, real port and endpoint.
func TestRangeConnections(t *testing.T) {
	ports := balancer.NewPortRange(8080, 8089)
	f, single := rangeAt(ports, 8080, balancer.NewPortRange(8082, 8089)), web(key(0), 2)
	single.Key.Port, single.Service = 8081, "single"
	p := start(t, newKernel(), t.TempDir())
	p.apply(f, single)
	conn := func(port uint16, backend int) ipvsnl.Connection {
		k := f.Key
		k.Port = balancer.PortRange(port)
		return ipvsnl.Connection{Proto: k.Proto, Client: address(k, 9), Frontend: k.AddrPort(), Backend: f.AddrOf(address(k, backend), k), State: "established", Expires: time.Minute}
	}
	p.k.SetConnections([]ipvsnl.Connection{conn(8081, 2), conn(8085, 1), conn(8090, 1)})
	var got []dataplane.Connection
	err := p.Connections(context.Background(), dataplane.ConnectionQuery{}, func(c *dataplane.Connection) error {
		got = append(got, *c)
		return nil
	})
	if err != nil || len(got) != 2 || got[0].Service != "single" || got[1].Service != "web" || got[1].Frontend.Port != 8085 || got[1].Backend.Port() != 8085 {
		t.Errorf("connections = %+v, %v; want the connections to ports 8081 and 8085", got, err)
	}
}

// TestSharedMark serves a range, and asks why another range with the same mark is not served. The
// error must name both ranges, and must not advise to remove vipd's own virtual server.
func TestSharedMark(t *testing.T) {
	byMark := map[uint32]balancer.Key{}
	var first, second balancer.Key
	for i := uint16(1); !second.Port.IsRange(); i++ { // about 80,000 keys are enough
		for j := i + 1; j < i+400; j++ {
			k := key(0)
			k.Port = balancer.NewPortRange(i, j)
			if other, exists := byMark[ipvsnl.Mark(k)]; exists {
				first, second = other, k
				break
			}
			byMark[ipvsnl.Mark(k)] = k
		}
	}
	p := start(t, newKernel(), t.TempDir())
	p.observe()
	p.apply(rangeAt(first.Port, first.Port))
	err := p.foreign(context.Background(), second)
	want := second.String() + " is not served, because it needs the same firewall mark as " + first.String() + ": use other ports for one of them"
	if err == nil || err.Error() != want {
		t.Errorf("error = %v, want %s", err, want)
	}
}
