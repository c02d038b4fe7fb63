// Package daemon is vipd as a package: a test can start it in its own process.
//
//	d, err := daemon.New(daemon.Options{ConfigFile: "vipd.toml", Log: log, Modes: modes})
//	err = d.Run(ctx)
//
// It puts the parts together, each of which is a package below internal that knows only what it was given (build.go), opens the
// sockets (serve.go), hands them over to the next process (handover.go), and notifies systemd (notify.go). Package apiserver answers
// vipctl, package web answers api.http.
//
// A change passes through it like this: a store's source publishes a snapshot; the model, one goroutine that owns all
// inputs (services, overrides, drains, holders, facts about this node), compiles it and sets the result on the engine,
// another goroutine, which carries it out. The API, metrics and health read what both have last published (view) and own
// nothing. What begins or ends is recorded in the history, once, by the part that decides it; what follows from a state, or from
// the engine's work, by record. It is not logged besides.
package daemon
