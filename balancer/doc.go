// Package balancer is the model of vipd: the definitions that users write, the compiled state, and
// the pure function between them.
//
// Users write services and endpoints ([Service], [Endpoint]). [Compiler] turns them into frontends
// with their final backends ([Frontend], [Backend]). [Env] and [Inputs] contain everything else
// that affects the result. A dataplane applies the frontends without further decisions:
//
//	Inputs{Services, Endpoints, Overrides, Health, Drains, Holders}  --Compiler.Next(Env)-->  Desired{Frontends, Addresses, Problems}
//
// This package makes all choices among endpoints: weights, draining, backup, locality, address
// family, health, and which of two services gets a contested address. Compiler works only on the
// differences.
//
// The package does no I/O and reads no clock. State that outlives a compilation, such as drains and
// the holders of contested addresses, is an input (see [Memory]).
//
// Published values are immutable: goroutines share them by pointer, and replace them instead of
// changing them.
package balancer
