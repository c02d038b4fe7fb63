// Package counters sums up what dataplanes have counted, also those that are gone, so that no counter of this process ever goes
// back when a mode takes over from another.
//
// Begin is called when a dataplane takes over, End when one is closed; in between both count. What is counted is of a port of
// a service (Counters of dataplane.Dataplane). The package knows no metrics and no time: it reads counters when it is asked.
package counters
