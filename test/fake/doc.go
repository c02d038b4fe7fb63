// Package fake provides an in-memory dataplane and host, for tests of everything above them. They
// are strict: they refuse the same changes as a kernel. They can also fail: a seeded share of all
// calls, chosen keys, or everything.
//
// A Kernel outlives a process: pass the same Kernel to a second Dataplane and Host to simulate a
// restart, and change it directly to simulate drift.
//
//	k := fake.NewKernel()
//	engine := dataplane.NewEngine(dataplane.Options{Dataplane: fake.New(k), Host: fake.NewHost(k), Log: log})
package fake
