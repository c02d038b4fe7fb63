// Command bench measures the cost of userspace mode next to a direct connection, HAProxy (mode tcp,
// with splice) and nginx (stream). It reports the proxy's CPU time per gigabyte, per new connection
// and per small request on a kept connection, with throughput and latency. In each of several
// rounds, all proxies run in turn, on loopback. A table shows the medians. If HAProxy or nginx is
// not installed, its column is missing.
//
// It also measures the daemon with a directory of ten thousand services: the start, the memory, and
// one changed file.
//
//	go run ./test/bench -vipd bin/vipd
package main
