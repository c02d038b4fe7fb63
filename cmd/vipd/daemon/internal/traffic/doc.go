// Package traffic sums the counts of dataplanes, including closed dataplanes. Its counters never
// decrease and never count anything twice. This also holds when another mode takes over, when vipd
// switches back to a mode, or when a new process takes over.
//
// Begin is called when a dataplane starts to serve, and End when it is closed. Until the previous
// dataplane is closed, both count. A dataplane that continues with the kernel objects of a previous
// dataplane reads their counts again. Therefore the sums and their file record the share that these
// objects hold. The first reading subtracts the part that still exists. The remaining counts belong
// to removed objects.
//
// Each reading is saved before it is shown, so counters never decrease even if the process is
// killed. The next process does not know the counts of objects that were removed between the last
// reading and the kill. Saving each change would avoid this, but would add a file write to each
// apply.
//
// Counts are kept per port of a service (see Counters in dataplane.Dataplane). The package does not
// know the names of metrics, and reads counters on demand.
package traffic
