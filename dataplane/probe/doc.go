// Package probe runs health checks, which package health schedules and evaluates without any I/O.
// Only programs import this package.
//
// A Probe runs the check in one definition against any address. A check finishes within the
// definition's timeout, reads at most 64 KiB, and returns a health.Result. The result's text names
// the cause of a failure, for example a refused connection, lost packets, a port that accepts
// connections but stays silent, a truncated or endless answer, or a certificate that has expired or
// has another name.
//
//	p := newProbe(health.Subject{Proto: balancer.TCP, Health: &balancer.Health{Type: balancer.HTTPHealth, ...}}, system)
//	result := p.Check(ctx, netip.MustParseAddrPort("192.168.1.11:8080"))     // "answered 200 OK"
//	result, exchange := p.Exchange(ctx, at)                                   // with a transcript
//
// A Runner checks many targets periodically:
//
//	Runner.Set(wanted) -> one entry per distinct (address, check) -> heap by due time -> at most InFlight checks at once
//	                                                                                        |
//	Options.Report(Report{Verdicts, Changes})  <- batch <- health.State.After <- result ----+
//
// A target that starts to change raises an alarm: some other targets at its address, and some with
// the same check, are checked early. If their state also starts to change, they raise further
// alarms. So a failed host or rack is found quickly, and a single flapping target causes few
// additional checks.
//
// One mutex guards the entries, the heap and the verdicts. Each check runs in its own goroutine, so
// a check that hangs does not delay others. Exec checks have their own queue. Targets that share an
// entry change together.
//
// The package neither decides which targets are checked (health.Targets does) nor chooses backends.
package probe
