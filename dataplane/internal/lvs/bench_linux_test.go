package lvs

import (
	"fmt"
	"os/exec"
	"strings"
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

// BenchmarkIPVSAll loads and reads many virtual servers of ten destinations, beside ipvsadm.
func BenchmarkIPVSAll(b *testing.B) {
	k := kernel(b)
	lab.Need(b, "ipvsadm")
	for _, n := range []int{2000, 10000} {
		ops := fleet(n, 10)
		text := lines(ops)
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			run := func(what string, f func()) { b.ReportMetric(float64(took(f).Milliseconds()), what+"-ms") }
			for b.Loop() {
				run("restore", func() {
					cmd := exec.Command("ipvsadm", "--restore")
					cmd.Stdin = strings.NewReader(text)
					if out, err := cmd.CombinedOutput(); err != nil {
						b.Fatalf("%v: %s", err, out)
					}
				})
				run("clear", func() {
					if err := empty(b.Context(), k); err != nil {
						b.Fatal(err)
					}
				})
				run("Do", func() { do(b, k, ops...) })
				run("save", func() {
					if out, err := exec.Command("ipvsadm", "-Sn").Output(); err != nil || strings.Count(string(out), "\n") != len(ops) {
						b.Fatalf("%d lines, %v", strings.Count(string(out), "\n"), err)
					}
				})
				run("Services", func() {
					if all, err := k.Services(b.Context()); err != nil || len(all) != n {
						b.Fatalf("%d, %v", len(all), err)
					}
				})
				run("Table", func() {
					if all, err := k.Table(b.Context()); err != nil || len(all) != n {
						b.Fatalf("%d, %v", len(all), err)
					}
				})
				run("Destinations", func() {
					for _, o := range ops {
						if o.Verb == AddService {
							if all, err := k.Destinations(b.Context(), o.Service.Key); err != nil || len(all) != 10 {
								b.Fatalf("%d, %v", len(all), err)
							}
						}
					}
				})
				run("Info", func() {
					for range 100 {
						if _, err := k.Info(b.Context()); err != nil {
							b.Fatal(err)
						}
					}
				})
				if err := empty(b.Context(), k); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
