// Package fake provides an in-memory dataplane and host, for tests of everything above them. Both
// are strict, and refuse the same changes as a kernel. Tests can make them fail for a seeded share
// of all calls, for chosen keys, or always.
//
// A Kernel outlives a process: pass the same Kernel to a second Dataplane and Host to simulate a
// restart, and change it directly to simulate drift.
//
//	k := fake.NewKernel()
//	engine := dataplane.NewEngine(dataplane.Options{Dataplane: fake.New(k), Host: fake.NewHost(k), Log: log})
package fake
