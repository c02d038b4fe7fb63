// Command vipd is the daemon: it gives a host stable virtual IPs that spread connections over
// healthy endpoints.
//
// main.go turns the command line and signals into calls of cmd/vipd/daemon, and the result into an
// exit code. Package cmd/internal/modes has the modes.
package main
