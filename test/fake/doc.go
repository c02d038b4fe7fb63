// Package fake is a dataplane and a host in memory, for tests of everything above them. They are
// strict: they refuse what a kernel refuses. And they can be made to fail: a seeded share of all
// calls, chosen keys, or everything.
//
// A Kernel is what outlives a process: give the same one to a second Dataplane and Host to play a
// restart, and change it behind their backs to play drift.
//
//	k := fake.NewKernel()
//	engine := dataplane.NewEngine(dataplane.Options{Dataplane: fake.New(k), Host: fake.NewHost(k), Log: log})
package fake
