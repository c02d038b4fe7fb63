package host

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/xtables"
	"vipd/test/lab"
)

// BenchmarkVIPs measures how long it takes to add 2,000 VIPs. It also reports this duration divided
// by the duration of an ip batch that adds the same addresses.
func BenchmarkVIPs(b *testing.B) {
	lab.Require(b)
	lab.Need(b, "ip", "ipset", "iptables-nft")
	const vips = 2000
	l := lab.New(b)
	client := l.Add("client")
	l.Link(l.Host(), client, "10.1.0.1/24", "10.1.0.2/24", "fd01::1/64", "fd01::2/64")
	for _, family := range []string{"IPv4", "IPv6"} {
		b.Run(family, func(b *testing.B) {
			var frontends []*balancer.Frontend
			var lines strings.Builder
			for i := range vips {
				a := netip.AddrFrom4([4]byte{10, 96, byte(i / 250), byte(1 + i%250)})
				options := ""
				if family == "IPv6" {
					a = netip.AddrFrom16([16]byte{0: 0xfd, 2: 0x96, 14: byte(i / 250), 15: byte(1 + i%250)})
					options = " nodad preferred_lft 0"
				}
				frontends = append(frontends, frontend(netip.AddrPortFrom(a, 80).String()))
				fmt.Fprintf(&lines, "addr add %s/%d dev DEVICE%s scope host\n", a, a.BitLen(), options)
			}
			var batch, ours time.Duration
			for b.Loop() {
				batch += timeBatch(b, l, lines.String())
				o := DefaultOptions()
				o.RunDir, o.Variant, o.StrictARP, o.Mode = b.TempDir(), xtables.NFT, false, dataplane.Needs{Forward: true, LocalIn: true}
				h, err := New(o)
				check(b, err)
				first := desired(frontends[0]) // the first round creates the device and the guard
				check(b, errors.Join(h.Prepare(b.Context(), first), h.Finish(b.Context(), first.Frontends)))
				all := desired(frontends...)
				started := time.Now()
				check(b, errors.Join(h.Prepare(b.Context(), all), h.await()))
				ours += time.Since(started)
				check(b, errors.Join(h.Release(b.Context()), h.Close()))
			}
			b.ReportMetric(batch.Seconds()*1000/float64(b.N), "ms/batch")
			b.ReportMetric(ours.Seconds()*1000/float64(b.N), "ms/vipd")
			b.ReportMetric(float64(ours)/float64(batch), "x")
		})
	}
}

func check(b *testing.B, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// timeBatch adds addresses to a new device with an ip batch, and removes the device. It returns how
// long the batch took.
func timeBatch(b *testing.B, l *lab.Lab, lines string) time.Duration {
	b.Helper()
	device := "batched0"
	if exec.Command("ip", "link", "add", device, "type", "dummy").Run() == nil {
		l.Host().Exec("ip", "link", "set", device, "up")
	} else { // like a Host, use lo if the kernel has no dummy devices
		device = "lo"
	}
	lines = strings.ReplaceAll(lines, "DEVICE", device)
	ip := exec.Command("ip", "-batch", "-")
	ip.Stdin = strings.NewReader(lines)
	started := time.Now()
	out, err := ip.CombinedOutput()
	took := time.Since(started)
	if err != nil || len(out) > 0 {
		b.Fatalf("ip: %v: %s", err, out)
	}
	if device == "lo" {
		undo := exec.Command("ip", "-batch", "-")
		undo.Stdin = strings.NewReader(strings.ReplaceAll(strings.ReplaceAll(lines, "addr add", "addr del"), " nodad preferred_lft 0", ""))
		if out, err := undo.CombinedOutput(); err != nil {
			b.Fatalf("ip: %v: %s", err, out)
		}
	} else {
		l.Host().Exec("ip", "link", "del", device)
	}
	return took
}
