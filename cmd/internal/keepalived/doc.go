// Package keepalived finds the virtual routers of a keepalived on this host. It reads only the
// statements that name them. It skips lines that depend on conditions (@), and does not replace
// variables, so a router that it returns exists.
package keepalived
