// Command bench measures what userspace mode costs beside a direct connection, HAProxy (mode tcp,
// with splice) and nginx (stream): CPU time of the proxy per gigabyte, per new connection and per
// small request on a kept connection, with throughput and latency. All run in turn in one run,
// several rounds, on loopback; the medians are printed as a table. Where HAProxy or nginx is not
// installed, its column is missing.
//
// It also measures the daemon on a folder of ten thousand services: start, memory, and one changed
// file.
//
//	go run ./test/bench -vipd bin/vipd
package main
