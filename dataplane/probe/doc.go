// Package probe runs health checks. It does the I/O for package health, and only the programs import it.
//
// A Probe does what one definition asks for, against any address. One check is one conversation: it connects, speaks
// at most as long as the definition's timeout, reads at most 64 KiB, and comes to a health.Result whose text says what was
// seen. Each way to fail has its own words: a refused connection, packets that vanish, a port that takes connections
// and says nothing, an answer that stops in the middle or never ends, a certificate that has expired or is for another
// name.
//
//	p := probe.New(health.Subject{Proto: balancer.TCP, Health: &balancer.Health{Type: balancer.HTTPHealth, ...}})
//	result := p.Check(ctx, netip.MustParseAddrPort("192.168.1.11:8080"))     // "answered 200 OK"
//	result, exchange := p.Exchange(ctx, at)                                   // and what was sent and received
//
// A Runner does the checks of many targets over and over:
//
//	Runner.Set(wanted) -> one entry per distinct (address, check) -> heap by due time -> at most InFlight checks at once
//	                                                                                        |
//	Options.Report(Report{Verdicts, Changes})  <- batch <- health.State.After <- result ----+
//
// A target that begins to turn raises an alarm: some others of its address, and some with the same check, are checked at once.
// Those that turn as well do the same. So a host that died, or a rack, is found out in a moment, and a target that flaps
// alone costs little.
//
// One goroutine owns the entries, the heap and the verdicts. Checks run in their own goroutines, so that one that
// hangs delays no other, and programs wait in their own queue. Many targets may share an entry; they change together,
// and what changes within a moment is reported together.
//
// What it does not do: decide who is to be checked (health.Targets does), or choose backends by what it finds.
package probe
