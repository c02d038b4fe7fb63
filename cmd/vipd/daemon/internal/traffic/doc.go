// Package traffic sums up what dataplanes have counted, also those that are gone, so that no counter goes back or counts twice:
// when a mode takes over from another, when a mode comes back, and when another process goes on with what this one left.
//
// Begin is called when a dataplane takes over, End when one is closed; in between both count. A dataplane that goes on with kernel
// objects of an earlier one reads what those have counted again. So it is remembered with the sums, in a file as well, how much of
// them the kernel has. At the first reading, as much of it as is still there is taken off the sums: the rest is of objects that are
// gone. Every reading is in the file before it is shown, so that a process that is killed takes back nothing either. What it then
// misses is what objects had counted since the last reading that went before the kill. To write that down with each change would put
// a file on the path of an apply, for counts of some seconds at a crash: it is not done.
//
// What is counted is of a port of a service (Counters of dataplane.Dataplane). The package knows no metrics: it reads counters when
// it is asked.
package traffic
