// Command follower follows services in etcd with many sources in one process, as so many hosts
// would, and says when each saw what. It is a program of its own, and not a part of the tests, so
// that its time and memory are those of the sources: tests run under the race detector, which takes
// several times as much of both.
//
//	follower -endpoints http://127.0.0.1:2379 -prefix /vipd -sources 500
//
// It prints "first NANOSECONDS", the time until every source has the complete first state. Then it
// answers what is on its standard input, one line each:
//
//	reach REVISION   "reached", once every source has all that happened up to REVISION
//	samples          "samples N", and N lines "SOURCE REVISION TIME": the snapshots since the last such line, each with the
//	                 nanoseconds since 1970 when it was published
//	heap             "heap BYTES": what is in use, after a collection
//
// and ends with its standard input.
package main
