// Package daemon is vipd as a package: a test can start it in its own process.
//
//	d, err := daemon.New(daemon.Options{ConfigFile: "vipd.toml", Log: log, Modes: modes})
//	err = d.Run(ctx)
//
// A change passes through it like this: a store's source publishes a snapshot; the model, one goroutine that owns all
// inputs (services, overrides, drains, holders, facts about this node), compiles it and sets the result on the engine,
// another goroutine, which carries it out. The API, metrics and health read what both have last published and own
// nothing. What begins or ends is recorded in the journal, by whoever decides it (events.go has the words); it is not
// logged besides.
package daemon
