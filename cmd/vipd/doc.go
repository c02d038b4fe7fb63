// Command vipd is the daemon: it gives a host stable virtual IPs that spread connections over healthy endpoints.
//
// main.go turns the command line and signals into calls of cmd/vipd/daemon, and its result into an exit code. The modes
// that it has are those of cmd/internal/modes.
package main
