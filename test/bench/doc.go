// Command bench measures the cost of userspace mode next to a direct connection, HAProxy (mode tcp,
// with splice) and nginx (stream). It reports the proxy's CPU time per gigabyte, per new connection
// and per small request on a kept connection, with throughput and latency. All proxies run in turn
// in one run, several rounds, on loopback. A table has the medians. If HAProxy or nginx is not
// installed, its column is missing.
//
// It also measures the daemon on a directory of ten thousand services: start, memory, and one
// changed file.
//
//	go run ./test/bench -vipd bin/vipd
package main
