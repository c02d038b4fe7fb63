// Package process starts programs and ends them, for the demo and for the tests of the examples: each in a process
// group of its own, so that Ctrl-C reaches the one who started them and not all at once, with its output kept.
package process
