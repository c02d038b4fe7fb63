// Package keepalived finds the virtual routers of a keepalived on this host. It only reads the
// statements that name routers. It skips lines that depend on conditions (@), and does not replace
// variables, so every router that it returns exists.
package keepalived
