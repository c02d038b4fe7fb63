// Command vipd is the daemon: it gives a host stable virtual IPs that spread connections over
// healthy endpoints.
//
// main.go converts the command line and signals to calls of package daemon, and their result to an
// exit code. Package cmd/internal/modes defines the modes.
package main
