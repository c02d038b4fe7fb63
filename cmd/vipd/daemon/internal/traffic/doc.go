// Package traffic sums the counts of dataplanes, including closed dataplanes. Its counters never
// decrease or count twice when a mode replaces another, when a mode returns, or when another
// process continues.
//
// Begin is called when a dataplane starts to serve, and End when it is closed; between a Begin and
// the earlier dataplane's End, both count. A dataplane that continues with the kernel objects of an
// earlier dataplane reads their counts again. Therefore the sums and their file record the share
// that these objects hold. The first reading subtracts the part that still exists; the rest belongs
// to removed objects.
//
// Each reading is saved before it is shown, so counters never decrease even if the process is
// killed. The next process misses the counts of objects that were removed between the last reading
// and the kill. Saving each change would delay each apply by a file write, for a few seconds of
// counts after a crash.
//
// Counts belong to a port of a service (Counters of dataplane.Dataplane). The package knows no
// metrics; it reads counters on demand.
package traffic
