package ipvsnl

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"vipd/test/lab"
)

// BenchmarkIPVSChange is what one change costs, alone and in batches.
func BenchmarkIPVSChange(b *testing.B) {
	k := kernel(b)
	ops := fleet(100, 9)
	edits := make([]Op, 0, len(ops))
	for _, o := range ops {
		if o.Verb == AddDestination {
			o.Verb = EditDestination
			edits = append(edits, o)
		}
	}
	do(b, k, ops...)
	for _, n := range []int{1, 10, 128, 900} {
		b.Run(fmt.Sprint(n, " at once"), func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				do(b, k, edits[:n]...)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/change")
		})
	}
}

// BenchmarkIPVSAll loads and reads many virtual servers of ten destinations, in milliseconds, beside ipvsadm, which works
// in a namespace of its own: a kernel looks for a destination that is added among all those of the namespace that were
// deleted in the last minute. For the same reason it is to run once: -benchtime 1x.
func BenchmarkIPVSAll(b *testing.B) {
	k := kernel(b)
	lab.Need(b, "ipvsadm")
	for _, n := range []int{2000, 10000} {
		ops := fleet(n, 10)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			run := func(what string, f func()) { b.ReportMetric(float64(took(f).Microseconds())/1000, what) }
			run("Do", func() { do(b, k, ops...) })
			run("Services", func() { enough[ServiceState](b, n)(k.Services(b.Context())) })
			run("Table", func() {
				if all, err := k.Table(b.Context()); err != nil || len(all) != n {
					b.Fatalf("%d, %v", len(all), err)
				}
			})
			run("Destinations", func() {
				for _, o := range ops {
					if o.Verb == AddService {
						enough[DestinationState](b, 10)(k.Destinations(b.Context(), o.Service.Key))
					}
				}
			})
			run("Services4", func() {
				if _, err := k.Services4(b.Context()); err != nil {
					b.Fatal(err)
				}
			})
			run("again", func() { // what is there already
				if errs := k.Do(b.Context(), ops); len(errs) != len(ops) {
					b.Fatal("no errors")
				}
			})
			run("delete", func() {
				if err := empty(b.Context(), k); err != nil {
					b.Fatal(err)
				}
			})
			saved := filepath.Join(b.TempDir(), "saved")
			if err := os.WriteFile(saved, []byte(lines(ops)), 0o600); err != nil {
				b.Fatal(err)
			}
			out, err := exec.Command("unshare", "-n", "bash", "-c", `t() { date +%s%6N; }
				ip link set lo up && t && ipvsadm --restore <"$0" && t && ipvsadm -Sn >/dev/null && t`, saved).CombinedOutput()
			if err != nil {
				b.Fatalf("%v: %.500s", err, out)
			}
			var start, loaded, read float64
			if _, err := fmt.Sscan(string(out), &start, &loaded, &read); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric((loaded-start)/1000, "ipvsadm--restore")
			b.ReportMetric((read-loaded)/1000, "ipvsadm-Sn")
		})
	}
}

// enough wants a list of that length.
func enough[T any](b *testing.B, n int) func([]T, error) {
	return func(all []T, err error) {
		b.Helper()
		if err != nil || len(all) != n {
			b.Fatalf("%d, %v", len(all), err)
		}
	}
}
