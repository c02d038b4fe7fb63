// Package wake wakes loops that poll shared state. A Signal carries no value: the woken loop reads
// the current state. Sleep is for loops that poll at intervals.
package wake
