// Package daemon implements vipd. Tests can run it in their own process.
//
//	d, err := daemon.New(daemon.Options{ConfigFile: "vipd.toml", Log: log, Modes: modes})
//	err = d.Run(ctx)
//
// The package connects the parts, which are packages below internal (build.go). It opens the
// sockets (serve.go), hands them over to the next process (handover.go), and notifies systemd
// (notify.go). Package apiserver answers vipctl, and package web answers api.http.
//
// A change passes through the daemon in three steps. A store's source publishes a snapshot. The
// model compiles it in a goroutine that owns all inputs: services, overrides, drains, holders, and
// facts about this node. The engine, in another goroutine, applies the result. The API, metrics and
// health checks only read the states that the model and the engine publish.
//
// Each decision is recorded once in the history, by the component that makes it. Package
// transitions records the events that result from a new state or from the engine's work. The
// history logs them.
package daemon
