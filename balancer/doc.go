// Package balancer is the model of vipd: what users write, what is compiled from it, and the pure function between.
//
// Users write services and endpoints (Service, Endpoint). Compiler turns them, with everything else that has a say
// (Env, Inputs), into frontends with their final backends (Frontend, Backend), which a dataplane applies without
// any further thought:
//
//	Inputs{Services, Endpoints, Overrides, Health, Drains, Holders}  --Compiler.Next(Env)-->  Desired{Frontends, Addresses, Problems}
//
// Every choice among endpoints is made here and nowhere else: weights, draining, backup, locality, address family,
// health, and which of two services gets an address that both claim. Compiler works only on what changed.
//
// The package does no I/O and reads no clock: everything with memory is an input. Draining and the holding of
// contested addresses are folds over what was compiled before, see Memory.
//
// Published values are immutable: they are shared by pointer, replaced and never edited.
package balancer
