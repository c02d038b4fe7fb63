// Package traffic sums the counts of dataplanes, including closed ones. No counter goes back or
// counts twice when a mode takes over from another, when a mode returns, and when another process
// continues.
//
// Begin is called when a dataplane takes over, and End when one is closed; in between both count. A
// dataplane that continues with the kernel objects of an earlier one reads their counts again. The
// sums, and their file, therefore record how much of them these objects hold. The first reading
// subtracts the part that still exists; the rest belongs to removed objects.
//
// Each reading is saved before it is shown, so even a killed process takes nothing back. The next
// process misses the counts of objects that were removed between the last reading and the kill. To
// save each change would put a file in the path of each apply, for a few seconds of counts after a
// crash.
//
// Counts belong to a port of a service (Counters of dataplane.Dataplane). The package knows no
// metrics; it reads counters on demand.
package traffic
