// Package traffic sums the counts of dataplanes, including closed dataplanes. Its counters never
// decrease and never count anything twice. This also holds when another mode takes over, when a
// former mode serves again, or when another process continues.
//
// Begin is called when a dataplane starts to serve, and End when it is closed. Until the earlier
// dataplane is closed, both count. A dataplane that continues with the kernel objects of an earlier
// dataplane reads their counts again. Therefore the sums and their file record the share that these
// objects hold. The first reading subtracts the part that still exists. The rest belongs to removed
// objects.
//
// Each reading is saved before it is shown, so counters never decrease even if the process is
// killed. The next process does not know the counts of objects that were removed between the last
// reading and the kill. Saving each change would avoid this, but would add a file write to each
// apply.
//
// Counts belong to a port of a service (Counters of dataplane.Dataplane). The package does not know
// the names of metrics, and reads counters on demand.
package traffic
