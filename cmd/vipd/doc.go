// Command vipd is the daemon: it gives a host stable virtual IPs that spread connections over healthy endpoints.
//
// main.go turns the command line and signals into calls of cmd/vipd/daemon, and its result into an exit code;
// dataplanes.go names the modes that this program has.
package main
