// Package hooks runs the programs that the configuration names for events of the history.
//
//	history --> one goroutine per hook, with its own position in the history --> one run of the program per event, in order
//
// A slow or hanging hook delays neither vipd nor other hooks. Each run has a timeout. If too many
// events wait for a hook, the oldest are dropped. The programs run like programs of exec health
// checks (dataplane/probe/command). Failures are logged but are not events. Otherwise, a hook for
// problems would run when it failed itself.
package hooks
