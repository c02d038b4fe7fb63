// Command follower follows services in etcd with many sources in one process, like as many hosts,
// and reports when each received each change. It is a separate program, so its time and memory
// belong to the sources: tests run under the race detector, which needs several times as much of
// both.
//
//	follower -endpoints http://127.0.0.1:2379 -prefix /vipd -sources 500
//
// It prints "first NANOSECONDS", the time until every source has the complete first state. Then it
// answers requests on its standard input, one per line:
//
//	reach REVISION   "reached", once every source has all that happened up to REVISION
//	samples          "samples N", and N lines "SOURCE REVISION TIME": the snapshots since the last such line, each with the
//	                 nanoseconds since 1970 when it was published
//	heap             "heap BYTES": what is in use, after a collection
//
// and ends with its standard input.
package main
