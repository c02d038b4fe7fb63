// Package process starts and ends programs, for the demo and for the tests of the examples. Each
// runs in its own process group, so that Ctrl-C reaches only its starter. Its output is kept.
package process
