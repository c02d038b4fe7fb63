package ipvs

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/dataplane/internal/ipvsnl"
)

func TestRender(t *testing.T) {
	sticky := web(key(0), 1, 2)
	sticky.AffinityTimeout, sticky.AffinityPrefix, sticky.Scheduler = 1500*time.Millisecond, 20, balancer.SourceHash
	bounded := with(web(key(1), 1, 2), 2, func(b *balancer.Backend) { b.Weight, b.MaxConnections = 65535, 10 })
	bounded.Scheduler = balancer.Random
	direct := drained(web(key(3), 1, 2, 3), 2, balancer.Draining, time.Time{})
	direct.Forward, direct.Scheduler = balancer.DRForward, balancer.Maglev
	tunnel := web(key(2), 1)
	tunnel.Forward, tunnel.Scheduler = balancer.TunnelForward, balancer.NeverQueue
	ranged := web(balancer.Key{Addr: key(3).Addr, Port: balancer.NewPortRange(8080, 8089), Proto: balancer.TCP}, 1)
	got := Render([]*balancer.Frontend{direct, bounded, sticky, web(key(6)), tunnel, ranged})
	want := strings.TrimLeft(`
-A --sctp-service 10.96.0.0:80 -s nq
-a --sctp-service 10.96.0.0:80 -r 10.2.0.1:8080 -i -w 1
-A -t 10.96.0.0:80 -s sh -p 2 -M 255.255.240.0 -b sh-fallback
-a -t 10.96.0.0:80 -r 10.2.0.1:8080 -m -w 1
-a -t 10.96.0.0:80 -r 10.2.0.2:8080 -m -w 1
-A -u 10.96.0.0:80 -s wrr
-a -u 10.96.0.0:80 -r 10.2.0.1:8080 -m -w 1
-a -u 10.96.0.0:80 -r 10.2.0.2:8080 -m -w 65535 -x 10 -y 10
-A -t [fd00::]:80 -s mh -b mh-fallback
-a -t [fd00::]:80 -r [fd02::1]:8080 -g -w 1
-a -t [fd00::]:80 -r [fd02::3]:8080 -g -w 1
-A -f MARK -6 -s wrr
-a -f MARK -6 -r [fd02::1]:0 -m -w 1
`, "\n")
	want = strings.ReplaceAll(want, "MARK", fmt.Sprint(ipvsnl.Mark(ranged.Key)))
	if got != want {
		t.Errorf("Render =\n%s, want\n%s", got, want)
	}
}

// TestSourceHashWeights scales weights to the table size of the scheduler sh. The proportions must
// be preserved, and each endpoint must have at least one bucket.
func TestSourceHashWeights(t *testing.T) {
	for _, c := range []struct{ weights, want []int }{
		{[]int{1, 1, 1}, []int{1, 1, 1}},
		{[]int{100, 100, 100}, []int{1, 1, 1}},
		{[]int{100, 200, 300}, []int{1, 2, 3}},
		{[]int{65535, 1}, []int{255, 1}},
		{[]int{500, 301, 200}, []int{127, 76, 51}},
	} {
		f := web(key(0))
		f.Scheduler = balancer.SourceHash
		for i, w := range c.weights {
			f.Backends = append(f.Backends, balancer.Backend{Addr: address(f.Key, i), State: balancer.Active, Weight: w})
		}
		s := server{key: f.Key, front: f}
		_, all := s.target(time.Time{})
		sum := 0
		for i, d := range all {
			if d.Weight != c.want[i] {
				t.Errorf("weights %v: scaled weight of destination %d = %d, want %d", c.weights, i, d.Weight, c.want[i])
			}
			sum += d.Weight
		}
		if sum > sourceHashBuckets {
			t.Errorf("weights %v: sum of the scaled weights = %d, want at most the table size", c.weights, sum)
		}
	}
}
