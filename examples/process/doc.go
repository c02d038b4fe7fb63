// Package process starts and stops programs, for the demo and for the tests of the examples. Each
// program runs in its own process group, so Ctrl-C reaches only the process that started it. The
// program's output is kept.
package process
