// Command follower follows services in etcd with many sources in one process, which simulate many
// hosts. It reports when each source received each change. It is a separate program because tests
// run under the race detector, which would increase the measured time and memory.
//
//	follower -endpoints http://127.0.0.1:2379 -prefix /vipd -sources 500
//
// It prints "first NANOSECONDS", the time until every source has the complete first state. Then it
// answers requests on its standard input, one per line:
//
//	reach REVISION   "reached", once every source has all changes up to REVISION
//	samples          "samples N", and N lines "SOURCE REVISION TIME": the snapshots since the last such request, each with the
//	                 nanoseconds since 1970 when it was published
//	heap             "heap BYTES": the memory in use after a garbage collection
//
// It exits at the end of its standard input.
package main
